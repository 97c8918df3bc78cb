"""The lead of a report: one sentence and one picture where two paths are compared; faults of the measurement."""

import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from memlane_lab.common.counted import counted
from memlane_lab.experiment.experiment import measure
from memlane_lab.report import plots
from memlane_lab.results import summary
from memlane_lab.results.results import ExperimentResult, RunRecord
from memlane_lab.results.summary import Row
from memlane_lab.statistics.measures import Better, scale, significant

_QUIET = 0.3
"""CPUs that other work may take on a machine that is called quiet."""


@dataclass(frozen=True)
class Bar:
    """One path's figure."""

    label: str
    text: str
    percent: float
    """Of the longest bar beside it."""
    colour: str


@dataclass(frozen=True)
class Comparison:
    """One kind of work on both paths."""

    title: str
    bars: list[Bar]


@dataclass(frozen=True)
class Lead:
    """The picture, and its sentence."""

    sentence: str
    comparisons: list[Comparison]


def of(result: ExperimentResult) -> Lead | None:
    """The beginning of a report of one experiment that compares two paths; None where it is another, or has failed."""
    pairs = summary.pairs(result.experiment)
    if len(pairs) != 1 or result.experiment.expect:
        return None
    rows = list(_chosen(result, pairs[0]))
    if not rows:
        return None
    other, base = pairs[0]
    told = [f"{_ratio(row, pairs[0])} the {_noun(row)} ({row.name})" for row in rows]
    listed = " and ".join(filter(None, [", ".join(told[:-1]), told[-1]]))
    count = len({sample.round for sample in result.good})
    sentence = f"Between two {result.guest} guests of this machine, {other} has, beside {base}: {listed}. "
    sentence += f"Medians of {counted(count, 'sample')} of {result.experiment.seconds:g} s."
    return Lead(sentence, [_comparison(row, pairs[0]) for row in rows])


def _chosen(result: ExperimentResult, pair: tuple[str, str]) -> Iterator[Row]:
    """Of each kind of work the first measure that both paths have."""
    seen = set()
    for name in result.experiment.measures:
        for row in summary.rows(result, name):
            if row.name not in seen and (found := row.contrasts.get(pair)) and found.ratio:
                seen.add(row.name)
                yield row


def _ratio(row: Row, pair: tuple[str, str]) -> str:
    ratio = row.contrasts[pair].ratio
    assert ratio is not None
    return f"{significant(ratio.estimate, 2)} times"


def _noun(row: Row) -> str:
    """The measure within a sentence: "median round trip" of "round trip, median"."""
    return " ".join(reversed(measure(row.measure).title.split(", ")))


def _comparison(row: Row, pair: tuple[str, str]) -> Comparison:
    found = measure(row.measure)
    colours = dict(plots.coloured(list(pair)))
    values = {label: cell.interval.estimate for label in pair if (cell := row.cells[label]).interval}
    used, most = scale(found.unit, list(values.values())), max(values.values()) or 1.0
    bars = [Bar(label, used.text(value), 100 * value / most, colours[label]) for label, value in values.items()]
    better = {Better.MORE: ", more is better", Better.LESS: ", less is better", Better.NEITHER: ""}[found.better]
    return Comparison(f"{row.name}: {found.title}{better}", bars[::-1])


def others(result: ExperimentResult) -> list[float]:
    """CPUs that other work took: the median over samples, and the most; nothing where that is not known."""
    found = [sample.values["others"] for sample in result.good if "others" in sample.values]
    return [statistics.median(found), max(found)] if found else []


def spoiled(result: ExperimentResult, record: RunRecord | None = None) -> str:
    """The fault that makes the figures worthless, as a sentence with the remedy; empty without one."""
    taken = [(others(result)[:1] or [0.0])[0], _stolen(result)]
    if max(taken) <= _QUIET:
        return ""
    cpus = (record.machine if record else {}).get("cpus")
    whole = f" of this machine's {cpus}" if cpus else ""
    if taken[0] >= taken[1]:
        what, remedy = f"other programs took {significant(taken[0], 2)}{whole} CPUs", "stop them"
    else:
        what, remedy = (
            f"the host below took {significant(taken[1], 2)}{whole} CPUs",
            "take a machine that is not shared",
        )
    return (
        f"The machine was not quiet: {what} while this was measured. The figures are no measure of anything but how "
        f"much that spoils; {remedy}, and run it again."
    )


def _stolen(result: ExperimentResult) -> float:
    found = [sample.values["steal"] for sample in result.good if "steal" in sample.values]
    return statistics.median(found) if found else 0.0
