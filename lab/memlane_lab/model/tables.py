"""The model in tables: costs of stages, predictions of a configuration, predictions beside measurements."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from rich.table import Table

from memlane_lab.model import changes as changing
from memlane_lab.model import check as checking
from memlane_lab.model.changes import Change
from memlane_lab.model.check import Checked, Errors
from memlane_lab.model.configuration import Work
from memlane_lab.model.fitted import Model
from memlane_lab.model.planning import Plan
from memlane_lab.model.predict import Bounded, Prediction
from memlane_lab.statistics.measures import scale, significant

_TITLES = {Work.STREAM: "streams (TCP)", Work.ANSWERS: "requests and answers"}
_PLAIN: dict[str, Any] = {"box": None, "title_justify": "left", "title_style": "bold"}
Told = tuple[Prediction, Prediction | None]
"""The prediction of a stream, and of request and response of the same size."""


def costs(model: Model) -> Iterator[Table]:
    """Costs of a message, a byte and a wake-up for each party; a table for each path and kind of work."""
    for fitted in model.fitted:
        title = f"{fitted.path}, {_TITLES[fitted.work]}"
        table = Table("party", "a: µs a message", "b: ns a KB", "c: µs a wake-up", title=title, **_PLAIN)
        for party, cost in fitted.stages.costs.of.items():
            figures = (cost.message * 1e6, cost.byte * 1e9 * 1024, cost.wakeup * 1e6)
            if any(figures):
                table.add_row(party, *map(significant, figures))
        yield table


def prediction(plain: Told, changed: Told | None, changes: Sequence[str]) -> Table:
    """A prediction; beside it, the same after changes."""
    asked = plain[0].asked
    title = f"{asked}, {asked.placement}"
    if plain[0].outside:
        title += f" - an extrapolation: {'; '.join(plain[0].outside)}"
    table = Table("", "predicted", "90 % of samples", title=title, **_PLAIN)
    table.columns[0].no_wrap = True
    if changed:
        table.add_column(f"with {', '.join(changes)}")
        table.add_column("90 % of samples")
        table.add_column("times")
    others = dict(_figures(*changed)) if changed else {}
    for name, (unit, figure) in _figures(*plain):
        used = scale(unit, [figure.estimate])
        row = [name, used.text(figure.estimate), f"{used.number(figure.low)} to {used.number(figure.high)}"]
        if name in others:
            other = others[name][1]
            times = other.estimate / figure.estimate if figure.estimate else float("nan")
            own = scale(unit, [other.estimate])
            bounds = f"{own.number(other.low)} to {own.number(other.high)}"
            row += [own.text(other.estimate), bounds, f"{significant(times)} x"]
        table.add_row(*row)
    return table


def _figures(stream: Prediction, answers: Prediction | None) -> Iterator[tuple[str, tuple[str, Bounded]]]:
    """Each figure: its name, its unit, its prediction."""
    yield "throughput, all pairs", ("bit/s", stream.rate.scaled(8))
    yield "CPU, all parties", ("CPU", stream.cpu)
    for party, figure in stream.parties.items():
        yield f"  {party}", ("CPU", figure)
    if stream.fairness:
        yield "fairness (Jain's index)", ("", stream.fairness)
    if answers:
        yield "response time (asking instead)", ("s", answers.response)
        yield "  requests answered, all pairs", ("1/s", answers.rate)


def plan(found: Plan) -> Table:
    """The answer to a plan."""
    used = scale("bit/s", [found.each])
    title = f"{found.guests} guests, each sending {used.text(found.each)}: {'fits' if found.fits else 'does not fit'}"
    table = Table("", "", title=title, show_header=False, **_PLAIN)
    needed, most = map(significant, found.needed)
    table.add_row("CPUs needed", f"{needed} (at most {most} in 90 %)")
    table.add_row("CPUs left", significant(found.left))
    if found.fits:
        table.add_row("a message takes, 99th percentile", scale("s", [found.p99]).text(found.p99))
    else:
        table.add_row("because", found.reason)
    return table


def errors(checked: Sequence[Checked]) -> Iterator[Table]:
    """How far predictions are off, by path; beside it, the baseline."""
    for work in Work:
        table = Table(_TITLES[work], "figure", "model: median, 90 %, 95 %", "interpolation: the same", "within bounds",
                      "samples' own spread", box=None)  # fmt: skip
        for cells in error_rows(checked, work):
            table.add_row(*cells)
        if table.row_count:
            yield table


def error_rows(checked: Sequence[Checked], work: Work) -> Iterator[list[str]]:
    """The rows of that table."""
    for path, own in checking.by_path(checked, work).items():
        for name, figures in (
            ("throughput" if work is Work.STREAM else "answers a second", [each.rate for each in own]),
            ("CPU", [each.cpu for each in own]),
            ("Jain's index", [each.fairness for each in own if each.fairness]),
        ):
            if figures:
                mine, theirs = checking.errors(figures)
                first = path or f"all {len(own)}"
                yield [first, name, _off(mine), _off(theirs), _per_cent(mine.covered), _per_cent(mine.spread)]


def _off(found: Errors) -> str:
    return ", ".join(map(_per_cent, (found.median, found.decile, found.most)))


def _per_cent(share: float) -> str:
    return "-" if math.isnan(share) else f"{100 * share:.1f} %"


def checked(found: Sequence[Checked]) -> Table:
    """Each configuration: predicted, measured, the error; and the error of interpolation."""
    table = Table(*CHECKED_HEADER, box=None)
    for each in found:
        table.add_row(*checked_row(each))
    return table


CHECKED_HEADER = (
    "held out", "predicted", "90 % of samples", "measured", "off", "interpolated", "CPU predicted", "measured", "off",
)  # fmt: skip


def checked_row(each: Checked) -> list[str]:
    """The cells of one configuration."""
    stream = each.asked.work is Work.STREAM
    factor, unit = (8.0, "bit/s") if stream else (1.0, "1/s")
    rate = each.rate
    used = scale(unit, [rate.middle * factor])
    bounds = rate.predicted.scaled(factor)
    return [
        f"{each.asked}, {each.asked.placement}",
        used.text(bounds.estimate),
        f"{used.number(bounds.low)} to {used.number(bounds.high)}",
        used.text(rate.middle * factor),
        _signed(rate.error),
        _signed(rate.baseline_error),
        significant(each.cpu.predicted.estimate),
        significant(each.cpu.middle),
        _signed(each.cpu.error),
    ]


def _signed(share: float) -> str:
    return f"{100 * share:+.0f} %"


def changes(found: Sequence[Change]) -> Table:
    """Each change: the predicted ratio, the measured one, the error, and whether the bounds meet."""
    met = sum(each.met for each in found)
    goal = f"{100 * changing.GOAL:.0f} %"
    table = Table("configuration", "change", "predicted", "90 %", "measured", "off", f"within {goal}", "bounds meet",
                  title=f"{met} of {len(found)} changes are predicted to {goal}", **_PLAIN)  # fmt: skip
    for each in found:
        told, seen = each.predicted, each.measured
        bounds = f" ({significant(seen.bounds[0])} to {significant(seen.bounds[1])})" if seen.bounds else ""
        table.add_row(
            str(each.asked),
            each.change,
            f"{significant(told.estimate)} x",
            f"{significant(told.low)} to {significant(told.high)}",
            f"{significant(seen.estimate)} x{bounds}, n = {each.rounds}",
            _signed(each.error),
            "yes" if each.met else "no",
            "yes" if each.held else "no",
        )
    return table


def goals_met(found: Sequence[Checked]) -> bool:
    """Whether streams' throughput and CPU are as near as they shall be, and nearer than by interpolation."""
    own = [each for each in found if each.asked.work is Work.STREAM]
    both = [checking.errors([each.rate for each in own]), checking.errors([each.cpu for each in own])]
    return all(mine.met and mine.median < theirs.median for mine, theirs in both)
