"""Memory: as the host's kernel shares it out, and the bytes that each party of a bed holds."""

import re
import time
from collections.abc import Collection
from pathlib import Path

from memlane_lab.bed.bed import Bed
from memlane_lab.host.process import HostProcess
from memlane_lab.host.procfs import Stat


def proportional(pid: int, *kinds: str) -> int:
    """Bytes of a process, shared pages divided among their users (Pss, proc_pid_smaps(5)); 0 if it has ended.

    `kinds` are those of its parts that count: "Anon", "File", "Shmem"; none: all.
    """
    try:
        rows = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return 0
    wanted = tuple(f"Pss_{kind}:" for kind in kinds) or ("Pss:",)
    return sum(int(row.split()[1]) << 10 for row in rows if row.startswith(wanted))


_MAPPING = re.compile(r"[0-9a-f]+-[0-9a-f]+ (\S+) [0-9a-f]+ (\S+) (\d+)")
_BUFFERS = re.compile(r"^(skbuff_\S+) +(\d+) +\d+ +(\d+)", re.MULTILINE)
_LOOKS, _PAUSE = 10, 0.02
"""Number of readings of the bytes in the network, and seconds between two of them: the largest counts."""


def own(pid: int, foreign: Collection[str]) -> int:
    """Bytes of a process (Pss) without the files `foreign`, which are others' memory that it only maps."""
    held, counts = 0, False
    try:
        rows = Path(f"/proc/{pid}/smaps").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return 0
    for row in rows:
        if mapping := _MAPPING.match(row):
            counts = f"{mapping[2]}:{mapping[3]}" not in foreign
        elif counts and row.startswith("Pss:"):
            held += int(row.split()[1]) << 10
    return held


def shared(pid: int) -> set[str]:
    """The files that a process maps to share them, writable: a guest's memory among them; by device and inode."""
    try:
        rows = Path(f"/proc/{pid}/maps").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return set()
    found = (_MAPPING.match(row) for row in rows)
    return {f"{row[2]}:{row[3]}" for row in found if row and row[1].startswith("rw") and row[1].endswith("s")}


def kernel() -> int:
    """Bytes that the host's kernel has taken for itself and returns only when their user lets go (proc_meminfo(5)).

    Slabs that cannot be reclaimed, per-CPU memory, vmalloc, stacks and page tables.
    """
    rows = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    sizes = {row[0].rstrip(":"): int(row[1]) << 10 for row in rows}
    return sum(sizes.get(name, 0) for name in ("SUnreclaim", "Percpu", "VmallocUsed", "KernelStack", "PageTables"))


def packet_buffers() -> int | None:
    """Bytes of the heads of all packets that the host's kernel holds (slabinfo(5)); None where it does not tell.

    Heads alone: of a packet of 64 KB, the pages with its payload are beside them.
    """
    try:
        text = Path("/proc/slabinfo").read_text()
    except (FileNotFoundError, PermissionError):
        return None
    return sum(int(used) * int(size) for _, used, size in _BUFFERS.findall(text))


def held(bed: Bed) -> dict[str, float]:
    """Bytes held now, by measure; see `measures.MEMORY`."""
    guests = [process.pid for guest in bed.guests for process in _of(guest.process)]
    foreign = {file for guest in bed.guests for file in shared(guest.process.pid)}
    network = [process.pid for party in bed.path.parties() for process in _of(party)]
    found = {"guests_memory": float(sum(map(proportional, guests)))}
    found["network_memory"] = float(sum(own(pid, foreign) for pid in network))
    looks = [_look(bed) for _ in range(_LOOKS)]
    return found | {name: max(look[name] for look in looks) for name in looks[0]}


def _look(bed: Bed) -> dict[str, float]:
    time.sleep(_PAUSE)
    found = {name: float(value) for name, value in bed.path.held().items()}
    buffers = packet_buffers()
    return found if buffers is None else found | {"packet_buffers": float(buffers)}


def _of(process: HostProcess) -> list[Stat]:
    return process.group.processes() if process.group else []
