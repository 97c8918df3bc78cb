"""Counters of a guest's own kernel, from its files in /proc."""

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass

FILES = ("/proc/stat", "/proc/net/dev", "/proc/net/snmp", "/proc/interrupts")
"""The files, in the order of `Inside.read`'s arguments."""
_TICKS = 100
"""USER_HZ: ticks a second in a guest's /proc/stat, at any rate of its kernel's (proc_stat(5))."""


@dataclass(frozen=True)
class InsideCpu:
    """CPU seconds since the guest's boot as its own kernel accounts them, all processors together."""

    user: float
    system: float
    softirq: float
    irq: float
    idle: float
    steal: float

    @classmethod
    def read(cls, stat: bytes) -> "InsideCpu":
        """Out of /proc/stat."""
        fields = [int(word) / _TICKS for word in stat.split(b"\n", 1)[0].split()[1:]]
        user, nice, system, idle, iowait, irq, softirq, steal = fields[:8]
        return cls(user + nice, system, softirq, irq, idle + iowait, steal)

    @property
    def busy(self) -> float:
        """All but idle and stolen."""
        return self.user + self.system + self.softirq + self.irq

    def __sub__(self, other: "InsideCpu") -> "InsideCpu":
        return InsideCpu(
            *(mine - theirs for mine, theirs in zip(vars(self).values(), vars(other).values(), strict=True))
        )


@dataclass(frozen=True)
class Received:
    """Received frames at a guest's NICs so far; a segment that was never cut counts as one frame."""

    frames: int
    bytes: int


@dataclass(frozen=True)
class Inside:
    """All that a guest's kernel counts, read at one time."""

    cpu: InsideCpu
    received: Received
    stack: Mapping[str, int]
    """Counters of its IP stack (/proc/net/snmp), such as "Udp.RcvbufErrors"."""
    interrupts: int | None
    """Those that its kernel has taken for NICs, or None if it is not its own kernel."""


def received(devices: bytes) -> Received:
    """Counters of /proc/net/dev for a guest's NICs."""
    rows = [line.split() for line in devices.decode().replace(":", " ").splitlines()]
    own = [row for row in rows if re.fullmatch(r"net\d+", row[0])]
    return Received(sum(int(row[2]) for row in own), sum(int(row[1]) for row in own))


def stack(snmp: bytes) -> dict[str, int]:
    """The counters of /proc/net/snmp, as "Udp.RcvbufErrors"."""
    rows = [line.split() for line in snmp.decode().splitlines()]
    pairs = zip(rows[::2], rows[1::2], strict=True)  # a row of names, then a row of their values
    return {
        f"{names[0].rstrip(':')}.{name}": int(value)
        for names, values in pairs
        for name, value in zip(names[1:], values[1:], strict=True)
    }


def interrupts(table: bytes, devices: set[str]) -> int:
    """How many interrupts /proc/interrupts counts for NICs, whose devices on their bus are `devices` ("virtio1").

    Kernels name them by NIC, by virtio device or by its queues.
    """
    names = "|".join(map(re.escape, sorted(devices)))
    wanted = rf"\b(net\d|({names})(-(in|out)put\.\d+)?(?![-\w])|virtio-uml\.\d+-(in|out)put)"
    return sum(_counted(row) for row in table.decode().splitlines()[1:] if re.search(wanted, row))


def _counted(row: str) -> int:
    """The sum of all processors' columns in a row of /proc/interrupts: those are the leading numbers."""
    columns = row.partition(":")[2].split()
    return sum(int(column) for column in itertools.takewhile(str.isdigit, columns))
