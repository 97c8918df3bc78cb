"""The interface of all guests: boot, run commands, read counters, crash, reboot, stop."""

import ipaddress
import socket
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from memlane_lab.common.errors import LabError
from memlane_lab.common.wait import Timeout, until
from memlane_lab.guests import inside
from memlane_lab.guests.control import Control, GuestGone, Result, Running
from memlane_lab.guests.inside import Inside, InsideCpu, Received
from memlane_lab.host.ports import GuestKind, Nic
from memlane_lab.host.process import HostProcess
from memlane_lab.host.procfs import CpuTime
from memlane_lab.host.session import Session
from memlane_lab.images import root, supplied
from memlane_lab.images.root import RootImage


@dataclass(frozen=True)
class HostUse:
    """CPU time that the host counts for a guest."""

    leader: CpuTime
    """Its process, all threads but those of vhost."""
    children: CpuTime
    """All others in its control group, those that have ended too."""
    vhost: CpuTime
    """The host kernel's threads that move its frames."""


@dataclass(frozen=True)
class GuestCpu:
    """CPU time that the host counts for a guest, by its use; the parts do not overlap."""

    programs: float
    kernel: float
    softirq: float
    monitor: float
    """The virtual machine monitor's own work, in user space."""
    host_kernel: float
    """The host's kernel on the guest's behalf: system calls, and their work, such as forwarding between TAPs."""
    untold: float = 0.0
    """User time of a guest that did not answer in time."""


class Guest(ABC):
    """A guest, from its description to its end. After `boot` its NIC number i is its network device `net<i>`."""

    kind: ClassVar[GuestKind]
    rank: ClassVar[int] = 50
    """Where it stands in lists; the machine of smallest rank that this host can run is chosen by itself."""
    is_machine: ClassVar[bool] = True
    """Whether it has a kernel of its own."""
    takes_devices: ClassVar[bool] = False
    """Whether its NICs are devices of the host's kernel, instead of TAPs and vhost-user sockets."""
    emulates: ClassVar[bool] = False
    """Whether it can show its kernel an emulated e1000."""
    has_queues: ClassVar[bool] = False
    """Whether a NIC of it may have several pairs of queues."""
    connects_again: ClassVar[bool] = False
    """Whether a NIC outlives its path, and connects to the next by itself."""
    takes_every_feature: ClassVar[bool] = False
    """Whether it takes features that a vhost-user back end offers but does not serve."""
    unpacks_its_tree: ClassVar[bool] = False
    """Whether its root tree lies in its memory."""
    boot_timeout: ClassVar[float] = 60.0
    """Seconds within which a guest of this kind must answer, on a busy machine too."""
    _reboot_command: ClassVar[str] = "reboot -f"

    def __init__(
        self,
        session: Session,
        name: str,
        nics: Sequence[Nic] = (),
        *,
        memory: int | None = None,
        processors: int = 1,
        cpus: Sequence[int] = (),
        image: RootImage | None = None,
    ) -> None:
        """Describes a guest of `memory` MiB (None: the kind's usual), kept on the host's CPUs `cpus` (none: any).

        `image` is its root tree; None: the usual one.
        """
        self.session = session
        self.name = name
        self.nics = list(nics)
        self.memory = memory or self._usual_memory()
        self.processors = processors
        self.cpus = cpus
        self._image = image
        self._process: HostProcess | None = None
        self._control: Control | None = None
        self._devices: dict[int, str] = {}
        """Each NIC's device on its bus, such as "virtio1": its interrupts bear that name."""
        session.callback(self.kill)

    @property
    def image(self) -> RootImage:
        """Its root tree."""
        return self._image or supplied.root_image()

    @classmethod
    @abstractmethod
    def missing(cls) -> str | None:
        """Why this machine cannot run such guests, or None."""

    @classmethod
    def prepare(cls) -> None:
        """Builds or downloads the images that such guests boot, if they are not in the cache yet."""
        root.image()

    @classmethod
    def note(cls) -> str:
        """A remark for the operator about such guests on this machine."""
        return ""

    @classmethod
    def _usual_memory(cls) -> int:
        """MiB. Much less, and Linux gives TCP so little memory that it, not the path, bounds the throughput."""
        return 256

    @abstractmethod
    def _start(self, channel: socket.socket) -> HostProcess:
        """Starts the guest, which is to serve its control agent on `channel`."""

    @abstractmethod
    def _device(self, index: int) -> str:
        """A shell word that the guest expands to the name its kernel gave NIC number `index`."""

    def boot(self, timeout: float | None = None) -> None:
        """Starts the guest and waits until it answers and its NICs are there."""
        self.start()
        self.wait_ready(timeout)

    def start(self) -> None:
        """Starts the guest without waiting for it."""
        if self._process is not None and self._process.alive:
            raise LabError(f"guest {self.name} runs already")
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = self._start(theirs)
        self._control = Control(self.name, ours)

    def wait_ready(self, timeout: float | None = None) -> None:
        """Waits until the guest answers on its control channel; then names its NICs and sets them up."""
        self._await_agent(1, timeout)
        for index in range(len(self.nics)):
            self._set_up(index)

    def wait_for_ping(self) -> None:
        """Waits until `ping` keeps to its interval: until the guest's kernel has run for a second.

        Before that, iputils' ping takes a clock that shows 0 s for one that it has not read yet, and does not pause.
        """
        until(lambda: float(self.get("/proc/uptime").split()[0]) > 1.1, timeout=30, what=f"guest {self.name}'s clock")

    @property
    def process(self) -> HostProcess:
        """The host process that the guest is."""
        if self._process is None:
            raise LabError(f"guest {self.name} has not been started")
        return self._process

    @property
    def control(self) -> Control:
        """The channel for commands."""
        if self._control is None:
            raise LabError(f"guest {self.name} has not been started")
        return self._control

    @property
    def started(self) -> bool:
        """Whether it ever had a host process."""
        return self._process is not None

    @property
    def alive(self) -> bool:
        """Whether its host process runs."""
        return self._process is not None and self._process.alive

    @property
    def log(self) -> Path:
        """The text on its console."""
        return self.process.log

    def run(self, command: str | Sequence[str | Path], timeout: float = 60.0, *, stdin: bytes = b"") -> Result:
        """Runs a command and returns how it ended, success or not; `Result.check` insists on success."""
        return self.control.run(command, timeout, stdin=stdin)

    def spawn(self, command: str | Sequence[str | Path], *, stdin: bytes | None = b"") -> Running:
        """Starts a command and returns while it runs."""
        return self.control.spawn(command, stdin=stdin)

    def get(self, path: str) -> bytes:
        """The content of a file in the guest."""
        return self.control.get(path)

    def put(self, path: str, content: bytes) -> None:
        """Writes a file in the guest; there is room in /tmp and /root."""
        self.control.put(path, content)

    def address(self, index: int, *addresses: str) -> None:
        """Gives NIC number `index` its addresses ("10.0.0.1/24", "fd00::1/64"), at once usable."""
        for text in addresses:
            family = "-6" if ipaddress.ip_interface(text).version == 6 else "-4"
            self.run(["ip", family, "address", "add", text, "dev", f"net{index}"]).check()

    def wait_listening(self, port: int, protocol: str = "tcp", timeout: float = 10.0) -> None:
        """Waits until some program in the guest listens on a TCP port, or has bound a UDP port."""
        state = "0A" if protocol == "tcp" else "07"  # TCP_LISTEN, TCP_CLOSE (include/net/tcp_states.h)

        def listening() -> bool:
            rows = self.get(f"/proc/net/{protocol}") + self.get(f"/proc/net/{protocol}6")
            sockets = [line.split() for line in rows.decode().splitlines()]
            return any(row[1].endswith(f":{port:04X}") and row[3] == state for row in sockets)

        until(listening, timeout=timeout, what=f"guest {self.name} to listen on {protocol} port {port}")

    def cpu(self) -> CpuTime:
        """Host CPU time that the guest has used since its start: all of its processes and threads."""
        return self.process.cpu()

    def inside(self) -> Inside:
        """The counters of its kernel since its boot."""
        stat, devices, snmp, interrupts = self.control.get_all(inside.FILES)
        return Inside(
            InsideCpu.read(stat),
            inside.received(devices),
            inside.stack(snmp),
            inside.interrupts(interrupts, set(self._devices.values())),
        )

    def received(self) -> Received:
        """The counters of its NICs so far."""
        return inside.received(self.get("/proc/net/dev"))

    def vhost_cpu(self) -> CpuTime:
        """Host CPU time so far of the host kernel's threads that move its frames."""
        return CpuTime()

    @staticmethod
    def split(use: HostUse, inside: InsideCpu | None) -> GuestCpu:
        """Splits the host's CPU time for this guest by its use; `inside` is None if the guest did not answer in time.

        A guest's own account knows its kernel from its programs but not how much of the time the host really gave it;
        so it is scaled down to the host's figure, where it is above that. The rest is the monitor's.
        """
        user, system = use.leader.user + use.children.user, use.leader.system + use.children.system
        if inside is None:
            return GuestCpu(programs=0, kernel=0, softirq=0, monitor=0, host_kernel=system, untold=user)
        scale = min(1.0, user / inside.busy) if inside.busy > 0 else 0.0
        return GuestCpu(
            programs=inside.user * scale,
            kernel=inside.system * scale,
            softirq=(inside.softirq + inside.irq) * scale,
            monitor=max(0.0, user - inside.busy),
            host_kernel=system,
        )

    def plug(self, index: int, timeout: float = 15.0) -> None:
        """Makes NIC number `index` work again after its path was gone for a while; addresses must be set anew.

        Where a NIC outlives its path (QEMU), this only waits and sets it up again.
        """
        self._set_up(index, timeout)

    def reboot(self, timeout: float | None = None) -> None:
        """Has the guest reboot itself in the same host process; its programs and addresses are gone then."""
        greeted = self.control.hellos
        self.control.expect_reboot()
        self.spawn(self._reboot_command)
        self._await_agent(greeted + 1, timeout)
        for index in range(len(self.nics)):
            self._set_up(index)

    def kill(self) -> None:
        """Ends the guest like a power cut."""
        if self._process is not None:
            self._process.kill()
        if self._control is not None:
            self._control.close()

    def stop(self, grace: float = 5.0) -> None:
        """Lets the guest power off, and kills it if it has not within `grace` seconds."""
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            self._process.wait(grace)
            self._process.kill()

    def _await_agent(self, count: int, timeout: float | None) -> None:
        try:
            self.control.wait_hello(count, timeout or self.boot_timeout, self.process.check)
        except GuestGone:
            # The channel closes some moments before the process can be waited for.
            self.process.wait(5)
            self.process.check()
            raise
        except Timeout as error:
            raise Timeout(f"{error}; the end of its console:\n{self.process.tail()}") from None

    def _set_up(self, index: int, timeout: float | None = None) -> None:
        """Names NIC number `index` net<index>, without addresses, with its MAC and MTU, and brings it up."""
        port = self.nics[index].port
        device = f"net{index}; [ -e /sys/class/net/$d ] || d={self._device(index)}"
        there = f'd={device}; [ -e "/sys/class/net/$d" ]'
        self._until_true(there, timeout or self.boot_timeout, f"NIC {index} of guest {self.name}")
        # Addresses are usable as soon as they are set, without unsolicited frames.
        quiet = "for s in accept_dad accept_ra autoconf; do echo 0 >/proc/sys/net/ipv6/conf/$d/$s; done"
        clear = "ip address flush dev $d; ip link set dev $d down"
        name = f"ip link set dev $d name net{index} address {port.mac} mtu {port.mtu}; ip link set dev net{index} up"
        bus = f"basename $(readlink -f /sys/class/net/net{index}/device)"
        self._devices[index] = self.run(f"set -e; {there}; {clear}; {quiet}; {name}; {bus}").check().stdout.strip()

    def _until_true(self, test: str, timeout: float, what: str) -> None:
        """Waits until a shell command in the guest succeeds."""

        def holds() -> bool:
            self.process.check()
            return self.run(test).status == 0

        until(holds, timeout=timeout, what=what)
