"""The static program of `make static`, with the C library of musl: it does the same as the other one."""

import platform

import pytest

from memlane_lab.common.errors import LabError
from memlane_lab.host import rust
from tests.end_to_end.conftest import Builder
from tests.end_to_end.lan import HOST, UML, Plan

pytestmark = [pytest.mark.real, pytest.mark.prove]


def _static() -> str:
    program = rust.built_in().parent / f"package/build/{platform.machine()}-unknown-linux-musl/release/memlane"
    if not program.exists():
        raise LabError(f"{program} is missing: run make static")
    return str(program)


def test_the_static_program_serves_guests_and_namespaces_and_hands_over(
    build: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its sandbox, with a group that is looked up by its name, a TAP in a namespace, and a takeover."""
    monkeypatch.setenv("MEMLANE", _static())
    guest = Plan(UML, stated={"access": {"group": "daemon"}})
    lan = build(guest, guest, HOST, HOST)
    ends = range(4)
    for source in ends:
        lan.reach(source, (source + 1) % 4)
    lan.switch.take_over()
    for source in ends:
        lan.reach(source, (source + 2) % 4)
