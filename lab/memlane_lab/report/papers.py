"""Figures for papers: SVG and PDF as wide as a column, from all rounds.

    DIR/EXPERIMENT-MEASURE.svg, .pdf           each sample as a dot, the median as a line, its interval if there is one
    DIR/EXPERIMENT-MEASURE-over-DIMENSION...   the same over a dimension of numbers, such as a rate
    DIR/EXPERIMENT-times-GROUP...              the distribution of round trips, all rounds added up
    DIR/EXPERIMENT-course-GROUP...             the rate of all flows over time, of the sample in the middle

A figure has one group of at most eight series; a median of fewer than six samples has no error bar.

Drawn by matplotlib, which only `memlane-lab[papers]` installs, beside plotly for reports: plotly writes a PDF by a
browser alone, and matplotlib no page that a reader can zoom into.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from memlane_lab.common.errors import LabError
from memlane_lab.experiment.experiment import measure
from memlane_lab.experiment.labels import Labels, words
from memlane_lab.report.plots import coloured
from memlane_lab.results import summary
from memlane_lab.results.results import ExperimentResult, Sample
from memlane_lab.results.summary import Row
from memlane_lab.statistics.latencies import Latencies
from memlane_lab.statistics.measures import THROUGHPUT, Scale, scale

WIDTH = 3.33
"""Inches of a column of ACM's and IEEE's templates."""
_STYLE = {
    "font.size": 7, "axes.titlesize": 7, "axes.linewidth": 0.5, "lines.linewidth": 0.8, "legend.frameon": False,
    "svg.fonttype": "none", "pdf.fonttype": 42, "svg.hashsalt": "memlane-lab", "axes.spines.top": False,
    "axes.spines.right": False, "legend.fontsize": 6,
}  # fmt: skip
_MOST = 8
"""Series of a figure."""
_ENDINGS = (".svg", ".pdf")


def write(found: Sequence[ExperimentResult], folder: Path) -> list[Path]:
    """Draws all figures of a run into the folder; returns their files."""
    try:
        import matplotlib
    except ImportError as error:
        raise LabError("figures for papers need matplotlib: pip install 'memlane-lab[papers]'") from error
    matplotlib.use("agg")
    folder.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    with matplotlib.rc_context(_STYLE):
        for result in found:
            for name, figure in _figures(result):
                stem = re.sub(r"[^a-z0-9]+", "-", f"{result.experiment.name}-{name}".lower()).strip("-")
                files += _saved(figure, folder / stem)
    return files


def _saved(figure: Any, stem: Path) -> Iterator[Path]:  # noqa: ANN401
    import matplotlib.pyplot as pyplot

    for ending in _ENDINGS:
        path = stem.with_name(stem.name + ending)
        dated = {"Date": None} if ending == ".svg" else {"CreationDate": None}
        figure.savefig(path, bbox_inches="tight", metadata=dated)
        yield path
    pyplot.close(figure)


def _figures(result: ExperimentResult) -> Iterator[tuple[str, Any]]:
    over = _numbers(result)
    for name in result.experiment.measures:
        rows = list(summary.rows(result, name))
        if rows and over:
            for group, members in _apart(rows, over).items():
                yield f"{name}-over-{over}-{group}", _curve(result, members, over)
        elif rows:
            yield name, _dots(result, rows)
    for group, latencies in _times(result).items():
        for more, part in _parts(latencies):
            yield f"times-{group}{more}", _distribution(result, group, part)
    for group, courses in _courses(result).items():
        for more, own in _parts(courses):
            yield f"course-{group}{more}", _course(result, group, own)


_Series = TypeVar("_Series")


def _parts(series: dict[str, _Series]) -> Iterator[tuple[str, dict[str, _Series]]]:
    """As many as fit a figure at a time, and the end of its name where there are several."""
    for at in range(0, len(series), _MOST):
        more = f"-{at // _MOST + 1}" if len(series) > _MOST else ""
        yield more, dict(list(series.items())[at : at + _MOST])


def _numbers(result: ExperimentResult) -> str:
    """The dimension of three numbers or more that is not compared; empty without one."""
    for name, labels in result.experiment.dimensions().items():
        if name != result.experiment.compare and len(labels) > 2 and all(map(_is_number, labels)):
            return name
    return ""


def _is_number(label: str) -> bool:
    return re.fullmatch(r"[\d.]+", label) is not None


def _apart(rows: Sequence[Row], over: str) -> dict[str, list[Row]]:
    """The rows by their group without the dimension that is drawn across."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(words(row.group, but=over), []).append(row)
    return found


def _new(height: float) -> tuple[Any, Any]:
    import matplotlib.pyplot as pyplot

    figure, axes = pyplot.subplots(figsize=(WIDTH, height), layout="constrained")
    return figure, axes


def _scale(rows: Sequence[Row]) -> Scale:
    values = [cell.interval.estimate for row in rows for cell in row.cells.values() if cell.interval]
    return scale(measure(rows[0].measure).unit, values)


def _title(name: str, used: Scale) -> str:
    found = measure(name)
    return f"{found.title} [{used.unit}]" if used.unit else found.title


def _dots(result: ExperimentResult, rows: Sequence[Row]) -> Any:  # noqa: ANN401
    """Groups down, labels in colours; samples as dots."""
    colours = coloured(summary.labels(result.experiment))
    lines = sum(len(row.cells) for row in rows)
    figure, axes = _new(0.55 + 0.16 * (lines + len(rows)))
    used, at, marks, named = _scale(rows), 0.0, [], set()
    for row in rows:
        top = at
        for label, colour in colours:
            cell = row.cells[label]
            if cell.interval:
                shown = label if label not in named else None
                named.add(label)
                values = [value / used.factor for value in cell.values]
                _mark(axes, values, cell.interval.scaled(1 / used.factor), at, colour, shown)
            at += 1
        marks.append(((top + at - 1) / 2, row.name))
        at += 0.8
    axes.set_yticks([place for place, _ in marks], [name for _, name in marks])
    axes.invert_yaxis()
    axes.set_xlabel(_title(rows[0].measure, used))
    axes.set_xlim(left=0)
    if any(label for label, _ in colours):
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, borderaxespad=0)
    return figure


def _mark(axes: Any, values: Sequence[float], interval: Any, at: float, colour: str, label: str | None) -> None:  # noqa: ANN401
    """The samples of a variant, their median, and its interval if there is one."""
    axes.plot(values, [at] * len(values), ".", color=colour, alpha=0.5, markersize=3, markeredgewidth=0)
    axes.plot([interval.estimate], [at], "|", color=colour, markersize=7, label=label)
    if interval.bounds and interval.low != interval.high:
        axes.plot(interval.bounds, [at, at], "-", color=colour)


def _curve(result: ExperimentResult, rows: Sequence[Row], over: str) -> Any:  # noqa: ANN401
    """Medians over a dimension of numbers, samples as dots, intervals as bars."""
    figure, axes = _new(2.0)
    used = _scale(rows)
    for label, colour in coloured(summary.labels(result.experiment)):
        points = []
        for row in rows:
            cell, at = row.cells[label], float(row.group[over])
            if cell.interval:
                own = cell.interval.scaled(1 / used.factor)
                points.append((at, own.estimate))
                axes.plot([at] * len(cell.values), [value / used.factor for value in cell.values], ".", color=colour,
                          alpha=0.4, markersize=3, markeredgewidth=0)  # fmt: skip
                if own.bounds and own.low != own.high:
                    axes.plot([at, at], own.bounds, "-", color=colour)
        if points:
            axes.plot(*zip(*sorted(points), strict=True), "-", color=colour, label=label or None)
    axes.set_xlabel(over.replace("_", " "))
    axes.set_ylabel(_title(rows[0].measure, used))
    numbers = sorted({float(row.group[over]) for row in rows})
    if numbers[0] > 0 and numbers[-1] / numbers[0] > 10:
        axes.set_xscale("log")
    axes.legend()
    return figure


def _times(result: ExperimentResult) -> dict[str, dict[str, Latencies]]:
    """By group, by label: the round trips of all rounds together."""
    found: dict[str, dict[str, Latencies]] = {}
    for labels in (each.labels for each in result.variants):
        told = [flow.latencies for sample in _of(result, labels) for flow in sample.flows if flow.latencies]
        if told:
            group = words(labels, but=result.experiment.compare) or "all"
            found.setdefault(group, {})[labels.get(result.experiment.compare, "")] = Latencies.added(told)
    return found


_A_SECOND = 4
"""Points of a course."""


def _courses(result: ExperimentResult) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """By group, by label: the rate of all flows together over time, of the sample in the middle."""
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for labels in (each.labels for each in result.variants):
        sample = summary.typical(result, labels, THROUGHPUT.name)
        rates: dict[float, float] = {}
        for end, rate in (point for flow in (sample.flows if sample else ()) for point in flow.series):
            at = round(end * _A_SECOND) / _A_SECOND
            rates[at] = rates.get(at, 0.0) + rate
        if rates:
            group = words(labels, but=result.experiment.compare) or "all"
            found.setdefault(group, {})[labels.get(result.experiment.compare, "")] = sorted(rates.items())
    return found


def _course(result: ExperimentResult, group: str, courses: dict[str, list[tuple[float, float]]]) -> Any:  # noqa: ANN401
    figure, axes = _new(2.0)
    colours = dict(coloured(summary.labels(result.experiment)))
    used = scale(THROUGHPUT.unit, [rate for points in courses.values() for _, rate in points])
    for label, points in courses.items():
        ends, rates = zip(*points, strict=True)
        axes.plot(ends, [rate / used.factor for rate in rates], "-", color=colours[label], label=label or None)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("s")
    axes.set_ylabel(_title(THROUGHPUT.name, used))
    axes.set_title(group)
    axes.legend()
    return figure


def _of(result: ExperimentResult, labels: Labels) -> list[Sample]:
    return [sample for sample in result.good if sample.labels == labels]


def _distribution(result: ExperimentResult, group: str, series: dict[str, Latencies]) -> Any:  # noqa: ANN401
    """The share of round trips that take no longer."""
    figure, axes = _new(2.0)
    colours = dict(coloured(summary.labels(result.experiment)))
    for label, latencies in series.items():
        shares = [number / 200 for number in range(200)] + [0.999, 1.0]
        times = [seconds * 1e6 for seconds in latencies.percentiles(shares)]
        axes.step(times, shares, where="post", color=colours[label], label=f"{label} ({latencies.count})")
    axes.set_xscale("log")
    axes.set_xlabel("µs")
    axes.set_ylabel("share not longer")
    axes.set_title(group)
    axes.legend()
    return figure
