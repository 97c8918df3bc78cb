"""Open vSwitch that sleeps, with a TAP for each virtual machine: a rival of memlane's that takes no CPU when idle.

In the kernel where its module is there; else its user-space datapath reads the TAPs by packet sockets (AF_PACKET), with
TSO, in a thread that sleeps. That datapath's program is the one that is built with DPDK, because only it has TSO; DPDK
itself stays off.
"""

from pathlib import Path
from typing import ClassVar

from memlane_lab.guests import KINDS
from memlane_lab.host import network, procfs
from memlane_lab.host.ports import Endpoint, Port, Tap
from memlane_lab.host.process import HostProcess
from memlane_lab.paths.ovs_dpdk import SWITCH, OvsDpdk

_PLAIN = Path("/usr/lib/openvswitch-switch/ovs-vswitchd")
_MODULE = Path("/sys/module/openvswitch")


class OpenVSwitch(OvsDpdk):
    """One bridge of Open vSwitch, learning as usual (NORMAL); TAPs that carry virtio-net headers."""

    name: ClassVar[str] = "ovs"
    title: ClassVar[str] = "Open vSwitch without DPDK, TAP: sleeps; in the kernel, where its module is loaded"
    rank: ClassVar[int] = 25
    polls: ClassVar[bool] = False

    @classmethod
    def missing(cls) -> str | None:
        own = cls._program()
        return network.may_change() or (None if own.exists() else f"{own} is not installed: run make deps")

    @classmethod
    def _program(cls) -> Path:
        return _PLAIN if _MODULE.exists() else SWITCH

    @classmethod
    def _datapath(cls) -> str:
        return "system" if _MODULE.exists() else "netdev"

    def _kept(self) -> list[str]:
        return [] if self._cpu is None else ["taskset", "--cpu-list", str(self._cpu)]

    def _settings(self, ports: int) -> list[str]:  # noqa: ARG002
        return ["userspace-tso-enable=true", "stats-update-interval=1000"]

    def _is_up(self, switch: HostProcess) -> bool:
        return procfs.listens(switch.pid, self._folder / "switch.ctl")

    def _plug(self, port: Port) -> Endpoint:
        if KINDS[port.kind].takes_devices:
            endpoint = self._plug_namespace(port)
        else:
            device = self._interface(port)
            born_as, place = self.session.link_name(port.name), self._namespace
            network.add_tap(device, born_as=born_as, namespace=place, mtu=port.mtu, queues=port.queues)
            self._add(device)
            endpoint = Tap(device, place)
        if port.receive_rate:
            network.limit(self._interface(port), port.receive_rate, namespace=self._namespace)
        return endpoint

    @staticmethod
    def _interface(port: Port) -> str:
        return f"port-{port.name}"

    def held(self) -> dict[str, float]:
        return {}
