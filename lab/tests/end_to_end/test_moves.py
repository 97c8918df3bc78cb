"""An address that moves between guests under anti-spoofing is reached at once, as when VRRP moves it."""

import statistics
from pathlib import Path
from typing import Any

import pytest

from memlane_lab.bed import bed
from memlane_lab.common.wait import until
from memlane_lab.host import ports
from memlane_lab.host.ports import GuestKind
from memlane_lab.host.session import Session
from tests.end_to_end.captured import captured, seconds_to_answer
from tests.end_to_end.conftest import Builder
from tests.end_to_end.lan import TCG, UML, Lan, Plan

pytestmark = [pytest.mark.real, pytest.mark.timed]

_SHARED = "10.77.9.9"
_REACHED = 0.1
"""Seconds from the new owner's announcement until the client has an answer of it."""
_LEAST_MOVES, _MOST_MOVES = 5, 11
"""A machine that is busy with other things keeps a guest from running for longer, now and then: most moves count."""


def _plan(kind: GuestKind, index: int) -> Plan:
    addresses: list[str] = [bed.ipv4(index), bed.ipv6(index)]
    stated: dict[str, Any] = {"mac": ports.mac(index + 1), "addresses": addresses, "anti-spoof": "all"}
    return Plan(kind, stated=stated | ({"allowed": [{"ip": _SHARED}]} if index else {}))


def _move(lan: Lan, file: Path, source: int, target: int) -> float:
    """Moves the address; returns the seconds from its announcement until the client has an answer from there."""
    own = ports.mac(target + 1)
    with captured(lan.switch, bed.name(0), file):
        lan.guests[source].run(f"ip address del {_SHARED}/16 dev net0").check()
        lan.guests[target].run(f"ip address add {_SHARED}/16 dev net0 && arping -U -c 1 -I net0 {_SHARED}").check()
        until(
            lambda: own in lan.guests[0].run(f"ip neighbour show {_SHARED}").stdout,
            timeout=30,
            what="the client to know",
        )
        lan.wait_answer(0, _SHARED)
    return seconds_to_answer(file, own, _SHARED)


@pytest.mark.parametrize(
    "kinds", [pytest.param((UML,) * 3, id="uml"), pytest.param((UML, UML, TCG), id="tcg", marks=pytest.mark.prove)]
)
def test_an_address_that_moves_between_guests_is_reached_at_once(
    session: Session, build: Builder, kinds: tuple[GuestKind, ...]
) -> None:
    lan = build(*(_plan(kind, index) for index, kind in enumerate(kinds)))
    lan.guests[1].run(f"ip address add {_SHARED}/16 dev net0").check()
    lan.wait_answer(0, _SHARED)
    asks = lan.guests[0].spawn(["ping", "-n", "-i", "0.01", _SHARED])
    taken: list[float] = []
    while len(taken) < _LEAST_MOVES or (statistics.median(taken) >= _REACHED and len(taken) < _MOST_MOVES):
        source, target = (1, 2) if len(taken) % 2 == 0 else (2, 1)
        taken.append(_move(lan, session.folder / f"move-{len(taken)}.pcapng", source, target))
    asks.kill()
    print(f"reached {', '.join(f'{1000 * seconds:.1f}' for seconds in taken)} ms after the announcement")
    assert statistics.median(taken) < _REACHED, taken
