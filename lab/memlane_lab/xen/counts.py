"""Counts under Xen by domain and by stage: machine pages become domains, addresses functions.

A domain owns its pages; an address in no guest's pages is dom0's. Xen works for the domain whose code ran last.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from memlane_lab.counting import stages
from memlane_lab.counting.counts import PROGRAM_END, Party, Share
from memlane_lab.counting.host import Window
from memlane_lab.counting.stages import Place, Symbols

_HYPERVISOR = 1 << 31
"""Beside a page: Xen worked for the code in it (lab/plugin/xen.c)."""
_KERNEL = 1 << 63
_SENDER, _RECEIVER, DOM0 = "c1", "s1", "dom0"
COUNTED = "counted"
"""The program that sends and receives, as a function."""
_PARTIES = {
    _SENDER: (Party.SENDER_PROGRAM, Party.SENDER_GUEST, Party.SENDER_XEN),
    _RECEIVER: (Party.RECEIVER_PROGRAM, Party.RECEIVER_GUEST, Party.RECEIVER_XEN),
    DOM0: (Party.SWITCH, Party.SWITCH_HOST, Party.SWITCH_XEN),
}
"""Of a domain: its programs, its kernel, Xen working for it."""


class Tables:
    """The owner of each page, and the symbol tables of Xen, of both kernels with their modules, and of the switch."""

    def __init__(
        self, parts: Mapping[str, str], kernel: Path, switch: Path | None, *, native: bool = False, here: str = ""
    ) -> None:
        """From dom0's output (`bed.boot`); `native`: both machines are programs of dom0; `here`: this one is."""
        text = kernel.read_text()
        self.native, self.here = native, here
        self.owners = {
            int(frame, 16): part.removeprefix("frames ")
            for part, frames in parts.items()
            if part.startswith("frames ")
            for frame in frames.split()
        }
        self.hypervisor = Symbols.of_kallsyms(parts["hypervisor"])
        self.kernels = {
            name: Symbols.of_kallsyms(f"{text}\n{parts.get(part, '')}")
            for name, part in ((DOM0, "modules"), ("guest", f"guest-{_RECEIVER if here == _SENDER else _SENDER}"))
        }
        self.switch: Symbols | None = None
        self.mapped: list[tuple[int, int, str]] = []
        if switch and (maps := parts.get("maps memlane")):
            self.mapped = _mapped(maps)
            base = min(low for low, _, path in self.mapped if path == "/plan/memlane")
            self.switch = Symbols.of_program(switch, base)

    def owner(self, page: int) -> str:
        """The domain that the page belongs to."""
        return self.owners.get(page, DOM0)

    def kernel(self, domain: str) -> Symbols:
        """Its kernel's functions."""
        return self.kernels[DOM0 if domain == DOM0 else "guest"]

    def in_program(self, domain: str, address: int) -> str | None:
        """The switch's function, or that of a library of it; None where another program runs."""
        if domain != DOM0 or self.native or (self.here and address < PROGRAM_END):
            return COUNTED
        for low, high, path in self.mapped:
            if low <= address < high:
                return (self.switch and self.switch.name(address)) or f"({Path(path).name})"
        return None


def _mapped(maps: str) -> list[tuple[int, int, str]]:
    """From /proc/PID/maps: from, to, path."""
    rows = (line.split() for line in maps.splitlines())
    found = ((row[0].split("-"), row[-1]) for row in rows if len(row) == 6)
    return [(int(ends[0], 16), int(ends[1], 16), path) for ends, path in found]


def shares(window: Window, tables: Tables) -> Iterator[Share]:
    """All that was counted of a flow."""
    table = stages.usual()
    for whose, address, *counted in window.counts:
        domain = tables.owner(whose & ~_HYPERVISOR)
        party, place, function = _what(domain, address, tables, in_xen=bool(whose & _HYPERVISOR))
        yield Share(party, place, table.of(place, function), function, *counted)


def _what(domain: str, address: int, tables: Tables, *, in_xen: bool) -> tuple[Party, Place, str]:
    programs, kernel, xen = _parties(domain, native=tables.native)
    if in_xen:
        return xen, Place.HYPERVISOR, _without_file(tables.hypervisor.name(address) or "(unknown)")
    if address >= _KERNEL:
        return kernel, _kernel_place(domain, native=tables.native), tables.kernel(domain).name(address) or "(unknown)"
    function = tables.in_program(domain, address)
    if function is None:
        return Party.LAB, Place.PROGRAM, "(a daemon)"
    if function == COUNTED and tables.here and domain == DOM0:
        return _PARTIES[tables.here][0], Place.PROGRAM, function
    return programs, Place.SWITCH if programs is Party.SWITCH else Place.PROGRAM, function


def _without_file(function: str) -> str:
    """The name alone: Xen tells which file a function that is known in there only comes from."""
    return function.rpartition("#")[2]


def _parties(domain: str, *, native: bool) -> Sequence[Party]:
    if native and domain == DOM0:
        return (Party.NATIVE,) * 2 + (Party.SWITCH_XEN,)
    return _PARTIES.get(domain, (Party.LAB,) * 3)


def _kernel_place(domain: str, *, native: bool) -> Place:
    if domain != DOM0:
        return Place.GUEST_KERNEL
    return Place.NATIVE_KERNEL if native else Place.SWITCH_KERNEL
