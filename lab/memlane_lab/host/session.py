"""A session: one use of the lab, owner of all that it starts, even after a crash.

Every session has a run folder with a lock that its process holds while it lives, and a **ledger**: one small file for
each process, namespace and device, written before the thing exists. A session that starts looks for run folders whose
lock is free: their lab is dead, and all that their ledgers name is removed.
"""

import errno
import fcntl
import os
import secrets
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO, NoReturn

from memlane_lab.common.errors import LabError
from memlane_lab.common.progress import say
from memlane_lab.common.wait import until
from memlane_lab.host import cgroup, network, procfs
from memlane_lab.host.process import HostProcess, kill_marked, kill_session

MARK = "MEMLANE_LAB_SESSION"
"""In the environment of every process of a session: its name, by which its leftovers are found."""
_PROCESS, _NAMESPACE, _LINK = "process", "namespace", "link"


def runs_folder() -> Path:
    """Where run folders are: in memory, so that a reboot empties it; short, because socket paths are limited.

    `$MEMLANE_LAB_RUNS` names another place, for a lab that must not meddle with others (its own tests).
    """
    if named := os.environ.get("MEMLANE_LAB_RUNS"):
        return Path(named)
    if os.geteuid() == 0:
        return Path("/run/memlane-lab")
    own = os.environ.get("XDG_RUNTIME_DIR")
    return Path(own) / "memlane-lab" if own else Path(f"/tmp/memlane-lab-{os.geteuid()}")


class Session(ExitStack):
    """One use of the lab; a context manager. Contexts entered into it are closed in reverse order at its end."""

    def __init__(self, logs: Path | None = None) -> None:
        """Removes the leftovers of dead sessions, then opens a run folder. With `logs`, logs outlive the session."""
        super().__init__()
        self._owner = os.getpid()
        runs = runs_folder()
        runs.mkdir(mode=0o700, parents=True, exist_ok=True)
        if runs.stat().st_uid != os.geteuid():
            raise LabError(f"{runs} belongs to another user: remove it, or name another place in $MEMLANE_LAB_RUNS")
        with alone(runs):
            sweep(runs)
            self.folder = _unused(runs)
            self.name = self.folder.name
            self._ledger = self.folder / "ledger"
            self._ledger.mkdir(parents=True)
            self._lock = _hold(self.folder)
        self.logs = logs or self.folder / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)
        self._started = 0

    def start(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        namespace: str | None = None,
        cpus: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
        descriptors: Sequence[int] = (),
        stdin: int | None = None,
    ) -> HostProcess:
        """Starts a program, in the named network namespace and on the given CPUs if told so; killed at the end."""
        self._started += 1
        process = HostProcess(
            name,
            [*network.enter(namespace), *_pin(cpus), *command],
            record=self._ledger / f"{_PROCESS}-{self._started}-{name}",
            log=self.logs / f"{name}.log",
            environment={MARK: self.name, "XDG_STATE_HOME": str(self.folder / "state"), **(environment or {})},
            descriptors=descriptors,
            stdin=stdin,
            group=cgroup.make(self.name, f"{self._started}-{name}"),
        )
        self.callback(process.kill)
        return process

    def namespace(self, name: str) -> str:
        """Creates a network namespace, removed at the end; returns its full name."""
        full = f"{self.name}-{name}"
        self._record(_NAMESPACE, full)
        network.add_namespace(full)
        self.callback(self.remove_namespace, full)
        return full

    def namespaces(self, names: Sequence[str]) -> list[str]:
        """Creates many network namespaces at once, removed at the end; returns their full names."""
        full = [f"{self.name}-{name}" for name in names]
        for name in full:
            self._record(_NAMESPACE, name)
        network.add_namespaces(full)
        self.callback(self._remove_namespaces, full)
        return full

    def _remove_namespaces(self, full: Sequence[str]) -> None:
        network.remove_namespaces(full)
        for name in full:
            self._forget(_NAMESPACE, name)

    def remove_namespace(self, full: str) -> None:
        """Removes a namespace now, with the devices in it."""
        network.remove_namespace(full)
        self._forget(_NAMESPACE, full)

    def link_name(self, name: str) -> str:
        """A name for a device that will first appear in the host's own namespace; removed from there at the end."""
        full = f"{self.name}{name}"
        self._record(_LINK, full)
        return full

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        """Ends all that the session started, also if something fails on the way."""
        if os.getpid() != self._owner:  # a child that some library forked: the session is not its own
            self.pop_all()
            return None
        try:
            return super().__exit__(kind, error, trace)
        finally:
            _end_all(self.folder)
            with alone(self.folder.parent):  # a session that begins meanwhile sees all of the folder, or nothing
                _remove(self.folder)
            self._lock.close()

    def _record(self, kind: str, full: str) -> None:
        (self._ledger / f"{kind}-{full}").touch()

    def _forget(self, kind: str, full: str) -> None:
        (self._ledger / f"{kind}-{full}").unlink(missing_ok=True)


@contextmanager
def alone(runs: Path) -> Iterator[None]:
    """Keeps other labs from making, sweeping and removing run folders in `runs`."""
    with (runs / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def sweep(runs: Path) -> list[str]:
    """Removes the leftovers of sessions with a dead lab; returns their names. The caller is `alone` in `runs`.

    A folder may vanish at any moment all the same: a lab of another version may be its owner.
    """
    swept = []
    for folder in map(runs.joinpath, _entries(runs)):
        if folder.is_dir() and (lock := _try_hold(folder)):
            say(f"removing what a session of the lab left that did not end properly ({folder.name})")
            _end_all(folder)
            _remove(folder)
            lock.close()
            swept.append(folder.name)
    return swept


def exit_on_termination() -> None:
    """Lets SIGTERM and SIGHUP end the program like Ctrl-C does: through the clean-up."""

    def leave(number: int, _frame: FrameType | None) -> NoReturn:
        sys.exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)


def _pin(cpus: Sequence[int]) -> list[str]:
    return ["taskset", "--cpu-list", ",".join(map(str, cpus))] if cpus else []


def _unused(runs: Path) -> Path:
    """A folder that no session has; its name is short, because names of devices are limited."""
    names = (f"ml{secrets.token_hex(2)}" for _ in count())
    return next(folder for folder in map(runs.joinpath, names) if not folder.exists())


def _entries(folder: Path) -> list[str]:
    """The names in a folder; none if it has vanished."""
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208  # at once, where Path.glob looks up one after the other
    except FileNotFoundError:
        return []


def _hold(folder: Path) -> IO[str]:
    lock = (folder / "lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def _try_hold(folder: Path) -> IO[str] | None:
    try:
        lock = (folder / "lock").open("w")
    except FileNotFoundError:  # it has vanished meanwhile
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    return lock


def _end_all(folder: Path) -> None:
    """Ends and removes all that the folder's ledger names.

    The ledger is closed first: a process that has not recorded itself by then ends itself.
    """
    ledger = folder / "closed-ledger"
    with suppress(FileNotFoundError):  # it was closed before, or there never was one
        (folder / "ledger").rename(ledger)
    recorded = [name.partition("-") for name in _entries(ledger)]
    for kind, _, name in recorded:
        if kind == _PROCESS:
            with suppress(FileNotFoundError):  # the ledger has vanished meanwhile
                _end_process((ledger / f"{_PROCESS}-{name}").read_text())
    # Processes that have left the session they were recorded with.
    kill_marked(f"{MARK}={folder.name}")
    cgroup.remove(folder.name)
    network.remove_namespaces([name for kind, _, name in recorded if kind == _NAMESPACE])
    for name in (name for kind, _, name in recorded if kind == _LINK):
        network.remove_link(name)


def _remove(folder: Path) -> None:
    until(lambda: _removed(folder), timeout=5, what=f"{folder} to stay empty")


def _removed(folder: Path) -> bool:
    """Whether the folder is gone. A file that was just put there, such as a sweeper's lock, goes next time."""
    try:
        shutil.rmtree(folder)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
            raise
    return not folder.exists()


def _end_process(record: str) -> None:
    """Kills the recorded process's session, unless its pid has gone to a process that is not ours."""
    if not record:
        return  # the process had not begun to be anything
    recorded = procfs.parse_stat(record)
    now = procfs.stat(recorded.pid)
    if now is None or now.started == recorded.started:
        kill_session(recorded.pid)
