"""The links: one memlane daemon, a segment of two ports for each, with memlane's own emulation.

The daemon is known from outside only: its file, its control socket, its sockets and TAPs.
"""

import http.client
import json
import socket
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from memlane_lab import network, procfs
from memlane_lab.errors import LabError
from memlane_lab.paths import memlane
from memlane_lab.process import HostProcess
from memlane_lab.session import Session
from memlane_lab.topo.addresses import Interface, Plan, is_host
from memlane_lab.topo.model import Impairment, Topology
from memlane_lab.wait import until

_DOWN = {"loss": 1.0}
"""How memlane is told that nothing passes."""
_MEMORY = 256
"""MiB that all frames under way may take."""


@dataclass
class LinkState:
    """A link while it runs."""

    name: str
    impairment: Impairment
    up: bool = True


class Fabric:
    """The daemon, from its file to its end."""

    def __init__(self, session: Session, topology: Topology, plan: Plan) -> None:
        self.links = [LinkState(_name(plan, number), link.impairment) for number, link in enumerate(topology.links)]
        self._session = session
        self._topology = topology
        self._plan = plan
        self._folder = session.folder / "memlane"
        self._daemon: HostProcess | None = None

    @property
    def started(self) -> bool:
        """Whether the daemon was started."""
        return self._daemon is not None

    @property
    def process(self) -> HostProcess:
        """The daemon."""
        if self._daemon is None:
            raise LabError("memlane has not been started")
        return self._daemon

    @property
    def file(self) -> Path:
        """The network as memlane was told it, for `memlane status`."""
        return self._folder / "net.toml"

    def start(self, namespaces: dict[str, str]) -> None:
        """Starts the daemon and waits until all its ports are there; netns nodes have their TAPs in `namespaces`."""
        binary = memlane.program()
        if binary is None:
            raise LabError(memlane.Memlane.missing())
        self._folder.mkdir()
        ports = [self._port(end, namespaces) for both in self._plan.ends for end in both]
        stated = {"name": self._topology.name, "control": str(self._control), "memory-mib": _MEMORY, "port": ports}
        self.file.write_text(tomli_w.dumps(stated))
        daemon = self._session.start("memlane", [binary, "up", self.file])
        self._daemon = daemon

        def listening() -> bool:
            daemon.check()
            return procfs.listens(daemon.pid, self._control)

        until(listening, timeout=60, what="memlane's ports to appear")

    def socket(self, end: Interface) -> Path:
        """Where a virtual machine's NIC at this end connects."""
        return self._folder / f"p{2 * end.link + end.side}.sock"

    def _port(self, end: Interface, namespaces: dict[str, str]) -> dict[str, Any]:
        stated: dict[str, Any] = {"name": end.port, "segment": self.links[end.link].name, "mtu": end.mtu}
        if is_host(end):
            stated["tap"] = self._session.link_name(f"h{end.link}")
        elif end.node in namespaces:
            stated |= {"tap": end.name, "netns": namespaces[end.node]}
        else:
            stated |= {"vhost-user": str(self.socket(end)), "mac": end.mac}
        link = self.links[end.link].impairment.as_link()
        return {**stated, "link": link} if link else stated

    def address_host(self) -> None:
        """Gives this machine its ends of links."""
        for end in self._plan.interfaces.get("host", ()):
            network.address(self._session.link_name(f"h{end.link}"), end.addresses)

    def number(self, first: str, second: str) -> int:
        """The number of the link between two nodes; "r1:net0" names one of several."""
        found = [number for number in range(len(self.links)) if self._joins(number, first, second)]
        if not found:
            raise LabError(f"there is no link between {first} and {second}")
        if len(found) > 1:
            raise LabError(f"several links join {first} and {second}: name the interface, as {first}:net0")
        return found[0]

    def _joins(self, number: int, first: str, second: str) -> bool:
        ends = self._plan.ends[number]
        names = [{end.node, f"{end.node}:{end.name}"} for end in ends]
        return (first in names[0] and second in names[1]) or (first in names[1] and second in names[0])

    def change(self, number: int, *, up: bool | None = None, impairment: Impairment | None = None) -> LinkState:
        """Changes a link while it runs, in both directions."""
        link = self.links[number]
        link.up = link.up if up is None else up
        link.impairment = impairment or link.impairment
        told = link.impairment.as_link() if link.up else _DOWN
        for end in self._plan.ends[number]:
            self._ask("PATCH", f"/v1/ports/{end.port}", {"link": told})
        return link

    def report(self) -> dict[str, Any]:
        """What the daemon tells of itself, its ports by name."""
        told = self._ask("GET", "/v1/network")
        return {**told, "ports": {port["name"]: port for port in told["ports"]}}

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        self.process.check()
        connection = http.client.HTTPConnection("memlane", timeout=30)
        connection.sock = socket.socket(socket.AF_UNIX)
        with closing(connection):
            connection.sock.connect(str(self._control))
            headers = {"content-type": "application/json"} if body else {}
            connection.request(method, path, json.dumps(body) if body else None, headers)
            answer = connection.getresponse()
            content = answer.read()
        if answer.status != http.HTTPStatus.OK:
            raise LabError(f"memlane refuses: {content.decode(errors='replace')}")
        told: dict[str, Any] = json.loads(content)
        return told

    @property
    def _control(self) -> Path:
        return self._folder / "control.sock"


def _name(plan: Plan, number: int) -> str:
    """A link's name: its two nodes; with the interface where several join the same two."""
    first, second = plan.ends[number]
    pair = {first.node, second.node}
    alone = sum({a.node, b.node} == pair for a, b in plan.ends) == 1
    return f"{first.node}-{second.node}" if alone else f"{first.node}.{first.name}-{second.node}.{second.name}"
