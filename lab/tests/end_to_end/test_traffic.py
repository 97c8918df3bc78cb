"""Two guests talk: ping, TCP and UDP, with frames of the ordinary size."""

from typing import Any

import pytest

from memlane_lab.bed import bed
from tests.end_to_end.lan import Lan
from tests.end_to_end.transfer import iperf

pytestmark = pytest.mark.real


@pytest.mark.parametrize("address", [bed.ipv4, bed.ipv6], ids=["ipv4", "ipv6"])
@pytest.mark.parametrize(("source", "target"), [(0, 1), (1, 0)])
def test_ping_is_answered(pair: Lan, source: int, target: int, address: Any) -> None:
    pair.ping(source, address(target))
    pair.ping(source, address(target), "-s", "1400")
    pair.ping(source, address(target), "-s", "20000")  # in fragments


@pytest.mark.parametrize("address", [bed.ipv4, bed.ipv6], ids=["ipv4", "ipv6"])
@pytest.mark.parametrize(("source", "target"), [(0, 1), (1, 0)])
def test_tcp_flows(pair: Lan, source: int, target: int, address: Any) -> None:
    end = iperf(pair.guests[source], pair.guests[target], address(target), "--length", "1M")
    assert end["sum_received"]["bits_per_second"] > 1e6


def test_tcp_flows_both_ways_at_once(pair: Lan) -> None:
    end = iperf(pair.guests[0], pair.guests[1], bed.ipv4(1), "--length", "128K", "--bidir", "--parallel", "2")
    assert end["sum_received"]["bits_per_second"] > 1e6
    assert end["sum_received_bidir_reverse"]["bits_per_second"] > 1e6


@pytest.mark.parametrize(("source", "target"), [(0, 1), (1, 0)])
@pytest.mark.parametrize(("length", "rate"), [(1400, "10M"), (60000, "100M")])
def test_udp_flows(pair: Lan, source: int, target: int, length: int, rate: str) -> None:
    """At a rate that every guest keeps up with, nearly everything arrives: memlane itself loses nothing."""
    pair.datagrams(source, target, bed.ipv4(target), length=length, rate=rate)
