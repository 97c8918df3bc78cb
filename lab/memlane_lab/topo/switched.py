"""Links of memlane: one daemon, a segment of two ports for each link, with memlane's own emulation.

The daemon is known from outside only: its file, its control socket, its sockets and TAPs.
"""

import http.client
import json
import socket
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import tomli_w

from memlane_lab.common.errors import LabError
from memlane_lab.common.wait import until
from memlane_lab.host import procfs
from memlane_lab.host.ports import Endpoint, VhostUser
from memlane_lab.host.process import HostProcess
from memlane_lab.host.session import Session
from memlane_lab.paths import memlane
from memlane_lab.topo.addresses import Interface, Plan, is_host
from memlane_lab.topo.fabric import Fabric, LinkState
from memlane_lab.topo.model import Topology

_DOWN = {"loss": 1.0}
"""How memlane is told that nothing passes."""
_MEMORY = 256
"""MiB that all frames under way may take."""
_NAME = 64
"""Longest name of a segment."""


class Switched(Fabric):
    """The daemon, from its file to its end."""

    def __init__(self, session: Session, topology: Topology, plan: Plan) -> None:
        super().__init__(session, topology, plan)
        self._folder = session.folder / "memlane"
        self._daemon: HostProcess | None = None

    @property
    def process(self) -> HostProcess | None:
        return self._daemon

    @property
    def file(self) -> Path | None:
        return self._folder / "net.toml"

    def start(self, namespaces: Mapping[str, str]) -> None:
        """Starts the daemon and waits until all its ports are there; netns nodes have their TAPs in `namespaces`."""
        binary = memlane.program()
        if binary is None:
            raise LabError(memlane.Memlane.missing())
        self._folder.mkdir()
        ports = [self._port(end, namespaces) for both in self.plan.ends for end in both]
        stated = {"name": self.topology.name, "control": str(self._control), "memory-mib": _MEMORY, "port": ports}
        file = self._folder / "net.toml"
        file.write_text(tomli_w.dumps(stated))
        daemon = self.session.start("memlane", [binary, "up", file])
        self._daemon = daemon

        def listening() -> bool:
            daemon.check()
            return procfs.accepts(self._control)

        until(listening, timeout=60, what="memlane's ports to appear")
        self.address_host()

    def endpoint(self, end: Interface) -> Endpoint:
        return VhostUser(self._socket(end))

    def _socket(self, end: Interface) -> Path:
        """Where a virtual machine's NIC at this end connects."""
        return self._folder / f"p{2 * end.link + end.side}.sock"

    def _port(self, end: Interface, namespaces: Mapping[str, str]) -> dict[str, Any]:
        stated: dict[str, Any] = {"name": end.port, "segment": self._segment(end.link), "mtu": end.mtu}
        if is_host(end):
            stated["tap"] = self.host_device(end)
        elif end.node in namespaces:
            stated |= {"tap": end.name, "netns": namespaces[end.node]}
        else:
            stated |= {"vhost-user": str(self._socket(end)), "mac": end.mac}
        link = self.links[end.link].impairment.as_link()
        return {**stated, "link": link} if link else stated

    def _segment(self, link: int) -> str:
        """The segment of a link: called like it, or by its number where that is too long."""
        name = self.links[link].name
        return name if len(name) <= _NAME else f"link-{link}"

    def apply(self, link: LinkState, ends: tuple[Interface, Interface]) -> None:
        told = link.impairment.as_link() if link.up else _DOWN
        for end in ends:
            self._ask("PATCH", f"/v1/ports/{end.port}", {"link": told})

    def ports(self) -> dict[str, Any]:
        return {port["name"]: port for port in self._ask("GET", "/v1/network")["ports"]}

    def capture(self, end: Interface, write: str, what: str, count: int | None) -> list[str]:
        """By memlane: sent frames before the link, received ones after it, dropped ones with the reason."""
        options = [*(("-f", what) if what else ()), *(("-c", str(count)) if count else ())]
        return [str(memlane.program()), "capture", str(self.file), end.port, "-w", write, *options]

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        if self._daemon is None:
            raise LabError("memlane has not been started")
        self._daemon.check()
        connection = http.client.HTTPConnection("memlane", timeout=30)
        connection.sock = socket.socket(socket.AF_UNIX)
        with closing(connection):
            connection.sock.connect(str(self._control))
            headers = {"content-type": "application/json"} if body else {}
            connection.request(method, path, json.dumps(body) if body else None, headers)
            answer = connection.getresponse()
            content = answer.read()
        if answer.status != http.HTTPStatus.OK:
            raise LabError(f"memlane rejected the request: {content.decode(errors='replace')}")
        told: dict[str, Any] = json.loads(content)
        return told

    @property
    def _control(self) -> Path:
        return self._folder / "control.sock"
