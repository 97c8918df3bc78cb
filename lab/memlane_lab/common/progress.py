"""How long work is seen: a bar with the time left on a terminal, a line now and then elsewhere."""

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any

from pydantic import BaseModel
from rich.console import Console
from rich.measure import Measurement
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

console = Console(stderr=True)
"""Where progress and messages go."""


class Results(Console):
    """Standard output: tables as they are, as records where they are too wide, or as lines of JSON."""

    as_json = False
    """Whether tables and lines are told as JSON, one object a line."""

    def print(self, *objects: Any, **options: Any) -> None:  # noqa: ANN401
        """Prints; a table wider than the terminal is told row by row, because folded columns cannot be read."""
        for each in objects:
            if self.as_json:
                self._as_json(each)
            elif isinstance(each, Table) and self._is_too_wide(each):
                super().print(*_records(each), sep="\n", markup=False, highlight=False)
            else:
                super().print(each, **options)

    def _as_json(self, told: Any) -> None:  # noqa: ANN401
        if isinstance(told, Table):
            told = {"title": str(told.title or ""), "rows": data(told)}
        elif isinstance(told, str):
            if not told:
                return
            told = {"text": told}
        super().print(json.dumps(_plain(told)), highlight=False, markup=False, soft_wrap=True)

    def _is_too_wide(self, table: Table) -> bool:
        if len(table.columns) < 4:
            return False  # prose in columns may fold
        plain = self.options.update(width=10_000)
        return Measurement.get(self, plain, table).maximum > self.width


def data(table: Table) -> list[dict[str, Any]]:
    """A table's rows by the headers of its columns, as text."""
    names = [str(column.header) or f"column {number}" for number, column in enumerate(table.columns, 1)]
    cells = zip(*(list(column.cells) for column in table.columns), strict=True)
    return [dict(zip(names, map(_text, row), strict=True)) for row in cells]


def _text(cell: Any) -> str:  # noqa: ANN401
    return cell.plain if isinstance(cell, Text) else str(cell)


def _records(table: Table) -> Iterator[str]:
    """A table row by row: the first cell, then each further one with its header."""
    if table.title:
        yield f"\n{table.title}"
    for row in data(table):
        (_, first), *rest = row.items()
        yield f"\n{first}"
        yield from (f"  {name}: {cell}" for name, cell in rest if cell)
    if table.caption:
        yield f"\n{table.caption}"


results = Results()
"""Where results go: standard output."""

_LINE_EVERY = 10.0
"""Seconds between progress lines where there is no terminal."""


def say(text: str) -> None:
    """One line to the operator."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def tell(text: str) -> None:
    """One line of results: nothing in it, such as a path with brackets, is taken for markup."""
    results.print(text, highlight=False, markup=False, soft_wrap=True)


def show(table: Table, found: Any) -> None:  # noqa: ANN401
    """A table; as JSON, the numbers that it was made of."""
    results.print(found if results.as_json else table)


def _plain(found: Any) -> Any:  # noqa: ANN401
    if isinstance(found, BaseModel):
        return _plain(found.model_dump(mode="json"))
    if is_dataclass(found) and not isinstance(found, type):
        return {each.name: _plain(getattr(found, each.name)) for each in fields(found)}
    if isinstance(found, dict):
        return {str(name): _plain(value) for name, value in found.items()}
    if isinstance(found, list | tuple | set):
        return [_plain(each) for each in found]
    if isinstance(found, float):
        return found if math.isfinite(found) else None
    return found if isinstance(found, str | int | bool) or found is None else str(found)


def span(seconds: float) -> str:
    """A time for people."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


@contextmanager
def bar(title: str, total: float) -> Iterator[Callable[[float], None]]:
    """Shows work of size `total`; yields the function to call with the amount done so far."""
    with _terminal_bar(title, total) if console.is_terminal else _line_bar(title, total) as update:
        yield update


@contextmanager
def _terminal_bar(title: str, total: float) -> Iterator[Callable[[float], None]]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("elapsed,"),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(title, total=total)
        yield lambda done: progress.update(task, completed=min(done, total))
        progress.update(task, completed=total)


@contextmanager
def _line_bar(title: str, total: float) -> Iterator[Callable[[float], None]]:
    started = shown = time.monotonic()
    say(f"{title} ...")

    def update(done: float) -> None:
        nonlocal shown
        now = time.monotonic()
        if now - shown < _LINE_EVERY or done <= 0:
            return
        shown = now
        left = (now - started) * max(total - done, 0) / done
        say(f"{title}: {min(done / total, 1):.0%}, about {left:.0f} s left")

    yield update
    say(f"{title}: done in {time.monotonic() - started:.0f} s")
