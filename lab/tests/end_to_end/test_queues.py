"""Several queue pairs a guest, several workers in the switch."""

import re
from collections.abc import Iterator

import pytest

from memlane_lab.bed import bed
from memlane_lab.guests import Guest
from memlane_lab.host.session import Session
from tests.end_to_end.conftest import Builder
from tests.end_to_end.lan import BEDS, PAIRS, TCG, UML, Lan, Plan
from tests.end_to_end.transfer import STEADY, Flow, Library, exchange, iperf

pytestmark = pytest.mark.real

_PAIRS = 2


def _plan(kind: str) -> Plan:
    """QEMU decides on the number of queue pairs itself; for User Mode Linux the network's file does."""
    if kind == TCG:
        return Plan(TCG, queues=_PAIRS, processors=_PAIRS)
    return Plan(UML, queues=_PAIRS, stated={"queues": _PAIRS})


@pytest.fixture(scope="module", params=PAIRS)
def shared_pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lan]:
    """Each bed in turn, its guests having two queue pairs, its switch two workers."""
    with Session(tmp_path_factory.mktemp("logs")) as session:
        yield Lan(session, [_plan(kind) for kind in BEDS[request.param]], workers=2)


def test_every_queue_pair_carries_frames(pair: Lan, libraries: list[Library]) -> None:
    for guest in pair.guests:
        _use(guest, _PAIRS)
    for source, target in ((0, 1), (1, 0)):
        options = ("--length", "128K", "--parallel", "8")
        end = iperf(pair.guests[source], pair.guests[target], bed.ipv4(target), *options)
        assert end["sum_received"]["bits_per_second"] > 1e6
    exchange(pair.guests, libraries)
    for guest in pair.guests:
        assert all(count > 0 for count in _frames_received(guest)), guest.run("ethtool -S net0").stdout


def test_queue_pairs_come_and_go_under_a_flow(pair: Lan, libraries: list[Library]) -> None:
    flow = Flow(pair.guests[0], pair.guests[1], bed.ipv4(1), *STEADY)
    for pairs in (1, _PAIRS, 1, _PAIRS):
        for guest in pair.guests:
            _use(guest, pairs)
        flow.wait_progress()
    flow.end()
    exchange(pair.guests, libraries)


@pytest.mark.parametrize("poll", ["never", "adaptive", "always"])
def test_several_workers_share_the_ports(build: Builder, poll: str) -> None:
    """Frames change hands between workers."""
    lan = build(UML, UML, UML, workers=2, poll=poll)
    libraries = [Library(guest) for guest in lan.guests]
    ring = ((0, 1), (1, 2), (2, 0))
    for fetch in [libraries[source].fetch(lan.guests[target], bed.ipv4(source)) for source, target in ring]:
        fetch.finish()
    for source, target in ring:
        lan.ping(source, bed.ipv6(target), "-s", "20000")


def _use(guest: Guest, pairs: int) -> None:
    """Has the guest use so many of its queue pairs."""
    if _pairs_used(guest) != pairs:
        guest.run(["ethtool", "-L", "net0", "combined", str(pairs)]).check()
    assert _pairs_used(guest) == pairs


def _pairs_used(guest: Guest) -> int:
    said = guest.run("ethtool -l net0").check().stdout
    found = re.search(r"Current hardware settings.*Combined:\s+(\d+)", said, re.DOTALL)
    assert found, said
    return int(found[1])


def _frames_received(guest: Guest) -> list[int]:
    """By queue pair."""
    said = guest.run("ethtool -S net0").check().stdout
    return [int(count) for count in re.findall(r"rx(?:_queue_)?\d+_packets: (\d+)", said)]
