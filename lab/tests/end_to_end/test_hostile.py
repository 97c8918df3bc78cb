"""A guest that forges its addresses, or offers services, reaches no other guest, and the operator reads the reason."""

import json
import socket
import subprocess
from collections import Counter
from typing import Any

import pytest
from scapy.layers.dhcp import BOOTP, DHCP
from scapy.layers.dhcp6 import DHCP6_Advertise
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import (
    ICMPv6ND_NA,
    ICMPv6ND_NS,
    ICMPv6ND_RA,
    ICMPv6ND_Redirect,
    ICMPv6NDOptDstLLAddr,
    ICMPv6NDOptSrcLLAddr,
    IPv6,
    IPv6ExtHdrDestOpt,
    IPv6ExtHdrFragment,
    IPv6ExtHdrHopByHop,
    PadN,
)
from scapy.layers.l2 import ARP, Dot1AD, Dot1Q, Ether
from scapy.packet import Packet, Raw
from scapy.utils import wrpcap

from memlane_lab.common.wait import until
from memlane_lab.host.ports import Device, GuestKind, Port
from memlane_lab.host.session import Session
from memlane_lab.paths.memlane import program
from tests.end_to_end.sockets import open_at
from tests.end_to_end.switch import Switch

pytestmark = pytest.mark.real

_MACS = {"evil": "02:00:00:00:00:01", "victim": "02:00:00:00:00:02"}
_ADDRESSES = {"evil": ["10.0.0.1", "fd00::1"], "victim": ["10.0.0.2", "fd00::2"]}
_OWN, _VICTIM = _MACS["evil"], _MACS["victim"]
_ALL = "ff:ff:ff:ff:ff:ff"
_IP, _ARP, _MAC, _SERVER = "spoofed-ip", "spoofed-arp", "spoofed-source", "not-a-server"
_TIMES = 3
_OTHER_KEYS = {_IP: "addresses = ", _ARP: "addresses = ", _MAC: "allowed = ", _SERVER: "may-serve = "}
"""The keys that would allow the frames."""

_own = Ether(src=_OWN, dst=_VICTIM)
_all = Ether(src=_OWN, dst=_ALL)
_ip = IP(src="10.0.0.1", dst="10.0.0.2")
_ipv6 = IPv6(src="fd00::1", dst="fd00::2", hlim=255)
_forged = IP(src="10.0.0.2", dst="10.0.0.2")
_forged6 = IPv6(src="fd00::2", dst="fd00::2", hlim=255)
_offer = BOOTP(op=2, yiaddr="10.0.0.66") / DHCP(options=[("message-type", "offer"), "end"])
_dhcp = UDP(sport=67, dport=68) / _offer
_link = ICMPv6NDOptDstLLAddr(lladdr=_OWN)
_na = ICMPv6ND_NA(tgt="fd00::2", R=0, S=0, O=1) / _link
_ra = ICMPv6ND_RA(routerlifetime=1800) / ICMPv6NDOptSrcLLAddr(lladdr=_OWN)
_local = IPv6(src="fe80::ff:fe00:1", dst="ff02::1", hlim=255)
_padding = IPv6ExtHdrDestOpt(options=[PadN(optdata=bytes(12))])

_FRAMES: dict[str, tuple[Packet, str]] = {
    "MAC address": (Ether(src=_VICTIM, dst=_VICTIM) / _ip / UDP(), _MAC),
    "IPv4": (_own / _forged / UDP(), _IP),
    "IPv4 with options of length zero": (
        _own / IP(src="10.0.0.2", dst="10.0.0.2", ihl=6, proto=17) / Raw(b"\x82\x00\x00\x00" + bytes(8)),
        _IP,
    ),
    "first fragment": (_own / IP(src="10.0.0.2", dst="10.0.0.2", flags="MF") / UDP() / Raw(bytes(24)), _IP),
    "later fragment": (_own / IP(src="10.0.0.2", dst="10.0.0.2", frag=100) / Raw(bytes(24)), _IP),
    "IPv4 behind a tag": (_own / Dot1Q(vlan=7) / _forged / TCP(), _IP),
    "IPv4 behind two tags": (_own / Dot1AD(vlan=7) / Dot1Q(vlan=8) / _forged / ICMP(), _IP),
    "IPv6": (_own / _forged6 / UDP(), _IP),
    "IPv6 behind extension headers": (_own / _forged6 / IPv6ExtHdrHopByHop() / _padding / _padding / UDP(), _IP),
    "fragment of IPv6": (_own / _forged6 / IPv6ExtHdrFragment(offset=100) / Raw(bytes(24)), _IP),
    "ARP reply": (_own / ARP(op=2, hwsrc=_OWN, psrc="10.0.0.2", hwdst=_VICTIM, pdst="10.0.0.2"), _ARP),
    "ARP announcement": (_all / ARP(op=1, hwsrc=_OWN, psrc="10.0.0.2", pdst="10.0.0.2"), _ARP),
    "ARP of another MAC address": (_all / ARP(op=2, hwsrc=_VICTIM, psrc="10.0.0.1", pdst="10.0.0.2"), _ARP),
    "ARP behind two tags": (_all / Dot1AD(vlan=7) / Dot1Q(vlan=8) / ARP(op=2, hwsrc=_OWN, psrc="10.0.0.2"), _ARP),
    "neighbour advertisement": (_own / _ipv6 / _na, _ARP),
    "the same behind options": (_own / _ipv6 / IPv6ExtHdrHopByHop() / _padding / _na, _ARP),
    "the same in a fragment": (_own / _ipv6 / IPv6ExtHdrFragment(m=1) / _na, _ARP),
    "solicitation from another": (
        _own / _forged6 / ICMPv6ND_NS(tgt="fd00::2") / ICMPv6NDOptSrcLLAddr(lladdr=_OWN),
        _IP,
    ),
    "router advertisement": (_all / _local / _ra, _SERVER),
    "the same behind a long chain": (_all / _local / IPv6ExtHdrHopByHop() / _padding / _padding / _ra, _SERVER),
    "the same in its first fragment": (_all / _local / IPv6ExtHdrFragment(m=1) / _ra, _ARP),
    "redirect": (_own / _local / ICMPv6ND_Redirect(tgt="fe80::1", dst="fd00::9"), _SERVER),
    "DHCP offer": (_all / IP(src="10.0.0.1", dst="255.255.255.255") / _dhcp, _SERVER),
    "DHCP offer to one guest": (_own / _ip / _dhcp, _SERVER),
    "DHCP offer in its first fragment": (_own / IP(src="10.0.0.1", dst="10.0.0.2", flags="MF") / _dhcp, _SERVER),
    "DHCP offer behind two tags": (_own / Dot1AD(vlan=7) / Dot1Q(vlan=8) / _ip / _dhcp, _SERVER),
    "DHCPv6 answer": (_own / _ipv6 / UDP(sport=547, dport=546) / DHCP6_Advertise(), _SERVER),
}


def _switch(session: Session) -> Switch:
    stated = {
        name: {"mac": mac, "addresses": _ADDRESSES[name]} | ({"anti-spoof": "all"} if name == "evil" else {})
        for name, mac in _MACS.items()
    }
    path = Switch(session, stated, {}, segment=[{"name": "lan", "neighbour-suppression": False}])
    path.lay([Port(name, GuestKind.NETNS, mac) for name, mac in _MACS.items()])
    return path


def _asked(switch: Switch, *arguments: str) -> Any:
    binary = program()
    assert binary is not None
    command, *rest = arguments
    done = subprocess.run([binary, command, switch.file, *rest, "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()] if command == "events" else json.loads(done.stdout)


def _arrived(victim: socket.socket, marks: dict[bytes, str], last: bytes) -> set[str]:
    """Names of the hostile frames that the victim receives up to the frame that ends with `last`."""
    heard: set[str] = set()
    victim.settimeout(30.0)
    while True:
        frame = victim.recv(2000)
        heard |= {name for mark, name in marks.items() if frame.endswith(mark)}
        if frame.endswith(last):
            return heard


def _key_at(switch: Switch, key: dict[str, Any]) -> str:
    """The key that stands in the line of the file which a forecast names."""
    assert key["file"] == str(switch.file), key
    line: int = key["line"]
    return switch.file.read_text().splitlines()[line - 1].split(" = ")[0]


def test_a_guest_that_forges_reaches_nobody_and_why_names_the_rule(session: Session) -> None:
    switch = _switch(session)
    devices = [nic.endpoint for nic in switch.nics.values() if isinstance(nic.endpoint, Device)]
    evil, victim = open_at(devices)
    marks = {b"hostile-%04d" % number: name for number, name in enumerate(_FRAMES)}
    frames = {name: bytes(_FRAMES[name][0]) + mark for mark, name in marks.items()}
    honest = bytes(_own / _ip / UDP(sport=4000, dport=4000))
    evil.send(honest + b"first-honest")
    # The path works: frames that do not arrive below were dropped.
    assert not _arrived(victim, marks, b"first-honest")
    for name, frame in frames.items():
        for _ in range(_TIMES):
            evil.send(honest + b"between-them")
            evil.send(frame)
        evil.send(honest + b"last-of-them")
        assert not _arrived(victim, marks, b"last-of-them"), name
    counts = Counter(reason for _, reason in _FRAMES.values())
    drops = switch.port("evil")["drops"]
    assert {reason: drops.get(reason) for reason in counts} == {reason: _TIMES * n for reason, n in counts.items()}
    file = session.folder / "hostile.pcap"
    wrpcap(str(file), [Ether(frame) for frame in frames.values()])
    for (name, (_, reason)), why in zip(
        _FRAMES.items(), _asked(switch, "why", "evil", "--pcap", str(file)), strict=True
    ):
        said = json.dumps(why)
        assert reason in said, (name, said)
        assert "anti-spoof" in said, (name, said)
        assert "anti-spoof" in {_key_at(switch, key) for key in why["keys"] if not key["would-allow"]}, (name, said)

    def told() -> dict[str, str]:
        refused = [event for event in _asked(switch, "events") if event["event"] == "address-refused"]
        return {event["reason"]: event["allowed-by"] for event in refused}

    until(lambda: set(told()) == set(_OTHER_KEYS), timeout=20, what="each reason to be told")
    for reason, key in _OTHER_KEYS.items():
        assert told()[reason].startswith(key), told()
    evil.close()
    victim.close()
