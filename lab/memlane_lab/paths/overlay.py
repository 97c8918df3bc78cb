"""Two hosts of a data centre: each has a path of the same kind, and the kernel's VXLAN joins them over an underlay.

Each host is a namespace, where the path's bridge, its VXLAN device and FRR are; the underlay is a veth pair between
them, whose MTU leaves guests theirs.
"""

from collections.abc import Sequence
from functools import partial

from memlane_lab.common.errors import NotAvailable
from memlane_lab.common.wait import until
from memlane_lab.host import network, underlay
from memlane_lab.host.ports import Endpoint, Port, Uplink
from memlane_lab.host.process import HostProcess
from memlane_lab.paths import frr
from memlane_lab.paths.apart import Apart

_VNI = 100
_PATIENCE = 60.0
"""Seconds that two hosts' FRR may take to get to know each other."""


class Overlay(Apart):
    """A path on each of two hosts, seen as one, with an underlay between them."""

    def _lay(self, ports: Sequence[Port]) -> dict[str, Endpoint]:
        if reason := frr.missing():
            raise NotAvailable(f"hosts cannot be joined by VXLAN: {reason}")
        sessions = (self.session, self._far_session)
        places = [session.namespace("host") for session in sessions]
        underlay.lay(self.session, places, max(port.mtu for port in ports) + underlay.HEADERS)
        own = [port for port in ports if port.name not in self._machines]
        others = [port for port in ports if port.name in self._machines]
        laid: dict[str, Endpoint] = {}
        self._frr: list[HostProcess] = []
        for number, (path, members) in enumerate(((self._near, own), (self._far, others))):
            local, peer = underlay.address(number), underlay.address(1 - number)
            path.uplink = Uplink(places[number], local, _VNI)
            laid |= {nic.port.name: nic.endpoint for nic in path.lay(members)}
            self._frr += frr.start(sessions[number], "frr", places[number], local, [peer])
        for number, place in enumerate(places):
            peer = underlay.address(1 - number)
            until(partial(self._floods, place, peer), timeout=_PATIENCE, what=f"FRR to tell host {number} of the other")
        return laid

    def _floods(self, place: str, peer: str) -> bool:
        """Whether a host floods to the other: then each has heard of the other's broadcast domain."""
        for daemon in self._frr:
            daemon.check()
        return any(peer in line and "00:00:00:00:00:00" in line for line in network.forwarding(place))

    def helpers(self) -> list[HostProcess]:
        return [*super().helpers(), *self._frr]

    def clear(self) -> None:
        for daemon in self._frr:
            daemon.stop()
        super().clear()
