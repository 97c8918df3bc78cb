"""Two guests talk in frames of more than 1500 bytes, up to the longest that IP has."""

from collections.abc import Iterator

import pytest

from memlane_lab.bed import bed
from memlane_lab.host.session import Session
from tests.end_to_end.conftest import Builder
from tests.end_to_end.lan import BEDS, PAIRS, TCG, UML, Lan, Plan
from tests.end_to_end.transfer import Library, exchange, iperf

pytestmark = pytest.mark.real

_MOST = 65535
_LONGEST_DATAGRAM = 65507
_IPV4_HEADERS, _IPV6_HEADERS = 28, 48
"""IP and ICMP, or IP and UDP."""


@pytest.fixture(scope="module", params=PAIRS)
def shared_pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lan]:
    """Each bed in turn, its ports offering the largest MTU."""
    plans = [Plan(kind, mtu=_MOST, stated={"mtu": _MOST}) for kind in BEDS[request.param]]
    with Session(tmp_path_factory.mktemp("logs")) as session:
        yield Lan(session, plans)


@pytest.mark.parametrize("mtu", [8000, _MOST])
def test_gso_frames_pass_unsegmented(pair: Lan, libraries: list[Library], mtu: int) -> None:
    for guest in pair.guests:
        guest.run(["ip", "link", "set", "net0", "mtu", str(mtu)]).check()
    _exchange_large_frames(pair, libraries, mtu)


def test_large_frames_meet_single_buffers(build: Builder) -> None:
    """Without mergeable buffers a guest posts a few large ones."""
    plan = Plan(TCG, mtu=9000, device="mrg_rxbuf=off", stated={"mtu": 9000})
    lan = build(plan, Plan(UML, mtu=9000))
    _exchange_large_frames(lan, [Library(guest) for guest in lan.guests], 9000)


def _exchange_large_frames(lan: Lan, libraries: list[Library], mtu: int) -> None:
    for source, target in ((0, 1), (1, 0)):
        lan.ping(source, bed.ipv4(target), "-M", "do", "-s", str(mtu - _IPV4_HEADERS))
        lan.ping(source, bed.ipv6(target), "-M", "do", "-s", str(min(mtu, _MOST - 8) - _IPV6_HEADERS))
        end = iperf(lan.guests[source], lan.guests[target], bed.ipv4(target), "--length", "1M")
        assert end["sum_received"]["bits_per_second"] > 1e6
        length = min(mtu - _IPV4_HEADERS, _LONGEST_DATAGRAM)
        lan.datagrams(source, target, bed.ipv4(target), length=length, rate="100M")
    exchange(lan.guests, libraries)
