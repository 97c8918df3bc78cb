"""Fixtures and grouping of all tests of the lab."""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest_plugins = ["memlane_lab.bed.testing"]

# A job in a shell's background ignores interrupts, and so would the labs that are interrupted here.
signal.signal(signal.SIGINT, signal.default_int_handler)

_REPEATS = {
    "tests/end_to_end/test_host.py": (
        "test_a_file_arrives_with_any_mix[no-scatter-tcg]",
        "test_a_file_arrives_with_any_mix[no-tso-tcg]",
        "test_a_file_arrives_with_any_mix[no-tso-gso-tcg]",
    ),
    "tests/end_to_end/test_large_frames.py": ("test_gso_frames_pass_unsegmented[uml-tcg-8000]",),
    "tests/end_to_end/test_offloads.py": (
        "test_a_file_arrives_with_any_mix[uml-tcg-all-no-gro]",
        "test_a_file_arrives_with_any_mix[uml-tcg-no-scatter-no-gro]",
        "test_a_file_arrives_with_any_mix[uml-tcg-no-checksum-all]",
        "test_a_file_arrives_with_any_mix[uml-tcg-no-tso-no-gro]",
        "test_a_file_arrives_with_any_mix[uml-tcg-no-tso-gso-all]",
    ),
}
"""Combinations of parameters, by file, that others show with this guest or with another: `make prove` runs them."""


@pytest.hookimpl(tryfirst=True)  # xdist and the selection by marks read them in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keeps tests that share a bed in one process of pytest-xdist (`-n 2 --dist loadgroup`); others go to any.

    Those that take longest go first: at the end, one process would run them while the others have nothing left to do.
    """
    items.sort(key=lambda item: item.get_closest_marker("longest") is None)
    for item in items:
        if item.name in _REPEATS.get(item.location[0], ()):
            item.add_marker(pytest.mark.prove)
        if group := _group(item):
            item.add_marker(pytest.mark.xdist_group(group))


def _group(item: pytest.Item) -> str | None:
    """The shared bed, named by its file, its fixture (`shared_...`) and that fixture's parameter.

    Tests that boot nothing stay together by file, because each of them is quicker than its way to a process.
    """
    file = item.location[0]
    if not isinstance(item, pytest.Function) or not item.get_closest_marker("real"):
        return file
    shared = next((name for name in item.fixturenames if name.startswith("shared_")), None)
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    return f"{file}:{shared}:{parameters.get(shared, '')}" if shared else None


@pytest.fixture
def own_runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A place for run folders apart from that of other labs on this machine, which would remove leftovers of tests."""
    folder = Path(f"/run/mltest-{os.getpid()}")
    monkeypatch.setenv("MEMLANE_LAB_RUNS", str(folder))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
