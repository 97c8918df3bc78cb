"""Links of Linux's own devices, to compare memlane with: a bridge for each link and a TAP for each machine, or veth.

The kernel impairs nothing here (netem would, at a cost of its own): such links go up and down, and that is all.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from memlane_lab.common.errors import LabError
from memlane_lab.host import network
from memlane_lab.host.ports import Endpoint, Tap
from memlane_lab.host.session import Session
from memlane_lab.topo.addresses import Interface, Plan, is_host
from memlane_lab.topo.fabric import Fabric, LinkState
from memlane_lab.topo.model import Topology


class _KernelLinks(Fabric):
    """The part that both kinds share."""

    def __init__(self, session: Session, topology: Topology, plan: Plan) -> None:
        super().__init__(session, topology, plan)
        if reason := network.may_change():
            raise LabError(f"cannot create links over {topology.over}: {reason}")
        for link in self.links:
            self._refuse(link)
        self._namespaces: Mapping[str, str] = {}

    def _refuse(self, link: LinkState) -> None:
        """The link is impaired by nothing, or it is said that it cannot be."""
        if link.impairment.as_link():
            raise LabError(
                f"links over {self.topology.over} have no delay, loss or rate: only memlane's have (--over memlane)"
            )

    def apply(self, link: LinkState, ends: tuple[Interface, Interface]) -> None:
        self._refuse(link)
        for end in ends:
            namespace, device = self._seen(end)
            network.change(namespace, f"link set dev {device} {self._state(end, up=link.up)}")

    def capture(self, end: Interface, write: str, what: str, count: int | None) -> list[str]:
        """By tcpdump of this machine, at the device that the switch or the node has."""
        namespace, device = self._seen(end)
        command = [
            *network.enter(namespace),
            "tcpdump",
            "-Z",
            "root",
            "--time-stamp-precision=nano",
            "-U",
            "-i",
            device,
        ]
        return [*command, "-w", write, *(("-c", str(count)) if count else ()), *what.split()]

    def _state(self, end: Interface, *, up: bool) -> str:  # noqa: ARG002
        """How `ip link set` tells an end's device whether its link is up."""
        return "up" if up else "down"

    def _seen(self, end: Interface) -> tuple[str | None, str]:
        """The namespace and the name of the device at an end."""
        raise NotImplementedError

    def _of_node(self, end: Interface) -> tuple[str | None, str]:
        """The same of the device that a node or this machine has."""
        if is_host(end):
            return None, self.host_device(end)
        return self._namespaces[end.node], end.name

    def _peer(self, end: Interface) -> str:
        """The half of a veth pair that a node or this machine has, as `ip link add` takes it."""
        namespace, device = self._of_node(end)
        return f"{device} mtu {end.mtu}" + (f" netns {namespace}" if namespace else "")


class Bridged(_KernelLinks):
    """A bridge for each link, in a namespace of their own: machines have TAPs on it, namespaces one half of a pair."""

    def start(self, namespaces: Mapping[str, str]) -> None:
        self._namespaces = namespaces
        self._place = self.session.namespace("bridges")
        network.silence(self._place)
        network.change(None, *self._taps())
        network.change(self._place, *self._bridges())
        # The halves of pairs that this machine has are made in its own namespace, so that their other ends can name it.
        network.change(None, *self._pairs())
        network.change(self._place, *self._joins_all())
        self.address_host()

    def _ends(self) -> Iterator[Interface]:
        return (end for both in self.plan.ends for end in both)

    def _is_pair(self, end: Interface) -> bool:
        return is_host(end) or end.node in self._namespaces

    def _taps(self) -> Iterator[str]:
        for end in self._ends():
            if not self._is_pair(end):
                born_as = self.session.link_name(self._port(end))
                yield f"tuntap add dev {born_as} mode tap vnet_hdr"
                yield f"link set dev {born_as} netns {self._place} name {self._port(end)}"

    def _bridges(self) -> Iterator[str]:
        for number, (end, _) in enumerate(self.plan.ends):
            yield f"link add dev b{number} mtu {end.mtu} type bridge stp_state 0 forward_delay 0 mcast_snooping 0"
            yield f"link set dev b{number} up"

    def _pairs(self) -> Iterator[str]:
        for end in self._ends():
            if self._is_pair(end):
                ours = f"{self._port(end)} netns {self._place} mtu {end.mtu}"
                yield f"link add {ours} type veth peer name {self._peer(end)}"

    def _joins_all(self) -> Iterator[str]:
        for end in self._ends():
            yield f"link set dev {self._port(end)} mtu {end.mtu} master b{end.link} up"

    @staticmethod
    def _port(end: Interface) -> str:
        return f"p{2 * end.link + end.side}"

    def _seen(self, end: Interface) -> tuple[str | None, str]:
        return self._place, self._port(end)

    def _state(self, end: Interface, *, up: bool) -> str:
        # A TAP that goes down itself is an error to UML's driver, which then takes nothing from it ever again.
        return f"master b{end.link}" if up else "nomaster"

    def endpoint(self, end: Interface) -> Endpoint:
        return Tap(self._port(end), self._place)

    def ports(self) -> dict[str, Any]:
        counted = network.all_counters(self._place)
        return {end.port: _told(counted[self._port(end)], "rx") for end in self._ends()}


class Paired(_KernelLinks):
    """A veth pair for each link, from namespace to namespace: the least that a link can be."""

    def start(self, namespaces: Mapping[str, str]) -> None:
        self._namespaces = namespaces
        machines = [node.name for node in self.topology.nodes if node.name not in namespaces]
        if machines:
            raise LabError(f"{machines[0]} is a machine, and only namespaces can take links over veth: --kind netns")
        network.change(None, *(self._pair(*ends) for ends in self.plan.ends))
        self.address_host()

    def _pair(self, first: Interface, second: Interface) -> str:
        if is_host(first):
            first, second = second, first
        return f"link add {self._peer(first)} type veth peer name {self._peer(second)}"

    def _seen(self, end: Interface) -> tuple[str | None, str]:
        return self._of_node(end)

    def endpoint(self, end: Interface) -> Endpoint:
        raise LabError(f"{end.node} cannot use a veth pair as its NIC: use --kind netns")

    def ports(self) -> dict[str, Any]:
        by_place = {place: network.all_counters(place) for place in self._namespaces.values()}
        own = [end for both in self.plan.ends for end in both if not is_host(end)]
        return {end.port: _told(by_place[self._namespaces[end.node]][end.name], "tx") for end in own}


def _told(counted: Mapping[str, int], way: str) -> dict[str, Any]:
    """Counters of a device whose `way` ("rx", "tx") counts frames from the node."""
    drops = counted["rx_dropped"] + counted["tx_dropped"]
    return {
        "transmit-frames": counted[f"{way}_packets"],
        "transmit-bytes": counted[f"{way}_bytes"],
        "drops": {"kernel": drops},
    }
