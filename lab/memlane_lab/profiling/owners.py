"""Owners: the party that a hit is charged to, and the function in which it was.

A task belongs to a party by its process, which the control group of each guest and each switch tells. A guest of User
Mode Linux is a kernel, which is the process that the lab started, and programs, which are processes beside it.
"""

import re
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from memlane_lab.bed.bed import Bed
from memlane_lab.common.errors import LabError, NotAvailable
from memlane_lab.counting import stages
from memlane_lab.counting.counts import Party
from memlane_lab.counting.stages import Place, Stages, Symbols
from memlane_lab.guests import Guest
from memlane_lab.host import procfs
from memlane_lab.host.ports import GuestKind
from memlane_lab.host.process import HostProcess
from memlane_lab.profiling.perf import KERNEL, Hit

RESOLVED = (GuestKind.UML, GuestKind.NETNS)
"""Guests with symbols of their kernels' functions."""
_SENDER = (Party.SENDER_PROGRAM, Party.SENDER_GUEST, Party.SENDER_HOST)
_RECEIVER = (Party.RECEIVER_PROGRAM, Party.RECEIVER_GUEST, Party.RECEIVER_HOST)
_SYSTEM_CALL = "system call"
_ET_EXEC = 2
_KTHREADD = 2
"""The process that all threads of the kernel's own come from."""
_FILTER = "(compiled filter)"
_INTERRUPTED = re.compile(r"asm_(sysvec|common_interrupt)|.*softirq|irq_exit.*|flush_smp_call_function_queue")
"""Calls that show that a CPU without a task works all the same."""


@dataclass(frozen=True)
class Owner:
    """The machine or program of the lab that the process belongs to."""

    program: Party
    """The party that pays for time in its programs."""
    kernel: Party
    """The party that pays for time of the host's kernel on its behalf."""
    place: Place
    """Where its own instructions run."""
    below: Place
    """Where those of the host's kernel run that works for it."""
    maps: "Maps | None" = None
    """Its mapped files, where there are symbols of their functions."""


@dataclass(frozen=True)
class Whose:
    """Party, place, stage and function of a hit."""

    party: Party
    place: Place
    stage: str
    function: str
    callers: tuple[str, ...]
    """The host kernel's functions on the way there, the outermost first; none where the host's kernel did not run."""


class Maps:
    """The files that are mapped into a process, with their functions."""

    def __init__(self, process: int, own: Symbols | None = None) -> None:
        """`own` are functions that lie at fixed addresses: of all else, only the file is told."""
        self._own = own
        self._files = mapped(Path(f"/proc/{process}/maps").read_text())

    def insist(self, prefix: str) -> None:
        """Raises unless some mapped program has functions with names that begin so."""
        tables = [(path, exported(path)) for path in {path for _, _, _, path in self._files}]
        if not any(table and any(name.startswith(prefix) for name in table.names) for _, table in tables):
            program = self._files[0][3] if self._files else "the switch"
            raise NotAvailable(
                f"{program} is stripped, so its functions cannot be distinguished: build it with symbols"
            )

    def function(self, address: int) -> str:
        """The function at the address, or the file in brackets if that does not tell."""
        if self._own and (name := self._own.name(address)):
            return name
        for low, high, base, path in self._files:
            if low <= address < high:
                table = None if self._own else exported(path)
                return (table and table.name(address - base)) or f"({path.name})"
        return "(unknown)"


def mapped(maps: str) -> list[tuple[int, int, int, Path]]:
    """From /proc/PID/maps, each mapping of a file: from, to, where the file would begin, the file."""
    found: list[tuple[int, int, int, Path]] = []
    for line in maps.splitlines():
        if row := re.match(r"([0-9a-f]+)-([0-9a-f]+) \S+ ([0-9a-f]+) \S+ \d+\s+(.+)", line):
            low, high, offset, path = int(row[1], 16), int(row[2], 16), int(row[3], 16), Path(row[4])
            found.append((low, high, low - offset, path))
    begins: dict[Path, int] = {}
    for _, _, base, path in found:
        begins.setdefault(path, 0 if _fixed(path) else base)  # the first mapping of a file holds its beginning
    return [(low, high, begins[path], path) for low, high, _, path in found]


def _fixed(file: Path) -> bool:
    """Whether it is an ELF program that lies at the addresses that it states (its type is ET_EXEC)."""
    if not file.is_file():
        return False
    with file.open("rb") as opened:
        head = opened.read(18)
    return head.startswith(b"\x7fELF") and head[16] == _ET_EXEC


@cache
def exported(file: Path) -> Symbols | None:
    """The functions that a program or library tells: its own symbols, else those that it offers to others, else None.

    Addresses are those of the file, as if it were mapped at 0.
    """
    if not file.is_file():
        return None
    for which in ((), ("--dynamic",)):
        command: list[str | Path] = ["nm", "--demangle", "--print-size", "--defined-only", *which, file]
        listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        if functions := list(_functions(listed)):
            return Symbols.of(functions)
    return None


def _functions(listed: str) -> Iterable[tuple[int, int, str]]:
    for line in listed.splitlines():
        if row := re.fullmatch(r"([0-9a-f]+) (?:([0-9a-f]+) )?[tTwWiI] (.+)", line):
            yield int(row[1], 16), int(row[2] or "0", 16), row[3].partition("@")[0]


class Owners:
    """The processes of a bed by party, and the names of their functions."""

    def __init__(self, bed: Bed, senders: Iterable[str], host: Symbols) -> None:
        """`senders` are the machines that begin flows; all others are receivers. `host`: the host kernel's symbols."""
        self._bed, self._senders, self._host = bed, set(senders), host
        self._guest_kernel = _guest_kernel(bed.guests)
        self._by_process: dict[int, Owner] = {}
        self._kernel_threads: set[int] = set()
        self.look()

    def look(self) -> None:
        """Finds the processes that there are now; those that were found before stay known."""
        for guest in self._bed.guests:
            self._take_guest(guest)
        for process in self._bed.path.parties():
            self._take_switch(process)
        self._kernel_threads |= {each.pid for each in procfs.processes() if each.parent == _KTHREADD}

    def _take_guest(self, guest: Guest) -> None:
        program, kernel, host = _SENDER if guest.name in self._senders else _RECEIVER
        if guest.kind == GuestKind.NETNS:
            for each in _members(guest.process):
                self._by_process[each] = Owner(program, host, Place.PROGRAM, Place.NATIVE_KERNEL)
            return
        leader = guest.process.pid
        for each in _members(guest.process) - {leader}:
            self._by_process[each] = Owner(program, host, Place.PROGRAM, Place.HOST_KERNEL)
        if leader not in self._by_process:
            maps = Maps(leader, self._guest_kernel)
            self._by_process[leader] = Owner(kernel, host, Place.GUEST_KERNEL, Place.HOST_KERNEL, maps)

    def _take_switch(self, process: HostProcess) -> None:
        for each in _members(process) - self._by_process.keys():
            maps = Maps(each)
            if self._bed.path.name == "memlane":
                maps.insist("memlane::")
            self._by_process[each] = Owner(Party.SWITCH, Party.SWITCH_HOST, Place.SWITCH, Place.SWITCH_KERNEL, maps)

    def whose(self, hit: Hit, table: Stages) -> Whose:
        """The party, the place, the function and the stage of a hit."""
        if (owner := self._by_process.get(hit.process)) is None:
            return self._nobodys(hit, table)
        if not hit.in_kernel:
            return self._in_program(hit, owner, table)
        names = self._kernel_names(hit)
        # A guest's programs are processes that only run: their hand-over to the guest's kernel is all that the host's
        # kernel does for them.
        hands_over = owner.place is Place.PROGRAM and owner.below is Place.HOST_KERNEL
        stage = _SYSTEM_CALL if hands_over else table.of(owner.below, _telling(names))
        return Whose(owner.kernel, owner.below, stage, names[-1], tuple(names[:-1]))

    @staticmethod
    def _in_program(hit: Hit, owner: Owner, table: Stages) -> Whose:
        function = owner.maps.function(hit.chain[0]) if owner.maps and hit.chain else "(program)"
        return Whose(owner.program, owner.place, table.of(owner.place, function), function, ())

    def _nobodys(self, hit: Hit, table: Stages) -> Whose:
        """An idle CPU, a thread of the kernel's own, or a process that the bed does not know."""
        if not hit.in_kernel:
            return Whose(Party.LAB, Place.PROGRAM, stages.REST, f"({hit.task})", ())
        names = self._kernel_names(hit)
        idle = hit.process == 0 and not any(_INTERRUPTED.match(name) for name in names)
        stage = stages.IDLE if idle else table.of(Place.HOST_KERNEL, _telling(names))
        party = Party.HOST if hit.process in {0, *self._kernel_threads} else Party.LAB
        return Whose(party, Place.HOST_KERNEL, stage, names[-1], tuple(names[:-1]))

    def _kernel_names(self, hit: Hit) -> list[str]:
        """The host kernel's functions, the outermost first."""
        names = [self._kernel_name(address) for address in reversed(hit.chain) if address >= KERNEL]
        # Beyond the entry point, the unwinder may find addresses that are no callers.
        return names[1:] if len(names) > 1 and names[0] == _FILTER else names

    def _kernel_name(self, address: int) -> str:
        name = self._host.name(address)
        return _FILTER if name is None or name.startswith("bpf_prog_") else stages.bare(name)


def _telling(names: Sequence[str]) -> str:
    """Which of the calls tells the stage: the innermost, but not a lock, which is its caller's."""
    return next((name for name in reversed(names) if not name.startswith("_raw_")), names[-1])


def refuses(kinds: Sequence[GuestKind]) -> str | None:
    """Why machines of these kinds cannot be profiled, or None."""
    other = sorted({str(kind) for kind in kinds} - {str(kind) for kind in RESOLVED})
    if not other:
        return None
    return (
        f"guests of the kind {', '.join(other)} run below QEMU, where perf on the host sees no functions of theirs: "
        "profile uml guests or namespaces (--guest uml)"
    )


def _members(process: HostProcess) -> set[int]:
    return {each.pid for each in process.group.processes()} if process.group else {process.pid}


def _guest_kernel(guests: Sequence[Guest]) -> Symbols | None:
    """The functions of the guests' kernel, which is the same for all."""
    kernels = [guest for guest in guests if guest.kind == GuestKind.UML]
    if not kernels:
        return None
    try:
        return _symbols_of_guest(kernels[0])
    except LabError as error:
        raise NotAvailable(
            "the guests' kernel tells no symbols, so that its stages cannot be told apart: build it with "
            f"CONFIG_KALLSYMS (memlane-lab prepare does) ({error})"
        ) from error


def _symbols_of_guest(guest: Guest) -> Symbols:
    return Symbols.of_kallsyms(guest.get("/proc/kallsyms").decode())


def host_symbols() -> Symbols:
    """The functions of the host's kernel; raises if it hides where they are."""
    return Symbols.of_kallsyms(Path("/proc/kallsyms").read_text())
