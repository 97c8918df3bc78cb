"""Neighbours of a guest: limits hold, and a guest that stands still costs no other anything."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from memlane_lab.bed import bed
from memlane_lab.common.wait import until
from memlane_lab.guests import Guest
from memlane_lab.paths.memlane import Memlane
from tests.end_to_end.conftest import Builder
from tests.end_to_end.lan import UML, Lan, Plan
from tests.end_to_end.transfer import STEADY, Flow

pytestmark = [pytest.mark.real, pytest.mark.timed]

_RATE, _PACKETS = 100e6, 10e3
_MEASURED = 5.0
"""Seconds over which a limit must hold."""
_AT_ONCE = 0.1
"""Seconds within which traffic resumes."""
_PAUSE = 10.0
"""Seconds that a guest stands still."""
_DATAGRAM, _WINDOW = 1400, 64 << 10
"""Bytes of the load's datagrams, and of the buffer that its sender asks for; Linux grants twice as much."""
_WAITING = 2 * _WINDOW // _DATAGRAM
"""Datagrams that may wait for a guest which stands still, wherever they do."""
_TRIES = 10
"""A machine that is busy with other things keeps guests from sending all that they may."""


@pytest.mark.parametrize(
    ("limit", "options", "counter", "expected"),
    [
        ({"rate": "100Mbit"}, ["--length", "128K"], "transmit-bytes", _RATE / 8),
        # A guest of this kind sends little more than 100 Mbit/s, or 10 000 packets a second, in datagrams.
        ({"rate": "50Mbit"}, ["--udp", "--length", "1400", "--bitrate", "0"], "transmit-bytes", _RATE / 2 / 8),
        ({"packets": 10_000}, [], "transmit-frames", _PACKETS),
        ({"packets": 5_000}, ["--udp", "--length", "100", "--bitrate", "0"], "transmit-frames", _PACKETS / 2),
    ],
    ids=["tcp-rate", "udp-rate", "tcp-packets", "udp-packets"],
)
def test_a_limit_holds(
    build: Builder, limit: dict[str, object], options: list[str], counter: str, expected: float
) -> None:
    """Within 2 % over 5 s."""
    lan = build(Plan(UML, stated={"transmit": limit}), UML)
    if "packets" in limit:
        lan.guests[0].run("ethtool -K net0 tso off gso off").check()
    with _flow(lan, 0, 1, *options):
        _await_flowing(lan, "b")
        seen: list[_Speed] = []
        while len(seen) < _TRIES and not any(speed.most > 0.98 * expected for speed in seen):
            seen.append(_speed(lan, "a", counter))
    assert max(speed.most for speed in seen) > 0.98 * expected, seen
    assert max(speed.least for speed in seen) < 1.02 * expected, seen


def test_a_guest_that_stands_still_costs_nobody_anything(build: Builder) -> None:
    """Stopped for 10 s under load: others go on as before, the switch's memory stays, and traffic resumes at once."""
    lan = build(UML, UML, UML, UML)
    with (
        _flow(lan, 0, 1, *STEADY),
        _flow(lan, 2, 3, "--udp", "--length", str(_DATAGRAM), "--window", str(_WINDOW), "--bitrate", "100M"),
    ):
        _await_flowing(lan, "b")
        _await_flowing(lan, "d")
        before, memory = _speed(lan, "b", "receive-bytes"), _memory(lan)
        with _standing_still(lan.guests[3]):
            meanwhile = _speed(lan, "b", "receive-bytes", _PAUSE)
        resumed = [_resumption(lan, "d")]
        while min(resumed) > _AT_ONCE and len(resumed) < _TRIES:
            with _standing_still(lan.guests[3]):
                time.sleep(1)
            resumed.append(_resumption(lan, "d"))
        assert min(resumed) < _AT_ONCE, resumed
        # iperf3 keeps its rate in the mean: after a slow start it is faster for a while.
        assert meanwhile.most > 0.95 * min(before.least, 50e6 / 8), (before, meanwhile)
        assert _memory(lan) - memory < 1 << 20


def _resumption(lan: Lan, port: str) -> float:
    """Seconds from now until a frame has reached a guest which was not waiting for it.

    Not until it gets as many a second as before: guests that are all awake for each other's single frames share their
    processors badly for a while, with any switch between them.
    """
    begin, goal = time.monotonic(), _count(lan, port, "receive-frames") + _WAITING
    until(lambda: _count(lan, port, "receive-frames") > goal, timeout=10, what=f"frames for {port}")
    return time.monotonic() - begin


@contextmanager
def _standing_still(guest: Guest) -> Iterator[None]:
    os.kill(guest.process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(guest.process.pid, signal.SIGCONT)


def _flow(lan: Lan, source: int, target: int, *options: str) -> Flow:
    return Flow(lan.guests[source], lan.guests[target], bed.ipv4(target), *options)


def _count(lan: Lan, port: str, counter: str) -> int:
    """Asked at the socket: a program would have to be started first."""
    told = Memlane.report(lan.switch)["ports"]
    return next(int(each[counter]) for each in told if each["name"] == port)


def _await_flowing(lan: Lan, port: str) -> None:
    """Waits until the burst that a limit allows is over, too."""
    goal = _count(lan, port, "receive-bytes") + (8 << 20)
    until(lambda: _count(lan, port, "receive-bytes") > goal, timeout=60, what=f"frames for {port}")


@dataclass(frozen=True)
class _Speed:
    """How much a counter grew in a second, at least and at most: the switch takes its time to tell it."""

    least: float
    most: float


def _speed(lan: Lan, port: str, counter: str, seconds: float = _MEASURED) -> _Speed:
    begin, before, began = time.monotonic(), _count(lan, port, counter), time.monotonic()
    time.sleep(seconds)
    end, after, ended = time.monotonic(), _count(lan, port, counter), time.monotonic()
    return _Speed((after - before) / (ended - begin), (after - before) / (end - began))


def _memory(lan: Lan) -> int:
    """Bytes of the switch's own that are resident; guests' memory is shared."""
    rows = Path(f"/proc/{lan.switch.daemon.pid}/status").read_text().splitlines()
    return next(int(row.split()[1]) << 10 for row in rows if row.startswith("RssAnon:"))
