"""The addresses of nodes and interfaces, by one rule unless stated.

- router number i among all nodes, counted from 1: loopback 10.0.0.0 + i, and fd6d::i with i in decimal digits
- link number k, counted from 0: 10.64.0.0 + 2k and + 2k + 1 with /31, fd6d:1::2k and ::2k+1 with /127
"""

from dataclasses import dataclass
from functools import cached_property
from ipaddress import IPv4Address, IPv6Address

from memlane_lab.common.errors import LabError
from memlane_lab.host import ports
from memlane_lab.topo.model import HOST, Link, Node, Topology, interface


@dataclass(frozen=True)
class Interface:
    """One end of a link at its node."""

    node: str
    name: str
    link: int
    """Number of its link."""
    side: int
    """0 or 1: which end of it."""
    port: str
    """Of the switch."""
    mac: str
    addresses: tuple[str, ...]
    """With their prefixes."""
    mtu: int

    def address(self, version: int = 4) -> str | None:
        """Its first address of that version of IP."""
        return next((str(i.ip) for i in map(interface, self.addresses) if i.version == version), None)


@dataclass(frozen=True)
class Plan:
    """All that has been given out."""

    loopbacks: dict[str, tuple[str, ...]]
    """By node, with prefixes."""
    interfaces: dict[str, tuple[Interface, ...]]
    """By node, the host among them if links lead there, in the order of links."""
    ends: tuple[tuple[Interface, Interface], ...]
    """By number of the link."""

    def loopback(self, node: str, version: int = 4) -> str:
        """The address by which others call the node: its loopback's, or a host's on its first interface."""
        if found := self.called(node, version):
            return found
        raise LabError(f"{node} has no address of IPv{version}")

    def called(self, node: str, version: int = 4) -> str | None:
        """The same; None if it has no such address."""
        return next((address for address in self.names[node] if (":" in address) == (version == 6)), None)

    def peer(self, end: Interface) -> Interface:
        """The other end of its link."""
        return self.ends[end.link][1 - end.side]

    @cached_property
    def names(self) -> dict[str, tuple[str, ...]]:
        """Addresses by node, as /etc/hosts tells them: the loopback's, or where there is none the first interface's."""
        first = {node: next((e.addresses for e in ends if e.addresses), ()) for node, ends in self.interfaces.items()}
        return {
            node: tuple(str(interface(text).ip) for text in texts or first[node])
            for node, texts in self.loopbacks.items()
        }


def plan(topology: Topology) -> Plan:
    """Gives everything out."""
    taken: dict[str, list[Interface]] = {node.name: [] for node in topology.nodes}
    ends = []
    for number, link in enumerate(topology.links):
        both = (_end(number, link, 0, taken), _end(number, link, 1, taken))
        ends.append(both)
    return Plan(
        {node.name: _loopback(number, node, topology) for number, node in enumerate(topology.nodes, start=1)},
        {name: tuple(found) for name, found in taken.items()},
        tuple(ends),
    )


def _loopback(number: int, node: Node, topology: Topology) -> tuple[str, ...]:
    if not topology.protocols(node):
        return node.addresses  # no other node would know the way to another
    versions = {interface(text).version for text in node.addresses}
    rule = {4: f"{IPv4Address('10.0.0.0') + number}/32", 6: f"fd6d::{number}/128"}
    return (*node.addresses, *(text for version, text in rule.items() if version not in versions))


def _end(number: int, link: Link, side: int, taken: dict[str, list[Interface]]) -> Interface:
    node = link.nodes[side]
    others = taken.setdefault(node, [])
    used = {other.name for other in others}
    free = next(name for index in range(len(used) + 1) if (name := f"net{index}") not in used)
    low = 2 * number + side
    rule = (f"{IPv4Address('10.64.0.0') + low}/31", f"{IPv6Address('fd6d:1::') + low}/127")
    name = link.interfaces[side] or free
    given = rule if link.addresses is None else link.addresses[side]
    end = Interface(node, name, number, side, f"{node}.{name}", ports.mac(low + 1), given, link.mtu)
    others.append(end)
    return end


def is_host(end: Interface) -> bool:
    """Whether this end of a link is the host's."""
    return end.node == HOST
