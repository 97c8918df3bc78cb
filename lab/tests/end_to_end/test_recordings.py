"""Traffic of real guests is recorded, and `memlane replay` makes each verdict again."""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from memlane_lab.bed import bed
from memlane_lab.common.wait import until
from memlane_lab.guests import Guest
from memlane_lab.host import ports
from memlane_lab.host.session import Session
from memlane_lab.paths.memlane import program
from tests.end_to_end.lan import UML, Lan, Plan
from tests.end_to_end.transfer import Flow, Library

pytestmark = pytest.mark.real

_FRAMES = int(os.environ.get("MEMLANE_RECORDED_FRAMES", "30000"))
"""Least number of recorded frames; ten million take about ten minutes."""
_SETTINGS: dict[str, Any] = {
    "workers": 2,
    "segment": [{"name": "lan", "subnet": "10.0.0.0/24", "subnet6": "fd00::/64", "multicast": "snoop"}],
    "policy": [
        {"to": "c", "protocol": "tcp", "ports": ["6000-7999"], "action": "allow"},
        {"to": "c", "protocol": "udp", "ports": ["6000-7999"], "action": "allow"},
        {"to": "c", "protocol": "icmp", "action": "allow"},
        {"to": "c", "protocol": "icmpv6", "action": "allow"},
        {"from": "a", "protocol": "tcp", "destinations": ["10.77.0.0/16"], "ports": [9], "action": "deny"},
        {"from": "c", "to": "a", "action": "allow"},
        {"default": "deny", "members": ["c"]},
    ],
}
_VLAN = (
    "ip link add link net0 name lane7 type vlan id 7 && ip link set lane7 up && ip address add 10.78.0.{}/24 dev lane7"
)
_LEASED = '#!/bin/sh\n[ "$1" = bound ] && ip address add "$ip/24" dev "$interface"\nexit 0\n'
_CLOSED = "nc -w 1 {} 9 </dev/null; for port in 1 2 3; do echo x | nc -u -w 1 {} $port; done; true"
"""Connections that the policy or the receiver refuses."""


@contextmanager
def _recording(lan: Lan, file: Path) -> Iterator[None]:
    command: list[str | Path] = [_memlane(), "record", lan.switch.file, "-w", file]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as recording:
        try:
            assert recording.stderr
            assert "begins" in recording.stderr.readline()
            yield
        finally:
            recording.terminate()


def _memlane() -> Path:
    found = program()
    assert found
    return found


def _lease(guest: Guest) -> None:
    guest.put("/tmp/bound", _LEASED.encode())
    guest.run("chmod +x /tmp/bound; udhcpc -i net0 -s /tmp/bound -n -q -t 20 -T 2", timeout=80).check()


def _frames(lan: Lan) -> int:
    return sum(int(port["transmit-frames"]) for port in lan.switch.report()["ports"])


@pytest.mark.timeout(3600)
def test_each_verdict_on_traffic_of_three_guests_is_made_again(session: Session, tmp_path: Path) -> None:
    """TCP with offloads, UDP, DHCP, ARP, ND, a VLAN, MLD that is snooped, anti-spoofing, and policy rules."""
    own = [{"ip": address(1)} for address in (bed.ipv4, bed.ipv6)]
    plans = [
        Plan(UML, stated={"segment": "lan"}),
        Plan(UML, stated={"mac": ports.mac(2), "anti-spoof": "all", "allowed": own, "segment": "lan"}),
        Plan(UML, stated={"segment": "lan"}),
    ]
    lan, file = Lan(session, plans, **_SETTINGS), tmp_path / "recording"
    a, b, c = lan.guests
    with _recording(lan, file), ExitStack() as flows:
        before = _frames(lan)
        for guest in lan.guests:
            _lease(guest)
        for number, guest in enumerate((a, c), 1):
            guest.run(_VLAN.format(number)).check()
        lan.wait_answer(0, "10.78.0.2")
        # From an address that is not its own.
        b.run("ip address add 10.77.9.9/16 dev net0; ping -c 3 -W 1 -I 10.77.9.9 " + bed.ipv4(0))
        a.run(_CLOSED.format(bed.ipv4(2), bed.ipv4(2)), timeout=30)
        for source, target in ((0, 1), (1, 2), (2, 0)):
            lan.reach(source, target)
            Library(lan.guests[target]).fetch(lan.guests[source], bed.ipv6(target)).finish()
        small = ("--udp", "--length", "64", "--bitrate", "0")
        flows.enter_context(Flow(a, b, bed.ipv4(1), *small))
        flows.enter_context(Flow(b, c, bed.ipv6(2), *small, "--bidir"))
        flows.enter_context(Flow(c, a, bed.ipv4(0), "--set-mss", "536", "--bitrate", "50M"))
        until(lambda: _frames(lan) - before > 1.05 * _FRAMES, timeout=3000, what=f"{_FRAMES} frames")
        # The present verdicts reach the file.
        time.sleep(0.5)
    replayed = json.loads(_replay(file, "--json"))
    print(f"{replayed['frames']} frames, {replayed['verdicts']} verdicts, {file.stat().st_size / 1e6:.0f} MB")
    assert replayed["frames"] >= _FRAMES, replayed
    assert [replayed[key] for key in ("different", "not-known", "missed")] == [0, 0, 0], replayed
    assert "10.77.9.9" in _replay(file, "--port", "b")


def _replay(file: Path, *options: str) -> str:
    done = subprocess.run([_memlane(), "replay", file, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
