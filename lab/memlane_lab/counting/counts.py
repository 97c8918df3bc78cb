"""Counted instructions for people: tasks become parties, addresses functions, functions stages.

Parties are the sender, the receiver and the switch, each with its program, its guest's kernel where it has a guest, and
the host's kernel on its behalf (while one of its tasks was current); the host's own threads and its idle
task; and the lab itself, which is left out. Under Xen (`xen/counts.py`) there is the hypervisor on each one's behalf,
and dom0's kernel is the host's.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from memlane_lab.common.errors import LabError
from memlane_lab.counting import stages
from memlane_lab.counting.host import Told, Window
from memlane_lab.counting.stages import Place, Symbols

_KERNEL = 1 << 63
PROGRAM_END = 0x1000000
"""Below lies the program that sends and receives, linked to a fixed address; above, all that a guest's kernel loads."""


class Party(StrEnum):
    """Parties that instructions are charged to, in the order of tables and bars."""

    SENDER_PROGRAM = "sender's program"
    SENDER_GUEST = "sender's guest kernel"
    SENDER_HOST = "host kernel for the sender"
    SENDER_XEN = "hypervisor for the sender"
    RECEIVER_PROGRAM = "receiver's program"
    RECEIVER_GUEST = "receiver's guest kernel"
    RECEIVER_HOST = "host kernel for the receiver"
    RECEIVER_XEN = "hypervisor for the receiver"
    SWITCH = "switch"
    SWITCH_HOST = "host kernel for the switch"
    SWITCH_XEN = "hypervisor for dom0"
    NATIVE = "both machines, natively"
    HOST = "host's own threads"
    LAB = "the lab itself"


_OF = {
    "c1": (Party.SENDER_PROGRAM, Party.SENDER_GUEST, Party.SENDER_HOST),
    "s1": (Party.RECEIVER_PROGRAM, Party.RECEIVER_GUEST, Party.RECEIVER_HOST),
}


@dataclass(frozen=True)
class Share:
    """A part of the counted instructions."""

    party: Party
    place: Place
    stage: str
    function: str
    instructions: int
    loads: int
    stores: int
    repeats: int
    """Repetitions of string instructions, each of which is one of `instructions` only once."""
    first_misses: int = 0
    """Misses of a simulated cache of 32 KB."""
    second_misses: int = 0
    """Of these, misses of a simulated cache of 1 MB, too."""
    walks: int = 0
    """Misses of a simulated TLB."""


class Tables:
    """The symbol tables of a boot: the host's kernel with its modules, the guests' kernel, the switch."""

    def __init__(self, told: Told, kernel: Path, switch: Path | None) -> None:
        """`kernel` holds the host's /proc/kallsyms; the output of `init` adds modules, guests and load addresses."""
        self.host = Symbols.of_kallsyms(kernel.read_text() + "\n" + told.parts.get("modules", ""))
        guest = told.parts.get("guest", "")
        if not guest and "maps linux-s1" in told.parts:
            raise LabError(
                "the guests' kernel tells no symbols, so that its stages cannot be told apart: build it with "
                "CONFIG_KALLSYMS (memlane-lab prepare does)"
            )
        self.guest = Symbols.of_kallsyms(guest) if guest else None
        self.switch: Symbols | None = None
        self._objects = {name: _objects(told.parts.get(f"maps {name}", "")) for name in ("linux-s1", "memlane")}
        if switch and (base := self._base("memlane", "/plan/memlane")) is not None:
            self.switch = Symbols.of_program(switch, base)

    def _base(self, process: str, name: str) -> int | None:
        return next((low for low, _, path in self._objects[process] if path == name), None)

    def in_guest_kernel(self, address: int) -> str:
        """The function of a guest's kernel, or of the library it runs with."""
        return (self.guest and self.guest.name(address)) or self._object("linux-s1", address)

    def in_switch(self, address: int) -> str:
        """The function of the switch, or of a library."""
        return (self.switch and self.switch.name(address)) or self._object("memlane", address)

    def _object(self, process: str, address: int) -> str:
        """The library that holds the address."""
        for low, high, path in self._objects[process]:
            if low <= address < high:
                return f"({Path(path).name})"
        return "(unknown)"


def _objects(maps: str) -> list[tuple[int, int, str]]:
    """The mapped files: from, to, path; one entry a file."""
    found: dict[str, tuple[int, int]] = {}
    for line in maps.splitlines():
        if row := re.match(r"([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ \d+\s+(\S+)", line):
            low, high, path = int(row[1], 16), int(row[2], 16), row[3]
            found[path] = (min(low, found.get(path, (low, high))[0]), high)
    return [(low, high, path) for path, (low, high) in found.items()]


def shares(window: Window, tables: Tables) -> Iterator[Share]:
    """All that was counted of a flow."""
    table = stages.usual()
    virtual = any(leader.startswith("linux-") for _, leader, _ in window.tasks)
    for number, address, *counted in window.counts:
        party, place = whose(window.tasks[number], address, virtual=virtual)
        function = _function(place, address, tables)
        stage = _SYSTEM_CALL if _runs_program(window.tasks[number], function) else table.of(place, function)
        yield Share(party, place, stage, function, *counted)


_STUB = "(stub of User Mode Linux)"
_SYSTEM_CALL = "system call"


def _runs_program(task: Sequence[str], function: str) -> bool:
    """Whether User Mode Linux runs a program here: the cost of each of its system calls.

    A guest's programs are processes of the host that only run: their hand-over to the guest's kernel is all that the
    host's kernel does for them.
    """
    return function == _STUB or (task[1] == "uml-userspace" and function != "counted")


def _function(place: Place, address: int, tables: Tables) -> str:
    if address >= _KERNEL:
        return tables.host.name(address) or "(compiled filter)"
    match place:
        case Place.GUEST_KERNEL:
            return tables.in_guest_kernel(address)
        case Place.SWITCH:
            return tables.in_switch(address)
        case _:
            return "counted" if address < PROGRAM_END else _STUB


def whose(task: Sequence[str], address: int, *, virtual: bool) -> tuple[Party, Place]:
    """The party and the place of an instruction; `virtual`: whether the machines are guests.

    `task` are the names of the task, of its process and of its parent process.
    """
    _, leader, parent = task
    in_kernel = address >= _KERNEL
    for process in (leader, parent):
        name = process.rpartition("-")[2]
        if name in _OF and process.startswith(("linux-", "program-")):
            program, guest, host = _OF[name]
            if in_kernel:
                return host, Place.HOST_KERNEL if virtual else Place.NATIVE_KERNEL
            return (guest, Place.GUEST_KERNEL) if leader.startswith("linux-") else (program, Place.PROGRAM)
    if leader == "memlane":
        return (Party.SWITCH_HOST, Place.SWITCH_KERNEL) if in_kernel else (Party.SWITCH, Place.SWITCH)
    if in_kernel and (parent == "kthreadd" or leader.startswith("swapper")):
        return Party.HOST, Place.HOST_KERNEL if virtual else Place.NATIVE_KERNEL
    return Party.LAB, Place.PROGRAM


@dataclass(frozen=True)
class Summary:
    """The cost of a flow, idle time and the lab left out."""

    by_stage: Mapping[str, int]
    by_party: Mapping[str, int]
    loads: Mapping[str, int]
    """By stage."""
    stores: Mapping[str, int]
    functions: Mapping[str, int]
    """By party, stage and function: the largest."""
    repeats: int
    missed: Mapping[str, Mapping[str, int]]
    """By simulated cache or TLB (`MISSES`), by stage."""
    missed_by: Mapping[str, Mapping[str, int]]
    """The same by party."""

    @property
    def instructions(self) -> int:
        """All of them."""
        return sum(self.by_stage.values())


_FUNCTIONS = 150
MISSES = {"L1": "first_misses", "L2": "second_misses", "TLB": "walks"}
"""Simulated caches and TLB, and the figure of a `Share` that tells their misses."""


def summary(shares: Iterable[Share]) -> Summary:
    """Sums up the counts of a flow."""
    by_stage, by_party, loads, stores = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    functions = Counter[str]()
    missed, missed_by = ({name: Counter[str]() for name in MISSES} for _ in range(2))
    repeats = 0
    for share in shares:
        if share.party is Party.LAB or share.stage == stages.IDLE:
            continue
        by_stage[share.stage] += share.instructions
        by_party[share.party] += share.instructions
        loads[share.stage] += share.loads
        stores[share.stage] += share.stores
        functions[f"{share.party}: {share.stage}: {share.function}"] += share.instructions
        repeats += share.repeats
        for name, figure in MISSES.items():
            if number := getattr(share, figure):
                missed[name][share.stage] += number
                missed_by[name][share.party] += number
    most = dict(functions.most_common(_FUNCTIONS))
    return Summary(by_stage, by_party, loads, stores, most, repeats, missed, missed_by)
