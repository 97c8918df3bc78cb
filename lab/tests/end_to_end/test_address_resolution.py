"""Address resolution among a hundred guests that each ask for each other: the ARP frames that they receive."""

import selectors
import socket
import time
from collections.abc import Callable

import pytest
from scapy.layers.dhcp import BOOTP, DHCP
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

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
_IPV4 = 0x0800
_REQUEST, _REPLY = 1, 2


class _Guest:
    """The address resolution of Linux, at a device: it learns from requests for its address, and from replies."""

    def __init__(self, hosts: list[int], number: int, connection: socket.socket) -> None:
        self.hosts, self.number, self.socket = hosts, number, connection
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
            if frame[41] != self.hosts[self.number]:
                continue
            sender = self.hosts.index(frame[31])
            assert frame[22:28] == _mac(sender), "the right owner"
            self.known.add(sender)
            self.asked.pop(sender, None)
            if frame[21] == _REQUEST:
                self._send(frame[6:12], _REPLY, frame[22:28], sender)

    def _send(self, to: bytes, operation: int, target: bytes, other: int) -> None:
        own = _mac(self.number)
        head = to + own + bytes([8, 6, 0, 1, 8, 0, 6, 4, 0, operation])
        self.socket.send(head + own + self._ip(self.number) + target + self._ip(other))

    def _ip(self, number: int) -> bytes:
        return bytes([10, 0, 0, self.hosts[number]])


def _mac(number: int) -> bytes:
    return bytes([2, 0, 0, 0, 1, number])


def _ports() -> list[Port]:
    return [Port(f"p{number}", GuestKind.NETNS, _mac(number).hex(":")) for number in range(_GUESTS)]


def _received(path: NetworkPath, lease: Callable[[list[Device]], list[int]] | None = None) -> int:
    """ARP frames that all guests receive until each knows each other; `lease` gives them addresses before."""
    devices = [nic.endpoint for nic in path.nics.values() if isinstance(nic.endpoint, Device)]
    sockets = open_at(devices, _ARP)
    assert len(sockets) == _GUESTS
    hosts = lease(devices) if lease else [number + 2 for number in range(_GUESTS)]
    guests = [_Guest(hosts, number, connection) for number, connection in enumerate(sockets)]
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


def _with_memlane(session: Session, origin: str) -> int:
    """The same with memlane, which has the addresses by this origin."""
    stated = {
        port.name: {"mac": port.mac} | ({"addresses": [f"10.0.0.{number + 2}"]} if origin == "configured" else {})
        for number, port in enumerate(_ports())
    }
    keys = {"subnet": "10.0.0.0/24"} if origin == "leased" else {"neighbour-suppression": True}
    path = Switch(session, stated, {}, segment=[{"name": "lan"} | keys])
    path.lay(_ports())
    return _received(path, _lease if origin == "leased" else None)


def _lease(devices: list[Device]) -> list[int]:
    """Has each guest ask for an address, as a client of DHCP does (RFC 2131); returns their last bytes."""
    return [_lease_one(number, connection) for number, connection in enumerate(open_at(devices, _IPV4))]


def _lease_one(number: int, connection: socket.socket) -> int:
    def ask(options: list[tuple[str, object] | str], wanted: int) -> str:
        own = _mac(number)
        bootp = BOOTP(chaddr=own, xid=number + 1, flags=0) / DHCP(options=options)
        packet = IP(src="0.0.0.0", dst="255.255.255.255") / UDP(sport=68, dport=67) / bootp
        connection.send(bytes(Ether(src=own.hex(":"), dst="ff:ff:ff:ff:ff:ff") / packet))
        while True:
            answer = Ether(connection.recv(2000))
            if DHCP in answer and answer[BOOTP].xid == number + 1 and ("message-type", wanted) in answer[DHCP].options:
                return str(answer[BOOTP].yiaddr)

    connection.settimeout(_PATIENCE)
    offered = ask([("message-type", "discover"), "end"], 2)
    leased = ask([("message-type", "request"), ("requested_addr", offered), "end"], 5)
    connection.close()
    return int(leased.rpartition(".")[2])


def test_guests_receive_a_fiftieth_of_the_frames_of_the_bridge(session: Session) -> None:
    """One frame for each question with configured and leased addresses; few more with those that the switch learns."""
    bridge = Bridge(session)
    bridge.lay(_ports())
    flooded = _received(bridge)
    counts = {}
    for origin in ("configured", "leased", "learned"):
        with Session(session.folder / origin) as own:
            counts[origin] = _with_memlane(own, origin)
    print(f"{_GUESTS} guests: bridge {flooded}, memlane {counts}")
    assert 50 * counts["configured"] <= flooded, (counts, flooded)
    assert 50 * counts["leased"] <= flooded, (counts, flooded)
    assert 10 * counts["learned"] <= flooded, (counts, flooded)
