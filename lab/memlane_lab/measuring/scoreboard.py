"""The display of a run: its progress, the time left, and the results so far."""

import statistics
import time
from types import TracebackType

from rich.console import Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from memlane_lab.common.counted import counted
from memlane_lab.common.progress import console, say, span
from memlane_lab.experiment.experiment import measure
from memlane_lab.results.results import ExperimentResult, Sample
from memlane_lab.statistics.measures import scale

_ROWS = 30
"""Of the live table at most, so that it fits a terminal."""


class Scoreboard:
    """A bar and a live table on a terminal; a line for each sample elsewhere."""

    def __init__(self, seconds: float) -> None:
        """`seconds`: the first estimate of the whole run."""
        self._estimate, self._began = seconds, time.monotonic()
        self._planned = self._taken = 0
        self._past, self._share = 0.0, 0.0
        self._result: ExperimentResult | None = None
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, TextColumn("{task.fields[left]}"), console=console)
        self._task = self._progress.add_task("", total=seconds, left="")
        self._live = Live(console=console, get_renderable=self._render, refresh_per_second=2, transient=True)

    def __enter__(self) -> "Scoreboard":
        if console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if console.is_terminal:
            self._live.stop()

    def begin(self, result: ExperimentResult, seconds: float, samples: int) -> None:
        """An experiment begins that is to take so many seconds in all, with so many samples still to be taken."""
        asked = result.experiment
        self._result, self._taken, self._share = result, 0, seconds
        self._planned = samples
        say(f"{asked.name}: {asked.question} {counted(samples, 'sample')} of {asked.warm_up} + {asked.seconds} s")

    def next(self, variant: str) -> None:
        """A sample begins."""
        assert self._result is not None
        self._progress.update(self._task, description=f"{self._result.experiment.name}: {variant}")

    def add(self, result: ExperimentResult, sample: Sample) -> None:
        """A sample has been taken."""
        self._result = result
        self._taken += 1
        left = self._left()
        done = self._past + self._share * min(1.0, self._taken / max(self._planned, 1))
        self._progress.update(self._task, completed=done, left=f"about {span(left)} left")
        if sample.error or not console.is_terminal:
            say(f"  {self._taken}/{self._planned} {sample.variant}: {_told(result, sample)}; about {span(left)} left")

    def end(self) -> None:
        """The experiment has ended."""
        self._past += self._share
        if self._result and console.is_terminal:
            console.print(_table(self._result))

    def _left(self) -> float:
        """Seconds, by the pace so far."""
        done = self._past + self._share * min(1.0, self._taken / max(self._planned, 1))
        pace = (time.monotonic() - self._began) / max(done, 1e-9)
        return max(self._estimate - done, 0.0) * pace

    def _render(self) -> Group:
        return Group(*([_table(self._result)] if self._result else []), self._progress)


def _told(result: ExperimentResult, sample: Sample) -> str:
    if sample.error:
        return f"FAILED: {sample.error}"
    names = [name for name in result.experiment.measures if name in sample.values]
    return ", ".join(f"{name} {_text(name, sample.values[name])}" for name in names)


def _text(name: str, value: float) -> str:
    return scale(measure(name).unit, [value]).text(value)


def _table(result: ExperimentResult) -> Table:
    """Medians so far."""
    table = Table("variant", "samples", *result.experiment.measures, title=result.experiment.title)
    for variant in result.variants[:_ROWS]:
        samples = [sample for sample in result.good if sample.variant == variant.name]
        cells = [_median(samples, name) for name in result.experiment.measures]
        table.add_row(variant.name, str(len(samples)), *cells)
    return table


def _median(samples: list[Sample], name: str) -> str:
    values = [sample.values[name] for sample in samples if name in sample.values]
    return _text(name, statistics.median(values)) if values else ""
