"""DPDK's testpmd as an independent front end, on ports of the switch beside real guests."""

from collections.abc import Mapping
from typing import Any

import pytest

from memlane_lab.bed import bed
from memlane_lab.host.ports import VhostUser
from memlane_lab.host.session import Session
from tests.end_to_end.client import Testpmd
from tests.end_to_end.conftest import Builder
from tests.end_to_end.lan import TCG, UML, Lan, Plan
from tests.end_to_end.transfer import Library, broken_packets, iperf

pytestmark = pytest.mark.real

_ECHO = "10.77.0.99"


def _sockets(lan: Lan, names: Mapping[str, Any]) -> list[VhostUser]:
    endpoints = [lan.switch.nics[name].endpoint for name in names]
    return [endpoint for endpoint in endpoints if isinstance(endpoint, VhostUser)]


@pytest.mark.parametrize("connect", [False, True], ids=["client", "server"])
def test_it_answers_pings(session: Session, build: Builder, connect: bool) -> None:
    """It comes and goes as client and as server, and finds a switch again that has restarted."""
    others = {"echo": {"connect": connect}}
    lan = build(UML, others=others)
    testpmd = Testpmd(session, _sockets(lan, others), "icmpecho")
    for _ in range(2):
        lan.wait_answer(0, _ECHO)
        lan.ping(0, _ECHO)
        lan.ping(0, _ECHO, "-s", "1400")
        testpmd.kill()
        testpmd.start()
    lan.wait_answer(0, _ECHO)
    if connect:  # virtio-user connects once, but listens again
        lan.switch.kill()
        lan.switch.start()
        lan.guests[0].plug(0)
        lan.address(0)
        lan.wait_answer(0, _ECHO)
    lan.ping(0, _ECHO)


@pytest.mark.parametrize(("queues", "stated"), [(2, 2), pytest.param(2, 1, marks=pytest.mark.prove)])
def test_it_joins_two_segments(session: Session, build: Builder, queues: int, stated: int) -> None:
    """Like a cable. It takes no offloads: the switch cuts and sums for it the frames of guests.

    It may be given more queue pairs than its ports have: those that are there serve it,
    but it must not be told to use the others.
    """
    others = {
        "west": {"segment": "west", "queues": stated},
        "east": {"segment": "east", "queues": stated, "connect": True},
    }
    lan = build(Plan(UML, stated={"segment": "west"}), Plan(TCG, stated={"segment": "east"}), others=others)
    testpmd = Testpmd(session, _sockets(lan, others), "io", queues=queues, used=min(queues, stated))
    libraries = [Library(guest) for guest in lan.guests]
    for again in (False, True):
        lan.reach(0, 1)
        for source, target in ((0, 1), (1, 0)):
            libraries[source].fetch(lan.guests[target], bed.ipv4(source)).finish()
            libraries[source].fetch(lan.guests[target], bed.ipv6(source)).finish()
            iperf(lan.guests[source], lan.guests[target], bed.ipv4(target), "--udp", "--bitrate", "10M")
        if not again:
            testpmd.kill()
            testpmd.start()
    assert [broken_packets(guest) for guest in lan.guests] == [{}, {}]
