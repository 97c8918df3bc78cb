"""QEMU: the machine that users run, with KVM where it works, else with every instruction translated (TCG)."""

import functools
import os
import re
import shutil
import socket
import subprocess
from pathlib import Path
from typing import ClassVar

from memlane_lab.common.errors import LabError
from memlane_lab.guests import kvm
from memlane_lab.guests.guest import Guest
from memlane_lab.host import procfs
from memlane_lab.host.ports import GuestKind, Nic, Tap, VhostUser
from memlane_lab.host.process import HostProcess
from memlane_lab.host.procfs import CpuTime
from memlane_lab.images import machine_kernel, supplied
from memlane_lab.images.machine_kernel import Flavour, MachineKernel
from memlane_lab.images.system import DiskImage

PROGRAM = "qemu-system-x86_64"
_VHOST = "vhost-"
"""How the kernel names the threads that serve /dev/vhost-net."""
_CONSOLE = "console=ttyS0 quiet panic=-1 rdinit=/init lab_channel=/dev/vport0p1"
_AT_ONCE = "nokaslr cryptomgr.notests"
"""Not moving the kernel to a random address, no self-tests of ciphers: a boot takes a fifth less of an emulated CPU."""


@functools.cache
def version(program: str = PROGRAM) -> tuple[int, int]:
    """Major and minor number of this machine's QEMU, or of another."""
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"version (\d+)\.(\d+)", said)
    if not found:
        raise LabError(f"{program} does not report its version: {said!r}")
    return int(found[1]), int(found[2])


class QemuGuest(Guest):
    """Debian's kernel and the root image as initramfs, on an ordinary PC with virtio or e1000 NICs."""

    accelerator: ClassVar[str]
    program: ClassVar[str] = PROGRAM
    emulates: ClassVar[bool] = True
    has_queues: ClassVar[bool] = True
    connects_again: ClassVar[bool] = True
    unpacks_its_tree: ClassVar[bool] = True
    # Like the reset button. An orderly reboot of Linux 6.1.192 (Debian 12) breaks the rings of a busy virtio-net
    # first, served by any back end, then looks for completions on them for ever.
    _reboot_command: ClassVar[str] = "echo b >/proc/sysrq-trigger"

    @classmethod
    def missing(cls) -> str | None:
        return None if shutil.which(PROGRAM) else f"{PROGRAM} is not installed: run make deps"

    @classmethod
    def prepare(cls) -> None:
        super().prepare()
        for flavour in Flavour:
            machine_kernel.kernel(flavour)

    @classmethod
    def _usual_memory(cls) -> int:
        return super()._usual_memory() + 128  # its root tree lies in its memory

    def _start(self, channel: socket.socket) -> HostProcess:
        return self.session.start(
            f"guest-{self.name}",
            self._command(f"socket,id=control,fd={channel.fileno()}"),
            namespace=self._namespace(),
            cpus=self.cpus,
            descriptors=[channel.fileno()],
        )

    def _command(self, channel: str) -> list[str]:
        """QEMU with its arguments; `channel` is the character device of the control channel."""
        kernel, boot = self._booted()
        return [
            *(self.program, "-nodefaults", "-no-user-config", "-display", "none"),
            *("-machine", "q35,memory-backend=memory"),
            *("-accel", self.accelerator, *self._processor(), "-name", f"{self.name},debug-threads=on"),
            *("-m", f"{self.memory}M", "-object", f"{self._memory_backend()},id=memory,size={self.memory}M,share=on"),
            *("-kernel", str(kernel), "-initrd", str(boot), *self._disk()),
            *("-append", f"{_CONSOLE} {_AT_ONCE} lab_name={self.name}{self._told()}", "-serial", "stdio"),
            *("-chardev", channel),
            *("-device", "virtio-serial-pci", "-device", "virtserialport,chardev=control,name=control"),
            *(word for index in range(len(self.nics)) for word in self._nic(index)),
        ]

    def _booted(self) -> tuple[Path, Path]:
        """The kernel, and the initramfs with the root tree, or that which hands over to a disk."""
        if isinstance(self._image, DiskImage):
            return self._image.kernel, self._image.boot
        kernel = self._kernel()
        return kernel.kernel, self._initramfs(kernel)

    def _disk(self) -> list[str]:
        """The disk of a guest with a system of its own; each start begins with the disk as it was made."""
        if not isinstance(self._image, DiskImage):
            return []
        return ["-drive", f"file={self._image.disk},format={self._image.format},if=virtio,snapshot=on"]

    def _told(self) -> str:
        """Words for the init of a system on a disk, which without udev would wait 90 s for the console's device."""
        return f" systemd.getty_auto=no systemd.hostname={self.name}" if isinstance(self._image, DiskImage) else ""

    def _memory_backend(self) -> str:
        """QEMU's object that the guest's memory lies in."""
        return "memory-backend-memfd"

    def _kernel(self) -> MachineKernel:
        emulated = any(isinstance(nic.endpoint, Tap) and bool(nic.endpoint.emulated) for nic in self.nics)
        return supplied.kernel(Flavour.GENERAL if emulated else Flavour.CLOUD)

    def _initramfs(self, kernel: MachineKernel) -> Path:
        """One file: the kernel reads archives that follow each other."""
        joined = self.session.folder / f"initramfs-{self.image.tree.parent.name}-{kernel.kernel.parent.name}"
        if not joined.exists():
            with joined.open("wb") as out:
                for part in (self.image.initramfs, kernel.modules):
                    out.write(part.read_bytes())
        return joined

    def _processor(self) -> list[str]:
        return ["-smp", str(self.processors)]

    def _nic(self, index: int) -> list[str]:
        """QEMU's arguments for NIC number `index`: its endpoint, and the device that the guest sees."""
        nic = self.nics[index]
        match nic.endpoint:
            case VhostUser():
                backend, device = self._vhost_user(nic, nic.endpoint, index), self._virtio_device(nic)
            case Tap(emulated=model) if model:
                backend, device = self._tap(nic, nic.endpoint, index), model
            case Tap():
                backend, device = self._tap(nic, nic.endpoint, index), self._virtio_device(nic)
            case other:
                raise LabError(f"QEMU has no NIC for {other}")
        return [*backend, "-device", f"{device},netdev=net{index},mac={nic.port.mac}"]

    def _vhost_user(self, nic: Nic, endpoint: VhostUser, index: int) -> list[str]:
        again = "reconnect-ms=200" if version(self.program) >= (9, 2) else "reconnect=1"
        role = "server=on,wait=off" if endpoint.guest_listens else again
        return [
            *("-chardev", f"socket,id=port{index},path={endpoint.socket},{role}"),
            *("-netdev", f"vhost-user,id=net{index},chardev=port{index},queues={nic.port.queues}"),
        ]

    def _tap(self, nic: Nic, endpoint: Tap, index: int) -> list[str]:
        queues = f",queues={nic.port.queues}" if nic.port.queues > 1 and not endpoint.emulated else ""
        vhost = ",vhost=on" if self._has_vhost_net() else ""
        return ["-netdev", f"tap,id=net{index},ifname={endpoint.device},script=no,downscript=no{queues}{vhost}"]

    def _has_vhost_net(self) -> bool:
        return False

    def _virtio_device(self, nic: Nic) -> str:
        options = ["virtio-net-pci"]
        if nic.port.mtu != 1500:
            options.append(f"host_mtu={nic.port.mtu}")
        if nic.port.ring:
            options.append(f"rx_queue_size={nic.port.ring},tx_queue_size={nic.port.ring}")
        if nic.port.queues > 1:
            options.append("mq=on")
        if self._crashes_with_vectors() and isinstance(nic.endpoint, VhostUser):
            options.append("vectors=0")
        elif nic.port.queues > 1:
            options.append(f"vectors={2 * nic.port.queues + 2}")
        return ",".join(options)

    def _crashes_with_vectors(self) -> bool:
        """Whether this QEMU ends in a segmentation fault when a vhost-user NIC has interrupt vectors."""
        return False

    def vhost_cpu(self) -> CpuTime:
        """Threads of the monitor since Linux 6.4, of the kernel before."""
        threads = procfs.threads(self.process.pid)
        group = self.process.group
        others = group.processes() if group else []
        return sum((each.cpu for each in (*threads, *others) if each.name.startswith(_VHOST)), CpuTime())

    def _device(self, index: int) -> str:
        mac = self.nics[index].port.mac
        return f"$(basename $(dirname $(grep -l {mac} /sys/class/net/*/address)))"

    def _namespace(self) -> str | None:
        """The one namespace that holds the guest's TAPs."""
        namespaces = {nic.endpoint.namespace for nic in self.nics if isinstance(nic.endpoint, Tap)}
        if len(namespaces) > 1:
            raise LabError(f"guest {self.name} has TAPs in several namespaces: {', '.join(namespaces)}")
        return next(iter(namespaces), None)


class TcgGuest(QemuGuest):
    """Without hardware virtualisation; in its init within some seconds."""

    kind: ClassVar[GuestKind] = GuestKind.TCG
    rank: ClassVar[int] = 30
    accelerator: ClassVar[str] = "tcg"
    boot_timeout: ClassVar[float] = 180.0

    def _processor(self) -> list[str]:
        # Room for a second processor, which never comes: to a machine that can have one only, QEMU (7.2) translates the
        # fences of its locked instructions away, and with them now and then a notification gets lost.
        return ["-smp", f"{self.processors},maxcpus={max(self.processors, 2)}"]

    def _crashes_with_vectors(self) -> bool:
        return version(self.program) < (10, 0)  # seen with 7.2, not with 10.0


class KvmGuest(QemuGuest):
    """With hardware virtualisation."""

    kind: ClassVar[GuestKind] = GuestKind.KVM
    rank: ClassVar[int] = 10
    accelerator: ClassVar[str] = "kvm"

    @classmethod
    def missing(cls) -> str | None:
        return super().missing() or kvm.missing(PROGRAM)

    def _processor(self) -> list[str]:
        return ["-cpu", "host", *super()._processor()]

    def _has_vhost_net(self) -> bool:
        return os.access("/dev/vhost-net", os.R_OK | os.W_OK)
