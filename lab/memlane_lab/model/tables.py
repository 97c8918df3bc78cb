"""The model in tables: predictions of a configuration, the model beside its rivals, predictions beside measurements."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from rich.table import Table

from memlane_lab.model import check as checking
from memlane_lab.model.check import Checked, Errors
from memlane_lab.model.configuration import Work
from memlane_lab.model.predict import Bounded, Prediction
from memlane_lab.statistics.measures import scale, significant

_TITLES = {Work.STREAM: "streams (TCP)", Work.ANSWERS: "requests and answers"}
_PLAIN: dict[str, Any] = {"box": None, "title_justify": "left", "title_style": "bold"}


def prediction(stream: Prediction, answers: Prediction | None) -> Table:
    """A prediction of a stream, and of request and response of the same size."""
    title = str(stream.asked)
    if stream.outside:
        title += f" - an extrapolation: {'; '.join(stream.outside)}"
    table = Table("", "predicted", "90 % of samples", title=title, **_PLAIN)
    table.columns[0].no_wrap = True
    for name, (unit, figure) in _figures(stream, answers):
        used = scale(unit, [figure.estimate])
        table.add_row(name, used.text(figure.estimate), f"{used.number(figure.low)} to {used.number(figure.high)}")
    return table


def _figures(stream: Prediction, answers: Prediction | None) -> Iterator[tuple[str, tuple[str, Bounded]]]:
    """Each figure: its name, its unit, its prediction."""
    yield "throughput, all pairs", ("bit/s", stream.rate.scaled(8))
    yield "CPU, all parties", ("CPU", stream.cpu)
    if stream.fairness:
        yield "fairness (Jain's index)", ("", stream.fairness)
    if answers:
        yield "response time (asking instead)", ("s", answers.response)
        yield "  requests answered, all pairs", ("1/s", answers.rate)


_FIGURES = ("rate", "cpu", "fairness")


def compared(checked: Sequence[Checked]) -> tuple[list[str], list[list[str]]]:
    """The model and its rivals: median, worst decile and rms of each figure's error; header and rows."""
    columns = {
        f"{_TITLES[work]}: {title}": [found for each in own if (found := getattr(each, figure))]
        for work in Work
        if (own := [each for each in checked if each.asked.work is work])
        for figure, title in zip(_FIGURES, ("rate", "CPU", "Jain's index"), strict=True)
    }
    columns = {title: figures for title, figures in columns.items() if figures}
    rows = [
        [name, *(_off(checking.errors(figures, name)) for figures in columns.values())]
        for name in checking.names(checked)
    ]
    return ["", *(f"{title} ({len(figures)})" for title, figures in columns.items())], rows


def errors(checked: Sequence[Checked]) -> Iterator[Table]:
    """The comparison with rivals, then the model's errors by path."""
    header, rows = compared(checked)
    table = Table(*header, title="errors: median, worst decile, root mean square of logarithms", box=None)
    for cells in rows:
        table.add_row(*cells)
    yield table
    for work in Work:
        table = Table(_TITLES[work], *ERRORS_HEADER, box=None)
        for cells in error_rows(checked, work):
            table.add_row(*cells)
        if table.row_count:
            yield table


ERRORS_HEADER = ("figure", "median, worst decile, 95th percentile", "within bounds", "samples' own spread")


def error_rows(checked: Sequence[Checked], work: Work) -> Iterator[list[str]]:
    """The rows of the model's errors by path."""
    for path, own in checking.by_path(checked, work).items():
        for name, figures in (
            ("throughput" if work is Work.STREAM else "answers a second", [each.rate for each in own]),
            ("CPU", [each.cpu for each in own]),
            ("Jain's index", [each.fairness for each in own if each.fairness]),
        ):
            if figures and (mine := checking.errors(figures)):
                off = ", ".join(map(_per_cent, (mine.median, mine.decile, mine.most)))
                bounds = map(_per_cent, (checking.covered(figures), checking.spread(figures)))
                yield [path or f"all {len(own)}", name, off, *bounds]


def _off(found: Errors | None) -> str:
    return ", ".join(map(_per_cent, (found.median, found.decile, found.rms))) if found else "-"


def _per_cent(share: float) -> str:
    return "-" if math.isnan(share) else f"{100 * share:.1f} %"


def checked(found: Sequence[Checked]) -> Table:
    """Each configuration: predicted, measured, the error."""
    table = Table(*CHECKED_HEADER, box=None)
    for each in found:
        table.add_row(*checked_row(each))
    return table


CHECKED_HEADER = (
    "held out", "predicted", "90 % of samples", "measured", "off", "CPU predicted", "measured", "off",
)  # fmt: skip


def checked_row(each: Checked) -> list[str]:
    """The cells of one configuration."""
    stream = each.asked.work is Work.STREAM
    factor, unit = (8.0, "bit/s") if stream else (1.0, "1/s")
    rate = each.rate
    used = scale(unit, [rate.middle * factor])
    bounds = rate.predicted.scaled(factor)
    return [
        str(each.asked),
        used.text(bounds.estimate),
        f"{used.number(bounds.low)} to {used.number(bounds.high)}",
        used.text(rate.middle * factor),
        _signed(rate.error),
        significant(each.cpu.predicted.estimate),
        significant(each.cpu.middle),
        _signed(each.cpu.error),
    ]


def _signed(share: float) -> str:
    return f"{100 * share:+.0f} %"


def goals_met(found: Sequence[Checked]) -> bool:
    """Whether streams' throughput and CPU are as near as they shall be, and nearer than any rival's (rms)."""
    own = [each for each in found if each.asked.work is Work.STREAM]
    for figures in ([each.rate for each in own], [each.cpu for each in own]):
        mine = checking.errors(figures)
        rivals = [told for name in checking.names(own)[1:] if (told := checking.errors(figures, name))]
        if not mine or not mine.met or any(told.rms < mine.rms for told in rivals):
            return False
    return True
