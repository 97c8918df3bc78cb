"""Several hosts, each a namespace with a memlane, an uplink and FRR of its own, on an underlay."""

import json
import subprocess
from pathlib import Path
from typing import Any

import tomli_w

from memlane_lab.common.wait import until
from memlane_lab.guests.netns import NetnsGuest
from memlane_lab.host import procfs, underlay
from memlane_lab.host.ports import Device, GuestKind, Nic, Port
from memlane_lab.host.process import HostProcess
from memlane_lab.host.session import Session
from memlane_lab.paths import frr
from memlane_lab.paths.memlane import program

MTU = 1500
"""Of the segment, the same at all hosts."""


class Host:
    """One of them."""

    def __init__(self, session: Session, number: int, namespace: str, ports: list[dict[str, Any]]) -> None:
        """Starts its memlane; `ports` are those that it has from the start."""
        self.session, self.number, self.namespace = session, number, namespace
        self.address = underlay.address(number)
        self._folder = session.folder / f"host{number}"
        self._folder.mkdir()
        segment = {"name": "lan", "uplink": True, "vni": 100, "local": self.address, "netns": namespace}
        stated = {"control": str(self._control), "segment": [segment], "port": ports}
        (self._folder / "net.toml").write_text(tomli_w.dumps(stated))
        binary = program()
        assert binary is not None
        self._binary = binary
        self.memlane = session.start(f"memlane{number}", [binary, "up", self._folder / "net.toml"])
        until(self._is_up, timeout=20, what=f"memlane of host {number} to start")
        self.frr: list[HostProcess] = []

    @property
    def _control(self) -> Path:
        return self._folder / "control.sock"

    def _is_up(self) -> bool:
        self.memlane.check()
        return procfs.accepts(self._control)

    def start_frr(self, hosts: int) -> None:
        """Starts FRR, which speaks with all other hosts."""
        peers = [underlay.address(number) for number in range(hosts) if number != self.number]
        self.frr = frr.start(self.session, f"frr{self.number}", self.namespace, self.address, peers)

    def kill_frr(self) -> None:
        """Ends it as a crash would."""
        for daemon in self.frr:
            daemon.kill()

    def memlane_does(self, *arguments: str | Path) -> str:
        """The output of a command of memlane's for this host's network."""
        command = [self._binary, arguments[0], "--control", self._control, *arguments[1:]]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def uplink(self) -> dict[str, Any]:
        """The report about its uplink."""
        self.memlane.check()
        (told,) = json.loads(self.memlane_does("status", "--json"))["uplinks"]
        return dict(told)

    def port(self, name: str) -> dict[str, Any]:
        """The report about one port."""
        ports = json.loads(self.memlane_does("status", "--json"))["ports"]
        return dict(next(port for port in ports if port["name"] == name))

    def uplink_drops(self) -> dict[str, int]:
        """Dropped frames of its uplink, by their reasons."""
        return dict(self.uplink()["drops"])

    def knows(self, mac: str) -> bool:
        """Whether it knows of another host's machine."""
        return any(station["address"] == mac for station in self.uplink()["learned-addresses"])

    def socket(self, name: str) -> Path:
        """The vhost-user socket of its port `name`."""
        return self._folder / f"{name}.sock"

    def guest(self, name: str, mac: str, address: str, *keys: str) -> NetnsGuest:
        """Attaches a namespace as a guest, with this address; `keys` are further options of its port."""
        device = self.session.link_name(name)
        self.memlane_does("attach", name, "--tap", device, "--mac", mac, *keys)
        guest = NetnsGuest(self.session, name, [Nic(Port(name, GuestKind.NETNS, mac, MTU), Device(device, None))])
        guest.boot()
        guest.address(0, address)
        return guest


def start(session: Session, count: int, ports: list[list[dict[str, Any]]] | None = None) -> list[Host]:
    """Starts `count` hosts; `ports` are each host's from the start. Returns once each knows all others."""
    places = [session.namespace(f"host{number}") for number in range(count)]
    underlay.lay(session, places, MTU + underlay.HEADERS)
    hosts = [Host(session, number, place, ports[number] if ports else []) for number, place in enumerate(places)]
    for host in hosts:
        host.start_frr(count)
    for host in hosts:
        until(lambda at=host: len(at.uplink()["hosts"]) == count - 1, timeout=60, what="hosts to hear of each other")  # type: ignore[misc]
    return hosts
