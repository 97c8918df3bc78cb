"""keepalived moves an address by VRRP between two guests under anti-spoofing, and a client reaches it at once."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from memlane_lab.common.wait import until
from memlane_lab.host import network
from memlane_lab.host.ports import Device, GuestKind, Port
from memlane_lab.host.process import HostProcess
from memlane_lab.host.session import Session
from memlane_lab.paths.memlane import program
from tests.end_to_end.switch import Switch

pytestmark = [pytest.mark.real, pytest.mark.prove]

_KEEPALIVED = Path("/usr/sbin/keepalived")
_HOSTS = {"lb1": "10.0.0.11", "lb2": "10.0.0.12", "client": "10.0.0.13"}
_MACS = {"lb1": "02:00:00:00:00:11", "lb2": "02:00:00:00:00:12", "client": "02:00:00:00:00:13"}
_SHARED = "10.0.0.100"
_BETWEEN = 0.005
"""Seconds between two questions of the client."""
_REACHED = 0.1
"""Seconds from the first announcement of the new owner to its first answer."""
_CONFIGURATION = """
vrrp_instance web {
    interface INTERFACE
    state BACKUP
    virtual_router_id 7
    priority PRIORITY
    advert_int 0.2
    virtual_ipaddress { 10.0.0.100/24 }
}
"""


def _switch(session: Session, *, allowed: bool) -> Switch:
    def stated(name: str) -> dict[str, Any]:
        pair = {"allowed": [{"ip": _SHARED}]} if allowed and name != "client" else {}
        return {"mac": _MACS[name], "addresses": [_HOSTS[name]], "anti-spoof": "all"} | pair

    path = Switch(session, {name: stated(name) for name in _HOSTS}, {})
    path.lay([Port(name, GuestKind.NETNS, mac) for name, mac in _MACS.items()])
    for name, device in _devices(path).items():
        network.change(device.namespace, f"address add {_HOSTS[name]}/24 dev {device.device}")
        network.change(device.namespace, f"link set dev {device.device} up")
    return path


def _devices(path: Switch) -> dict[str, Device]:
    return {name: nic.endpoint for name, nic in path.nics.items() if isinstance(nic.endpoint, Device)}


def _keepalived(session: Session, name: str, device: Device, priority: int) -> HostProcess:
    folder = session.folder / name
    folder.mkdir(exist_ok=True)
    file = folder / "keepalived.conf"
    file.write_text(_CONFIGURATION.replace("INTERFACE", device.device).replace("PRIORITY", str(priority)))
    pids: list[str | Path] = ["-p", folder / "keepalived.pid", "-r", folder / "vrrp.pid"]
    command: list[str | Path] = [_KEEPALIVED, "--dont-fork", "--log-console", "--vrrp", "-f", file, *pids]
    return session.start(f"keepalived-{name}", command, namespace=device.namespace)


def _answers(device: Device) -> bool:
    command = [*network.enter(device.namespace), "ping", "-c", "1", "-W", "1", _SHARED]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _events(switch: Switch) -> list[dict[str, Any]]:
    binary = program()
    assert binary is not None
    done = subprocess.run([binary, "events", switch.file, "--json"], capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def _heard(session: Session, device: Device) -> tuple[HostProcess, Path]:
    """Starts a capture of the client's frames, in lines of a file with their times."""
    capture = session.start(
        "tcpdump", ["tcpdump", "-n", "-e", "-tt", "-l", "-i", device.device, "arp or icmp"], namespace=device.namespace
    )
    until(lambda: "listening" in capture.log.read_text(), timeout=20, what="tcpdump to listen")
    return capture, capture.log


@pytest.mark.skipif(not _KEEPALIVED.exists(), reason="needs keepalived")
def test_an_address_moves_by_vrrp_between_guests_that_may_both_use_it(session: Session) -> None:
    switch = _switch(session, allowed=True)
    devices = _devices(switch)
    first = _keepalived(session, "lb1", devices["lb1"], 150)
    until(lambda: _answers(devices["client"]), timeout=30, what="lb1 to answer")
    _keepalived(session, "lb2", devices["lb2"], 100)
    until(
        lambda: "Entering BACKUP" in (session.logs / "keepalived-lb2.log").read_text(), timeout=30, what="lb2 to wait"
    )
    _, log = _heard(session, devices["client"])
    asks = session.start("ping", ["ping", "-n", "-i", str(_BETWEEN), _SHARED], namespace=devices["client"].namespace)
    until(lambda: f"{_MACS['lb1']} >" in log.read_text(), timeout=20, what="lb1 to answer the client")
    first.kill()
    announced = f"{_MACS['lb2']} > ff:ff:ff:ff:ff:ff"
    answered = f"{_MACS['lb2']} > {_MACS['client']}, ethertype IPv4"
    until(
        lambda: announced in log.read_text() and answered in log.read_text(), timeout=30, what="lb2 to take the address"
    )
    asks.kill()

    def at(words: str) -> float:
        return next(float(line.split()[0]) for line in log.read_text().splitlines() if words in line)

    print(f"reached {1000 * (at(answered) - at(announced)):.1f} ms after its announcement")
    assert at(answered) - at(announced) < _REACHED
    assert not [event for event in _events(switch) if event["event"] == "address-refused"]


@pytest.mark.skipif(not _KEEPALIVED.exists(), reason="needs keepalived")
def test_without_the_pair_the_address_is_not_reached_and_the_key_is_named(session: Session) -> None:
    switch = _switch(session, allowed=False)
    devices = _devices(switch)
    _keepalived(session, "lb1", devices["lb1"], 150)

    def refused() -> set[str]:
        return {event["allowed-by"] for event in _events(switch) if event["event"] == "address-refused"}

    until(lambda: f'addresses = ["{_SHARED}"]' in refused(), timeout=30, what="the announcement to be refused")
    assert not _answers(devices["client"])
