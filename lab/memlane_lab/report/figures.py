"""The plots of docs/explanation/performance.md and of published pages: bars with intervals as SVG, from the samples."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape

from memlane_lab.experiment.experiment import measure
from memlane_lab.report import shown
from memlane_lab.report.plots import coloured
from memlane_lab.report.shown import Runs
from memlane_lab.results import summary
from memlane_lab.results.results import ExperimentResult
from memlane_lab.statistics.measures import scale, significant
from memlane_lab.statistics.stats import Interval

_WIDTH, _LEFT, _RIGHT, _TOP = 480, 10, 150, 50
_BAR, _GAP, _LINE = 18, 10, 16
_LETTERS = 16
"""Of a label in the legend."""


@dataclass(frozen=True)
class Plot:
    """One plot, of the newest published run of one experiment."""

    file: str
    title: str
    experiment: str
    measures: Sequence[str]
    groups: Sequence[str]
    """Names of the rows that are shown; with several measures, of one row."""


_TCP = [f"TCP, {size} writes, {cpus}" for size in ("1 MB", "128 KB") for cpus in ("free", "one CPU")]
PLOTS = [
    Plot("throughput", "TCP throughput (more is better)", "fair_baselines", ["throughput"], _TCP),
    Plot("cpu", "CPU time of all parties for each GB (less is better)", "fair_baselines", ["cpu_per_gb"], _TCP),
    Plot("round-trip", "Request and answer, median (less is better)", "fair_baselines", ["rtt_p50"],
         ["request and answer, free", "request and answer, one CPU"]),
    Plot("fairness", "Eight senders to one receiver: Jain's index (1 is fair)", "is_it_fair", ["fairness_1s"],
         ["datagrams of 500 to 8 K", "TCP, writes of 1 K to 1 M"]),
]  # fmt: skip


@dataclass(frozen=True)
class _Bar:
    group: str
    path: str
    interval: Interval


_MOST = 8
"""Groups of a page's picture."""
_PER_LINE = 4
"""Labels that a line of the legend has room for."""


def picture(result: ExperimentResult) -> str | None:
    """The first measure of an experiment, of its first groups; None where there is nothing to be drawn."""
    for name in result.experiment.measures:
        values = [cell.interval.estimate for row in summary.rows(result, name) for cell in row.cells.values()
                  if cell.interval]  # fmt: skip
        if values and min(values) >= 0 < max(values):
            groups = [row.name for row in summary.rows(result, name)][:_MOST]
            return draw(Plot("", measure(name).title, result.experiment.name, [name], groups), result)
    return None


def draw(plot: Plot, result: ExperimentResult, source: str = "") -> str:
    """The plot's SVG; `source` stands below it."""
    raw = list(_bars(plot, result))
    used = scale(measure(plot.measures[0]).unit, [bar.interval.estimate for bar in raw])
    bars = [replace(bar, interval=bar.interval.scaled(1 / used.factor)) for bar in raw]
    headline = f"{plot.title}, {used.unit}" if used.unit else plot.title
    most = _scales(bars, each_group=len(plot.measures) > 1)
    drawn_paths = {bar.path for bar in bars}
    colours = {path: colour for path, colour in coloured(summary.labels(result.experiment)) if path in drawn_paths}
    lines: list[str] = []
    height = _TOP + _LINE * ((len(colours) - 1) // _PER_LINE)
    before = ""
    for bar in bars:
        if bar.group != before:
            height += _GAP + _BAR
            lines.append(_text(_LEFT, height - 5, bar.group))
            before = bar.group
        lines += _drawn(bar, height, most[bar.group], colours[bar.path])
        height += _BAR
    if source:
        height += _GAP + _LINE
        lines.append(_text(_LEFT, height - 5, source, size=11))
    legend = [_legend(number, path, colour) for number, (path, colour) in enumerate(colours.items())]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height + _GAP}" role="img" '
        f'font-family="system-ui, sans-serif" font-size="13">'
    )
    ground = f'<rect width="{_WIDTH}" height="{height + _GAP}" fill="#fff"/>'
    title = [f"<title>{escape(headline)}</title>", _text(10, 22, headline, size=15)]
    return "\n".join([head, ground, *title, *legend, *lines, "</svg>\n"])


def _scales(bars: Sequence[_Bar], *, each_group: bool) -> dict[str, float]:
    """The value at the right end, by group: one for all, unless they are of different measures."""
    most = {each.group: max(_top(bar) for bar in bars if bar.group == each.group) for each in bars}
    return most if each_group else dict.fromkeys(most, max(most.values()))


def _top(bar: _Bar) -> float:
    return bar.interval.high or bar.interval.estimate


def _bars(plot: Plot, result: ExperimentResult) -> Iterator[_Bar]:
    for name in plot.measures:
        rows = {row.name: row for row in summary.rows(result, name)}
        asked = measure(name)
        for group in plot.groups:
            cells = {path: cell.interval for path, cell in rows[group].cells.items() if cell.interval}
            shown = group if len(plot.measures) == 1 else asked.title
            yield from (_Bar(shown, path, interval) for path, interval in cells.items())


def _drawn(bar: _Bar, top: float, most: float, colour: str) -> Iterator[str]:
    def across(value: float) -> float:
        return _LEFT + value / most * (_WIDTH - _LEFT - _RIGHT)

    end, middle = across(bar.interval.estimate), top + (_BAR - 2) / 2
    yield f'<rect x="{_LEFT}" y="{top}" width="{end - _LEFT:.1f}" height="{_BAR - 2}" fill="{colour}"/>'
    told, right = significant(bar.interval.estimate, 3), end
    if bar.interval.bounds:
        low, high = map(across, bar.interval.bounds)
        yield f'<path d="M{low:.1f} {middle}H{high:.1f}M{low:.1f} {top + 3}V{top + _BAR - 5}M{high:.1f} {top + 3}V{top + _BAR - 5}" stroke="#222"/>'  # noqa: E501
        told += f" ({' to '.join(significant(bound, 3) for bound in bar.interval.bounds)})"
        right = max(end, high)
    yield _text(right + 6, middle + 5, told, size=12)


def _legend(number: int, path: str, colour: str) -> str:
    left, down = 10 + 115 * (number % _PER_LINE), 36 + _LINE * (number // _PER_LINE)
    box = f'<rect x="{left}" y="{down}" width="12" height="12" fill="{colour}"/>'
    return box + _text(left + 18, down + 11, path if len(path) <= _LETTERS else f"{path[: _LETTERS - 1]}…", size=12)


def _text(across: float, down: float, told: str, *, size: int = 13) -> str:
    place = f'x="{across:.1f}" y="{down:.1f}" font-size="{size}"'
    return f'<text {place} fill="#222">{escape(told)}</text>'


def commits(runs: Runs) -> dict[str, list[str]]:
    """Commits of the plots' runs, with the runs of each."""
    told: dict[str, list[str]] = {}
    for run, record, _ in filter(None, (shown.newest_of(runs, plot.experiment) for plot in PLOTS)):
        names = told.setdefault(str(record.machine.get("commit", "unknown")), [])
        if run not in names:
            names.append(run)
    return told


def drawn(runs: Runs) -> dict[str, str]:
    """All plots by their files' names, each of the newest run of its experiment; those without a run are left out."""
    told = {}
    for plot in PLOTS:
        if found := shown.newest_of(runs, plot.experiment):
            run, record, result = found
            commit = record.machine.get("commit", "unknown")
            told[f"performance-{plot.file}.svg"] = draw(plot, result, f"{run}, commit {commit}")
    return told
