"""The newest QEMU there is: the one of Debian's suite sid, unpacked beside the machine's own."""

import json
import os
import shlex
import socket
import subprocess
import time
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from memlane_lab.bed import bed
from memlane_lab.common.wait import until
from memlane_lab.guests.qemu import PROGRAM, TcgGuest, version
from memlane_lab.host import ports
from memlane_lab.host.ports import Nic, Port
from memlane_lab.host.process import HostProcess
from memlane_lab.images import foreign
from memlane_lab.paths.memlane import program
from tests.end_to_end.conftest import Builder
from tests.end_to_end.lan import HOST, TCG, UML, Lan
from tests.end_to_end.monitor import Ask, monitor, wait

pytestmark = [pytest.mark.real, pytest.mark.prove]


def test_the_newest_qemu_starts_with_what_is_printed(build: Builder) -> None:
    lan = build(HOST, others={"web": {"queues": 2, "mtu": 1400}})
    qemu = foreign.newest_qemu()
    path = {"PATH": f"{qemu.parent}:{os.environ['PATH']}"}
    memlane = program()
    assert memlane is not None
    command: list[str | Path] = [memlane, "qemu", lan.switch.file, "web", "--memory", "64M"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | path).stdout
    assert "reconnect-ms=" in printed
    arguments = ["-accel", "tcg", "-display", "none", "-nodefaults", "-S", *shlex.split(printed)]
    process = lan.switch.session.start("newest-qemu", [qemu, *arguments])
    try:
        for end in (False, True):

            def is_met() -> bool:
                process.check()
                return lan.switch.port("web")["state"] in {"speaking", "running"}

            until(is_met, timeout=30, what="QEMU and memlane to meet")
            if not end:
                lan.switch.stop()
                lan.switch.start()
    finally:
        process.kill()


def _nic(lan: Lan, name: str) -> Nic:
    """A NIC on the port `name`, which was left for a guest of the test's own."""
    return Nic(Port(name, TCG, ports.mac(2)), lan.switch.socket(name))


def _machine(lan: Lan, qemu: str | Path, name: str, backend: Sequence[str], wrapper: Sequence[str] = ()) -> HostProcess:
    """A machine without a system that both QEMUs know, and that does not run; its monitor is `NAME.qmp`."""
    folder = lan.switch.session.folder
    machine = "pc-q35-{}.{},memory-backend=memory".format(*version())
    arguments = [
        *("-nodefaults", "-no-user-config", "-display", "none", "-accel", "tcg", "-S", "-machine", machine),
        *("-m", "64M", "-object", "memory-backend-memfd,id=memory,size=64M,share=on"),
        # Images of boot firmware have other sizes in other versions.
        *(*backend, "-device", "virtio-net-pci,netdev=net0,vectors=0,romfile="),
        *("-qmp", f"unix:{folder / name}.qmp,server=on,wait=off"),
    ]
    return lan.switch.session.start(name, [*wrapper, qemu, *arguments])


_TAP = ("-netdev", "tap,id=net0,ifname=tap0,script=no,downscript=no")


@pytest.mark.parametrize("to_tap", [False, True], ids=["vhost-user", "tap"])
def test_what_the_newest_qemu_sends_is_loaded_by_the_installed_one(build: Builder, to_tap: bool) -> None:
    """The stream of a machine at a port of memlane holds nothing that no older QEMU and no TAP could load."""
    lan = build(HOST, others={"near": {}, "far": {}})
    folder = lan.switch.session.folder

    def port(name: str) -> list[str]:
        socket = lan.switch.socket(name).socket
        return ["-chardev", f"socket,id=port0,path={socket}", "-netdev", "vhost-user,id=net0,chardev=port0"]

    near = _machine(lan, foreign.newest_qemu(), "newest", port("near"))
    destination = _TAP if to_tap else port("far")
    wrapper = ["unshare", "--net"] if to_tap else []
    far = _machine(lan, PROGRAM, "installed", [*destination, "-incoming", "defer"], wrapper)
    uri = f"unix:{folder / 'stream'}"
    try:
        with monitor(folder / "newest.qmp") as old, monitor(folder / "installed.qmp") as new:
            new("migrate-incoming", uri=uri)
            old("migrate", uri=uri)
            wait(lambda: old("query-migrate").get("status") in {"completed", "failed"}, "the migration to end")
            assert old("query-migrate")["status"] == "completed"
            wait(lambda: new("query-status")["status"] != "inmigrate", "the other QEMU to load the machine")
    finally:
        near.kill()
        far.kill()


class _Newest(TcgGuest):
    """A guest in the newest QEMU."""

    program: ClassVar[str] = ""
    incoming: Sequence[str] = ()
    """Words of the command line of a QEMU that goes on with the guest of another."""

    @property
    def qmp(self) -> Path:
        return self.session.folder / f"{self.name}.qmp"

    def _command(self, channel: str) -> list[str]:
        return [*super()._command(channel), "-qmp", f"unix:{self.qmp},server=on,wait=off", *self.incoming]

    @abstractmethod
    def replace(self) -> None:
        """Has another QEMU go on with the guest."""

    def _start_again(self) -> None:
        """Starts another QEMU for the guest."""
        # No command comes on the new control channel. If it were closed, the guest's agent would power the guest off.
        ours, theirs = socket.socketpair()
        self.session.enter_context(ours)
        with theirs:
            self._process = self._start(theirs)


class _Replaceable(_Newest):
    """One with its memory in a file in /dev/shm that outlives QEMU."""

    @property
    def _file(self) -> Path:
        return Path("/dev/shm") / f"memlane-test-{os.getpid()}-{self.name}"

    def _memory_backend(self) -> str:
        return f"memory-backend-file,mem-path={self._file}"

    def replace(self) -> None:
        """Ends QEMU, and starts it again around the same guest (QEMU, "CheckPoint and Restart", mode cpr-reboot)."""
        state = self.session.folder / f"{self.name}.state"
        with monitor(self.qmp) as ask:
            _prepare(ask)
            ask("migrate", uri=f"file:{state}")
            wait(lambda: ask("query-migrate").get("status") == "completed", "QEMU to save its devices")
            ask("quit")
        self.process.wait(30)
        self.qmp.unlink(missing_ok=True)
        self.incoming = ["-incoming", "defer"]
        self._start_again()
        wait(self.qmp.exists, "the new QEMU's monitor")
        with monitor(self.qmp) as ask:
            _prepare(ask)
            ask("migrate-incoming", uri=f"file:{state}")
            wait(lambda: ask("query-status")["status"] != "inmigrate", "QEMU to load its devices")
            ask("cont")

    def kill(self) -> None:
        super().kill()
        self._file.unlink(missing_ok=True)


def _prepare(ask: Ask) -> None:
    ask("migrate-set-parameters", mode="cpr-reboot")
    ask("migrate-set-capabilities", capabilities=[{"capability": "x-ignore-shared", "state": True}])


class _Transferable(_Newest):
    """One that QEMU hands to another that runs beside it (QEMU, "CheckPoint and Restart", mode cpr-transfer)."""

    times = 0

    @property
    def qmp(self) -> Path:
        return self.session.folder / f"{self.name}-{self.times}.qmp"

    def _command(self, channel: str) -> list[str]:
        words = super()._command(channel)
        return ["q35,memory-backend=memory,aux-ram-share=on" if word.startswith("q35,") else word for word in words]

    def replace(self) -> None:
        before, before_qmp = self.process, self.qmp
        self.times += 1
        channels = [
            _channel(kind, self.session.folder / f"{self.name}-{self.times}.{kind}") for kind in ("cpr", "main")
        ]
        self.incoming = [word for channel in channels for word in ("-incoming", json.dumps(channel))]
        self._start_again()
        with monitor(before_qmp) as ask:
            wait(Path(channels[0]["addr"]["path"]).exists, "the new QEMU")
            ask("migrate-set-parameters", mode="cpr-transfer")
            ask("migrate", channels=channels)
            wait(lambda: ask("query-migrate").get("status") == "completed", "QEMU to hand its guest over")
            with monitor(self.qmp) as ask_new:
                wait(lambda: bool(ask_new("query-status")["running"]), "the new QEMU to run the guest")
            # More than its reconnect-ms: the old QEMU connects again, and must not get the port back.
            time.sleep(0.5)
            ask("quit")
        before.wait(30)


def _channel(kind: str, path: Path) -> dict[str, Any]:
    return {"channel-type": kind, "addr": {"transport": "socket", "type": "unix", "path": str(path)}}


def _goes_on_after_each(build: Builder, kind: type[_Newest], **settings: Any) -> None:
    """A guest goes on each time that QEMU is replaced: one that began anew would have no addresses."""
    lan = build(UML, others={"guest": settings})
    guest = kind(lan.switch.session, "guest", [_nic(lan, "guest")])
    guest.boot(120)
    guest.address(0, f"{bed.ipv4(1)}/16")
    lan.wait_answer(0, bed.ipv4(1))
    for _ in range(2):
        guest.replace()
        lan.wait_answer(0, bed.ipv4(1))
        lan.ping(0, bed.ipv4(1))


@pytest.fixture
def newest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guests run in the newest QEMU."""
    monkeypatch.setattr(_Newest, "program", str(foreign.newest_qemu()))


@pytest.mark.usefixtures("newest")
def test_qemu_is_replaced_under_a_running_guest(build: Builder) -> None:
    _goes_on_after_each(build, _Replaceable)


@pytest.mark.usefixtures("newest")
def test_qemu_hands_its_guest_to_another_at_the_same_port(build: Builder) -> None:
    _goes_on_after_each(build, _Transferable, second="replace")
