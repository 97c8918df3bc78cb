"""The host itself, on a TAP in a network namespace, beside guests of both kinds."""

from collections.abc import Iterator

import pytest

from memlane_lab.bed import bed
from memlane_lab.host.session import Session
from tests.end_to_end import features
from tests.end_to_end.conftest import Builder
from tests.end_to_end.lan import HOST, TCG, UML, Lan, Plan
from tests.end_to_end.transfer import Library, broken_packets, iperf

pytestmark = pytest.mark.real

_GUESTS = {"uml": 0, "tcg": 1}
_HOST = 2


@pytest.fixture(scope="module")
def shared_trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lan]:
    """A User Mode Linux guest, a QEMU guest and the host."""
    with Session(tmp_path_factory.mktemp("logs")) as session:
        yield Lan(session, [UML, TCG, HOST])


@pytest.fixture
def trio(shared_trio: Lan) -> Iterator[Lan]:
    """The three for a test that leaves them as they were; afterwards nothing may have been broken on its way."""
    before = [broken_packets(guest) for guest in shared_trio.guests]
    yield shared_trio
    shared_trio.switch.check()
    assert [broken_packets(guest) for guest in shared_trio.guests] == before


@pytest.mark.parametrize("guest", _GUESTS.values(), ids=_GUESTS)
def test_host_and_guest_talk(trio: Lan, guest: int) -> None:
    for source, target in ((guest, _HOST), (_HOST, guest)):
        trio.ping(source, bed.ipv4(target))
        trio.ping(source, bed.ipv6(target), "-s", "20000")
        ends = trio.guests[source], trio.guests[target]
        assert iperf(*ends, bed.ipv4(target), "--length", "1M")["sum_received"]["bits_per_second"] > 1e6
        trio.datagrams(source, target, bed.ipv6(target), length=1400, rate="10M")


@pytest.mark.parametrize("guest", _GUESTS.values(), ids=_GUESTS)
@pytest.mark.parametrize("mix", features.SENDER_MIXES.values(), ids=features.SENDER_MIXES)
def test_a_file_arrives_with_any_mix(trio: Lan, guest: int, mix: str) -> None:
    """The sender has switched off the mix; the host sends and receives GSO frames and partial checksums."""
    for source, target, address in ((guest, _HOST, bed.ipv4), (_HOST, guest, bed.ipv6)):
        library = Library(trio.guests[source], 4)
        features.switch(trio.guests[source], mix)
        library.fetch(trio.guests[target], address(source)).finish()
        features.switch_back(trio.guests[source], mix)


def test_a_guest_that_lacks_offloads_hears_the_host(build: Builder) -> None:
    """GSO frames and partial checksums of the host are cut and summed for the guest that never agreed to them."""
    lan = build(Plan(UML, lack=features.LACKS["everything"]), HOST)
    for source, target in ((0, 1), (1, 0)):
        library = Library(lan.guests[source])
        for address in (bed.ipv4(source), bed.ipv6(source)):
            library.fetch(lan.guests[target], address).finish()
    assert [broken_packets(guest) for guest in lan.guests] == [{}, {}]
