"""The host's /proc about processes: identity, sessions, CPU time; and about its memory."""

import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_HZ = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class CpuTime:
    """CPU time in seconds, as the host counts it."""

    user: float = 0.0
    system: float = 0.0

    @property
    def total(self) -> float:
        """User and system together."""
        return self.user + self.system

    def __add__(self, other: "CpuTime") -> "CpuTime":
        return CpuTime(self.user + other.user, self.system + other.system)

    def __sub__(self, other: "CpuTime") -> "CpuTime":
        return CpuTime(self.user - other.user, self.system - other.system)


@dataclass(frozen=True)
class Stat:
    """One line of /proc/PID/stat (proc_pid_stat(5)), as far as the lab needs it."""

    pid: int
    name: str
    state: str
    parent: int
    session: int
    cpu: CpuTime
    """Its own, all threads."""
    cpu_reaped: CpuTime
    """That of its children that have ended and been waited for, and of theirs."""
    started: int
    """Clock ticks after boot; with the pid it names a process for good."""

    @property
    def alive(self) -> bool:
        """Not ended: neither a zombie nor being removed."""
        return self.state not in {"Z", "X"}


def available_memory() -> int:
    """Bytes that new programs can have."""
    rows = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(rows["MemAvailable"].split()[0]) << 10


def parse_stat(line: str) -> Stat:
    """Reads a stat line; the name may hold spaces and parentheses."""
    head, _, tail = line.rpartition(")")
    pid, _, name = head.partition(" (")
    fields = tail.split()
    user, system, reaped_user, reaped_system = (int(field) / _HZ for field in fields[11:15])
    return Stat(
        pid=int(pid),
        name=name,
        state=fields[0],
        parent=int(fields[1]),
        session=int(fields[3]),
        cpu=CpuTime(user, system),
        cpu_reaped=CpuTime(reaped_user, reaped_system),
        started=int(fields[19]),
    )


def stat(pid: int) -> Stat | None:
    """The process's line, or None when there is no such process."""
    try:
        return parse_stat(Path(f"/proc/{pid}/stat").read_text())
    except (FileNotFoundError, ProcessLookupError):
        return None


def threads(pid: int) -> list[Stat]:
    """The lines of a process's threads; their names tell them apart."""
    try:
        tasks = [task / "stat" for task in Path(f"/proc/{pid}/task").iterdir()]
        return [parse_stat(task.read_text()) for task in tasks]
    except (FileNotFoundError, ProcessLookupError):
        return []


def processes() -> Iterator[Stat]:
    """All processes of the host."""
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and (found := stat(int(entry.name))):
            yield found


def listens(pid: int, path: Path) -> bool:
    """Whether a process in that network namespace listens on a Unix socket bound there (a dead socket file does not).

    A socket that was bound elsewhere and renamed, as all of memlane's are, is not found: see `accepts`.
    """
    accepting = 1 << 16  # __SO_ACCEPTCON in the flags of /proc/net/unix
    try:
        rows = [line.split() for line in Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:]]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return any(len(row) > 7 and row[7] == str(path) and int(row[3], 16) & accepting for row in rows)


def accepts(control: Path) -> bool:
    """Whether a process accepts connections at that control socket (at a port's, the connection is a front end)."""
    with socket.socket(socket.AF_UNIX) as connection:
        return connection.connect_ex(str(control)) == 0


@dataclass(frozen=True)
class HostCpu:
    """CPU seconds of the whole host since its boot, all CPUs together (proc_stat(5))."""

    busy: float
    """All but idle, waiting and stolen. Only its growth means anything."""
    irq: float
    softirq: float
    steal: float
    """CPU time that the hypervisor below gave to others although this machine had work (steal)."""


def whole_host() -> HostCpu:
    """The host's CPU time now."""
    with open("/proc/stat") as file:  # noqa: PTH123
        told = file.read()
    return parse_host(told, time.monotonic())


def parse_host(told: str, now: float) -> HostCpu:
    """Reads /proc/stat at the time `now`.

    Busy time is all CPUs' time without idle, waiting and stolen time. The kernel adds up idle time exactly, but
    busy time by whether a tick finds the CPU at work: of work that recurs with the ticks it counts all or nothing.
    """
    first, *rest = told.splitlines()
    _user, _nice, _system, idle, iowait, irq, softirq, steal = (int(word) / _HZ for word in first.split()[1:9])
    cpus = sum(line.startswith("cpu") for line in rest)
    return HostCpu(cpus * now - idle - iowait - steal, irq, softirq, steal)


@dataclass(frozen=True)
class Switches:
    """How often a thread, or several, have left a CPU."""

    waiting: int = 0
    """By itself, to wait for something: it was woken as often."""
    pushed: int = 0
    """Because another one was to run."""

    @property
    def total(self) -> int:
        """Both together."""
        return self.waiting + self.pushed

    def __add__(self, other: "Switches") -> "Switches":
        return Switches(self.waiting + other.waiting, self.pushed + other.pushed)


def context_switches(thread: str) -> Switches:
    """How often a living thread has left a CPU (proc_pid_status(5)); one that has ended, never."""
    try:
        rows = (line.split() for line in Path(f"/proc/{thread}/status").read_text().splitlines())
    except (FileNotFoundError, ProcessLookupError):
        return Switches()
    counts = {row[0]: int(row[1]) for row in rows if row and "ctxt_switches" in row[0]}
    return Switches(counts.get("voluntary_ctxt_switches:", 0), counts.get("nonvoluntary_ctxt_switches:", 0))


_BETWEEN = ("Rescheduling interrupts", "Function call interrupts")
"""Interrupts by which a CPU has another one look for work: most of them wake a task there."""


def between_cpus() -> int | None:
    """How often the host's CPUs have interrupted each other so far (/proc/interrupts); None where it does not tell."""
    rows = [line for line in Path("/proc/interrupts").read_text().splitlines() if line.rstrip().endswith(_BETWEEN)]
    return sum(int(word) for row in rows for word in row.split()[1:] if word.isdigit()) if rows else None
