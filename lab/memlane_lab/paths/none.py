"""No virtual network at all: two namespaces joined by a veth pair, the reference without virtualisation."""

from collections.abc import Sequence
from typing import ClassVar

from memlane_lab.common.errors import NotAvailable
from memlane_lab.host import network
from memlane_lab.host.ports import Device, Endpoint, GuestKind, Port
from memlane_lab.paths.path import NetworkPath


class NoPath(NetworkPath):
    """A veth pair for each two ports."""

    name: ClassVar[str] = "none"
    title: ClassVar[str] = "two namespaces joined by veth: no virtualisation"
    rank: ClassVar[int] = 0
    joins_pairs: ClassVar[bool] = True
    only: ClassVar[GuestKind | None] = GuestKind.NETNS

    @classmethod
    def missing(cls) -> str | None:
        return network.may_change()

    @classmethod
    def refuses(cls, kind: GuestKind) -> str | None:
        return None if kind == GuestKind.NETNS else "a veth pair ends in namespaces; a virtual machine needs a NIC"

    def _lay(self, ports: Sequence[Port]) -> dict[str, Endpoint]:
        if len(ports) % 2:
            raise NotAvailable(f"path {self.name} joins ports two and two; {len(ports)} is an odd number")
        self._namespace = self.session.namespace("veth")
        for near, far in zip(ports[::2], ports[1::2], strict=True):
            network.add_veth(near.name, far.name, namespace=self._namespace, mtu=near.mtu)
        return {port.name: Device(port.name, self._namespace) for port in ports}

    def clear(self) -> None:
        """The pairs went to their guests, and go with either of them."""
        self.session.remove_namespace(self._namespace)
