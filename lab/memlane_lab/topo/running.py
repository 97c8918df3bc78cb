"""Topologies that are up on this machine: found by their locks, started and ended from outside."""

import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from memlane_lab.common.errors import LabError
from memlane_lab.common.wait import Timeout, until
from memlane_lab.host import procfs, session
from memlane_lab.host.session import runs_folder
from memlane_lab.topo.model import Topology
from memlane_lab.topo.net import lock_of
from memlane_lab.topo.service import Caller

_END = 120.0
"""Seconds that a topology may take to end before its keeper is killed."""


def names() -> list[str]:
    """Those that are up, or come up, or are about to end."""
    found = sorted(runs_folder().glob("topo-*.lock")) if runs_folder().is_dir() else []
    return [path.name.removeprefix("topo-").removesuffix(".lock") for path in found if _is_held(path)]


def which(name: str | None) -> str:
    """The one that is meant."""
    found = names()
    if name is not None:
        if name not in found:
            raise LabError(f"no topology called {name} is running{_those(found)}")
        return name
    if len(found) != 1:
        raise LabError(
            f"{'several topologies are' if found else 'no topology is'} up{_those(found)}: name one with --name"
        )
    return found[0]


def _those(found: list[str]) -> str:
    return f" (there are: {', '.join(found)})" if found else ""


def log(name: str) -> Path:
    """The log of its keeper."""
    return runs_folder() / f"topo-{name}.log"


def keep(topology: Topology, *, wait: bool) -> Caller:
    """Starts a process that brings the topology up and keeps it; returns its news."""
    runs_folder().mkdir(mode=0o700, parents=True, exist_ok=True)
    stated = {"topology": topology.stated(), "folder": str(Path(topology.folder).resolve()), "wait": wait}
    command = [sys.executable, "-m", "memlane_lab.topo.keeper"]
    with log(topology.name).open("a") as out:
        keeper = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=out, text=True, start_new_session=True
        )
    assert keeper.stdin is not None
    assert keeper.stdout is not None
    with keeper.stdin:
        json.dump(stated, keeper.stdin)
    first = keeper.stdout.readline()
    if first.strip() != "ready":
        said = (first + keeper.stdout.read()).strip()
        raise LabError(said or f"the keeper of {topology.name} ended at once; its log: {log(topology.name)}")
    return Caller(topology.name, "follow")


def end(name: str) -> None:
    """Ends a topology; its keeper by force where it does not answer. Its leftovers are removed."""
    path = lock_of(name)
    pid = _keeper(path)
    try:
        list(Caller(name, "down").answers())
    except LabError:
        _signal(pid, signal.SIGTERM)
    try:
        until(lambda: not _is_held(path), timeout=_END, what=f"the end of {name}")
    except Timeout:
        _signal(pid, signal.SIGKILL)
        until(lambda: not _is_held(path), timeout=10, what=f"the end of {name}")
    sweep()


def _keeper(path: Path) -> int:
    """The process number in a topology's lock; 0 if it has ended meanwhile."""
    try:
        return int(path.read_text() or 0)
    except FileNotFoundError:
        return 0


def sweep() -> bool:
    """Removes the leftovers of crashed topologies; whether there were any."""
    folder = runs_folder()
    if not folder.is_dir():
        return False
    with session.alone(folder):
        swept = session.sweep(folder)
        for path in list(folder.glob("topo-*.lock")):
            if not _is_held(path):
                swept.append(path.name)
                for other in (path, path.with_suffix(".sock"), path.with_suffix(".log")):
                    other.unlink(missing_ok=True)
    return bool(swept)


def _is_held(path: Path) -> bool:
    try:
        with path.open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False


def _signal(pid: int, number: int) -> None:
    if pid and procfs.stat(pid):
        os.kill(pid, number)
