"""Files arrive undamaged whatever sender and receiver leave to each other: checksums, segmentation, merged buffers."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from memlane_lab.bed import bed
from tests.end_to_end import features
from tests.end_to_end.conftest import Builder
from tests.end_to_end.features import LACKS, RECEIVER_MIXES, SENDER_MIXES
from tests.end_to_end.lan import TCG, UML, Lan, Plan
from tests.end_to_end.transfer import Library, broken_packets, counter, exchange

pytestmark = pytest.mark.real

_SEGMENT = 1514
"""The longest frame at an MTU of 1500."""


@contextmanager
def _switched(lan: Lan, words: dict[int, str]) -> Iterator[None]:
    """Within it, guest number i has switched off what `words[i]` says."""
    for index, off in words.items():
        features.switch(lan.guests[index], off)
    try:
        yield
    finally:
        for index, off in words.items():
            features.switch_back(lan.guests[index], off)


@pytest.mark.parametrize("receiver", RECEIVER_MIXES.values(), ids=RECEIVER_MIXES)
@pytest.mark.parametrize("sender", SENDER_MIXES.values(), ids=SENDER_MIXES)
def test_a_file_arrives_with_any_mix(pair: Lan, libraries: list[Library], sender: str, receiver: str) -> None:
    """Every mix, both ways; IPv4 one way and IPv6 the other, turned round with the receiver's mix."""
    families = [bed.ipv4, bed.ipv6] if receiver else [bed.ipv6, bed.ipv4]
    for (source, target), address in zip(((0, 1), (1, 0)), families, strict=True):
        with _switched(pair, {source: sender, target: receiver}):
            before = pair.switch.port(bed.name(source))
            libraries[source].fetch(pair.guests[target], address(source)).finish()
            mean = _mean_frame(before, pair.switch.port(bed.name(source)))
        assert (mean <= _SEGMENT) == ("tso off" in sender), f"frames of {mean:.0f} bytes on average"


def _mean_frame(before: dict[str, int], after: dict[str, int]) -> float:
    frames = after["transmit-frames"] - before["transmit-frames"]
    return (after["transmit-bytes"] - before["transmit-bytes"]) / frames


@pytest.mark.parametrize("lack", LACKS.values(), ids=LACKS)
def test_a_file_arrives_at_a_guest_that_lacks(build: Builder, lack: features.Lack) -> None:
    lan = build(Plan(UML, lack=lack), UML)
    _exchange_undamaged(lan)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("guest-checksum", "host-checksum"),
        ("mergeable-guest-tso", "event-index"),
        ("everything", "everything"),
    ],
)
def test_a_file_arrives_between_machines_that_lack(build: Builder, first: str, second: str) -> None:
    _exchange_undamaged(build(Plan(TCG, lack=LACKS[first]), Plan(TCG, lack=LACKS[second])))


def test_a_file_arrives_at_a_legacy_driver(build: Builder) -> None:
    """A driver older than virtio 1.0; without mergeable buffers its frames have a header of ten bytes, not twelve."""
    legacy = Plan(TCG, lack=LACKS["mergeable"], device="disable-modern=on,disable-legacy=off")
    _exchange_undamaged(build(legacy, UML))


def _exchange_undamaged(lan: Lan) -> None:
    exchange(lan.guests, [Library(guest) for guest in lan.guests])
    assert [broken_packets(guest) for guest in lan.guests] == [{}, {}]


@pytest.mark.parametrize("lack", ["guest-tso", "guest-checksum"])
def test_a_receiver_gets_no_more_than_it_takes(build: Builder, lack: str) -> None:
    """Large frames are cut for the receiver that does not take them, and for no other."""
    lan = build(Plan(UML, lack=LACKS[lack]), UML, UML)
    library = Library(lan.guests[1])
    for reader, whole in ((0, False), (2, True)):
        before = lan.switch.port(bed.name(reader))["receive-frames"]
        library.fetch(lan.guests[reader], bed.ipv4(1)).finish()
        frames = lan.switch.port(bed.name(reader))["receive-frames"] - before
        assert (library.size / frames > _SEGMENT) == whole
    assert [broken_packets(guest) for guest in lan.guests] == [{}, {}, {}]


@pytest.mark.parametrize(
    ("lacking", "segmented_by"),
    [
        ("nothing", "receiver"),
        ("guest-tso", "switch"),
        ("guest-checksum", "switch"),
        ("guest-checksum", "sender"),
    ],
)
def test_a_file_arrives_in_a_vlan(build: Builder, lacking: str, segmented_by: str) -> None:
    lan = build(Plan(UML, lack=LACKS[lacking]), UML)
    for index, guest in enumerate(lan.guests):
        guest.run("ip link add link net0 name lane7 type vlan id 7 && ip link set lane7 up").check()
        guest.run(["ip", "address", "add", f"10.78.0.{index + 1}/24", "dev", "lane7"]).check()
        guest.run(["ip", "address", "add", f"fd78::{index + 1}/64", "dev", "lane7", "nodad"]).check()
    if segmented_by == "sender":
        lan.guests[1].run("ethtool -K net0 tso off").check()
    first, second = (Library(guest) for guest in lan.guests)
    second.fetch(lan.guests[0], "10.78.0.2").finish()
    second.fetch(lan.guests[0], "fd78::2").finish()
    first.fetch(lan.guests[1], "10.78.0.1").finish()
    first.fetch(lan.guests[1], "fd78::1").finish()
    assert int(lan.guests[0].get("/sys/class/net/lane7/statistics/rx_bytes")) > 2 * second.size
    assert [broken_packets(guest) for guest in lan.guests] == [{}, {}]


_CONGESTION = "netem loss 10% ecn"
"""A queue that marks every tenth packet, instead of dropping it (RFC 3168)."""


@pytest.mark.parametrize(
    ("sender", "receiver"),
    [
        (Plan(UML), Plan(UML)),
        (Plan(UML), Plan(UML, lack=LACKS["guest-tso"])),
        (Plan(UML), Plan(UML, lack=LACKS["guest-checksum"])),
        (Plan(UML, lack=LACKS["host-tso"]), Plan(UML)),
        (Plan(TCG), Plan(TCG, lack=LACKS["guest-ecn"])),
    ],
    ids=["uml", "uml-guest-tso", "uml-guest-checksum", "uml-host-tso", "tcg-guest-ecn"],
)
def test_a_file_arrives_with_congestion_notified(build: Builder, sender: Plan, receiver: Plan) -> None:
    """Marked packets, echoes and reduced windows (the CWR flag, hence GSO with ECN) pass, whole and cut."""
    lan = build(sender, receiver)
    source, target = lan.guests
    for guest in lan.guests:
        guest.run("echo 1 >/proc/sys/net/ipv4/tcp_ecn").check()
    source.run(f"tc qdisc replace dev net0 root {_CONGESTION}").check()
    library = Library(source)
    for address in (bed.ipv4(0), bed.ipv6(0)):
        library.fetch(target, address).finish()
    assert counter(target, "IpExt.InCEPkts") > 0
    assert counter(target, "Ip6InCEPkts") > 0
    assert counter(source, "TcpExt.TCPDeliveredCE") > 0
    assert [broken_packets(guest) for guest in lan.guests] == [{}, {}]
