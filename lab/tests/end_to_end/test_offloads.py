"""Files arrive undamaged with any mix of offloads: checksums, segmentation, merged buffers."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from memlane_lab.bed import bed
from memlane_lab.guests import Guest
from memlane_lab.host.session import Session
from tests.end_to_end import features
from tests.end_to_end.conftest import LANS, Builder
from tests.end_to_end.features import LACKS, RECEIVER_MIXES, SENDER_MIXES
from tests.end_to_end.lan import TCG, UML, Lan, Plan
from tests.end_to_end.transfer import Library, broken_packets, counter

pytestmark = pytest.mark.real

_SEGMENT = 1514
"""The longest frame at an MTU of 1500."""


@contextmanager
def _switched(lan: Lan, words: dict[int, str]) -> Iterator[None]:
    """Within it, guest number i has switched off the features of `words[i]`."""
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


@pytest.fixture(scope="module")
def shared_lacking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lan]:
    """User Mode Linux guests on one switch: one for each of LACKS in their order, then two that lack nothing."""
    with Session(tmp_path_factory.mktemp("logs")) as session:
        yield Lan(session, [*(Plan(UML, lack=lack) for lack in LACKS.values()), UML, UML])


@pytest.fixture
def lacking(request: pytest.FixtureRequest, shared_lacking: Lan) -> Iterator[Lan]:
    """Those guests for a test that leaves them as they were; afterwards nothing may have been broken on its way."""
    request.node.stash[LANS] = [shared_lacking]
    yield shared_lacking
    shared_lacking.switch.check()


_WHOLE, _THIRD = len(LACKS), len(LACKS) + 1
"""The two guests that lack nothing."""


def _lacking(lack: str) -> int:
    """The guest with that lack."""
    return list(LACKS).index(lack)


@pytest.mark.parametrize("lack", LACKS.values(), ids=LACKS)
def test_a_file_arrives_at_a_guest_that_lacks(lacking: Lan, lack: features.Lack) -> None:
    _exchange_undamaged(lacking, list(LACKS.values()).index(lack), _WHOLE)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param("guest-checksum", "host-checksum", marks=pytest.mark.prove),
        pytest.param("mergeable-guest-tso", "event-index", marks=pytest.mark.prove),
        ("everything", "everything"),
    ],
)
def test_a_file_arrives_between_machines_that_lack(build: Builder, first: str, second: str) -> None:
    _exchange_undamaged(build(Plan(TCG, lack=LACKS[first]), Plan(TCG, lack=LACKS[second])), 0, 1)


def test_a_file_arrives_at_a_legacy_driver(build: Builder) -> None:
    """A driver older than virtio 1.0; without mergeable buffers its frames have a header of ten bytes, not twelve."""
    legacy = Plan(TCG, lack=LACKS["mergeable"], device="disable-modern=on,disable-legacy=off")
    _exchange_undamaged(build(legacy, UML), 0, 1)


def _exchange_undamaged(lan: Lan, first: int, second: int) -> None:
    with Library(lan.guests[first]) as one, Library(lan.guests[second]) as other:
        for library, server, reader in ((one, first, second), (other, second, first)):
            for address in (bed.ipv4(server), bed.ipv6(server)):
                library.fetch(lan.guests[reader], address).finish()
    assert [broken_packets(lan.guests[index]) for index in (first, second)] == [{}, {}]


@pytest.mark.parametrize("lack", ["guest-tso", "guest-checksum"])
def test_a_receiver_gets_no_more_than_it_takes(lacking: Lan, lack: str) -> None:
    """Large frames are cut for the receiver that does not take them, and for no other."""
    with Library(lacking.guests[_WHOLE]) as library:
        for reader, whole in ((_lacking(lack), False), (_THIRD, True)):
            before = lacking.switch.port(bed.name(reader))["receive-frames"]
            library.fetch(lacking.guests[reader], bed.ipv4(_WHOLE)).finish()
            frames = lacking.switch.port(bed.name(reader))["receive-frames"] - before
            assert (library.size / frames > _SEGMENT) == whole
    assert [broken_packets(lacking.guests[index]) for index in (_lacking(lack), _WHOLE, _THIRD)] == [{}, {}, {}]


@pytest.mark.parametrize(
    ("lack", "segmented_by"),
    [
        ("nothing", "receiver"),
        ("guest-tso", "switch"),
        ("guest-checksum", "switch"),
        ("guest-checksum", "sender"),
    ],
)
def test_a_file_arrives_in_a_vlan(lacking: Lan, lack: str, segmented_by: str) -> None:
    near, far = lacking.guests[_lacking(lack)], lacking.guests[_WHOLE]
    off = {_WHOLE: "tso off" if segmented_by == "sender" else ""}
    with _vlan(near, far), _switched(lacking, off), Library(near) as first, Library(far) as second:
        second.fetch(near, "10.78.0.2").finish()
        second.fetch(near, "fd78::2").finish()
        first.fetch(far, "10.78.0.1").finish()
        first.fetch(far, "fd78::1").finish()
        assert int(near.get("/sys/class/net/lane7/statistics/rx_bytes")) > 2 * second.size
    assert [broken_packets(guest) for guest in (near, far)] == [{}, {}]


@contextmanager
def _vlan(*guests: Guest) -> Iterator[None]:
    """Within it, guest number i of these is 10.78.0.i+1 and fd78::i+1 in VLAN 7."""
    for number, guest in enumerate(guests, 1):
        guest.run("ip link add link net0 name lane7 type vlan id 7 && ip link set lane7 up").check()
        guest.run(["ip", "address", "add", f"10.78.0.{number}/24", "dev", "lane7"]).check()
        guest.run(["ip", "address", "add", f"fd78::{number}/64", "dev", "lane7", "nodad"]).check()
    try:
        yield
    finally:
        for guest in guests:
            guest.run("ip link del lane7").check()


_CONGESTION = "netem loss 10% ecn"
"""A queue that marks every tenth packet, instead of dropping it (RFC 3168)."""


@pytest.mark.parametrize(
    ("sender", "receiver"),
    [("nothing", "nothing"), ("nothing", "guest-tso"), ("nothing", "guest-checksum"), ("host-tso", "nothing")],
    ids=["uml", "uml-guest-tso", "uml-guest-checksum", "uml-host-tso"],
)
def test_a_file_arrives_with_congestion_notified(lacking: Lan, sender: str, receiver: str) -> None:
    source = _WHOLE if sender == "nothing" else _lacking(sender)
    target = _THIRD if receiver == "nothing" else _lacking(receiver)
    _fetch_over_a_congested_link(lacking, source, target)


def test_a_file_arrives_with_congestion_notified_at_a_machine(build: Builder) -> None:
    _fetch_over_a_congested_link(build(Plan(TCG), Plan(TCG, lack=LACKS["guest-ecn"])), 0, 1)


def _fetch_over_a_congested_link(lan: Lan, source: int, target: int) -> None:
    """Marked packets, echoes and reduced windows (the CWR flag, hence GSO with ECN) pass, unsegmented and segmented."""
    sender, receiver = lan.guests[source], lan.guests[target]
    marked = ((receiver, "IpExt.InCEPkts"), (receiver, "Ip6InCEPkts"), (sender, "TcpExt.TCPDeliveredCE"))
    before = [counter(guest, name) for guest, name in marked]
    with _congested(sender, receiver), Library(sender) as library:
        for address in (bed.ipv4(source), bed.ipv6(source)):
            library.fetch(receiver, address).finish()
    for (guest, name), count in zip(marked, before, strict=True):
        assert counter(guest, name) > count, name
    assert [broken_packets(guest) for guest in (sender, receiver)] == [{}, {}]


@contextmanager
def _congested(sender: Guest, receiver: Guest) -> Iterator[None]:
    """Within it, both ends speak ECN, and the sender's queue marks packets."""
    both = (sender, receiver)
    usual = [guest.get("/proc/sys/net/ipv4/tcp_ecn").decode().strip() for guest in both]
    for guest in both:
        guest.run("echo 1 >/proc/sys/net/ipv4/tcp_ecn").check()
    sender.run(f"tc qdisc replace dev net0 root {_CONGESTION}").check()
    try:
        yield
    finally:
        sender.run("tc qdisc del dev net0 root").check()
        for guest, value in zip(both, usual, strict=True):
            guest.run(f"echo {value} >/proc/sys/net/ipv4/tcp_ecn").check()
