"""The bridge behind the same guest driver as memlane's: memlane only carries each guest's frames to a TAP.

User Mode Linux reaches the bridge by a TAP driver of its own, so that a ratio to the path `bridge` is one of drivers,
too. Here each guest has a vhost-user port and a TAP on a segment of their own, and the kernel's bridge joins the TAPs:
against the path `memlane` it tells the bridge's share, not the driver's.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import tomli_w

from memlane_lab.common.errors import NotAvailable
from memlane_lab.guests import KINDS
from memlane_lab.host import network
from memlane_lab.host.ports import Device, Endpoint, GuestKind, Port, VhostUser
from memlane_lab.paths.memlane import Memlane

_BRIDGE = "bridge"


class MemlaneBridge(Memlane):
    """One memlane daemon with two ports a guest, and a Linux bridge between all guests."""

    name: ClassVar[str] = "memlane-bridge"
    title: ClassVar[str] = "memlane to a TAP a guest + Linux bridge: the bridge with memlane's driver"
    rank: ClassVar[int] = 15
    spreads: ClassVar[bool] = False

    @classmethod
    def missing(cls) -> str | None:
        return network.may_change() or super().missing()

    @classmethod
    def refuses(cls, kind: GuestKind) -> str | None:  # noqa: ARG003
        return None

    def _lay(self, ports: Sequence[Port]) -> dict[str, Endpoint]:
        self._folder.mkdir(exist_ok=True)
        self._ports = list(ports)
        self._namespace = self.session.namespace(self.name)
        network.silence(self._namespace)
        network.add_bridge(_BRIDGE, namespace=self._namespace, mtu=max((port.mtu for port in ports), default=1500))
        carried = [each for port in ports for each in self._carried(port)]
        self._file.write_text(tomli_w.dumps({**self._settings, "control": str(self._control), "port": carried}))
        self.start()
        return {port.name: self._plug(port) for port in ports}

    def _carried(self, port: Port) -> list[dict[str, Any]]:
        """The guest's two ports as the network's file states them; a namespace is on the bridge and needs none."""
        if KINDS[port.kind].takes_devices:
            return []
        own = {"segment": port.name, "mtu": port.mtu}
        return [
            {"name": port.name, "vhost-user": str(self._socket(port))} | own,
            {"name": f"{port.name}-tap", "tap": self.session.link_name(port.name)} | own,
        ]

    def _plug(self, port: Port) -> Endpoint:
        device, place = f"port-{port.name}", self._namespace
        if KINDS[port.kind].takes_devices:
            network.add_veth(device, port.name, namespace=place, mtu=port.mtu)
            endpoint: Endpoint = Device(port.name, place)
        else:
            born_as = self.session.link_name(port.name)
            network.change(None, f"link set dev {born_as} down", f"link set dev {born_as} netns {place} name {device}")
            network.change(place, f"link set dev {device} mtu {port.mtu} up")
            endpoint = VhostUser(self._socket(port))
        network.join(device, _BRIDGE, namespace=place)
        if port.receive_rate:
            network.limit(device, port.receive_rate, namespace=place)
        return endpoint

    def _is_there(self, port: Port) -> bool:
        if KINDS[port.kind].takes_devices:
            return True
        return network.exists(self.session.link_name(port.name), namespace=None) and self._socket(port).is_socket()

    def counters(self) -> dict[str, dict[str, int]]:
        """The daemon's counters of each guest's own port."""
        return {name: told for name, told in super().counters().items() if name in self.nics}

    def tallies(self) -> dict[str, float]:
        told = super().tallies()
        own = self.counters().values()
        return told | {
            "frames": sum(port["transmit-frames"] for port in own),
            "delivered": sum(port["receive-bytes"] for port in own),
        }

    def restart(self) -> None:
        raise NotAvailable(f"path {self.name} loses its TAPs with its process, and cannot be restarted under guests")

    def clear(self) -> None:
        self.stop()
        self.session.remove_namespace(self._namespace)
