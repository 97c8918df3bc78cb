"""The links of a topology, of any kind: **Fabric** is their interface.

`switched.py` makes them of memlane, unless the topology says otherwise. `kernel_links.py` makes
them of Linux's own devices, to compare: a bridge and TAPs, or veth pairs.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memlane_lab.common.errors import LabError
from memlane_lab.host import network
from memlane_lab.host.ports import Endpoint
from memlane_lab.host.process import HostProcess
from memlane_lab.host.session import Session
from memlane_lab.topo.addresses import Interface, Plan
from memlane_lab.topo.model import HOST, Impairment, Topology


@dataclass
class LinkState:
    """A link while it runs."""

    name: str
    impairment: Impairment
    up: bool = True


class Fabric(ABC):
    """All links, from their making to their end."""

    def __init__(self, session: Session, topology: Topology, plan: Plan) -> None:
        self.links = [LinkState(_name(plan, number), link.impairment) for number, link in enumerate(topology.links)]
        self.session = session
        self.topology = topology
        self.plan = plan

    @property
    def process(self) -> HostProcess | None:
        """The program that forwards; None where it is the kernel, or before it starts."""
        return None

    @property
    def file(self) -> Path | None:
        """The network as memlane was told it, for `memlane status`."""
        return None

    @abstractmethod
    def start(self, namespaces: Mapping[str, str]) -> None:
        """Makes the links; netns nodes, by name, find their ends in their `namespaces`, under the interfaces' names."""

    @abstractmethod
    def endpoint(self, end: Interface) -> Endpoint:
        """The endpoint of a virtual machine's NIC at this end."""

    @abstractmethod
    def apply(self, link: LinkState, ends: tuple[Interface, Interface]) -> None:
        """Applies the link's state at both ends."""

    @abstractmethod
    def ports(self) -> dict[str, Any]:
        """By port, its counters, in the words of `memlane status`."""

    @abstractmethod
    def capture(self, end: Interface, write: str, what: str, count: int | None) -> list[str]:
        """The command that captures frames at an end into the file `write` ("-": standard output), on this machine.

        Only packets that match the filter, and no more than `count`.
        """

    def host_device(self, end: Interface) -> str:
        """The name of this machine's end of a link."""
        return self.session.link_name(f"h{end.link}")

    def address_host(self) -> None:
        """Gives this machine its ends of links."""
        for end in self.plan.interfaces.get(HOST, ()):
            device = self.host_device(end)
            network.address(device, end.addresses)
            if self.topology.links[end.link].interfaces[end.side]:  # its own name names its session, should we crash
                network.change(None, f"link property add dev {device} altname {end.name}")

    def number(self, first: str, second: str) -> int:
        """The number of the link between two nodes; "r1:net0" names one of several."""
        found = [number for number in range(len(self.links)) if self._joins(number, first, second)]
        if not found:
            raise LabError(f"there is no link between {first} and {second}")
        if len(found) > 1:
            raise LabError(f"several links join {first} and {second}: name the interface, as {first}:net0")
        return found[0]

    def end(self, where: str) -> Interface:
        """The end at which a link is looked at: "r3-r4" is r3's, "r3:net1" itself."""
        for link, (first, second) in zip(self.links, self.plan.ends, strict=True):
            called = {
                f"{second.node}-{first.node}": second,
                f"{first.node}-{second.node}": first,
                link.name: first,
                f"{first.node}:{first.name}": first,
                f"{second.node}:{second.name}": second,
            }
            if where in called:
                return called[where]
        raise LabError(f"there is no link {where}; name one as r3-r4, or an end of it as r3:net1")

    def _joins(self, number: int, first: str, second: str) -> bool:
        ends = self.plan.ends[number]
        names = [{end.node, f"{end.node}:{end.name}"} for end in ends]
        return (first in names[0] and second in names[1]) or (first in names[1] and second in names[0])

    def change(self, number: int, *, up: bool | None = None, impairment: Impairment | None = None) -> LinkState:
        """Changes a link while it runs, in both directions."""
        before = self.links[number]
        link = LinkState(before.name, impairment or before.impairment, before.up if up is None else up)
        self.apply(link, self.plan.ends[number])
        self.links[number] = link
        return link


def _name(plan: Plan, number: int) -> str:
    """A link's name: its two nodes; with the interface where several join the same two."""
    first, second = plan.ends[number]
    pair = {first.node, second.node}
    alone = sum({a.node, b.node} == pair for a, b in plan.ends) == 1
    return f"{first.node}-{second.node}" if alone else f"{first.node}.{first.name}-{second.node}.{second.name}"
