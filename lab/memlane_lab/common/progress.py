"""How long work is seen: a bar with the time left on a terminal, a line now and then elsewhere."""

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Annotated, Any

import typer
from pydantic import BaseModel
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

console = Console(stderr=True)
"""Where progress and messages go."""
results = Console()
"""Where results go: standard output."""

_LINE_EVERY = 10.0
"""Seconds between progress lines where there is no terminal."""


def say(text: str) -> None:
    """One line to the operator."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def tell(text: str) -> None:
    """One line of results: nothing in it, such as a path with brackets, is taken for markup."""
    results.print(text, highlight=False, markup=False, soft_wrap=True)


def tell_json(found: Any) -> None:  # noqa: ANN401
    """A result as JSON: dataclasses, models, and lists of them; infinite numbers are null."""
    results.print(json.dumps(_plain(found), indent=1), highlight=False, markup=False, soft_wrap=True)


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


JsonOption = Annotated[bool, typer.Option("--json", help="print JSON instead of tables")]


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
