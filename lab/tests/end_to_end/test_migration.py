"""Guests of QEMU migrate from one memlane to another, or are saved and restored, while they exchange checked data."""

import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from memlane_lab.bed import bed
from memlane_lab.guests import Guest
from memlane_lab.guests.qemu import TcgGuest
from memlane_lab.host import ports
from memlane_lab.host.ports import Nic, Port, VhostUser
from memlane_lab.host.process import HostProcess
from memlane_lab.paths.memlane import program
from tests.end_to_end.conftest import Builder
from tests.end_to_end.lan import TCG, UML, Lan
from tests.end_to_end.libvirtd import Domain
from tests.end_to_end.monitor import Ask, monitor, wait
from tests.end_to_end.transfer import Library, slow_down

pytestmark = pytest.mark.real

_RATE = 1 << 30
"""Bytes a second of a migration."""
_DOWNTIME = 300
"""Milliseconds for which a guest may stand still, as by QEMU's default."""


class _Movable(TcgGuest):
    """A guest in a QEMU with a monitor; one that is incoming begins as another's copy."""

    incoming = False

    @property
    def qmp(self) -> Path:
        return self.session.folder / f"{self.name}.qmp"

    def _command(self, channel: str) -> list[str]:
        arguments = ["-qmp", f"unix:{self.qmp},server=on,wait=off"]
        if self.incoming:
            arguments += ["-incoming", "defer"]
        return [*super()._command(channel), *arguments]

    def await_copy(self) -> None:
        """Starts QEMU, which waits for a guest. Nothing is asked there: the guest's agent does not begin anew."""
        self.incoming = True
        ours, theirs = socket.socketpair()
        self.session.enter_context(ours)
        with theirs:
            self._process = self._start(theirs)
        wait(self.qmp.exists, "the other QEMU's monitor")


class _Hosts:
    """Two memlanes with a stream between them, and a guest that moves from one to the other."""

    def __init__(self, build: Builder) -> None:
        """The peer is on the first, in User Mode Linux."""
        self.lan: Lan = build(UML, others={"near": {}})
        switch = self.lan.switch
        folder = switch.session.folder
        self._stream = switch.file.parent / "between.sock"
        self._file = folder / "far.toml"
        self._program = program()
        assert self._program is not None
        subprocess.run([self._program, "attach", switch.file, "between", "--stream", self._stream], check=True)
        far = VhostUser(folder / "far.sock")
        self._file.write_text(
            f'control = "{folder / "far-control.sock"}"\n'
            f'[[port]]\nname = "far"\nvhost-user = "{far.socket}"\n'
            f'[[port]]\nname = "between"\nstream = "{self._stream}"\nconnect = true\n'
        )
        self._far: HostProcess = switch.session.start("memlane-far", [self._program, "up", self._file])
        wait(far.socket.exists, "the other memlane")
        self._places = [switch.socket("near"), far]
        self._copies = 0
        self.guest = self._new(0)

    def _new(self, place: int) -> _Movable:
        nic = Nic(Port("moving", TCG, ports.mac(2)), self._places[place])
        self._copies += 1
        return _Movable(self.lan.switch.session, f"moving{self._copies}", [nic])

    def move(self, place: int, migrate: Callable[[Ask, Ask, Path], None]) -> float:
        """Moves the guest; returns the seconds from its end at the old place until it answers at the new one."""
        copy = self._new(place)
        if migrate is _live:
            copy.await_copy()
        with monitor(self.guest.qmp) as old:
            old("migrate-set-parameters", **{"max-bandwidth": _RATE, "downtime-limit": _DOWNTIME})
            state = self.lan.switch.session.folder / f"{copy.name}.state"
            if migrate is _live:
                with monitor(copy.qmp) as new:
                    migrate(old, new, state)
            else:
                _save(old, state)
                self.guest.kill()
                copy.await_copy()
                with monitor(copy.qmp) as new:
                    _restore(new, state)
        began = time.monotonic()
        self.guest.kill()
        self.guest = copy
        self.lan.wait_answer(0, bed.ipv4(1))
        return time.monotonic() - began

    def check(self) -> None:
        """Insists that the other memlane lives and quarantined nothing."""
        self._far.check()
        said = self._far.log.read_text(errors="replace")
        assert "WARN" not in said, said


def _live(old: Ask, new: Ask, path: Path) -> None:
    new("migrate-incoming", uri=f"unix:{path}")
    old("migrate", uri=f"unix:{path}")
    wait(lambda: _has_ended(old), "the migration")
    wait(lambda: new("query-status")["status"] == "running", "the guest to run at its new place")


def _save(old: Ask, path: Path) -> None:
    old("migrate", uri=f"exec:cat >{path}")
    wait(lambda: _has_ended(old), "the guest to be saved")


def _restore(new: Ask, path: Path) -> None:
    new("migrate-incoming", uri=f"exec:cat {path}")
    wait(lambda: new("query-status")["status"] in {"running", "paused"}, "the guest to be restored")
    new("cont")


def _has_ended(old: Ask) -> bool:
    said = old("query-migrate")
    assert said.get("status") not in {"failed", "cancelled"}, said
    return bool(said.get("status") == "completed")


class _Checked:
    """Data both ways, with its hashes: a file that the guest fetches again and again, and one that it serves."""

    def __init__(self, peer: Guest, guest: Guest) -> None:
        self._peer = peer
        self._theirs = Library(peer, 8)
        self._own = Library(guest, 32)
        fetch = f"wget -q -O - http://{bed.ipv4(0)}:{self._theirs.port}/file | md5sum"
        guest.spawn(f"while :; do {fetch} >>/tmp/served/sums; done")
        self._fetch = self._own.fetch(peer, bed.ipv4(1))
        self._fetch.wait_under_way()

    def sums(self) -> list[str]:
        """The hashes of the files that the guest has received."""
        url = f"http://{bed.ipv4(1)}:{self._own.port}/sums"
        return self._peer.run(["wget", "-q", "-O", "-", url], timeout=60).stdout.split()[::2]

    def check(self, before: int) -> None:
        """Waits until more than `before` files have arrived at the guest; no byte of any may differ."""
        wait(lambda: len(self.sums()) > before + 1, "the guest to receive more")
        assert set(self.sums()) == {self._theirs.hash}

    def finish(self) -> None:
        """Waits for the file that the guest was sending when it moved."""
        self._fetch.finish(240)


@pytest.mark.parametrize(
    "how", [pytest.param(_live, id="live"), pytest.param(_save, id="saved", marks=pytest.mark.prove)]
)
def test_a_guest_goes_on_at_another_memlane(
    build: Builder, how: Callable[..., None], record_property: Callable[[str, object], None]
) -> None:
    hosts = _Hosts(build)
    hosts.guest.boot()
    hosts.guest.address(0, f"{bed.ipv4(1)}/16")
    hosts.lan.wait_answer(0, bed.ipv4(1))
    slow_down(hosts.guest)
    checked = _Checked(hosts.lan.guests[0], hosts.guest)
    before = len(checked.sums())
    record_property("seconds until the peer had an answer", hosts.move(1, how))
    checked.check(before)
    checked.finish()
    hosts.check()


@pytest.mark.prove
def test_a_guest_migrates_again_and_again(build: Builder, record_property: Callable[[str, object], None]) -> None:
    hosts = _Hosts(build)
    hosts.guest.boot()
    hosts.guest.address(0, f"{bed.ipv4(1)}/16")
    hosts.lan.wait_answer(0, bed.ipv4(1))
    checked = _Checked(hosts.lan.guests[0], hosts.guest)
    checked.finish()
    gaps = []
    for number in range(40):
        before = len(checked.sums())
        gaps.append(hosts.move(1 - number % 2, _live))
        checked.check(before)
    record_property("seconds until the peer had an answer", gaps)
    hosts.check()


@pytest.mark.prove
@pytest.mark.timeout(900)
def test_a_domain_of_libvirt_is_saved_and_restored(build: Builder) -> None:
    """By `virsh save` and `virsh managedsave`; its connections stay open, and no byte of a transfer differs."""
    lan: Lan = build(UML, others={"web": {}})
    switch = lan.switch
    domain = Domain(switch.session, "web", [Nic(Port("web", TCG, ports.mac(2)), switch.socket("web"))])
    domain.boot()
    domain.address(0, f"{bed.ipv4(1)}/16")
    lan.wait_answer(0, bed.ipv4(1))
    slow_down(domain)
    checked = _Checked(lan.guests[0], domain)
    state = switch.session.folder / "web.saved"
    for save, restore in (
        (("save", "web", state), ("restore", state)),
        (("managedsave", "web"), ("start", "web")),
    ):
        before = len(checked.sums())
        domain.virsh(*save)
        assert domain.state == "shut off"
        domain.virsh(*restore)
        lan.wait_answer(0, bed.ipv4(1))
        assert domain.state == "running"
        checked.check(before)
    checked.finish()
