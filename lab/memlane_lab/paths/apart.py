"""Two hosts: each has a path of the same kind, and one cable joins both. Hosts are namespaces' worth of this machine.

A guest's frame to another host passes its own host's path, an uplink, the cable (a veth pair between two bridges, as a
host joins its NIC with its guests) and the other host's path. What a real cable and real NICs take comes on top.
"""

from collections.abc import Collection, Mapping, Sequence
from itertools import chain

from memlane_lab.host import network
from memlane_lab.host.ports import Device, Endpoint, GuestKind, Port
from memlane_lab.host.process import HostProcess
from memlane_lab.host.session import Session
from memlane_lab.paths.path import NetworkPath

_UPLINK = "uplink"
_MAC = "02:6d:6c:ff:ff:fe"
"""Never seen: no frame is sent from the cable's ends."""


class Apart(NetworkPath):
    """A path on each of two hosts, seen as one."""

    def __init__(
        self, session: Session, near: NetworkPath, far: tuple[Session, NetworkPath], machines: Collection[str]
    ) -> None:
        """`machines` names the ports that are on the far host, which has a session of its own."""
        super().__init__(session)
        self._near = near
        self._far_session, self._far = far
        self._machines = machines

    @classmethod
    def refuses(cls, kind: GuestKind) -> str | None:  # noqa: ARG003
        return None  # each host's path says so itself

    def _lay(self, ports: Sequence[Port]) -> dict[str, Endpoint]:
        uplink = Port(_UPLINK, GuestKind.NETNS, _MAC, max(port.mtu for port in ports))
        own = [port for port in ports if port.name not in self._machines]
        others = [port for port in ports if port.name in self._machines]
        laid = {nic.port.name: nic.endpoint for nic in self._near.lay([*own, uplink])}
        near = laid.pop(_UPLINK)
        laid |= {nic.port.name: nic.endpoint for nic in self._far.lay([*others, uplink])}
        far = laid.pop(_UPLINK)
        assert isinstance(near, Device)
        assert isinstance(far, Device)
        self._join(near, far, uplink.mtu)
        return laid

    def _join(self, near: Device, far: Device, mtu: int) -> None:
        """Lays the cable between the uplinks of both hosts."""
        place = self.session.namespace("cable")
        network.silence(place)
        network.change(place, f"link add dev cable0 mtu {mtu} type veth peer name cable1 mtu {mtu}")
        for number, device in enumerate((near, far)):
            network.change(device.namespace, f"link set dev {device.device} netns {place} name {_UPLINK}{number}")
            network.add_bridge(f"host{number}", namespace=place, mtu=mtu)
            for end in (f"{_UPLINK}{number}", f"cable{number}"):
                network.change(place, f"link set dev {end} mtu {mtu} master host{number} up")

    def counters(self) -> dict[str, dict[str, int]]:
        return {**self._far.counters(), **self._near.counters()}

    def tallies(self) -> dict[str, float]:
        return _added(self._near.tallies(), self._far.tallies())

    def kicks(self) -> dict[str, int]:
        return {**self._far.kicks(), **self._near.kicks()}

    def parties(self) -> list[HostProcess]:
        return [*self._near.parties(), *self._far.parties()]

    def helpers(self) -> list[HostProcess]:
        return [*self._near.helpers(), *self._far.helpers()]

    def clear(self) -> None:
        self._near.clear()
        self._far.clear()
        self._far_session.close()


def _added(first: Mapping[str, float], second: Mapping[str, float]) -> dict[str, float]:
    """Sums by name."""
    return {name: first.get(name, 0) + second.get(name, 0) for name in chain(first, second)}
