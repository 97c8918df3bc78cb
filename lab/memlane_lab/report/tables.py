"""Tables: summaries in words, in units of one size if that suits all rows."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from rich.table import Table

from memlane_lab.common.counted import counted
from memlane_lab.experiment.experiment import PaperFigure, measure
from memlane_lab.experiment.labels import words
from memlane_lab.meters import placement
from memlane_lab.results import summary
from memlane_lab.results import together as together_
from memlane_lab.results.agreement import Both, Headline
from memlane_lab.results.levels import Spread
from memlane_lab.results.results import ExperimentResult
from memlane_lab.results.summary import AtBest, Cell, Contrast, Row, Sensitivity, Verdict
from memlane_lab.statistics import stats
from memlane_lab.statistics.levels import repetitions
from memlane_lab.statistics.measures import Measure, Scale, scale, significant
from memlane_lab.statistics.stats import Interval

_WIDE = 100
"""Times the smallest that the largest median is when each row of a table has its own unit."""


@dataclass(frozen=True)
class Text:
    """A cell of a table: its main word, and the small print beside or below it."""

    main: str
    beside: str = ""
    below: list[str] = field(default_factory=list)

    @property
    def small(self) -> str:
        """The small print, in one line."""
        return "; ".join(filter(None, (self.beside, *self.below)))

    @property
    def line(self) -> str:
        """All of it in one line."""
        return f"{self.main} ({self.small})" if self.small else self.main


@dataclass(frozen=True)
class Breakdown:
    """A plain table: parts down, variants across, or the other way round."""

    title: str
    header: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class MeasureTable:
    """One measure of an experiment: groups down, compared labels across, then the ratios to the baseline."""

    measure: Measure
    unit: str
    dimensions: list[str]
    labels: list[str]
    ratios: list[str]
    rows: list[tuple[list[str], list[Text], list[Text]]]
    """For each: the group's labels, its cells, its ratios."""


def of_measure(result: ExperimentResult, name: str) -> MeasureTable | None:
    """The table of one measure, or None if no variant has it."""
    rows = list(summary.rows(result, name))
    if not rows:
        return None
    asked = result.experiment
    values = [value for row in rows for value in _medians(row)]
    wide = max(values, key=abs) > _WIDE * min(values, key=abs)
    shared = scale(measure(name).unit, values)
    labels = summary.labels(asked)
    ratios = [pair for pair in summary.pairs(asked) if any(pair in row.contrasts for row in rows)]
    return MeasureTable(
        measure=measure(name),
        unit="" if wide else shared.unit,
        dimensions=[dimension for dimension in asked.vary if dimension != asked.compare],
        labels=labels,
        ratios=[f"{label} / {base}" for label, base in ratios],
        rows=[
            (list(row.group.values()), _cells(row, labels, None if wide else shared), _ratios(row, ratios))
            for row in rows
        ],
    )


def _medians(row: Row) -> list[float]:
    return [cell.interval.estimate for cell in row.cells.values() if cell.interval]


def _cells(row: Row, labels: list[str], shared: Scale | None) -> list[Text]:
    """In the shared unit, which stands above the table, or else each with the row's own."""
    used = shared or scale(measure(row.measure).unit, _medians(row))
    return [_cell(row.cells[label], used, "" if shared else used.unit) for label in labels]


def _cell(cell: Cell, used: Scale, unit: str) -> Text:
    below = [f"source: {paper(figure)}" for figure in cell.paper]
    if cell.failed:
        below.append(f"{cell.failed} failed")
    if cell.interval is None:
        return Text("missing" if cell.reason else "-", below=below)
    return Text(
        f"{used.number(cell.interval.estimate)} {unit}".rstrip(),
        ", ".join((*_bounds(cell.interval, used), f"n = {len(cell.values)}")),
        below,
    )


def _ratios(row: Row, pairs: list[tuple[str, str]]) -> list[Text]:
    return [_ratio(row.contrasts.get(pair)) for pair in pairs]


def _ratio(contrast: Contrast | None) -> Text:
    """A ratio with its interval and the placement it was seen in."""
    if contrast is None or contrast.ratio is None:
        return Text("-")
    below = [f"source: {significant(contrast.paper)} x"] if contrast.paper else []
    beside = (*_bounds(contrast.ratio, Scale(1, "")), f"n = {contrast.rounds}")
    if seen := contrast.one_placement:
        below.append(f"{seen.placement} only: {_sensitivity(seen)}")
    return Text(f"{significant(contrast.ratio.estimate)} x", ", ".join(beside), below)


def _sensitivity(seen: Sensitivity) -> str:
    """The figure by the rounds of one placement alone."""
    if seen.found is None:
        return "-"
    beside = ", ".join((*_bounds(seen.found, Scale(1, "")), f"n = {seen.rounds}"))
    return f"{significant(seen.found.estimate)} x ({beside})"


def _bounds(interval: Interval, used: Scale) -> list[str]:
    """The interval in words, where there is one."""
    if interval.bounds is None or interval.low == interval.high:
        return []
    return [f"{used.number(interval.bounds[0])} to {used.number(interval.bounds[1])}"]


def paper(figure: PaperFigure) -> str:
    """A source's figure with its unit, and the quantity that it measures."""
    value = scale(measure(figure.measure).unit, [figure.value]).text(figure.value)
    return f"{value} ({figure.what})" if figure.what else value


def at_best(result: ExperimentResult, name: str) -> Breakdown | None:
    """A measure of each compared label where it is best; None where the experiment asks for no such table."""
    found = list(summary.at_best(result, name))
    if not found:
        return None
    used = scale(measure(name).unit, [cell.interval.estimate for each in found for cell in each.cells.values()
                                      if cell.interval])  # fmt: skip
    compared, ratios = summary.labels(result.experiment), summary.pairs(result.experiment)
    rows = [
        [
            words(each.group) or "all",
            *(_at(each, label, used) for label in compared),
            *(_ratio(each.contrasts.get(pair)).line for pair in ratios),
        ]
        for each in found
    ]
    over = result.experiment.best_over.replace("_", " ")
    title = f"{measure(name).title}: each at the best of {over}, which stands behind it"
    return Breakdown(title, ["", *compared, *(f"{label} / {base}" for label, base in ratios)], rows)


def _at(best: AtBest, label: str, used: Scale) -> str:
    """A label's figure where it is best, and where that is."""
    if label not in best.cells:
        return "-"
    return f"{_cell(best.cells[label], used, used.unit).line}, {best.chosen[label]}"


def together(judged: Sequence[tuple[ExperimentResult, Sequence[Verdict]]]) -> list[list[str]]:
    """Primary ratios by all samples together, each with p corrected for their number."""
    found = [
        (result, verdict, effect)
        for result, verdicts in judged
        for verdict in verdicts
        if verdict.primary and (effect := together_.effect(result, verdict))
    ]
    corrected = stats.holm([effect.probability for _, _, effect in found])
    return [
        [
            f"{result.experiment.title}: {verdict.what}",
            measure(verdict.claim.expectation.measure).title,
            verdict.versus,
            f"**{significant(effect.ratio.estimate)} x** ({', '.join(_bounds(effect.ratio, Scale(1, '')))}, "
            f"{counted(effect.rounds, 'round')}, p = {effect.probability:.2g}, corrected {p:.2g})",
        ]
        for (result, verdict, effect), p in zip(found, corrected, strict=True)
    ]


def by_placement(result: ExperimentResult, name: str) -> Breakdown | None:
    """A measure of each variant, samples of near and far placement told apart; None where there is one of them only."""
    have = [sample for sample in result.good if name in sample.values]
    places = sorted({sample.placement for sample in have} - {placement.MOVED, placement.UNKNOWN})
    if len(places) < 2:
        return None
    used = scale(measure(name).unit, [sample.values[name] for sample in have])
    rows = []
    for variant in result.variants:
        own = {
            place: [s.values[name] for s in have if (s.variant, s.placement) == (variant.name, place)]
            for place in places
        }
        rows.append([variant.name, *(_middle(values, used) for values in own.values())])
    return Breakdown(f"{measure(name).title}, by how far the CPUs were apart, {used.unit}", ["variant", *places], rows)


def drops(result: ExperimentResult) -> Breakdown | None:
    """The drops of each variant by reason; None where there are none."""
    reasons = sorted({reason for sample in result.good for reason in sample.drops})
    if not reasons:
        return None
    used = scale("1/s", [rate for sample in result.good for rate in sample.drops.values()])
    rows = []
    for variant in result.variants:
        own = [sample for sample in result.good if sample.variant == variant.name]
        cells = [_middle([sample.drops.get(reason, 0.0) for sample in own], used) for reason in reasons]
        rows.append([variant.name, *cells])
    return Breakdown(f"Frames that the network dropped, by reason, {used.unit}", ["variant", *reasons], rows)


def _middle(values: list[float], used: Scale) -> str:
    return f"{used.number(statistics.median(values))} (n = {len(values)})" if values else "-"


Told = tuple[str, str, str, Text, str, str]
"""A verdict in words: variant, measure, expected value, measured value, that of one placement alone, and verdict."""


def verdict(judged: Verdict) -> Told:
    """The verdict in words."""
    title = measure(judged.claim.expectation.measure).title
    wanted = f"{judged.wanted} of {judged.versus}" if judged.versus else judged.wanted
    because = judged.reason or (f"but {judged.better}" if judged.better else "")
    word = ": ".join(filter(None, (judged.judgement, because)))
    near = judged.one_placement
    only = f"{near.placement}: {_sensitivity(near)}" if near and near.found else ""
    return judged.what, title, wanted, _found(judged), only, word


def of_both(both: Both) -> tuple[str, str, str, Text, Text, str]:
    """Variant, measure, expected value, either run's measured value and verdict, and whether they agree."""
    what, title, wanted, *_ = verdict(both.one)
    one, other = (replace(_found(each), below=[each.judgement]) for each in (both.one, both.other))
    return f"{both.experiment}: {what}", title, wanted, one, other, both.agreement


def between(found: Sequence[Headline], caption: str) -> Table:
    """Ratios between runs: their mean, its interval, the interval of one more run, and whether that would hold."""
    header, rows = between_rows(found)
    table = Table(*header, caption=caption)
    for row in rows:
        table.add_row(*row)
    return table


def between_rows(found: Sequence[Headline]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of that table."""
    header = ["", "measure", "expected", "each run", "mean", "one more run", "largest / smallest", ""]
    return header, [_between_row(each) for each in found]


def _between_row(each: Headline) -> list[str]:
    _, title, wanted, *_ = verdict(each.expectation)
    told = each.found
    mean = another = apart = "-"
    if told:
        mean = _with_bounds(told.estimate, told.mean)
        another = " to ".join(map(significant, told.another)) if told.another else "-"
        apart = f"{significant(told.apart)} x"
    return [each.what, title, wanted, ", ".join(map(significant, each.ratios)), mean, another, apart, each.judgement]


def levels(found: Sequence[Spread]) -> Table:
    """The variance of each endpoint by level, and the rounds that pay."""
    header, rows = level_rows(found)
    table = Table(*header, caption=LEVELS)
    for row in rows:
        table.add_row(*row)
    return table


LEVELS = (
    "Standard deviation of the ratio's logarithm that each level adds, and its degrees of freedom: below 5 it is a "
    "guess. Levels joined by a plus cannot be told apart, since each unit of one has a single unit of the other."
)


def level_rows(found: Sequence[Spread]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of that table."""
    header = ["", "measure", "runs", "by level", "rounds that pay in a run", "expected", "five such runs would give"]
    return header, [_level_row(each) for each in found]


def _level_row(each: Spread) -> list[str]:
    told = [
        f"{level.name.replace(' and ', ' + ')} "
        + ("unknown" if level.deviation is None else f"{100 * level.deviation:.0f} % (df {level.freedom})")
        for level in each.levels
    ]
    pay = repetitions(each.levels)
    title = measure(each.expectation.measure).title
    pays = "more, always" if pay is None else str(pay)
    another = f"{' to '.join(map(significant, each.another))}: {each.judgement}" if each.another else "unknown"
    wanted = summary.wanted(each.expectation)
    return [each.what, title, str(each.runs), "; ".join(told), pays, wanted, another]


def _with_bounds(estimate: float, bounds: tuple[float, float] | None) -> str:
    told = f" ({' to '.join(map(significant, bounds))})" if bounds else ""
    return f"{significant(estimate)} x{told}"


def _found(judged: Verdict) -> Text:
    """The ratio or the measure itself, with its interval, and how sure it is."""
    if judged.found is None:
        return Text("-")
    estimate = judged.found.estimate
    used = Scale(1, "x") if judged.versus else scale(measure(judged.claim.expectation.measure).unit, [estimate])
    sure = [f"p = {significant(judged.probability, 2)}"] if judged.probability is not None else []
    if judged.corrected is not None:
        sure = [f"{sure[0]}, corrected {significant(judged.corrected, 2)}"]
    beside = (*_bounds(judged.found, used), f"n = {judged.rounds}", *sure)
    return Text(used.text(estimate), ", ".join(beside))
