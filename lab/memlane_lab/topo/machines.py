"""Nodes while they run: each a guest of the lab with the nodes' image, set up by one script."""

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from memlane_lab import guests
from memlane_lab.common.errors import LabError
from memlane_lab.common.wait import Timeout
from memlane_lab.guests import Guest, GuestKind
from memlane_lab.guests.control import CommandFailed, Result, Running
from memlane_lab.guests.netns import NetnsGuest
from memlane_lab.host.ports import Nic, Port, Tap
from memlane_lab.host.session import Session
from memlane_lab.images import system
from memlane_lab.topo import image, setup
from memlane_lab.topo.addresses import Interface, Plan
from memlane_lab.topo.fabric import Fabric
from memlane_lab.topo.model import Node, Topology

_BOOT = 180.0
"""Seconds within which a node must answer, with a hundred others that boot beside it."""
_SETUP = 180.0
"""Seconds within which a node must be set up, likewise."""
_SYSTEM = 600.0
"""The same where a whole system starts its services first, each instruction of which may be translated."""


STEPS = ("begin", "set_up", "wait_set_up", "route", "wait_route")
"""The methods of a machine from its beginning to a node that is set up: many nodes take each step together."""


class _Netns(NetnsGuest):
    """A namespace that is there already, with the switch's TAPs in it."""

    def __init__(self, session: Session, name: str, namespace: str, **options: Any) -> None:  # noqa: ANN401
        super().__init__(session, name, **options)
        self._namespace = namespace


class Machine:
    """A node that runs, or can be started."""

    def __init__(self, node: Node, guest: Guest, topology: Topology, plan: Plan) -> None:
        self.node = node
        self.guest = guest
        self._topology = topology
        self._plan = plan
        self._script: Running | None = None
        self.complaints: list[str] = []
        """Output of commands that failed, where the node tolerates that."""

    @property
    def name(self) -> str:
        """Of the node."""
        return self.node.name

    @property
    def interfaces(self) -> Sequence[Interface]:
        """Its ends of links."""
        return self._plan.interfaces[self.name]

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self.guest.alive

    def run(self, command: str | Sequence[str | Path], timeout: float = 60.0, *, stdin: bytes = b"") -> Result:
        """Runs a command in the node to its end, success or not; `Result.check` insists on success."""
        return self._running().run(command, timeout, stdin=stdin)

    def spawn(self, command: str | Sequence[str | Path], *, stdin: bytes | None = b"") -> Running:
        """Starts a command in the node and returns while it runs."""
        return self._running().spawn(command, stdin=stdin)

    def get(self, path: str) -> bytes:
        """The content of a file in the node."""
        return self._running().get(path)

    def put(self, path: str, content: bytes) -> None:
        """Writes a file in the node; there is room in /tmp, /root, /run and /etc."""
        self._running().put(path, content)

    def _running(self) -> Guest:
        if not self.guest.alive:
            raise LabError(f"{self.name} is not running: start it with `memlane-lab topo start {self.name}`")
        return self.guest

    def begin(self) -> None:
        """Starts it, without waiting for anything."""
        self.guest.start()

    def set_up(self) -> None:
        """Waits until it answers, and has it set itself up, without waiting for that."""
        try:
            self.guest.control.wait_hello(1, _BOOT, self.guest.process.check)
        except Timeout as error:
            raise LabError(
                f"{self.name} does not boot: {error}; its console says:\n{self.guest.process.tail()}"
            ) from None
        text = setup.script(self._topology, self._plan, self.node, self._devices())
        self._script = self.guest.spawn(["sh", "-s"], stdin=text.encode())

    def wait_set_up(self) -> None:
        """Waits until it is set up, but for its daemons."""
        told = self._end_of_script().splitlines()
        self.complaints = [line.removeprefix(setup.LACK) for line in told if line.startswith(setup.LACK)]

    def route(self) -> None:
        """Starts its daemons, without waiting for that."""
        text = setup.routing(self._topology, self._plan, self.node)
        self._script = self.guest.spawn(["sh", "-s"], stdin=text.encode()) if text else None

    def wait_route(self) -> None:
        """Waits until its daemons have started, and runs the commands that the topology states."""
        if self._script:
            self._end_of_script()
        for command in self.node.commands:
            if not (fault := self._lack(command)):
                continue
            if not self.node.tolerant:
                raise CommandFailed(fault)
            self.complaints.append(fault)

    def _end_of_script(self) -> str:
        """The output of the script that runs."""
        assert self._script is not None
        result = self._script.wait(_SYSTEM if self.node.image else _SETUP)
        if result.status:
            raise CommandFailed(f"{self.name} cannot be set up: {(result.stderr or result.stdout).strip()[-1000:]}")
        return result.stdout

    def _lack(self, command: str) -> str:
        """Runs a command of the topology; returns the fault, empty if it succeeds."""
        limit = self.node.timeout
        try:
            result = self.guest.run(command, timeout=limit)
        except Timeout:
            return (
                f"the command `{command}` of {self.name} has not ended within {limit} s, and was ended: put what is to "
                "run on into the background, with & and its output in a file, or give the node a longer timeout"
            )
        if not result.status:
            return ""
        said = (result.stderr or result.stdout).strip()[-1000:]
        return f"the command `{command}` of {self.name} ended with status {result.status}: {said}"

    def boot(self) -> None:
        """Starts it and waits until it is set up."""
        for step in STEPS:
            getattr(self, step)()

    def _devices(self) -> dict[str, str]:
        """By interface, a shell line that finds the kernel's name of it."""
        if isinstance(self.guest, _Netns):
            return {end.name: f"d={end.name}" for end in self.interfaces}
        if self.guest.kind == GuestKind.UML and any(isinstance(nic.endpoint, Tap) for nic in self.guest.nics):
            return {end.name: f"d=vec{n}" for n, end in enumerate(self.interfaces)}
        if self.guest.kind == GuestKind.UML:
            place = "/sys/devices/virtio-uml-cmdline/virtio-uml"
            return {
                end.name: f"set -- {place}.{n}/virtio*/net/*; d=${{1##*/}}" for n, end in enumerate(self.interfaces)
            }
        # QEMU's machine has no other PCI network devices, and finds them in the order of its command line.
        found = "set -- $(ls -d /sys/bus/virtio/devices/*/net/* | sort -V)"
        return {end.name: f"{found}; shift {n}; d=${{1##*/}}" for n, end in enumerate(self.interfaces)}

    def routes(self, version: int = 4) -> set[str]:
        """The destinations in its kernel's routing table: addresses of hosts and networks, without loopback's."""
        if version == 4:
            rows = [line.split() for line in self.get("/proc/net/route").decode().splitlines()[1:]]
            return {socket.inet_ntoa(int(row[1], 16).to_bytes(4, "little")) for row in rows}
        rows = [line.split() for line in self.get("/proc/net/ipv6_route").decode().splitlines()]
        return {socket.inet_ntop(socket.AF_INET6, bytes.fromhex(row[0])) for row in rows if row[9] != "lo"}


def make(
    session: Session, topology: Topology, plan: Plan, fabric: Fabric, node: Node, namespace: str | None
) -> Machine:
    """The node's machine, not yet started."""
    options: dict[str, Any] = {"memory": node.memory, "image": image.image()}
    if namespace is not None:
        return Machine(node, _Netns(session, node.name, namespace, **options), topology, plan)
    kind = GuestKind.UML if node.kind == "uml" else _qemu()
    if kind != GuestKind.UML:
        options["memory"] = max(node.memory, 192)  # its root tree lies in its memory, or a whole system runs in it
    if node.image:
        options["image"] = system.image(node.image, Path(topology.folder))
    nics = [Nic(Port(end.port, kind, end.mac, end.mtu), fabric.endpoint(end)) for end in plan.interfaces[node.name]]
    return Machine(node, guests.make(session, kind, node.name, nics, **options), topology, plan)


def _qemu() -> GuestKind:
    kinds = (GuestKind.KVM, GuestKind.TCG)
    return next((kind for kind in kinds if guests.KINDS[kind].missing() is None), GuestKind.TCG)
