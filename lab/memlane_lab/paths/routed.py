"""Routed instead of bridged, as Xen's `vif-route` has it: the host is the router of each guest, with a route to each.

Guests are on one subnet all the same: the host answers their ARP requests for each other (proxy ARP, RFC 1027). A
machine's address follows from its port's MAC address, as a bed gives both.
"""

from collections.abc import Sequence
from typing import ClassVar

from memlane_lab.host import network
from memlane_lab.host.ports import Endpoint, Port
from memlane_lab.paths.bridge import Bridge

_ROUTER = "10.77.255.254"


class Routed(Bridge):
    """TAPs between which the host's kernel routes IPv4; virtio-net in the guests."""

    name: ClassVar[str] = "routed"
    title: ClassVar[str] = "TAP + routing by the host's kernel"
    rank: ClassVar[int] = 12
    spreads: ClassVar[bool] = False

    def _lay(self, ports: Sequence[Port]) -> dict[str, Endpoint]:
        self._namespace = self.session.namespace(self.name)
        network.silence(self._namespace)
        network.tune(self._namespace, ["ipv4/ip_forward=1", "ipv4/conf/default/proxy_arp=1"])
        self._ports = list(ports)
        return {port.name: self._plug(port) for port in ports}

    def _join(self, device: str, port: Port) -> None:
        network.change(
            self._namespace,
            f"address add {_ROUTER}/32 dev {device}",
            f"route add {_address(port)}/32 dev {device} src {_ROUTER}",
        )
        network.tune(self._namespace, [f"ipv4/neigh/{device}/proxy_delay=0"])


def _address(port: Port) -> str:
    high, low = (int(part, 16) for part in port.mac.split(":")[-2:])
    return f"10.77.{high}.{low}"
