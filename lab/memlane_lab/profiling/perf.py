"""perf: every CPU of the host interrupted at a rate, and the addresses written down each time.

perf is started before the flows, with its events switched off; it is told over a pipe when the measured part begins and
ends. So its own start costs the measured part nothing.
"""

import os
import re
import select
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from memlane_lab.common.errors import LabError, NotAvailable
from memlane_lab.host.session import Session

KERNEL = 1 << 63
"""Addresses from here on are the host kernel's."""
_MARKERS = (1 << 64) - 4096
"""Values from here on are no addresses: they name the context of the following ones (PERF_CONTEXT_MAX)."""
_COUNTERS = Path("/sys/bus/event_source/devices/cpu")
"""There where the processor's own counters can be used."""
_PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")
_PATIENCE = 20.0
"""Seconds that perf is given to answer; on a machine that is short of processors it takes a while to begin."""
_BUFFER = "4M"
"""Bytes for each CPU's hits, so that perf seldom needs to wake."""
_HEAD = re.compile(r"\s*(.*?)\s+(-?\d+)/(-?\d+)\s+\[(\d+)\]\s+[\d.]+:\s+(\d+)\s*")
_LOST = re.compile(r"PERF_RECORD_LOST\S* lost (\d+)")


@dataclass(frozen=True)
class Event:
    """The sampled event."""

    name: str
    """As perf calls it."""
    unit: str
    """The unit of a hit's weight: ns or cycles."""


@dataclass(frozen=True)
class Hit:
    """One interruption."""

    task: str
    """The task's name."""
    process: int
    """Its process; 0 when the CPU idles."""
    weight: int
    """How much of the event's unit it stands for."""
    chain: tuple[int, ...]
    """Addresses: where it was, then its callers; empty if not even the first is known."""

    @property
    def in_kernel(self) -> bool:
        """Whether the host's kernel ran."""
        return bool(self.chain) and self.chain[0] >= KERNEL


def event() -> Event:
    """The processor's cycles where it can be asked for them, else the clock of each CPU."""
    return Event("cycles", "cycles") if _COUNTERS.exists() else Event("cpu-clock", "ns")


def missing() -> str | None:
    """Why this user on this machine cannot profile, with the remedy, or None."""
    if not shutil.which("perf"):
        return "perf is not installed: run make deps"
    tried = subprocess.run(
        ["perf", "record", "--all-cpus", "--event", event().name, "--output", "/dev/null", "--", "true"],
        capture_output=True,
        text=True,
        check=False,
    )
    return None if tried.returncode == 0 else refused(tried.stderr, _paranoia())


def refused(said: str, paranoia: str) -> str:
    """Why perf did not record, in one sentence, from its error and kernel.perf_event_paranoid."""
    if re.search(r"permission|not permitted|paranoid|privilege|access to performance monitoring", said, re.IGNORECASE):
        return (
            f"perf may not look at all CPUs (kernel.perf_event_paranoid is {paranoia}): run as root, or set it to -1 "
            "by sysctl"
        )
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return f"perf cannot record: {lines[0] if lines else 'it does not say why'}"


def _paranoia() -> str:
    return _PARANOID.read_text().strip() if _PARANOID.exists() else "not there"


class Recorder:
    """One recording, from its start to its output."""

    def __init__(self, session: Session, what: Event, rate: int) -> None:
        """Starts perf, which waits for `begin`; `rate` are hits a second on each CPU that is asked for."""
        self._data = session.folder / "perf.data"
        self._control, self._answer = (self._pipe(session, name) for name in ("perf.control", "perf.answer"))
        # perf is not given the mapped files, so that it writes down addresses as they are.
        command: list[str | Path] = [
            *("perf", "record", "--all-cpus", "--event", what.name, "--freq", str(rate), "--call-graph", "fp"),
            *("--synth", "task", "--mmap-pages", _BUFFER, "--delay", "-1", "--output", self._data),
            *("--control", f"fifo:{session.folder / 'perf.control'},{session.folder / 'perf.answer'}"),
        ]
        self._perf = session.start("perf", command)
        self._perf.go_first()

    @staticmethod
    def _pipe(session: Session, name: str) -> int:
        path = session.folder / name
        path.unlink(missing_ok=True)
        os.mkfifo(path)
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        session.callback(os.close, descriptor)
        return descriptor

    def begin(self) -> None:
        """Has perf begin; returns when it has."""
        self._tell("enable")

    def end(self) -> None:
        """Has perf leave off; returns when it has."""
        self._tell("disable")

    def _tell(self, word: str) -> None:
        os.write(self._control, f"{word}\n".encode())
        ready, _, _ = select.select([self._answer], [], [], _PATIENCE)
        if not ready or not os.read(self._answer, 64).startswith(b"ack"):
            self._perf.check()
            raise LabError(f"perf has not answered to `{word}` within {_PATIENCE:g} s; its log: {self._perf.tail(3)}")

    def hits(self) -> tuple[list[Hit], int]:
        """Ends perf; returns its output, and the number of hits that the kernel had no room for."""
        self._perf.signal(signal.SIGINT)
        if not self._perf.wait(_PATIENCE):
            raise LabError(f"perf has not ended within {_PATIENCE:g} s; its log: {self._perf.tail(3)}")
        command: list[str | Path] = ["perf", "script", "--input", self._data, "--show-lost-events", "--fields"]
        told = subprocess.run(
            [*command, "comm,pid,tid,cpu,time,period,ip"], capture_output=True, text=True, check=False, errors="replace"
        )
        self._data.unlink(missing_ok=True)
        if told.returncode:
            raise NotAvailable(f"perf cannot read what it recorded: {told.stderr.strip()[-300:]}")
        return list(parse(told.stdout)), sum(map(int, _LOST.findall(told.stdout)))


def parse(text: str) -> Iterator[Hit]:
    """Reads the output of `perf script`: for each hit a line, then one address a line, then an empty line."""
    head: re.Match[str] | None = None
    chain: list[int] = []
    for line in (*text.splitlines(), ""):
        if not line.strip():
            if head:
                yield Hit(head[1], int(head[2]), int(head[5]), tuple(chain))
            head, chain = None, []
        elif head:
            address = int(line.split()[0], 16)
            if address < _MARKERS:
                chain.append(address)
        else:
            head = _HEAD.fullmatch(line)
