"""A guest without virtualisation: namespaces of the host's kernel, the root image as its file system."""

import socket
from collections.abc import Sequence
from typing import Any, ClassVar

from memlane_lab.common.errors import LabError
from memlane_lab.guests import inside
from memlane_lab.guests.guest import Guest, GuestCpu, HostUse
from memlane_lab.guests.inside import Inside, InsideCpu
from memlane_lab.host import network
from memlane_lab.host.ports import Device, GuestKind, Nic
from memlane_lab.host.process import HostProcess
from memlane_lab.host.session import Session


class NetnsGuest(Guest):
    """Network, process, mount and name namespaces; the network stack is the host's own kernel's."""

    kind: ClassVar[GuestKind] = GuestKind.NETNS
    rank: ClassVar[int] = 90
    is_machine: ClassVar[bool] = False
    takes_devices: ClassVar[bool] = True

    def __init__(self, session: Session, name: str, nics: Sequence[Nic] = (), **options: Any) -> None:  # noqa: ANN401
        super().__init__(session, name, nics, **options)
        self._namespace: str | None = None

    @classmethod
    def missing(cls) -> str | None:
        return network.may_change()

    def _start(self, channel: socket.socket) -> HostProcess:
        if self._namespace is None:  # it outlives a crash of the guest, and with it the devices
            self._namespace = self.session.namespace(self.name)
            for index in range(len(self.nics)):
                self._take(index)
        isolate = ["unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child"]
        return self.session.start(
            f"guest-{self.name}",
            [*isolate, "chroot", self.image.tree, "/init"],
            namespace=self._namespace,
            cpus=self.cpus,
            environment={"lab_channel": "-", "lab_name": self.name},
            stdin=channel.fileno(),
        )

    def _take(self, index: int) -> None:
        """Moves NIC number `index` from where the path put it into our namespace."""
        endpoint = self.nics[index].endpoint
        if not isinstance(endpoint, Device):
            raise LabError(f"a netns guest takes network devices; it cannot use {endpoint}")
        assert self._namespace is not None
        network.move(endpoint.device, source=endpoint.namespace, target=self._namespace)

    def _device(self, index: int) -> str:
        endpoint = self.nics[index].endpoint
        assert isinstance(endpoint, Device)
        return endpoint.device

    def plug(self, index: int, timeout: float = 15.0) -> None:
        """Takes the device again that the path has made anew."""
        self._take(index)
        super().plug(index, timeout)

    def inside(self) -> Inside:
        """CPU time is its processes'; the kernel is the host's, which does not tell softirqs apart by namespace."""
        used = self.cpu()
        devices, snmp = self.control.get_all(["/proc/net/dev", "/proc/net/snmp"])
        cpu = InsideCpu(used.user, used.system, softirq=0, irq=0, idle=0, steal=0)
        return Inside(cpu, inside.received(devices), inside.stack(snmp), interrupts=None)

    @staticmethod
    def split(use: HostUse, inside: InsideCpu | None) -> GuestCpu:  # noqa: ARG004
        """Its kernel is the host's, and works on its behalf in its programs' system calls."""
        used = use.leader + use.children
        return GuestCpu(programs=used.user, kernel=used.system, softirq=0.0, monitor=0.0, host_kernel=0.0)

    def reboot(self, timeout: float | None = None) -> None:
        """Namespaces do not reboot: ends all processes and starts afresh on the same devices."""
        self.kill()
        self.boot(timeout)
