"""No virtual network at all: two namespaces joined by a veth pair, the reference without virtualisation."""

from collections.abc import Sequence
from typing import ClassVar

from memlane_lab import network
from memlane_lab.errors import NotAvailable
from memlane_lab.paths.path import NetworkPath
from memlane_lab.ports import Device, Endpoint, GuestKind, Port


class NoPath(NetworkPath):
    """A veth pair."""

    name: ClassVar[str] = "none"
    title: ClassVar[str] = "two namespaces joined by veth: no virtualisation"
    rank: ClassVar[int] = 0
    only: ClassVar[GuestKind | None] = GuestKind.NETNS

    @classmethod
    def missing(cls) -> str | None:
        return network.may_change()

    @classmethod
    def refuses(cls, kind: GuestKind) -> str | None:
        return None if kind == GuestKind.NETNS else "a veth pair ends in namespaces; a virtual machine needs a NIC"

    def _lay(self, ports: Sequence[Port]) -> dict[str, Endpoint]:
        if len(ports) != 2:
            raise NotAvailable(f"path {self.name} joins exactly two ports, not {len(ports)}")
        self._namespace = self.session.namespace("veth")
        near, far = (port.name for port in ports)
        network.add_veth(near, far, namespace=self._namespace, mtu=ports[0].mtu)
        return {name: Device(name, self._namespace) for name in (near, far)}

    def clear(self) -> None:
        """The pair went to its guests, and goes with either of them."""
        self.session.remove_namespace(self._namespace)
