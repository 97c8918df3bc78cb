"""A topology that runs: `with up("line", 100) as net: net["r1"].run("ping -c 1 r100")`.

The process that brings it up owns it, by a session of the lab: when it ends, however it ends, so does all that it
started. While it lives, it answers at a socket (`service.py`), by which the command line finds it.
"""

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from memlane_lab.common.counted import counted
from memlane_lab.common.errors import LabError
from memlane_lab.common.strict import hint
from memlane_lab.common.wait import Timeout, until
from memlane_lab.guests.control import CommandFailed, GuestGone, Result
from memlane_lab.host import network, procfs
from memlane_lab.host.process import kill_together
from memlane_lab.host.session import Session, alone, runs_folder
from memlane_lab.images import system, uml_kernel
from memlane_lab.topo import addresses, files, image, machines, setup, shapes, spread
from memlane_lab.topo.addresses import Plan, is_host
from memlane_lab.topo.fabric import Fabric, LinkState
from memlane_lab.topo.kernel_links import Bridged, Paired
from memlane_lab.topo.machines import Machine
from memlane_lab.topo.model import HOST, OVER, Topology, impairment
from memlane_lab.topo.service import Service
from memlane_lab.topo.settings import NONE, Settings
from memlane_lab.topo.switched import Switched

Progress = Callable[[str, int, int], None]
"""Called at each step: its name, how many are done, of how many."""

_LOOK = 0.5
"""Seconds for which one that lists topologies may hold the lock of one, at most."""
_FABRICS: Mapping[str, type[Fabric]] = {"memlane": Switched, "bridge": Bridged, "veth": Paired}
"""The kinds of links, by `model.OVER`."""
_OVERHEAD = {"uml": 12, "netns": 12, "qemu": 90}
"""MiB that a node takes at most beside its memory; a netns node has none of its own."""


@dataclass
class Phases:
    """Seconds from the beginning to the end of each part of coming up."""

    booted: float = 0.0
    """All nodes are set up, their daemons started."""
    neighbours: float = 0.0
    """Every link carries pings."""
    routes: float = 0.0
    """Every router knows ways to all nodes."""
    ping: float = 0.0
    """The first ping from the first node to the last."""


class Net:
    """A topology from its description to its end; a context manager."""

    def __init__(self, topology: Topology, *, progress: Progress | None = None, logs: Path | None = None) -> None:
        self.topology = topology
        self.plan: Plan = addresses.plan(topology)
        self.phases = Phases()
        self._together = topology.routed_together()
        self.machines: dict[str, Machine] = {}
        self._progress = progress or (lambda _what, _done, _of: None)
        self._logs = logs
        self.is_up = False
        self.service: Service | None = None
        self.fabric: Fabric | None = None
        self._began = time.monotonic()

    def __enter__(self) -> Self:
        self._refuse_too_many()
        prepare(self.topology)
        self._began = time.monotonic()
        self._lock = _claim(self.topology.name)
        self.session = Session(self._logs)
        try:
            self._begin()
        except BaseException as error:
            self._failed(error)
            self.down()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    def _serving(self) -> None:
        """Called once it answers at its socket; overridden by the keeper."""

    def _failed(self, error: BaseException) -> None:
        """Called when it does not come up, before it is ended."""

    def __getitem__(self, name: str) -> Machine:
        """The node of that name."""
        if name not in self.machines:
            raise LabError(f"there is no node {name} in {self.topology.name}{hint(name, self.machines)}")
        return self.machines[name]

    def __iter__(self) -> Iterator[Machine]:
        """All nodes."""
        return iter(self.machines.values())

    def down(self) -> None:
        """Ends everything."""
        if self.service:
            self.service.close()
        try:
            running = [machine.guest.process for machine in self if machine.guest.started]
            if self.fabric and self.fabric.process:
                running.append(self.fabric.process)
            kill_together(running)
        finally:
            self.session.close()
            self._lock.close()

    def _refuse_too_many(self) -> None:
        """Says how many nodes fit before any is booted."""
        free = _free_memory()
        needs = [_OVERHEAD[node.kind] + (0 if node.kind == "netns" else node.memory) for node in self.topology.nodes]
        if sum(needs) > free:
            fit = next(count for count in range(len(needs) + 1) if sum(needs[: count + 1]) > free)
            raise LabError(
                f"{counted(len(needs), 'node')} may take {sum(needs)} MiB and {free} MiB are free: {fit} fit; "
                "take fewer, or give them less with --memory"
            )

    def _begin(self) -> None:
        self.service = Service(self, self.topology.name)
        self._serving()
        light = [node.name for node in self.topology.nodes if node.kind == "netns"]
        namespaces = dict(zip(light, self.session.namespaces(light), strict=True)) if light else {}
        fabric = _FABRICS[self.topology.over](self.session, self.topology, self.plan)
        self.fabric = fabric
        fabric.start(namespaces)
        for node in self.topology.nodes:
            at = namespaces.get(node.name)
            self.machines[node.name] = machines.make(self.session, self.topology, self.plan, fabric, node, at)
        self._boot()

    def _boot(self) -> None:
        count = len(self.machines)
        for step, done in zip(machines.STEPS, ("started", "booted", "configured", "routing", "set up"), strict=True):
            for number, machine in enumerate(self, start=1):
                getattr(machine, step)()
                self._progress(done, number, count)
        spread.over_cpus([machine.guest.process.pid for machine in self])
        self.phases.booted = self._elapsed()

    @property
    def complaints(self) -> list[str]:
        """Output of commands of nodes that failed, where their nodes tolerate that."""
        return [told for machine in self for told in machine.complaints]

    def _elapsed(self) -> float:
        return time.monotonic() - self._began

    def wait_neighbours(self, timeout: float = 60.0) -> None:
        """Waits until a ping over every link is answered."""
        asked: dict[str, list[str]] = {}
        for first, second in self.plan.ends:
            near, far = (second, first) if is_host(first) else (first, second)
            address = far.address(4) or far.address(6)
            if address and not is_host(near):
                asked.setdefault(near.node, []).append(address)
        pings = {
            name: " && ".join(f"ping -c 1 -W {timeout:.0f} {to}" for to in to_all) for name, to_all in asked.items()
        }
        running = {name: self[name].spawn(f"{line} >/dev/null") for name, line in pings.items()}
        for number, (name, process) in enumerate(running.items(), start=1):
            if process.wait(timeout + 30).status:
                raise Timeout(f"not all neighbours of {name} answer: {', '.join(asked[name])}")
            self._progress("neighbours answer", number, len(running))
        self.phases.neighbours = self._elapsed()

    def wait_routes(self, timeout: float = 120.0) -> None:
        """Waits until every router that runs a routing protocol has a route to every other's loopback."""
        deadline = time.monotonic() + timeout
        routers = [machine for machine in self if self.topology.protocols(machine.node) and machine.alive]
        # One after another: polling all of them all the time would slow down the very routing that is waited for.
        for number, machine in enumerate(routers):
            self._progress("routing tables full", number, len(routers))
            while missing := self.missing_routes(machine):
                if time.monotonic() > deadline:
                    to, before = counted(len(missing), "address"), counted(number, "node")
                    lacks = f"after {timeout:.0f} s {machine.name} lacks routes to {to}, among them {min(missing)}"
                    raise Timeout(f"{lacks}; {before} before it {'has' if number == 1 else 'have'} all of theirs")
                time.sleep(0.2)
        self._progress("routing tables full", len(routers), len(routers))
        self.phases.routes = self._elapsed()

    def missing_routes(self, machine: Machine) -> set[str]:
        """The loopbacks that the node should have a way to, and has not."""
        speaks = {4: {"ospf", "isis", "bgp"}, 6: {"ospf6", "isis", "bgp"}}
        mine = set(self.topology.protocols(machine.node))
        together = self._together.get(machine.name, set())
        missing: set[str] = set()
        for version, protocols in speaks.items():
            common = mine & protocols
            others = [
                other
                for other in self
                if other is not machine
                and other.alive
                and other.name in together
                and common & set(self.topology.protocols(other.node))
            ]
            if others:
                missing |= {self.plan.loopback(other.name, version) for other in others} - machine.routes(version)
        return missing

    def wait_end_to_end(self, timeout: float = 30.0) -> None:
        """Waits until the last node answers the first, if there is routing to make it so."""
        near, *_, last = (*self, *self)
        finds = all(self.topology.protocols(end.node) or end.node.role == "host" for end in (near, last))
        far = self.plan.called(last.name) or self.plan.called(last.name, 6)
        if near is not last and finds and far and near.interfaces and last.interfaces:
            deadline = time.monotonic() + timeout
            while near.run(f"ping -c 1 -W 2 {far}", timeout=20).status:
                if time.monotonic() > deadline:
                    raise Timeout(f"{last.name} does not answer {near.name}")
                time.sleep(0.2)
        self.phases.ping = self._elapsed()

    def exec(
        self, command: str | Sequence[str], nodes: Iterable[str] | None = None, timeout: float = 60.0
    ) -> dict[str, Result]:
        """Runs a command in the nodes (none named: all that run) at once; by node, how it ended."""
        return dict(self.exec_each(command, nodes, timeout))

    def exec_each(
        self, command: str | Sequence[str], nodes: Iterable[str] | None = None, timeout: float = 60.0
    ) -> Iterator[tuple[str, Result]]:
        """As `exec`, each result as soon as those before it are there."""
        names = [machine.name for machine in self if machine.alive] if nodes is None else list(nodes)
        shown = command if isinstance(command, str) else " ".join(command)
        running = {name: self[name].spawn(command) for name in names}
        for name, process in running.items():
            try:
                yield name, process.wait(timeout)
            except (Timeout, CommandFailed, GuestGone) as error:
                yield name, Result(shown, 124 if isinstance(error, Timeout) else 126, "", f"{error}\n")

    def link(
        self,
        first: str,
        second: str,
        *,
        up: bool | None = None,
        clear: bool = False,
        **changes: Any,  # noqa: ANN401
    ) -> LinkState:
        """Changes a link while it runs: `up`, or keys of `Impairment`; `clear` forgets all earlier changes."""
        fabric = self.switch
        number = fabric.number(first, second)
        before = {} if clear else fabric.links[number].impairment.model_dump(exclude_defaults=True)
        stated = {**before, **{key: value for key, value in changes.items() if value is not None}}
        return fabric.change(number, up=up, impairment=impairment(stated))

    @property
    def switch(self) -> Fabric:
        """The links, and the switch that they are."""
        if self.fabric is None:
            raise LabError(f"{self.topology.name} has no links yet")
        return self.fabric

    def kill(self, *names: str) -> None:
        """Ends nodes like a power cut."""
        for name in names:
            self[name].guest.kill()

    def stop(self, *names: str) -> None:
        """Lets nodes power off."""
        with ThreadPoolExecutor(max_workers=16) as pool:
            list(pool.map(lambda name: self[name].guest.stop(), names))

    def start(self, *names: str) -> None:
        """Boots nodes again that do not run."""
        chosen = [self[name] for name in names]
        if running := [machine.name for machine in chosen if machine.alive]:
            raise LabError(f"already running: {', '.join(running)}")
        for step in machines.STEPS:
            for machine in chosen:
                getattr(machine, step)()
        spread.over_cpus([machine.guest.process.pid for machine in self if machine.alive])


def up(
    what: str | Path | Topology,
    *sizes: int,
    settings: Settings = NONE,
    progress: Progress | None = None,
    wait: bool = True,
) -> "Upcoming":
    """A topology, up as long as the `with` block lasts: a shape with its sizes, a file, or a `Topology`.

    With `wait` the block begins when all routing tables are full.
    """
    topology = what if isinstance(what, Topology) else state(what, *sizes, settings=settings)
    return Upcoming(topology, progress, wait=wait)


def state(what: str | Path, *sizes: int, settings: Settings = NONE) -> Topology:
    """The topology that `up` would bring up."""
    if str(what) in shapes.SHAPES:
        return shapes.shape(str(what), sizes, settings)
    if sizes or not Path(what).suffix:
        raise LabError(f"there is no shape {str(what)!r}{hint(what, shapes.SHAPES)}")
    return files.load(Path(what), settings)


def prepare(topology: Topology) -> None:
    """Builds the images that its nodes boot, if they are missing, and checks whether this machine can run them."""
    setup.verify(topology)
    light = any(node.kind == "netns" for node in topology.nodes)
    tap = light or topology.over != OVER[0] or any(HOST in link.nodes for link in topology.links)
    if tap and (lack := network.may_change()):
        raise LabError(f"cannot create netns nodes and links to the host: {lack}")
    image.image()
    if any(node.kind == "uml" for node in topology.nodes):
        uml_kernel.kernel()
    for stated in dict.fromkeys(node.image for node in topology.nodes if node.image):
        system.image(stated, Path(topology.folder))


class Upcoming:
    """The result of `up`: a context manager that gives the `Net`."""

    def __init__(self, topology: Topology, progress: Progress | None, *, wait: bool) -> None:
        self._net = Net(topology, progress=progress)
        self._wait = wait

    def __enter__(self) -> Net:
        net = self._net.__enter__()
        try:
            if self._wait:
                net.wait_neighbours()
                net.wait_routes()
        except BaseException:
            net.down()
            raise
        return net

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._net.down()


def _claim(name: str) -> IO[str]:
    """Holds the topology's name as long as this process lives."""
    folder = runs_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with alone(folder):  # no sweep takes the file for one that a crashed topology left
        lock = lock_of(name).open("a+")
        try:
            until(lambda: _locks(lock), timeout=_LOOK, what=f"the name {name}")
        except Timeout:
            lock.close()
            raise LabError(
                f"a topology called {name} is up already: end it with `memlane-lab topo down --name {name}`, "
                "or give this one another --name"
            ) from None
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    return lock


def _locks(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def lock_of(name: str) -> Path:
    """The file that is locked as long as the topology is up; it holds its keeper's process number."""
    return runs_folder() / f"topo-{name}.lock"


def _free_memory() -> int:
    """MiB that nodes can have: of the machine's memory, and of /dev/shm, where UML's lies."""
    return min(procfs.available_memory(), shutil.disk_usage("/dev/shm").free) >> 20
