"""Guests of QEMU migrate from one memlane to another, or are saved and restored, while they exchange checked data."""

import itertools
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

import pytest

from memlane_lab import guests
from memlane_lab.bed import bed
from memlane_lab.bench_gate import verdict
from memlane_lab.common.wait import until
from memlane_lab.guests import Guest
from memlane_lab.guests.qemu import version
from memlane_lab.host import ports, rust
from memlane_lab.host.ports import Endpoint, GuestKind, Nic, Port, VhostUser
from memlane_lab.host.process import HostProcess
from memlane_lab.host.session import Session
from memlane_lab.images import foreign
from memlane_lab.paths.bridge import Bridge
from memlane_lab.paths.memlane import program
from tests.end_to_end import switch
from tests.end_to_end.conftest import Builder
from tests.end_to_end.lan import HOST, TCG, UML, Lan
from tests.end_to_end.libvirtd import Domain
from tests.end_to_end.monitor import Ask, monitor, wait
from tests.end_to_end.movable import Movable, has_ended, restore_guest, save_guest
from tests.end_to_end.transfer import Library, slow_down

pytestmark = pytest.mark.real

_RATE = 1 << 30
"""Bytes a second of a migration."""
_DOWNTIME = 300
"""Milliseconds for which a guest may stand still, as by QEMU's default."""


class _Aged(Movable):
    """A machine that the installed QEMU and the newest one know alike."""

    def _command(self, channel: str) -> list[str]:
        machine = "pc-q35-{}.{}".format(*version())
        return [
            word.replace("q35,", f"{machine},") if word.startswith("q35,") else word
            for word in super()._command(channel)
        ]

    def _virtio_device(self, nic: Nic) -> str:  # noqa: ARG002
        # Images of boot firmware have other sizes in other versions.
        return "virtio-net-pci,vectors=0,romfile="


class _AgedInNewest(_Aged):
    """The same in the newest QEMU."""

    program: ClassVar[str] = ""


@dataclass(frozen=True)
class _Move:
    """Seconds of a move."""

    begun: float
    """The time of day."""
    total: float
    """By QEMU's account."""
    downtime: float
    """By QEMU's account."""
    answer: float
    """From the guest's end at the old place until it answers at the new one."""


class _Places:
    """Two places of a guest, with a peer that reaches it at both."""

    def __init__(self, session: Session, peer: Guest, endpoints: Sequence[Endpoint]) -> None:
        self._session = session
        self.peer = peer
        self._endpoints = endpoints
        self._copies = itertools.count(1)
        self.guest = self._new(0)

    def _new(self, place: int) -> Movable:
        nic = Nic(Port("moving", TCG, ports.mac(2)), self._endpoints[place])
        return Movable(self._session, f"{self.peer.name}-moves{next(self._copies)}", [nic])

    def boot(self) -> None:
        """Boots the guest at the first place."""
        self.guest.boot()
        self.guest.address(0, f"{bed.ipv4(1)}/16")
        self.wait_answer()

    def wait_answer(self) -> None:
        """Waits until the peer has an answer of the guest."""
        command = ["ping", "-c", "1", "-W", "0.5", bed.ipv4(1)]
        until(lambda: self.peer.run(command).status == 0, timeout=30, what="an answer of the guest")

    def await_refusal(self) -> Movable:
        """Has the guest begin to move to the second place, which refuses it; returns its copy there, which ended."""
        copy = self._new(1)
        copy.await_copy()
        path = self._session.folder / f"{copy.name}.state"
        with monitor(copy.qmp) as new, monitor(self.guest.qmp) as old:
            new("migrate-incoming", uri=f"unix:{path}")
            old("migrate", uri=f"unix:{path}")
            copy.process.wait(120)
            wait(lambda: old("query-migrate").get("status") in {"completed", "failed"}, "the migration to end")
        return copy

    def move(self, place: int, migrate: Callable[[Ask, Ask, Path], None] | None) -> _Move:
        """Moves the guest; without `migrate` it is saved, and restored there."""
        copy = self._new(place)
        if migrate is not None:
            copy.await_copy()
        with monitor(self.guest.qmp) as old:
            old("migrate-set-parameters", **{"max-bandwidth": _RATE, "downtime-limit": _DOWNTIME})
            state = self._session.folder / f"{copy.name}.state"
            begun = time.time()
            if migrate is not None:
                with monitor(copy.qmp) as new:
                    migrate(old, new, state)
            else:
                save_guest(old, state)
            told = old("query-migrate")
        ended = time.time()
        self.guest.kill()
        if migrate is None:
            copy.await_copy()
            with monitor(copy.qmp) as new:
                restore_guest(new, state)
        self.guest = copy
        self.wait_answer()
        return _Move(begun, told["total-time"] / 1000, told["downtime"] / 1000, time.time() - ended)


class _Hosts(_Places):
    """Two memlanes with a stream between them."""

    def __init__(self, build: Builder, peer: GuestKind = UML, far_keys: str = "") -> None:
        """The peer is on the first; the far port has further keys."""
        self.lan: Lan = build(peer, others={"near": {}})
        switch = self.lan.switch
        folder = switch.session.folder
        between = switch.file.parent / "between.sock"
        file = folder / "far.toml"
        binary = program()
        assert binary is not None
        subprocess.run([binary, "attach", switch.file, "between", "--stream", between], check=True)
        far = VhostUser(folder / "far.sock")
        file.write_text(
            f'control = "{folder / "far-control.sock"}"\n'
            f'[[port]]\nname = "far"\nvhost-user = "{far.socket}"\n{far_keys}'
            f'[[port]]\nname = "between"\nstream = "{between}"\nconnect = true\n'
        )
        self._far: HostProcess = switch.session.start("memlane-far", [binary, "up", file])
        wait(lambda: "is up" in self.far_log(), "the other memlane")
        super().__init__(switch.session, self.lan.guests[0], [switch.socket("near"), far])

    def again(self) -> None:
        """Boots another guest at the first place, in place of the one that has moved."""
        self.guest.kill()
        self.guest = self._new(0)
        self.boot()

    def attach_far(self, name: str) -> Path:
        """Attaches a port to the other memlane; returns its socket."""
        folder = self.lan.switch.session.folder
        place, binary = folder / f"{name}.sock", program()
        assert binary is not None
        subprocess.run([binary, "attach", folder / "far.toml", name, "--vhost-user", place], check=True)
        return place

    def far_log(self) -> str:
        """The log of the other memlane."""
        return self._far.log.read_text(errors="replace")

    def check(self) -> None:
        """Insists that the other memlane lives and quarantined nothing."""
        self._far.check()
        said = self.far_log()
        assert "WARN" not in said, said


class _Versions(_Hosts):
    """Two memlanes, and a TAP at a bridge of its own; the guest moves from the newest QEMU to the installed one."""

    def __init__(self, build: Builder) -> None:
        super().__init__(build, HOST)
        session = self.lan.switch.session
        wanted = [Port("beside", HOST, ports.mac(8)), Port("tapped", TCG, ports.mac(9))]
        beside, tapped = Bridge(session).lay(wanted)
        self._beside = guests.make(session, HOST, "beside", [beside])
        self._endpoints = [*self._endpoints, tapped.endpoint]

    def _new(self, place: int) -> Movable:
        kind = _Aged if place else _AgedInNewest
        nic = Nic(Port("moving", TCG, ports.mac(2)), self._endpoints[place])
        return kind(self._session, f"old-moves{next(self._copies)}", [nic])

    def move_to_tap(self) -> None:
        """Moves the guest to the TAP; from there on the peer is the one beside it."""
        self._beside.boot()
        self._beside.address(0, f"{bed.ipv4(5)}/16")
        self.peer = self._beside
        self.move(2, _live)


class _Taps(_Places):
    """Two TAPs at a bridge of the kernel, served by QEMU itself."""

    def __init__(self, session: Session) -> None:
        names = {"beside": HOST, "near": TCG, "far": TCG}
        wanted = [Port(name, kind, ports.mac(index + 1)) for index, (name, kind) in enumerate(names.items())]
        beside, *places = Bridge(session).lay(wanted)
        peer = guests.make(session, HOST, "beside", [beside])
        peer.boot()
        peer.address(0, f"{bed.ipv4(0)}/16")
        super().__init__(session, peer, [nic.endpoint for nic in places])


def _live(old: Ask, new: Ask, path: Path) -> None:
    new("migrate-incoming", uri=f"unix:{path}")
    old("migrate", uri=f"unix:{path}")
    wait(lambda: has_ended(old), "the migration")
    wait(lambda: new("query-status")["status"] == "running", "the guest to run at its new place")


class _Checked:
    """Data both ways, with its hashes: a file that the guest fetches again and again, and one that it serves."""

    def __init__(self, peer: Guest, guest: Guest) -> None:
        self._peer = peer
        self._guest = guest
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

    def hold(self, file: str) -> None:
        """Has the guest hash `file` now, and again once it is asked to."""
        begins = f"wget -q -O /dev/null http://{bed.ipv4(0)}:{self._theirs.port}/go"
        hashes = f"md5sum <{file} >>/tmp/served/held"
        self._guest.run(hashes, timeout=120).check()
        self._guest.spawn(f"until {begins}; do sleep 0.2; done; {hashes}")

    def check_held(self) -> None:
        """Insists that no byte of that file differs."""
        self._peer.run("touch /tmp/served/go").check()
        asked = ["timeout", "20", "wget", "-q", "-O", "-", f"http://{bed.ipv4(1)}:{self._own.port}/held"]
        hashes: list[str] = []

        def are_there() -> bool:
            hashes[:] = self._peer.run(asked).stdout.split()[::2]
            return len(hashes) == 2

        until(are_there, timeout=120, what="the guest to hash its file again")
        assert len(set(hashes)) == 1, hashes

    def finish(self) -> None:
        """Waits for the file that the guest was sending when it moved."""
        self._fetch.finish(240)

    def fetch_again(self) -> None:
        """Fetches the file of the guest anew."""
        self._own.fetch(self._peer, bed.ipv4(1)).finish(240)


_SUMS = "cat /tmp/served/sums"


@dataclass(frozen=True)
class _Seen:
    """Seconds of a migration."""

    total: float
    """By QEMU's account."""
    downtime: float
    """By QEMU's account."""
    gap: float
    """The longest time without an answer to the peer."""
    served: float
    """From its begin until the guest answers at its new place."""


class _Streams:
    """Files that guest and peer fetch from each other again and again, checked by their hashes, under a ping flood."""

    def __init__(self, places: _Places) -> None:
        self._places = places
        self._theirs, self._own = Library(places.peer, 2), Library(places.guest, 1)
        at_peer = f"http://{bed.ipv4(0)}:{self._theirs.port}"
        at_guest = f"http://{bed.ipv4(1)}:{self._own.port}"
        self._sums = f"{at_guest}/sums"
        begins = (f"wget -q -O /dev/null {at_peer}/go", "[ -e /tmp/served/go ]")
        for reader, begin, server in zip((places.guest, places.peer), begins, (at_peer, at_guest), strict=True):
            fetch = f"wget -q -O - {server}/file | md5sum >>/tmp/served/sums"
            reader.spawn(f"while :; do if {begin}; then {fetch}; else sleep 0.2; fi; done")

    def _arrived(self) -> list[int]:
        """How many files have arrived at the guest, and at the peer. No byte of any may differ."""
        asked = ["timeout", "20", "wget", "-q", "-O", "-", self._sums]
        # A request that is lost while the guest moves is repeated.
        until(lambda: self._places.peer.run(asked).status == 0, timeout=120, what="the guest to answer a request")
        sums = [self._places.peer.run(command).stdout.split()[::2] for command in (asked, _SUMS)]
        assert all(set(each) <= {file.hash} for each, file in zip(sums, (self._theirs, self._own), strict=True)), sums
        return [len(each) for each in sums]

    def check(self) -> None:
        """Waits until two more files have arrived at both: one of them is begun after this."""
        before = self._arrived()

        def more() -> bool:
            return all(now > count + 1 for now, count in zip(self._arrived(), before, strict=True))

        wait(more, "guest and peer to receive more")

    def over(self, place: int) -> "_Seen":
        """Moves the guest in the middle of them."""
        places = self._places
        places.peer.run("touch /tmp/served/go").check()
        self.check()
        flood = places.peer.spawn(["ping", "-f", "-q", bed.ipv4(1)])
        gauge = places.peer.spawn(["ping", "-n", "-D", "-i", "0.005", bed.ipv4(1)])
        try:
            moved = places.move(place, _live)
        finally:
            for ping in (flood, gauge):
                ping.signal(signal.SIGINT)
        flood.wait()
        self.check()
        answers = [float(at) for at in re.findall(r"^\[([\d.]+)\] .* from", gauge.wait().stdout, re.MULTILINE)]
        places.peer.run("rm /tmp/served/go").check()
        gap, last = max((after - at, at) for at, after in itertools.pairwise(answers) if at > moved.begun)
        return _Seen(moved.total, moved.downtime, gap, last + gap - moved.begun)


_THROTTLED = 20 << 20
"""Bytes a second of a migration whose pages come late."""
_HELD = 64
"""MiB of random bytes in the guest, which it reads before it leaves and again at its new place."""


Beside = Callable[..., None]
"""A migration with something measured in its middle."""


def _precopy_beside(old: Ask, new: Ask, path: Path, *, measure: Callable[[], None]) -> None:
    old("migrate-set-parameters", **{"max-bandwidth": _THROTTLED})
    new("migrate-incoming", uri=f"unix:{path}")
    old("migrate", uri=f"unix:{path}")
    wait(lambda: old("query-migrate").get("ram", {}).get("transferred", 0) > 1 << 20, "the migration to begin")
    measure()
    assert not has_ended(old), "the migration ended before the measurement"
    wait(lambda: has_ended(old), "the migration")
    wait(lambda: new("query-status")["status"] == "running", "the guest to run at its new place")


def _postcopy_beside(old: Ask, new: Ask, path: Path, *, measure: Callable[[], None]) -> None:
    _postcopy(old, new, path, measure)


def _postcopy(old: Ask, new: Ask, path: Path, measure: Callable[[], None] = lambda: None) -> None:
    """The guest runs at its new place while its memory comes."""
    for ask in (old, new):
        ask("migrate-set-capabilities", capabilities=[{"capability": "postcopy-ram", "state": True}])
    old("migrate-set-parameters", **{"max-bandwidth": _THROTTLED, "max-postcopy-bandwidth": _THROTTLED})
    new("migrate-incoming", uri=f"unix:{path}")
    old("migrate", uri=f"unix:{path}")
    wait(lambda: old("query-migrate").get("ram", {}).get("transferred", 0) > 1 << 20, "the migration to begin")
    old("migrate-start-postcopy")
    wait(lambda: new("query-status")["status"] == "running", "the guest to run at its new place")
    measure()
    assert not has_ended(old), "all memory came before the guest ran, or before the end of a measurement"
    wait(lambda: has_ended(old), "the rest of the memory")


@pytest.mark.parametrize("newest", [False, pytest.param(True, marks=pytest.mark.prove)], ids=["installed", "newest"])
def test_a_guest_goes_on_at_another_memlane_while_its_memory_comes(
    build: Builder, newest: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By postcopy through a channel of 20 MB/s: no byte of its transfers differs, nor of its memory."""
    if newest:
        monkeypatch.setattr(Movable, "program", str(foreign.newest_qemu()))
    hosts = _Hosts(build)
    hosts.boot()
    slow_down(hosts.guest)
    # Random bytes take a guest long: each MiB is the same ones after its number.
    random = f"head -c {1 << 20} /dev/urandom >/tmp/random"
    hosts.guest.run(
        f"{random}; for i in $(seq {_HELD}); do echo $i; cat /tmp/random; done >/tmp/held", timeout=120
    ).check()
    checked = _Checked(hosts.peer, hosts.guest)
    checked.hold("/tmp/held")
    before = len(checked.sums())
    hosts.move(1, _postcopy)
    checked.check_held()
    checked.check(before)
    checked.finish()
    hosts.check()
    fetched = re.search(r"postcopy has ended: (\d+) pages", hosts.far_log())
    assert fetched is not None, hosts.far_log()
    assert int(fetched[1]) > 0


_ROUNDS = int(os.environ.get("MEMLANE_ROUNDS", "6"))


@pytest.mark.prove
@pytest.mark.timeout(3600)
def test_a_pair_waits_no_longer_beside_postcopy_than_beside_the_same_migration_by_precopy(
    monkeypatch: pytest.MonkeyPatch, build: Builder
) -> None:
    """The 99th percentile of a pair of the same worker: at most 1.1 times as much. MEMLANE_ROUNDS=20 tells more."""
    # A guest boots at the first place again while the second memlane knows its addresses, and sends frames back.
    monkeypatch.setattr(switch, "HARMLESS_DROPS", switch.HARMLESS_DROPS | {"same-port"})
    hosts, row, rig = _Hosts(build), verdict.Row("99th percentile"), rust.program("memlane-rig", named_by="MEMLANE_RIG")
    assert rig is not None
    sockets = [f"--port=vu:{hosts.attach_far(name)}" for name in ("x", "y")]
    options = ["--pattern=one-way", "--sizes=64", "--rate-pps=5k", "--warm-up=0.2", "--seconds=3", "--json"]
    late: dict[Beside, list[float]] = {_precopy_beside: [], _postcopy_beside: []}

    def measure(how: Beside) -> None:
        blast = subprocess.run([rig, "blast", *options, *sockets], capture_output=True, text=True, check=True)
        late[how].append(float(json.loads(blast.stdout)["latency_us"]["p99"]))

    hosts.boot()
    for turn in range(_ROUNDS):
        for how in list(late)[:: 1 if turn % 2 else -1]:
            hosts.guest.run(f"head -c {_HELD << 20} /dev/urandom >/tmp/held", timeout=240).check()
            hosts.move(1, partial(how, measure=partial(measure, how)))
            hosts.again()
    for before, after in zip(*late.values(), strict=True):
        row.add(before, after)
    judged = verdict.judge(row, 0.1)
    print(f"\n{judged.ratio}; pre-copy {row.old}, postcopy {row.new} us")
    assert judged.verdict is not verdict.Verdict.SLOWER, judged


@pytest.mark.parametrize(
    ("how", "newest"),
    [
        pytest.param(_live, False, id="live"),
        pytest.param(_live, True, id="newest", marks=pytest.mark.prove),
        pytest.param(None, False, id="saved", marks=pytest.mark.prove),
    ],
)
def test_a_guest_goes_on_at_another_memlane(
    build: Builder,
    how: Callable[..., None] | None,
    newest: bool,
    record_property: Callable[[str, object], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if newest:
        monkeypatch.setattr(Movable, "program", str(foreign.newest_qemu()))
    hosts = _Hosts(build)
    hosts.boot()
    slow_down(hosts.guest)
    checked = _Checked(hosts.peer, hosts.guest)
    before = len(checked.sums())
    record_property("seconds until the peer had an answer", hosts.move(1, how).answer)
    checked.check(before)
    checked.finish()
    hosts.check()


@pytest.mark.prove
@pytest.mark.parametrize("to_tap", [False, True], ids=["installed", "tap"])
def test_a_guest_of_the_newest_qemu_goes_on_in_an_older_one(
    build: Builder, to_tap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At another memlane, or at a TAP: its stream has nothing that only the newest QEMU can load."""
    monkeypatch.setattr(_AgedInNewest, "program", str(foreign.newest_qemu()))
    versions = _Versions(build)
    versions.boot()
    if to_tap:
        versions.move_to_tap()
    else:
        versions.move(1, _live)
    versions.check()


@pytest.mark.prove
def test_a_guest_that_its_destination_refuses_goes_on_where_it_was(build: Builder) -> None:
    """As `docs/how-to/migrate.md` says: the destination lacks features that the guest has agreed to."""
    hosts = _Hosts(build, HOST, "receive-offloads = false\n")
    hosts.boot()
    copy = hosts.await_refusal()
    with monitor(hosts.guest.qmp) as ask:
        # Where the refusal comes too late to be seen here, the migration has "completed".
        if ask("query-status")["status"] != "running":
            ask("cont")
    hosts.wait_answer()
    assert "unsupported" in copy.process.log.read_text(errors="replace")


_LATER = 0.3
"""Seconds by which migrations may end later than over QEMU's own back end."""


@pytest.mark.prove
@pytest.mark.timeout(5400)
def test_migrations_end_as_soon_as_over_taps_and_damage_no_byte(
    session: Session, build: Builder, record_property: Callable[[str, object], None]
) -> None:
    """Twenty times both ways, in turn with an equal guest on TAPs that QEMU serves itself, at a bridge."""
    hosts = _Hosts(build, HOST)
    sides: dict[str, _Places] = {"memlane": hosts, "TAP": _Taps(session)}
    for places in sides.values():
        places.boot()
    streams = {name: _Streams(places) for name, places in sides.items()}
    seen: dict[str, list[_Seen]] = {name: [] for name in sides}
    for number in range(40):
        for name in sorted(sides, reverse=number % 4 < 2):
            seen[name].append(streams[name].over(1 - number % 2))
    hosts.check()
    medians = {
        name: {key: median(getattr(each, key) for each in moves) for key in _Seen.__annotations__}
        for name, moves in seen.items()
    }
    record_property("medians of 40 migrations, in seconds", medians)
    print(*(f"{name}: {figures}" for name, figures in medians.items()), sep="\n")
    later = {key: medians["memlane"][key] - medians["TAP"][key] for key in _Seen.__annotations__}
    assert max(later.values()) < _LATER, (later, seen)


def _job(ask: Ask, command: str, **arguments: Any) -> None:
    """Runs a job of QEMU to its end."""
    ask(command, **{"job-id": "job"}, **arguments)

    def job() -> dict[str, Any]:
        return next(job for job in ask("query-jobs") if job["id"] == "job")

    wait(lambda: job()["status"] == "concluded", command)
    assert "error" not in job(), job()
    ask("job-dismiss", id="job")


def _make_disk(ask: Ask, file: Path) -> None:
    """Makes an image in which QEMU keeps snapshots."""
    _job(ask, "blockdev-create", options={"driver": "file", "filename": str(file), "size": 0})
    ask("blockdev-add", **{"driver": "file", "node-name": "file", "filename": str(file)})
    _job(ask, "blockdev-create", options={"driver": "qcow2", "file": "file", "size": 1 << 20})
    ask("blockdev-add", **{"driver": "qcow2", "node-name": "disk", "file": "file"})


@pytest.mark.prove
@pytest.mark.parametrize("newest", [False, True], ids=["installed", "newest"])
def test_a_guest_goes_on_after_a_snapshot_and_back_to_it(
    build: Builder, newest: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By QMP's forms of `savevm` and `loadvm`."""
    if newest:
        monkeypatch.setattr(Movable, "program", str(foreign.newest_qemu()))
    lan: Lan = build(UML, others={"near": {}})
    places = _Places(lan.switch.session, lan.guests[0], [lan.switch.socket("near")])
    places.boot()
    slow_down(places.guest)
    checked = _Checked(places.peer, places.guest)
    snapshot = {"tag": "then", "vmstate": "disk", "devices": ["disk"]}
    with monitor(places.guest.qmp) as ask:
        _make_disk(ask, lan.switch.session.folder / "snapshots.qcow2")
        before = len(checked.sums())
        _job(ask, "snapshot-save", **snapshot)
        checked.check(before)
        checked.finish()
        after = len(checked.sums())
        _job(ask, "snapshot-load", **snapshot)
    places.wait_answer()
    # Bytes that the guest has received since are forgotten with its memory.
    assert before <= len(checked.sums()) < after
    checked.fetch_again()


@pytest.mark.prove
@pytest.mark.timeout(900)
def test_a_domain_of_libvirt_is_saved_and_restored(build: Builder) -> None:
    """By `virsh save`, `managedsave` and a snapshot of memory; connections stay open, no byte of a transfer differs."""
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
    before = len(checked.sums())
    memory = f"file={state}-now,snapshot=external"
    domain.virsh("snapshot-create-as", "web", "now", "--memspec", memory)
    assert domain.state == "running"
    checked.check(before)
    checked.finish()
