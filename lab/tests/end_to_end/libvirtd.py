"""A guest that a libvirtd runs, as a user's session: its own daemon, folders and sockets, no cgroups, no system bus."""

import contextlib
import shutil
import socket
import subprocess
import threading
from pathlib import Path
from typing import ClassVar
from xml.sax.saxutils import escape

from memlane_lab.guests.qemu import TcgGuest
from memlane_lab.host.ports import VhostUser
from memlane_lab.host.process import HostProcess
from tests.end_to_end.monitor import wait

_DAEMON = "/usr/sbin/libvirtd"
# libvirtd serves a session to users other than root only; outside of the namespace it is this user all the same.
_USER = ("unshare", "--user", "--map-user=1000", "--map-group=1000")
_DOMAIN = """<domain type='qemu' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>
  <name>{name}</name><memory unit='MiB'>{memory}</memory><vcpu>1</vcpu>
  <memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking>
  <os>
    <type arch='x86_64' machine='q35'>hvm</type>
    <kernel>{kernel}</kernel><initrd>{initramfs}</initrd><cmdline>{arguments}</cmdline>
  </os>
  <features><acpi/></features>
  <devices>
    {devices}
    <interface type='vhostuser'>
      <mac address='{mac}'/>
      <source type='unix' path='{socket}' mode='client'><reconnect enabled='yes' timeout='1'/></source>
      <model type='virtio'/><alias name='ua-net'/>
    </interface>
    <memballoon model='none'/>
  </devices>
  <qemu:override><qemu:device alias='ua-net'><qemu:frontend>
    <qemu:property name='vectors' type='unsigned' value='{vectors}'/>
  </qemu:frontend></qemu:device></qemu:override>
</domain>
"""
# Devices of a guest that the lab talks to.
_TALKING = """<emulator>{emulator}</emulator>
    <serial type='file'><source path='{console}'/></serial>
    <channel type='unix'><source mode='connect' path='{channel}'/><target type='virtio' name='control'/></channel>"""


def domain(
    name: str,
    mac: str,
    socket: str | Path,
    boot: tuple[str | Path, str | Path, str],
    *,
    memory: int,
    devices: str,
    vectors: int,
) -> str:
    """The XML of a domain: kernel, initramfs and arguments that it boots, and the vhost-user `socket` of its NIC."""
    kernel, initramfs, arguments = boot
    return _DOMAIN.format(
        name=name,
        memory=memory,
        kernel=kernel,
        initramfs=initramfs,
        arguments=escape(arguments),
        devices=devices,
        mac=mac,
        socket=socket,
        vectors=vectors,
    )


class Domain(TcgGuest):
    """Its agent finds a host at its channel at each start of QEMU, also in a domain that is restored."""

    boot_timeout: ClassVar[float] = 240.0

    @property
    def _folder(self) -> Path:
        return self.session.folder / "libvirt"

    def virsh(self, *arguments: str | Path) -> str:
        """Has libvirtd do something, which succeeds."""
        command = [*_USER, "virsh", "--connect", "qemu:///session", *map(str, arguments)]
        done = subprocess.run(
            command, env=self._environment(), capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout

    @property
    def state(self) -> str:
        """As libvirtd has it."""
        return self.virsh("domstate", self.name).strip()

    def _environment(self) -> dict[str, str]:
        return {
            "XDG_RUNTIME_DIR": f"{self._folder}",
            "HOME": f"{self._folder}",
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        }

    def _start(self, channel: socket.socket) -> HostProcess:
        settings = self._folder / ".config/libvirt/qemu.conf"
        settings.parent.mkdir(parents=True)
        settings.write_text('stdio_handler = "file"\nremember_owner = 0\nsecurity_driver = "none"\n')
        daemon = self.session.start("libvirtd", [*_USER, _DAEMON], environment=self._environment())
        wait(lambda: any(self._folder.glob("libvirt/*sock")), "libvirtd")
        endpoint, kernel = self.nics[0].endpoint, self._kernel()
        assert isinstance(endpoint, VhostUser)
        ours, console = self._folder / "channel", self._folder / "console"
        arguments = self._command("")
        # libvirt's bus has the NIC first, and then the channel.
        kernel_arguments = arguments[arguments.index("-append") + 1].replace("vport0p1", "vport1p1")
        described = self._folder / "domain.xml"
        described.write_text(
            domain(
                self.name,
                self.nics[0].port.mac,
                endpoint.socket,
                (kernel.kernel, self._initramfs(kernel), kernel_arguments),
                memory=self.memory,
                devices=_TALKING.format(emulator=shutil.which(self.program), console=console, channel=ours),
                vectors=0 if self._crashes_with_vectors() else 3,
            )
        )
        _Relay(ours, channel.dup())
        self.virsh("define", described)
        self.virsh("start", self.name)
        return daemon

    def kill(self) -> None:
        """Ends its machine, and then the daemon."""
        if self.alive:
            with contextlib.suppress(AssertionError):
                self.virsh("destroy", self.name)
        super().kill()


class _Relay:
    """Passes bytes between the lab's channel and the QEMU that has connected last, from threads of its own."""

    def __init__(self, path: Path, channel: socket.socket) -> None:
        self._channel, self._listener = channel, socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._agent: socket.socket | None = None
        for run in (self._from_guest, self._to_guest):
            threading.Thread(target=run, daemon=True).start()

    def _from_guest(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._agent, _ = self._listener.accept()
                while data := self._agent.recv(1 << 16):
                    self._channel.sendall(data)

    def _to_guest(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._channel.recv(1 << 16):
                wait(lambda: self._agent is not None, "QEMU to connect")
                if self._agent is not None:
                    self._agent.sendall(data)
