"""User Mode Linux: a kernel that is an ordinary program, with a real virtio_net over vhost-user; no KVM needed."""

import platform
import socket
from pathlib import Path
from typing import ClassVar

from memlane_lab.common.errors import LabError
from memlane_lab.guests import mconsole
from memlane_lab.guests.guest import Guest, GuestCpu, HostUse
from memlane_lab.guests.inside import InsideCpu
from memlane_lab.host.ports import Device, GuestKind, Tap, Vde, VhostUser
from memlane_lab.host.process import HostProcess
from memlane_lab.images import uml_kernel
from memlane_lab.images.uml_kernel import UmlKernel

_NETWORK_DEVICE = 1
"""The virtio device type (virtio 1.3, section 5)."""


class UmlGuest(Guest):
    """One processor; in its init within 0.2 s."""

    kind: ClassVar[GuestKind] = GuestKind.UML
    rank: ClassVar[int] = 20
    takes_every_feature: ClassVar[bool] = True

    @classmethod
    def missing(cls) -> str | None:
        machine = platform.machine()
        return None if machine == "x86_64" else f"the lab builds User Mode Linux for x86_64 only; this is {machine}"

    @classmethod
    def prepare(cls) -> None:
        super().prepare()
        uml_kernel.kernel()

    @classmethod
    def note(cls) -> str:
        built = uml_kernel.built()
        return (
            f"Linux {'.'.join(map(str, built.version))}" if built else "its kernel will be built once, in some minutes"
        )

    def _start(self, channel: socket.socket) -> HostProcess:
        kernel = uml_kernel.kernel()
        self._folder.mkdir(exist_ok=True)
        # Without address randomisation no guest memory is lost to the gap before the heap.
        command: list[str | Path] = [
            "setarch",
            "--addr-no-randomize",
            kernel.program,
            *self._arguments(kernel, channel),
        ]
        return self.session.start(
            f"guest-{self.name}",
            command,
            namespace=self._namespace(),
            cpus=self.cpus,
            environment={"TMPDIR": "/dev/shm"},  # where the guest's memory is a file
            descriptors=[channel.fileno()],
        )

    def _arguments(self, kernel: UmlKernel, channel: socket.socket) -> list[str]:
        return [
            "umid=console",
            f"uml_dir={self._folder}",
            f"mem={self.memory}M",
            *(["seccomp=on"] if kernel.has_seccomp else []),
            *("root=/dev/root", "rootfstype=hostfs", f"rootflags={self.image.tree}", "ro", "init=/init"),
            *("con=null", "con0=null,fd:1", f"ssl0=fd:{channel.fileno()}"),
            *("panic=-1", "lab_channel=/dev/ttyS0", f"lab_name={self.name}"),
            *(self._nic(index) for index in range(len(self.nics))),
        ]

    def _nic(self, index: int) -> str:
        nic = self.nics[index]
        depth = nic.port.ring or 128
        match nic.endpoint:
            case VhostUser():
                return f"virtio_uml.{self._virtio(index)}"
            case Tap(device, emulated=""):
                options = f"depth={depth},gro=1,mtu={nic.port.mtu},mac={nic.port.mac}"
                return f"vec{index}:transport=tap,ifname={device},{options}"
            case Vde(switch):
                return (
                    f"vec{index}:transport=vde,vnl=vde://{switch},depth={depth},mtu={nic.port.mtu},mac={nic.port.mac}"
                )
            case other:
                raise LabError(f"User Mode Linux has no NIC for {other}")

    def _virtio(self, index: int) -> str:
        endpoint = self.nics[index].endpoint
        assert isinstance(endpoint, VhostUser)
        if self.nics[index].port.ring:
            raise LabError("User Mode Linux has 256 entries in each ring of vhost-user: leave out `ring`")
        if endpoint.guest_listens:
            raise LabError("User Mode Linux connects to a vhost-user back end; it cannot listen for one")
        return f"device={endpoint.socket}:{_NETWORK_DEVICE}:{index}"

    def _device(self, index: int) -> str:
        if isinstance(self.nics[index].endpoint, Tap | Vde):
            return f"vec{index}"
        return f"$(basename /sys/devices/virtio-uml-cmdline/virtio-uml.{index}/virtio*/net/*)"

    def _namespace(self) -> str | None:
        """The one namespace that holds the guest's TAPs."""
        namespaces = {nic.endpoint.namespace for nic in self.nics if isinstance(nic.endpoint, Tap | Device)}
        if len(namespaces) > 1:
            raise LabError(f"guest {self.name} has TAPs in several namespaces: {', '.join(map(str, namespaces))}")
        return next(iter(namespaces), None)

    @staticmethod
    def split(use: HostUse, inside: InsideCpu | None) -> GuestCpu:
        """The kernel is one process and each program's memory another, so the host itself tells them apart."""
        programs, system = use.children.user, use.leader.system + use.children.system
        if inside is None:
            untold = use.leader.user
            return GuestCpu(programs=programs, kernel=0, softirq=0, monitor=0, host_kernel=system, untold=untold)
        kernel = inside.system + inside.softirq + inside.irq
        share = (inside.softirq + inside.irq) / kernel if kernel > 0 else 0.0
        return GuestCpu(
            programs=programs,
            kernel=use.leader.user * (1 - share),
            softirq=use.leader.user * share,
            monitor=0.0,
            host_kernel=system,
        )

    def plug(self, index: int, timeout: float = 15.0) -> None:
        """Adds NIC number `index` to the running kernel: a vhost-user NIC is gone when its back end is."""
        if isinstance(self.nics[index].endpoint, VhostUser):
            if not uml_kernel.kernel().can_plug:
                raise LabError("this UML kernel (before 7.2) cannot plug a NIC while it runs: reboot the guest instead")
            # The kernel removes the broken NIC by itself once it notices.
            old = f"! [ -e /sys/devices/virtio-uml-cmdline/virtio-uml.{index} ]"
            self._until_true(old, timeout, f"guest {self.name} to notice that NIC {index} is gone")
            mconsole.ask(self._folder / "console" / "mconsole", f"config virtio_uml.{self._virtio(index)}", timeout)
        super().plug(index, timeout)

    @property
    def _folder(self) -> Path:
        return self.session.folder / f"uml-{self.name}"
