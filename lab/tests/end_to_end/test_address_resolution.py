"""Address resolution among a hundred guests that each ask for each other: the ARP frames that they receive."""

import selectors
import socket
import time

import pytest

from memlane_lab.host.ports import Device, GuestKind, Port
from memlane_lab.host.session import Session
from memlane_lab.paths.bridge import Bridge
from memlane_lab.paths.path import NetworkPath
from tests.end_to_end.sockets import open_at
from tests.end_to_end.switch import Switch

pytestmark = [pytest.mark.real, pytest.mark.prove]

_GUESTS = 100
_PATIENCE = 120.0
"""Seconds until all guests know all others."""
_AGAIN = 1.0
"""Seconds after which a guest asks again, as Linux does."""
_ARP = 0x0806
_REQUEST, _REPLY = 1, 2


class _Guest:
    """The address resolution of Linux, at a device: it learns from requests for its address, and from replies."""

    def __init__(self, number: int, connection: socket.socket) -> None:
        self.number, self.socket = number, connection
        self.known: set[int] = set()
        self.asked: dict[int, float] = {}
        self.received = 0

    def ask(self, other: int) -> None:
        if other not in self.known:
            self._send(b"\xff" * 6, _REQUEST, bytes(6), other)
            self.asked[other] = time.monotonic()

    def ask_again(self) -> None:
        late = time.monotonic() - _AGAIN
        for other in [other for other, at in self.asked.items() if at < late]:
            self.ask(other)

    def hear(self) -> None:
        """Reads all frames that have come."""
        while True:
            try:
                frame, (_, _, kind, *_) = self.socket.recvfrom(100)
            except BlockingIOError:
                return
            if kind == socket.PACKET_OUTGOING:
                continue
            self.received += 1
            sender, target = frame[31] - 1, frame[41] - 1
            if target != self.number:
                continue
            assert frame[22:28] == _mac(sender), "the right owner"
            self.known.add(sender)
            self.asked.pop(sender, None)
            if frame[21] == _REQUEST:
                self._send(frame[6:12], _REPLY, frame[22:28], sender)

    def _send(self, to: bytes, operation: int, target: bytes, other: int) -> None:
        own = _mac(self.number)
        head = to + own + bytes([8, 6, 0, 1, 8, 0, 6, 4, 0, operation])
        self.socket.send(head + own + _ip(self.number) + target + _ip(other))


def _mac(number: int) -> bytes:
    return bytes([2, 0, 0, 0, 1, number])


def _ip(number: int) -> bytes:
    return bytes([10, 0, 0, number + 1])


def _ports() -> list[Port]:
    return [Port(f"p{number}", GuestKind.NETNS, _mac(number).hex(":")) for number in range(_GUESTS)]


def _received(path: NetworkPath) -> int:
    """ARP frames that all guests receive until each knows each other."""
    devices = [nic.endpoint for nic in path.nics.values() if isinstance(nic.endpoint, Device)]
    sockets = open_at(devices, _ARP)
    assert len(sockets) == _GUESTS
    guests = [_Guest(number, connection) for number, connection in enumerate(sockets)]
    poll = selectors.DefaultSelector()
    for guest in guests:
        poll.register(guest.socket, selectors.EVENT_READ, guest)

    def hear(seconds: float) -> None:
        for key, _ in poll.select(seconds):
            key.data.hear()

    end = time.monotonic() + _PATIENCE
    for step in range(1, _GUESTS):
        for guest in guests:
            guest.ask((guest.number + step) % _GUESTS)
        hear(0.001)
    while any(guest.asked for guest in guests):
        assert time.monotonic() < end, sum(len(guest.asked) for guest in guests)
        hear(0.05)
        for guest in guests:
            guest.ask_again()
    while poll.select(0.2):
        hear(0)
    poll.close()
    for guest in guests:
        guest.socket.close()
    return sum(guest.received for guest in guests)


def _with_memlane(session: Session, *, configured: bool) -> int:
    stated = {
        port.name: {"mac": port.mac} | ({"addresses": [f"10.0.0.{number + 1}"]} if configured else {})
        for number, port in enumerate(_ports())
    }
    path = Switch(session, stated, {}, segment=[{"name": "lan", "neighbour-suppression": True}])
    path.lay(_ports())
    return _received(path)


def test_guests_receive_a_fiftieth_of_the_frames_of_the_bridge(session: Session) -> None:
    """One frame for each question with configured addresses; few more with those that the switch learns."""
    bridge = Bridge(session)
    bridge.lay(_ports())
    flooded = _received(bridge)
    counts = []
    for configured in (True, False):
        with Session(session.folder / f"configured-{configured}") as own:
            counts.append(_with_memlane(own, configured=configured))
    print(f"{_GUESTS} guests: bridge {flooded}, configured {counts[0]}, learned {counts[1]}")
    assert 50 * counts[0] <= flooded, (counts, flooded)
    assert 10 * counts[1] <= flooded, (counts, flooded)
