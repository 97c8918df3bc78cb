"""Address resolution among a hundred guests that each ask for each other: the frames that they receive.

`make bench-resolution` prints the figures, beside those of the kernel's bridge.
"""

import selectors
import socket
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, NamedTuple

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
_IPV4 = 0x0800


class _Machine(NamedTuple):
    """A guest, by the last byte of its address."""

    host: int
    mac: bytes


class _Message(NamedTuple):
    """A frame of address resolution between guests."""

    is_question: bool
    sender: _Machine
    target: int
    """Host that it asks for, or that it answers."""


class _Protocol(ABC):
    ethertype: ClassVar[int]

    @abstractmethod
    def address(self, host: int) -> str: ...

    @abstractmethod
    def question(self, own: _Machine, target: int) -> bytes: ...

    @abstractmethod
    def answer(self, own: _Machine, asker: _Machine) -> bytes: ...

    @abstractmethod
    def read(self, frame: bytes) -> _Message | None:
        """None for a frame that is none of address resolution, or is the kernel's own."""


class _Arp(_Protocol):
    """RFC 826."""

    ethertype = 0x0806

    def address(self, host: int) -> str:
        return f"10.0.0.{host}"

    def question(self, own: _Machine, target: int) -> bytes:
        return self._frame(b"\xff" * 6, 1, own, _Machine(target, bytes(6)))

    def answer(self, own: _Machine, asker: _Machine) -> bytes:
        return self._frame(asker.mac, 2, own, asker)

    def read(self, frame: bytes) -> _Message | None:
        return _Message(frame[21] == 1, _Machine(frame[31], frame[22:28]), frame[41])

    def _frame(self, to: bytes, operation: int, own: _Machine, other: _Machine) -> bytes:
        ends = own.mac + bytes([10, 0, 0, own.host]) + other.mac + bytes([10, 0, 0, other.host])
        return to + own.mac + bytes([8, 6, 0, 1, 8, 0, 6, 4, 0, operation]) + ends


class _Nd(_Protocol):
    """Neighbour solicitations and advertisements: RFC 4861, section 4.3 and 4.4."""

    ethertype = 0x86DD
    _SOLICITATION, _ADVERTISEMENT = 135, 136

    def address(self, host: int) -> str:
        return f"fd00::{host:x}"

    def question(self, own: _Machine, target: int) -> bytes:
        # To the solicited-node group: RFC 4291, section 2.7.1.
        group = bytes.fromhex("ff0200000000000000000001ff0000") + bytes([target])
        link = bytes([1, 1]) + own.mac
        return self._frame(
            b"\x33\x33" + group[12:],
            group,
            own,
            bytes([self._SOLICITATION, 0, 0, 0, 0, 0, 0, 0]) + self._ip(target) + link,
        )

    def answer(self, own: _Machine, asker: _Machine) -> bytes:
        solicited_override, link = 0x60, bytes([2, 1]) + own.mac
        message = bytes([self._ADVERTISEMENT, 0, 0, 0, solicited_override, 0, 0, 0]) + self._ip(own.host) + link
        return self._frame(asker.mac, self._ip(asker.host), own, message)

    def read(self, frame: bytes) -> _Message | None:
        if len(frame) < 86 or frame[20] != socket.IPPROTO_ICMPV6 or frame[62:77] != self._ip(0)[:15]:
            return None
        if frame[54] == self._SOLICITATION:
            return _Message(True, _Machine(frame[37], frame[80:86]), frame[77])
        if frame[54] == self._ADVERTISEMENT:
            return _Message(False, _Machine(frame[77], frame[80:86]), frame[53])
        return None

    @staticmethod
    def _ip(host: int) -> bytes:
        return bytes.fromhex("fd00") + bytes(13) + bytes([host])

    def _frame(self, to: bytes, ip: bytes, own: _Machine, message: bytes) -> bytes:
        source = self._ip(own.host)
        pseudo = source + ip + struct.pack("!II", len(message), socket.IPPROTO_ICMPV6)
        words = struct.unpack(f"!{(len(pseudo) + len(message)) // 2}H", pseudo + message)
        total = sum(words)
        total = (total & 0xFFFF) + (total >> 16)
        total = (total & 0xFFFF) + (total >> 16)
        message = message[:2] + struct.pack("!H", ~total & 0xFFFF) + message[4:]
        head = b"\x60\x00\x00\x00" + struct.pack("!HBB", len(message), socket.IPPROTO_ICMPV6, 255)
        return to + own.mac + b"\x86\xdd" + head + source + ip + message


class _Guest:
    """The address resolution of Linux, at a device: it learns from requests for its address, and from replies."""

    def __init__(self, protocol: _Protocol, hosts: list[int], number: int, connection: socket.socket) -> None:
        self.protocol, self.hosts, self.number, self.socket = protocol, hosts, number, connection
        self.own = _Machine(hosts[number], _mac(number))
        self.known: set[int] = set()
        self.asked: dict[int, float] = {}
        self.received = 0

    def ask(self, other: int) -> None:
        if other not in self.known:
            self.socket.send(self.protocol.question(self.own, self.hosts[other]))
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
            message = None if kind == socket.PACKET_OUTGOING else self.protocol.read(frame)
            if message is None:
                continue
            self.received += 1
            if message.target != self.own.host:
                continue
            sender = self.hosts.index(message.sender.host)
            assert message.sender.mac == _mac(sender), "the right owner"
            self.known.add(sender)
            self.asked.pop(sender, None)
            if message.is_question:
                self.socket.send(self.protocol.answer(self.own, message.sender))


def _mac(number: int) -> bytes:
    return bytes([2, 0, 0, 0, 1, number])


def _ports() -> list[Port]:
    return [Port(f"p{number}", GuestKind.NETNS, _mac(number).hex(":")) for number in range(_GUESTS)]


def _received(path: NetworkPath, protocol: _Protocol, lease: Callable[[list[Device]], list[int]] | None = None) -> int:
    """Frames that all guests receive until each knows each other; `lease` gives them addresses before."""
    devices = [nic.endpoint for nic in path.nics.values() if isinstance(nic.endpoint, Device)]
    sockets = open_at(devices, protocol.ethertype)
    assert len(sockets) == _GUESTS
    hosts = lease(devices) if lease else [number + 2 for number in range(_GUESTS)]
    guests = [_Guest(protocol, hosts, number, connection) for number, connection in enumerate(sockets)]
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
    quiet = time.monotonic() + 0.2
    while time.monotonic() < quiet:
        hear(0.05)
    poll.close()
    for guest in guests:
        guest.socket.close()
    return sum(guest.received for guest in guests)


def _with_memlane(session: Session, protocol: _Protocol, origin: str) -> int:
    """The same with memlane, which has the addresses by this origin."""
    stated = {
        port.name: {"mac": port.mac} | ({"addresses": [protocol.address(number + 2)]} if origin == "configured" else {})
        for number, port in enumerate(_ports())
    }
    keys = {"subnet": "10.0.0.0/24"} if origin == "leased" else {"neighbour-suppression": True}
    path = Switch(session, stated, {}, segment=[{"name": "lan"} | keys])
    path.lay(_ports())
    return _received(path, protocol, _lease if origin == "leased" else None)


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


@pytest.mark.parametrize("protocol", [_Arp(), _Nd()], ids=["arp", "nd"])
def test_guests_receive_a_fiftieth_of_the_frames_of_the_bridge(session: Session, protocol: _Protocol) -> None:
    """One frame for each question with configured and leased addresses.

    With learned ones also a flood for each guest that has said nothing: no more is known of its address.
    """
    bridge = Bridge(session)
    bridge.lay(_ports())
    flooded = _received(bridge, protocol)
    counts = {}
    for origin in ("configured", "leased", "learned") if isinstance(protocol, _Arp) else ("configured", "learned"):
        with Session(session.folder / origin) as own:
            counts[origin] = _with_memlane(own, protocol, origin)
    shares = {origin: f"{count} ({100 * count / flooded:.1f} %)" for origin, count in counts.items()}
    name = type(protocol).__name__[1:].upper()
    print(f"\n{name} frames that {_GUESTS} guests receive: bridge {flooded}, memlane {shares}")
    assert all(50 * counts[origin] <= flooded for origin in counts if origin != "learned"), (counts, flooded)
    assert 10 * counts["learned"] <= flooded, (counts, flooded)
