"""Topologies in files: TOML of ours, a containerlab YAML, a GraphML of the Topology Zoo. By the file's ending.

Each reader gives what `model.check` takes, and a way from a place in it to a line of the file, so that every mistake
is told with its line.
"""

import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from memlane_lab.errors import LabError
from memlane_lab.topo import containerlab, graphml
from memlane_lab.topo.model import BadTopology, Place, Topology, check

Line = Callable[[Place], int]
"""The line of a place; 0 if it has none."""


def load(path: Path, *, called: str | None = None) -> Topology:
    """The topology in a file; raises with all its mistakes and their lines."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise LabError(f"cannot read the topology {path}: {reason}") from error
    readers = {".toml": toml, ".yml": containerlab.read, ".yaml": containerlab.read, ".graphml": graphml.read}
    if path.suffix not in readers:
        raise LabError(f"{path}: what kind of file is that? There are: {', '.join(readers)}")
    try:
        stated, line = readers[path.suffix](text)
    except ValueError as error:
        raise LabError(f"{path}: {error}") from error
    try:
        named = {"name": _plain(path.stem), **stated, **({"name": called} if called else {})}
        return check(named, folder=str(path.parent))
    except BadTopology as error:
        told = sorted((line(mistake.place), mistake.text) for mistake in error.mistakes)
        raise LabError(
            "\n".join(f"{path}:{number}: {text}" if number else f"{path}: {text}" for number, text in told)
        ) from None


def _plain(stem: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "-", stem)[:31].lstrip("-_") or "net"


def toml(text: str) -> tuple[dict[str, Any], Line]:
    """Our own kind: tables [[node]] and [[link]]."""
    try:
        stated = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"no TOML: {error}") from error
    return stated, _TomlLines(text).line


class _TomlLines:
    """Where tables and keys begin; tomllib does not tell. Tables are found by their headers, keys by their lines."""

    _HEADER = re.compile(r"\s*\[{1,2}\s*([A-Za-z0-9_.\"-]+)\s*\]{1,2}")
    _KEY = re.compile(r"\s*\"?([A-Za-z0-9_-]+)\"?\s*[.=]")

    def __init__(self, text: str) -> None:
        # What stands in multi-line strings is neither.
        bare = re.sub(r"'''.*?'''|\"\"\".*?\"\"\"", lambda found: "\n" * found[0].count("\n"), text, flags=re.DOTALL)
        self._lines: dict[Place, int] = {}
        counts: dict[str, int] = {}
        at: Place = ()
        for number, row in enumerate(bare.splitlines(), start=1):
            if found := self._HEADER.match(row):
                name = found[1]
                at = tuple(name.split("."))
                if row.lstrip().startswith("[["):
                    at = (name, counts.get(name, 0))
                    counts[name] = counts.get(name, 0) + 1
                elif name.partition(".")[0] in counts:  # a table of the last entry of a list
                    head, _, rest = name.partition(".")
                    at = (head, counts[head] - 1, *rest.split("."))
                self._lines.setdefault(at, number)
            elif found := self._KEY.match(row):
                self._lines.setdefault((*at, found[1]), number)

    def line(self, place: Place) -> int:
        """The line of the place, or of the nearest that holds it."""
        for length in range(len(place), 0, -1):
            if place[:length] in self._lines:
                return self._lines[place[:length]]
        return 0
