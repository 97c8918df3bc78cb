"""The tables of a file, as each reader gives them to `model.check`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from memlane_lab.common.strict import Place

Line = Callable[[Place], int]
"""The line of a place; 0 if it has none."""


class NotRead(Exception):
    """The file is not of its kind: its mistakes, each with its line, which is 0 where that is not known."""

    def __init__(self, mistakes: Sequence[tuple[int, str]]) -> None:
        super().__init__(mistakes)
        self.mistakes = list(mistakes)


@dataclass(frozen=True)
class Stated:
    """Tables as our own files have them."""

    tables: dict[str, Any]
    line: Line
    notes: tuple[str, ...] = ()
    """Notes about keys of the file that have no effect here."""
