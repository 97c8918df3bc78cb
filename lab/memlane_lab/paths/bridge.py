"""The standard path: a TAP for each virtual machine, joined by the kernel's bridge, in a namespace of their own.

Nothing is held back: TAPs carry virtio-net headers, so that GSO frames and partial checksums pass unchanged, and the
bridge forwards at once. The namespace keeps the host's firewall and the host's own bridges out of it.
"""

from collections.abc import Sequence
from typing import ClassVar

from memlane_lab.guests import KINDS
from memlane_lab.host import network
from memlane_lab.host.ports import Device, Endpoint, GuestKind, Port, Tap
from memlane_lab.paths.path import NetworkPath

_BRIDGE = "bridge"


class Bridge(NetworkPath):
    """TAP and Linux bridge; virtio-net in the guests."""

    name: ClassVar[str] = "bridge"
    title: ClassVar[str] = "TAP + Linux bridge, virtio-net: the standard path"
    rank: ClassVar[int] = 10
    limits: ClassVar[bool] = True
    spreads: ClassVar[bool] = True
    emulated: ClassVar[str] = ""
    """The NIC that guests see, as QEMU names it; none: virtio-net."""

    @classmethod
    def missing(cls) -> str | None:
        return network.may_change()

    @classmethod
    def refuses(cls, kind: GuestKind) -> str | None:  # noqa: ARG003
        return None

    def _lay(self, ports: Sequence[Port]) -> dict[str, Endpoint]:
        self._namespace = self.uplink.namespace if self.uplink else self.session.namespace(self.name)
        network.silence(self._namespace)
        mtu = max((port.mtu for port in ports), default=1500)
        network.add_bridge(_BRIDGE, namespace=self._namespace, mtu=mtu)
        if self.uplink:
            network.add_vxlan("vxlan", self.uplink, mtu=mtu)
            network.join("vxlan", _BRIDGE, namespace=self._namespace)
            network.change(
                self._namespace,
                "link set dev vxlan type bridge_slave learning off neigh_suppress on",
                "link set dev vxlan up",
            )
        self._ports = list(ports)
        return {port.name: self._plug(port) for port in ports}

    def _plug(self, port: Port) -> Endpoint:
        device, place = self._bridge_port(port), self._namespace
        if KINDS[port.kind].takes_devices:
            network.add_veth(device, port.name, namespace=place, mtu=port.mtu)
        else:
            born_as = self.session.link_name(port.name)
            queues = 1 if self.emulated else port.queues
            network.add_tap(device, born_as=born_as, namespace=place, mtu=port.mtu, queues=queues)
        self._join(device, port)
        if port.receive_rate:
            self._limit(device, port)
        return Device(port.name, place) if KINDS[port.kind].takes_devices else Tap(device, place, self.emulated)

    def _join(self, device: str, port: Port) -> None:  # noqa: ARG002
        network.join(device, _BRIDGE, namespace=self._namespace)

    def _limit(self, device: str, port: Port) -> None:
        network.limit(device, port.receive_rate, namespace=self._namespace)

    @staticmethod
    def _bridge_port(port: Port) -> str:
        return f"port-{port.name}"

    def counters(self) -> dict[str, dict[str, int]]:
        """The kernel's counters of each bridge port; their "rx" are frames from the guest."""
        return {
            name: network.counters(self._bridge_port(nic.port), namespace=self._namespace)
            for name, nic in self.nics.items()
        }

    def tallies(self) -> dict[str, float]:
        ports = self.counters().values()
        return {
            "frames": sum(port["rx_packets"] for port in ports),
            "drops": sum(port["rx_dropped"] + port["tx_dropped"] for port in ports),
        }

    def clear(self) -> None:
        self.session.remove_namespace(self._namespace)
