"""Stages: which part of a packet's way an instruction belongs to, by where it ran and by its function's symbol.

Nouns, in the order in which an address meets them: a **symbol table** (`Symbols`) turns an address into a function's
name; the **place** says in which kernel or program it ran (`Place`); the **stages** (`Stages`, of `stages.toml`) turn
both into the name of a stage. Counting and sampling (`profile`) use the same three.
"""

import bisect
import functools
import re
import subprocess
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import translate
from pathlib import Path
from typing import Self

from pydantic import PrivateAttr, ValidationError, model_validator

from memlane_lab.common.errors import LabError
from memlane_lab.common.strict import Strict, told

FILE = Path(__file__).with_name("stages.toml")
REST = "the rest"
"""The stage of functions that no rule names."""
IDLE = "idle"
"""The stage that no party pays for: reports leave it out of sums."""

_ADDED = re.compile(r"(\.(constprop|isra|part|cold|lto_priv|llvm)(\.\d+)*)+$|::h[0-9a-f]{16}$")
"""Suffixes that compilers add to a function's name."""


_LONGEST = 1 << 15
"""Bytes of the longest function of unknown size: an address beyond belongs to something without a name."""


class Place(StrEnum):
    """The kernel or program of an instruction; `stages.toml` explains each."""

    PROGRAM = "program"
    GUEST_KERNEL = "guest kernel"
    NATIVE_KERNEL = "native kernel"
    HOST_KERNEL = "host kernel"
    SWITCH = "switch"
    SWITCH_KERNEL = "switch kernel"
    HYPERVISOR = "hypervisor"


class Rule(Strict):
    """Functions of some places that are one stage."""

    stage: str
    places: tuple[Place, ...]
    symbols: tuple[str, ...]
    """Patterns of names, as a shell has them."""


class Stages(Strict):
    """The table: stages in their order, and the rules, of which the first that fits counts."""

    stages: tuple[str, ...]
    rule: tuple[Rule, ...]
    _known_stages: dict[tuple[Place, str], str] = PrivateAttr(default_factory=dict)

    @model_validator(mode="after")
    def _known(self) -> Self:
        unknown = sorted({rule.stage for rule in self.rule} - set(self.stages))
        if unknown:
            raise ValueError(f"rules name stages that the list `stages` lacks: {', '.join(unknown)}")
        if lacking := sorted({REST, IDLE} - set(self.stages)):
            raise ValueError(f"the list `stages` must have {', '.join(lacking)}")
        return self

    def of(self, place: Place, symbol: str | None) -> str:
        """The stage of a function; `symbol` is None where the address has no name."""
        if not symbol:
            return REST
        key = place, bare(symbol)
        if key not in self._known_stages:
            self._known_stages[key] = self._first(*key)
        return self._known_stages[key]

    def _first(self, place: Place, symbol: str) -> str:
        rules = ((rule.stage, _pattern(rule.symbols)) for rule in self.rule if place in rule.places)
        return next((stage for stage, pattern in rules if pattern.match(symbol)), REST)


def bare(symbol: str) -> str:
    """The function's name without a compiler's suffix."""
    return _ADDED.sub("", symbol)


def load(file: Path = FILE) -> Stages:
    """Reads the table; raises with all its mistakes."""
    try:
        return Stages.model_validate(tomllib.loads(file.read_text()))
    except OSError as error:
        raise LabError(f"cannot read the table of stages {file}: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise LabError(f"{file} is not valid TOML: {error}") from error
    except ValidationError as error:
        raise LabError(f"{file}: {told(error, Stages)}") from error


@functools.cache
def usual() -> Stages:
    """The table that comes with the lab, read once."""
    return load()


@functools.cache
def _pattern(symbols: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(translate(symbol) for symbol in symbols))


@dataclass(frozen=True)
class Symbols:
    """A symbol table: function names by address."""

    addresses: Sequence[int]
    """Where each function begins, ascending."""
    names: Sequence[str]
    ends: Sequence[int]
    """Where each function ends, as far as that is known; else where the next one begins."""

    @classmethod
    def of(cls, functions: Iterable[tuple[int, int, str]]) -> Self:
        """From (address, size, name); size 0: up to the next function. The first name of an address stays."""
        found: dict[int, tuple[int, str]] = {}
        for address, size, name in functions:
            found.setdefault(address, (size, name))
        addresses = sorted(found)
        following = [*addresses[1:], addresses[-1] + _LONGEST] if addresses else []
        ends = [min(at + (found[at][0] or _LONGEST), after) for at, after in zip(addresses, following, strict=False)]
        return cls(addresses, [found[at][1] for at in addresses], ends)

    @classmethod
    def of_kallsyms(cls, text: str) -> Self:
        """From /proc/kallsyms of a kernel: its own functions and its modules'. Raises if it shows no addresses."""
        rows = (re.match(r"([0-9a-f]+) [tTwW] (\S+)", line) for line in text.splitlines())
        functions = [(int(row[1], 16), 0, row[2]) for row in rows if row]
        if not any(address for address, _, _ in functions):
            raise LabError(
                "this kernel hides the addresses of its functions (/proc/kallsyms shows zeros): set "
                "kernel.kptr_restrict=0, as root"
            )
        return cls.of(functions)

    @classmethod
    def of_program(cls, program: Path, base: int = 0) -> Self:
        """From an ELF file's own symbols, moved up by `base` (a position-independent program's load address)."""
        command: list[str | Path] = ["nm", "--demangle", "--print-size", "--defined-only", program]
        listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        functions = []
        for line in listed.splitlines():
            found = re.fullmatch(r"([0-9a-f]+) (?:([0-9a-f]+) )?[tTwWiI] (.+)", line)
            if found:
                functions.append((base + int(found[1], 16), int(found[2] or "0", 16), found[3]))
        if not functions:
            raise LabError(f"{program} is stripped, so its functions cannot be distinguished: build it with symbols")
        return cls.of(functions)

    def name(self, address: int) -> str | None:
        """The function that holds the address."""
        found = bisect.bisect_right(self.addresses, address) - 1
        return self.names[found] if found >= 0 and address < self.ends[found] else None
