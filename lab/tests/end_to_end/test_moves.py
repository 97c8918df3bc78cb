"""An address that moves between guests under anti-spoofing is reached at once, as when VRRP moves it."""

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from scapy.layers.inet import ICMP, IP
from scapy.layers.l2 import ARP, Ether
from scapy.utils import rdpcap

from memlane_lab.bed import bed
from memlane_lab.common.wait import until
from memlane_lab.host import ports
from memlane_lab.host.ports import GuestKind
from memlane_lab.host.session import Session
from memlane_lab.paths.memlane import program
from tests.end_to_end.conftest import Builder
from tests.end_to_end.lan import TCG, UML, Lan, Plan

pytestmark = [pytest.mark.real, pytest.mark.timed]

_SHARED = "10.77.9.9"
_REACHED = 0.1
"""Seconds from the new owner's announcement until the client has an answer of it."""
_MOVES = 6
"""A machine that is busy with other things keeps a guest from running for longer, now and then."""


def _plan(kind: GuestKind, index: int) -> Plan:
    addresses: list[str] = [bed.ipv4(index), bed.ipv6(index)]
    stated: dict[str, Any] = {"mac": ports.mac(index + 1), "addresses": addresses, "anti-spoof": "all"}
    return Plan(kind, stated=stated | ({"allowed": [{"ip": _SHARED}]} if index else {}))


@contextmanager
def _captured(lan: Lan, file: Path) -> Iterator[None]:
    """Writes the frames at the client's port into the file."""
    binary = program()
    assert binary is not None
    command: list[str | Path] = [binary, "capture", lan.switch.file, bed.name(0), "-w", file, "-f", "arp or icmp"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as capture:
        assert capture.stderr is not None
        assert "has begun" in capture.stderr.readline()
        yield
        capture.send_signal(signal.SIGINT)


def _move(lan: Lan, file: Path, source: int, target: int) -> float:
    """Moves the address; returns the seconds from its announcement until the client has an answer from there."""
    own = ports.mac(target + 1)
    with _captured(lan, file):
        lan.guests[source].run(f"ip address del {_SHARED}/16 dev net0").check()
        lan.guests[target].run(f"ip address add {_SHARED}/16 dev net0 && arping -U -c 1 -I net0 {_SHARED}").check()
        until(
            lambda: own in lan.guests[0].run(f"ip neighbour show {_SHARED}").stdout,
            timeout=30,
            what="the client to know",
        )
        lan.wait_answer(0, _SHARED)
    frames = [frame for frame in rdpcap(str(file)) if isinstance(frame, Ether) and frame.src == own]
    announced = next(float(frame.time) for frame in frames if ARP in frame and frame[ARP].psrc == _SHARED)
    answers = (float(frame.time) for frame in frames if ICMP in frame and frame[IP].src == _SHARED)
    return next(at for at in answers if at >= announced) - announced


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
    while len(taken) < _MOVES and not any(seconds < _REACHED for seconds in taken):
        source, target = (1, 2) if len(taken) % 2 == 0 else (2, 1)
        taken.append(_move(lan, session.folder / f"move-{len(taken)}.pcapng", source, target))
    asks.kill()
    print(f"reached {', '.join(f'{1000 * seconds:.1f}' for seconds in taken)} ms after the announcement")
    assert min(taken) < _REACHED, taken
