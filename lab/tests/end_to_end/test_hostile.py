"""A guest that forges its addresses, or offers services, reaches no other guest, and the operator reads the reason."""

import io
import json
import subprocess
from collections import Counter
from collections.abc import Sequence
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
from scapy.utils import rdpcap, wrpcap

from memlane_lab.bed import bed
from memlane_lab.common.wait import until
from memlane_lab.guests import Guest
from memlane_lab.host import ports
from memlane_lab.host.ports import GuestKind
from memlane_lab.host.session import Session
from memlane_lab.images import tools
from memlane_lab.paths.memlane import program
from tests.end_to_end.lan import HOST, TCG, UML, Lan, Plan
from tests.end_to_end.switch import Switch

pytestmark = pytest.mark.real

_EVIL, _VICTIM_GUEST = 0, 1
_OWN, _VICTIM = ports.mac(1), ports.mac(2)
_OWN_IP, _VICTIM_IP = bed.ipv4(0), bed.ipv4(1)
_OWN_IPV6, _VICTIM_IPV6 = bed.ipv6(0), bed.ipv6(1)
_OWN_LINK_LOCAL = "fe80::6d:6cff:fe00:1"
"""As the MAC address makes it (RFC 4291, appendix A)."""
_ALL = "ff:ff:ff:ff:ff:ff"
_IP, _ARP, _MAC, _SERVER = "spoofed-ip", "spoofed-arp", "spoofed-source", "not-a-server"
_TIMES = 3
_OTHER_KEYS = {_IP: "addresses = ", _ARP: "addresses = ", _MAC: "allowed = ", _SERVER: "may-serve = "}
"""The keys that would allow the frames."""
_FIRST, _BETWEEN, _LAST = b"first-honest", b"between-them", b"last-of-them"

_own = Ether(src=_OWN, dst=_VICTIM)
_all = Ether(src=_OWN, dst=_ALL)
_ip = IP(src=_OWN_IP, dst=_VICTIM_IP)
_ipv6 = IPv6(src=_OWN_IPV6, dst=_VICTIM_IPV6, hlim=255)
_forged = IP(src=_VICTIM_IP, dst=_VICTIM_IP)
_forged6 = IPv6(src=_VICTIM_IPV6, dst=_VICTIM_IPV6, hlim=255)
_offer = BOOTP(op=2, yiaddr="10.0.0.66") / DHCP(options=[("message-type", "offer"), "end"])
_dhcp = UDP(sport=67, dport=68) / _offer
_link = ICMPv6NDOptDstLLAddr(lladdr=_OWN)
_na = ICMPv6ND_NA(tgt=_VICTIM_IPV6, R=0, S=0, O=1) / _link
_ra = ICMPv6ND_RA(routerlifetime=1800) / ICMPv6NDOptSrcLLAddr(lladdr=_OWN)
_local = IPv6(src=_OWN_LINK_LOCAL, dst="ff02::1", hlim=255)
_padding = IPv6ExtHdrDestOpt(options=[PadN(optdata=bytes(12))])

_FRAMES: dict[str, tuple[Packet, str]] = {
    "MAC address": (Ether(src=_VICTIM, dst=_VICTIM) / _ip / UDP(), _MAC),
    "IPv4": (_own / _forged / UDP(), _IP),
    "IPv4 with options of length zero": (
        _own / IP(src=_VICTIM_IP, dst=_VICTIM_IP, ihl=6, proto=17) / Raw(b"\x82\x00\x00\x00" + bytes(8)),
        _IP,
    ),
    "first fragment": (_own / IP(src=_VICTIM_IP, dst=_VICTIM_IP, flags="MF") / UDP() / Raw(bytes(24)), _IP),
    "later fragment": (_own / IP(src=_VICTIM_IP, dst=_VICTIM_IP, frag=100) / Raw(bytes(24)), _IP),
    "IPv4 behind a tag": (_own / Dot1Q(vlan=7) / _forged / TCP(), _IP),
    "IPv4 behind two tags": (_own / Dot1AD(vlan=7) / Dot1Q(vlan=8) / _forged / ICMP(), _IP),
    "IPv6": (_own / _forged6 / UDP(), _IP),
    "IPv6 behind extension headers": (_own / _forged6 / IPv6ExtHdrHopByHop() / _padding / _padding / UDP(), _IP),
    "fragment of IPv6": (_own / _forged6 / IPv6ExtHdrFragment(offset=100) / Raw(bytes(24)), _IP),
    "ARP reply": (_own / ARP(op=2, hwsrc=_OWN, psrc=_VICTIM_IP, hwdst=_VICTIM, pdst=_VICTIM_IP), _ARP),
    "ARP announcement": (_all / ARP(op=1, hwsrc=_OWN, psrc=_VICTIM_IP, pdst=_VICTIM_IP), _ARP),
    "ARP of another MAC address": (_all / ARP(op=2, hwsrc=_VICTIM, psrc=_OWN_IP, pdst=_VICTIM_IP), _ARP),
    "ARP behind two tags": (_all / Dot1AD(vlan=7) / Dot1Q(vlan=8) / ARP(op=2, hwsrc=_OWN, psrc=_VICTIM_IP), _ARP),
    "neighbour advertisement": (_own / _ipv6 / _na, _ARP),
    "the same behind options": (_own / _ipv6 / IPv6ExtHdrHopByHop() / _padding / _na, _ARP),
    "the same in a fragment": (_own / _ipv6 / IPv6ExtHdrFragment(m=1) / _na, _ARP),
    "solicitation from another": (
        _own / _forged6 / ICMPv6ND_NS(tgt=_VICTIM_IPV6) / ICMPv6NDOptSrcLLAddr(lladdr=_OWN),
        _IP,
    ),
    "router advertisement": (_all / _local / _ra, _SERVER),
    "the same behind a long chain": (_all / _local / IPv6ExtHdrHopByHop() / _padding / _padding / _ra, _SERVER),
    "the same in its first fragment": (_all / _local / IPv6ExtHdrFragment(m=1) / _ra, _ARP),
    "redirect": (_own / _local / ICMPv6ND_Redirect(tgt="fe80::1", dst="fd00::9"), _SERVER),
    "DHCP offer": (_all / IP(src=_OWN_IP, dst="255.255.255.255") / _dhcp, _SERVER),
    "DHCP offer to one guest": (_own / _ip / _dhcp, _SERVER),
    "DHCP offer in its first fragment": (_own / IP(src=_OWN_IP, dst=_VICTIM_IP, flags="MF") / _dhcp, _SERVER),
    "DHCP offer behind two tags": (_own / Dot1AD(vlan=7) / Dot1Q(vlan=8) / _ip / _dhcp, _SERVER),
    "DHCPv6 answer": (_own / _ipv6 / UDP(sport=547, dport=546) / DHCP6_Advertise(), _SERVER),
}


def _lan(session: Session, kind: GuestKind) -> Lan:
    victim = HOST if kind is HOST else UML

    def plan(index: int, kind: GuestKind, **keys: Any) -> Plan:
        own = {"mac": ports.mac(index + 1), "addresses": [bed.ipv4(index), bed.ipv6(index)]}
        return Plan(kind, stated=own | keys, image=tools.image())

    plans = [plan(_EVIL, kind, **{"anti-spoof": "all"}), plan(_VICTIM_GUEST, victim)]
    return Lan(session, plans, segment=[{"name": "lan", "neighbour-suppression": False}])


def _asked(switch: Switch, *arguments: str) -> Any:
    binary = program()
    assert binary is not None
    command, *rest = arguments
    done = subprocess.run([binary, command, switch.file, *rest, "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()] if command == "events" else json.loads(done.stdout)


def _played(session: Session, frames: Sequence[bytes]) -> bytes:
    """The frames as a capture file, in the order in which a guest is to send them."""
    file = session.folder / "played.pcap"
    wrpcap(str(file), [Ether(frame) for frame in frames])
    return file.read_bytes()


def _heard(evil: Guest, victim: Guest, played: bytes) -> list[bytes]:
    """The frames that reach the victim while the other guest sends these, of which the last ends with `_LAST`."""
    evil.put("/tmp/played.pcap", played)
    listens = victim.spawn("exec tcpdump -Z root -U -n -Q in -i net0 -w /tmp/heard.pcap")
    listens.wait_for_output("listening on", timeout=30)
    evil.run("tcpreplay --quiet --pps 1000 -i net0 /tmp/played.pcap", timeout=60).check()
    until(
        lambda: victim.run(f"grep -q {_LAST.decode()} /tmp/heard.pcap").status == 0,
        timeout=30,
        what="the last honest frame",
    )
    listens.kill()
    listens.wait(10)
    return [bytes(frame) for frame in rdpcap(io.BytesIO(victim.get("/tmp/heard.pcap")))]


def _drops(switch: Switch) -> Counter[str]:
    return Counter(switch.port(bed.name(_EVIL))["drops"])


def _key_at(switch: Switch, key: dict[str, Any]) -> str:
    """The key that stands in the line of the file which a forecast names."""
    assert key["file"] == str(switch.file), key
    line: int = key["line"]
    return switch.file.read_text().splitlines()[line - 1].split(" = ")[0]


@pytest.mark.parametrize("kind", [HOST, UML, pytest.param(TCG, marks=pytest.mark.prove)])
def test_a_guest_that_forges_reaches_nobody_and_why_names_the_rule(session: Session, kind: GuestKind) -> None:
    lan = _lan(session, kind)
    switch, (evil, victim) = lan.switch, lan.guests
    lan.reach(_EVIL, _VICTIM_GUEST)
    marks = {b"hostile-%04d" % number: name for number, name in enumerate(_FRAMES)}
    frames = {name: bytes(_FRAMES[name][0]) + mark for mark, name in marks.items()}
    honest = bytes(_own / _ip / UDP(sport=4000, dport=4000))
    # Frames that do not arrive were dropped: the path works before, between and after them.
    sent = [honest + _FIRST]
    for frame in frames.values():
        sent += [honest + _BETWEEN, *[frame] * _TIMES]
    before = _drops(switch)
    heard = _heard(evil, victim, _played(session, [*sent, honest + _LAST]))
    assert not {name for mark, name in marks.items() if any(mark in frame for frame in heard)}
    honestly = Counter(end for end in (_FIRST, _BETWEEN, _LAST) for frame in heard if frame.endswith(end))
    assert honestly == {_FIRST: 1, _BETWEEN: len(frames), _LAST: 1}
    counts = Counter(reason for _, reason in _FRAMES.values())
    assert _drops(switch) - before == {reason: _TIMES * count for reason, count in counts.items()}
    _check_reasons(switch, session, frames)


def _check_reasons(switch: Switch, session: Session, frames: dict[str, bytes]) -> None:
    """Insists that `why` names the rule and its line for each frame, and an event the key that would allow it."""
    file = session.folder / "hostile.pcap"
    wrpcap(str(file), [Ether(frame) for frame in frames.values()])
    said_of_all = _asked(switch, "why", bed.name(_EVIL), "--pcap", str(file))
    for (name, (_, reason)), why in zip(_FRAMES.items(), said_of_all, strict=True):
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
