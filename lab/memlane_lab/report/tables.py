"""Tables: summaries in words, every row in units of one size."""

from dataclasses import dataclass, field

from memlane_lab import summary
from memlane_lab.experiment import PaperFigure, measure
from memlane_lab.measures import Measure, Scale, scale, significant
from memlane_lab.results import ExperimentResult
from memlane_lab.summary import Cell, Contrast, Row, Verdict


@dataclass(frozen=True)
class Text:
    """What stands in a cell of a table: its main word, and what stands small beside or below it."""

    main: str
    beside: str = ""
    below: list[str] = field(default_factory=list)


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
    values = [cell.interval.estimate for row in rows for cell in row.cells.values() if cell.interval]
    used = scale(measure(name).unit, values)
    labels = summary.labels(asked)
    ratios = [label for label in labels if any(label in row.contrasts for row in rows)]
    return MeasureTable(
        measure=measure(name),
        unit=used.unit,
        dimensions=[dimension for dimension in asked.vary if dimension != asked.compare],
        labels=labels,
        ratios=ratios,
        rows=[(list(row.group.values()), _cells(row, labels, used), _ratios(row, ratios)) for row in rows],
    )


def _cells(row: Row, labels: list[str], used: Scale) -> list[Text]:
    return [_cell(row.cells[label], used) for label in labels]


def _cell(cell: Cell, used: Scale) -> Text:
    below = [f"source: {paper(figure)}" for figure in cell.paper]
    if cell.failed:
        below.append(f"{cell.failed} failed")
    if cell.interval is None:
        return Text("missing" if cell.reason else "-", below=below)
    return Text(
        used.number(cell.interval.estimate),
        f"{used.number(cell.interval.low)} to {used.number(cell.interval.high)}, n = {len(cell.values)}",
        below,
    )


def _ratios(row: Row, labels: list[str]) -> list[Text]:
    return [ratio(row.contrasts.get(label), row.placement) for label in labels]


def ratio(contrast: Contrast | None, placement: str) -> Text:
    """A ratio with its interval, how sure it is, and the placement it was seen in."""
    if contrast is None or contrast.ratio is None:
        return Text("-")
    found = contrast.ratio
    below = [f"source: {significant(contrast.paper)} x"] if contrast.paper else []
    sure = f"p = {significant(contrast.probability, 2)}" if contrast.probability is not None else ""
    beside = f"{significant(found.low)} to {significant(found.high)}"
    return Text(f"{significant(found.estimate)} x", ", ".join(filter(None, (beside, sure, placement))), below)


def paper(figure: PaperFigure) -> str:
    """A source's figure with its unit, and what it was of."""
    value = scale(measure(figure.measure).unit, [figure.value]).text(figure.value)
    return f"{value} ({figure.what})" if figure.what else value


def verdict(judged: Verdict) -> tuple[str, str, str, Text, str]:
    """Variant, measure, what was wanted, what was measured, and whether that is enough."""
    word = {True: "holds", False: "does not hold", None: "not measured"}[judged.holds]
    title = measure(judged.expectation.measure).title
    return judged.what, title, f"{judged.wanted} of {judged.versus}", ratio(judged.contrast, judged.placement), word
