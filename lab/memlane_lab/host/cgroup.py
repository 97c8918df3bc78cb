"""Control groups (cgroup v2): one for each process that the lab starts, with all that comes of it.

The kernel keeps the account of each, so that no process is counted twice or lost, however short-lived. Its figures
depend on the machine: CPU time always, memory and pressure where they are enabled.
"""

import os
from contextlib import suppress
from functools import cache
from pathlib import Path

from memlane_lab.common.wait import until
from memlane_lab.host.procfs import CpuTime, Stat, Switches, context_switches, stat

_PREFIX = "memlane-lab-"
_MEMORY = ("anon", "slab", "shmem")
"""The rows of memory.stat that are told."""


@cache
def base() -> Path | None:
    """The group in which those of sessions are made, or None if this user may make none."""
    found = _mounted()
    if found is None:
        return None
    own = found if os.geteuid() == 0 else found / _own()
    for controller in ("cpu", "memory"):
        with suppress(OSError):  # it belongs to the first version of control groups, or is not ours to hand on
            (own / "cgroup.subtree_control").write_text(f"+{controller}")
    return own if os.access(own, os.W_OK) else None


def lack() -> str | None:
    """Why the CPU time of parties cannot be told apart here, or None."""
    if _mounted() is None:
        return "control groups (cgroup v2) are not mounted: mount -t cgroup2 none /sys/fs/cgroup"
    return None if base() else "this user may not make control groups: be root, or have one delegated"


def _mounted() -> Path | None:
    rows = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
    return next((Path(row[1]) for row in rows if row[2] == "cgroup2"), None)


def _own() -> str:
    """The group that this process is in, below where groups are mounted."""
    rows = (line.partition("::") for line in Path("/proc/self/cgroup").read_text().splitlines())
    return next((path.lstrip("/") for number, _, path in rows if number == "0"), "")


class Group:
    """The group of one process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: dict[str, Switches] = {}
        """Of each thread, its counters at the last reading."""

    def cpu(self) -> CpuTime:
        """CPU time so far of all processes that ever were in it."""
        told = _pairs(self.path / "cpu.stat")
        return CpuTime(told["user_usec"] / 1e6, told["system_usec"] / 1e6)

    def counts(self) -> dict[str, float]:
        """Counters: CPU time, context switches of living threads, seconds for which a task waited for a CPU.

        And how often living threads were woken, and seconds lost to interrupts, where the kernel tells.
        """
        used, switches = self.cpu(), self._switches()
        counts = {"user": used.user, "system": used.system}
        counts |= {"switches": float(switches.total), "wakeups": float(switches.waiting)}
        for name, row, file in (("waited", "some", "cpu.pressure"), ("interrupted", "full", "irq.pressure")):
            if (told := _pressure(self.path / file, row)) is not None:
                counts[name] = told
        return counts

    def weigh(self, weight: int) -> bool:
        """Gives it that weight beside the 100 of others; false where groups have none."""
        try:
            (self.path / "cpu.weight").write_text(str(min(max(weight, 1), 10_000)))
        except OSError:
            return False
        return True

    def memory(self) -> dict[str, float]:
        """Bytes of each kind of memory that it has now; nothing where the machine does not tell."""
        told = _pairs(self.path / "memory.stat")
        return {name: float(told[name]) for name in _MEMORY if name in told}

    def processes(self) -> list[Stat]:
        """Those that are in it now."""
        try:
            pids = (self.path / "cgroup.procs").read_text().split()
        except OSError:
            return []
        return [found for pid in pids if (found := stat(int(pid)))]

    def _switches(self) -> Switches:
        """Of all threads that were ever seen: one that ended keeps its last counters, so that the sum only grows."""
        try:
            living = (self.path / "cgroup.threads").read_text().split()
        except OSError:
            living = []
        found = {thread: context_switches(thread) for thread in living}
        self._seen |= {thread: counted for thread, counted in found.items() if counted.total}
        return sum(self._seen.values(), Switches())


def make(session: str, name: str) -> Group | None:
    """A group for a process of the session; None where none can be made."""
    if (above := base()) is None:
        return None
    path = above / f"{_PREFIX}{session}" / name
    path.mkdir(parents=True, exist_ok=True)
    return Group(path)


def remove(session: str) -> None:
    """Ends all processes in the session's groups, and removes the groups."""
    if (above := base()) is None or not (whole := above / f"{_PREFIX}{session}").exists():
        return
    with suppress(OSError):  # before Linux 5.14 there is no such file; then the session's marks must do
        (whole / "cgroup.kill").write_text("1")
    until(lambda: _removed(whole), timeout=10, what=f"the end of what is in {whole}")


def _removed(whole: Path) -> bool:
    try:
        for group in (*whole.iterdir(), whole):
            if group.is_dir():
                group.rmdir()
    except OSError:  # a process in it is ending still
        return False
    return True


def _pairs(file: Path) -> dict[str, int]:
    try:
        rows = (line.split() for line in file.read_text().splitlines())
        return {row[0]: int(row[1]) for row in rows}
    except OSError:
        return {}


def _pressure(file: Path, row: str) -> float | None:
    """Seconds so far, by the row of a pressure file."""
    try:
        rows = [line.split() for line in file.read_text().splitlines()]
    except OSError:
        return None
    return next((int(words[-1].removeprefix("total=")) / 1e6 for words in rows if words[0] == row), None)
