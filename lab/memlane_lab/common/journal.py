"""A journal: a file to which one JSON document a line is appended while the whole file is not yet written."""

from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

Entry = TypeVar("Entry", bound=BaseModel)


def append(path: Path, entry: BaseModel) -> None:
    """Adds a line in one write."""
    with path.open("ab", buffering=0) as file:
        file.write(entry.model_dump_json(by_alias=True).encode() + b"\n")


def read(path: Path, kind: type[Entry]) -> Iterator[Entry]:
    """The entries; none if there is no journal. A last line that was cut off, as by a crash, is left out."""
    if path.exists():
        lines = path.read_bytes().split(b"\n")
        yield from (kind.model_validate_json(line) for line in lines[:-1])
