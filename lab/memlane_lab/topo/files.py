"""Topologies in files: TOML of ours, a containerlab YAML, a GraphML of the Topology Zoo. By the file's ending.

Each reader gives the tables for `model.check`, and a way from a place in them to a line of the file: every mistake
is told with its line.
"""

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from memlane_lab.common.errors import LabError
from memlane_lab.common.strict import Place, hint
from memlane_lab.topo import containerlab, graphml
from memlane_lab.topo.model import BadTopology, Topology, check
from memlane_lab.topo.settings import NONE, Settings
from memlane_lab.topo.stated import NotRead, Stated


def load(path: Path, settings: Settings = NONE) -> Topology:
    """The topology in a file; raises with all its mistakes and their lines."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise LabError(f"cannot read the topology {path}: {reason}") from error
    if path.suffix not in READERS:
        raise LabError(f"{path}: unknown file type{hint(path.suffix, READERS)}")
    try:
        stated = READERS[path.suffix](text, path.parent)
    except NotRead as error:
        raise LabError(_told(path, error.mistakes)) from error
    except RecursionError:
        raise LabError(f"{path}: tables and lists are nested too deeply") from None
    try:
        tables = {"name": _plain(path.stem), **stated.tables, **({"name": settings.name} if settings.name else {})}
        named = _with(path, tables, settings.stated())
        notes = [f"{path}: {note}" for note in stated.notes]
        return check(named, folder=str(path.parent), notes=notes)
    except BadTopology as error:
        told = [(stated.line(mistake.place), mistake.text) for mistake in error.mistakes]
        raise LabError(_told(path, told)) from None


def _with(path: Path, tables: dict[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """The file's tables with the settings that its kind of file cannot state."""
    stated = {".toml": more.keys(), ".graphml": set()}.get(path.suffix, more.keys() & {"routing"})
    if stated:
        what = " and ".join(sorted(stated))
        raise LabError(f"{path}: write the options of {what} into this file; as arguments they apply to other files")
    made = {**tables, **{key: more[key] for key in ("routing", "over") if key in more}}
    if "node" in more:
        made["defaults"] = more["node"]
    if "link" in more:
        made["link"] = [{**more["link"], **link} for link in tables["link"]]
    return made


def _told(path: Path, mistakes: Iterable[tuple[int, str]]) -> str:
    """Each mistake once, in the order of lines."""
    return "\n".join(f"{path}:{line}: {text}" if line else f"{path}: {text}" for line, text in sorted(set(mistakes)))


def _plain(stem: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "-", stem)[:31].lstrip("-_") or "net"


def toml(text: str, _folder: Path) -> Stated:
    """Our own kind: tables [[node]] and [[link]]."""
    try:
        stated = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        what, _, where = str(error).partition(" (at ")
        line, column = re.findall(r"\d+", where) or (text.count("\n") + 1, "")
        told = f"no valid TOML{f' at column {column}' if column else ''}: {what[:1].lower()}{what[1:]}"
        raise NotRead([(int(line), told)]) from error
    return Stated(stated, _TomlLines(text).line)


READERS: Mapping[str, Callable[[str, Path], Stated]] = {
    ".toml": toml,
    ".yml": containerlab.read,
    ".yaml": containerlab.read,
    ".graphml": graphml.read,
}
"""By the ending of a file's name."""


class _TomlLines:
    """Where tables and keys begin; tomllib does not tell. Tables are found by their headers, keys by their lines."""

    _HEADER = re.compile(r"\s*\[{1,2}\s*([A-Za-z0-9_.\"-]+)\s*\]{1,2}")
    _KEY = re.compile(r"\s*\"?([A-Za-z0-9_-]+)\"?\s*[.=]")

    def __init__(self, text: str) -> None:
        # Text in multi-line strings is neither.
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
        """The line of the place, or of the nearest that holds it, or of the first that it holds."""
        for length in range(len(place), 0, -1):
            if place[:length] in self._lines:
                return self._lines[place[:length]]
        return min((line for at, line in self._lines.items() if at[:1] == place[:1]), default=0)
