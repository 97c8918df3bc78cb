"""memlane with containers as a runtime makes them: a veth pair each, with its host end an `af-packet` port."""

from collections.abc import Sequence
from typing import Any, ClassVar

from memlane_lab.guests import KINDS
from memlane_lab.host import network
from memlane_lab.host.ports import Device, Endpoint, Port
from memlane_lab.paths.memlane import Memlane


class MemlaneVeth(Memlane):
    """As `memlane`, but a namespace has a veth pair in place of a TAP."""

    name: ClassVar[str] = "memlane-veth"
    title: ClassVar[str] = "memlane with a veth pair for each namespace (AF_PACKET)"
    rank: ClassVar[int] = 45
    spreads: ClassVar[bool] = False

    def _lay(self, ports: Sequence[Port]) -> dict[str, Endpoint]:
        self._namespace = self.session.namespace(self.name)
        network.silence(self._namespace)
        for port in ports:
            if KINDS[port.kind].takes_devices:
                network.add_veth(self._host_end(port), port.name, namespace=self._namespace, mtu=port.mtu)
        return super()._lay(ports)

    @staticmethod
    def _host_end(port: Port) -> str:
        return f"port-{port.name}"

    def _port(self, port: Port) -> dict[str, Any]:
        stated = super()._port(port)
        if stated.pop("tap", None):
            stated |= {"af-packet": self._host_end(port), "netns": self._namespace}
        return stated

    def _endpoint(self, port: Port) -> Endpoint:
        if KINDS[port.kind].takes_devices:
            return Device(port.name, self._namespace)
        return super()._endpoint(port)

    def _is_there(self, port: Port) -> bool:
        return bool(KINDS[port.kind].takes_devices) or super()._is_there(port)

    def clear(self) -> None:
        self.stop()
        self.session.remove_namespace(self._namespace)
