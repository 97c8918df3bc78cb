"""What samples say: variants side by side, each with its median and interval, and how they differ.

A **row** is one group of variants that differ only in the compared dimension, and one measure; it has a **cell** for
each compared label and, against the baseline, a **contrast**. A **verdict** judges one expectation.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from memlane_lab import alike, stats
from memlane_lab.experiment import Expectation, Experiment, PaperFigure
from memlane_lab.experiment import measure as measure_of
from memlane_lab.labels import Labels, words
from memlane_lab.results import ExperimentResult, Sample
from memlane_lab.stats import Interval


@dataclass(frozen=True)
class Cell:
    """One variant's measure."""

    values: list[float]
    interval: Interval | None
    """Median and bootstrap interval; None where nothing was measured."""
    failed: int
    """Samples that failed, of all placements."""
    reason: str | None
    """Why the variant is missing."""
    paper: list[PaperFigure]


@dataclass(frozen=True)
class Contrast:
    """How one variant differs from another."""

    ratio: Interval | None
    probability: float | None
    """Of so clear a difference in ranks if there were none."""
    paper: float | None = None
    """The ratio of the source's figures."""


@dataclass(frozen=True)
class Row:
    """One group, one measure."""

    measure: str
    group: Labels
    placement: str
    cells: dict[str, Cell]
    """By the compared dimension's label."""
    contrasts: dict[str, Contrast]
    """Against the baseline."""

    @property
    def name(self) -> str:
        """The group's, for people."""
        return words(self.group) or "all"


@dataclass(frozen=True)
class Verdict:
    """An expectation, and what came of it."""

    expectation: Expectation
    what: str
    versus: str
    """What the other variant is; empty where the measure stands alone."""
    found: Interval | None
    """The ratio, or the measure itself; None if nothing was measured."""
    contrast: Contrast | None
    """None where the measure stands alone."""
    placement: str

    @property
    def wanted(self) -> str:
        """The bounds in words."""
        bounds = (("at least", self.expectation.at_least), ("at most", self.expectation.at_most))
        unit = measure_of(self.expectation.measure).unit if self.expectation.alone else "x"
        return " and ".join(f"{word} {bound:g} {unit}".rstrip() for word, bound in bounds if bound is not None)

    @property
    def holds(self) -> bool | None:
        """Whether what was measured is within the bounds; None if nothing was."""
        if self.found is None:
            return None
        low, high = self.expectation.at_least or 0.0, self.expectation.at_most or float("inf")
        return low <= self.found.estimate <= high


def labels(experiment: Experiment) -> list[str]:
    """The labels that stand side by side; a single nameless one where nothing is compared."""
    return list(experiment.dimensions().get(experiment.compare, {"": {}}))


def rows(result: ExperimentResult, measure: str) -> Iterator[Row]:
    """All groups, in the order in which the file states them; those where nobody has the measure are left out."""
    for group in _groups(result):
        row = _row(result, group, measure)
        if any(cell.interval for cell in row.cells.values()):
            yield row


def verdicts(result: ExperimentResult) -> list[Verdict]:
    """Every expectation that the experiment states, for every variant that it is about."""
    return [verdict for expected in result.experiment.expect for verdict in _verdicts(result, expected)]


def contrast(values: Sequence[float], others: Sequence[float]) -> Contrast:
    """The ratio of `values` to `others`, and the rank test between them."""
    if not values or not others:
        return Contrast(None, None)
    return Contrast(stats.ratio(values, others), stats.rank_test(values, others))


def typical(result: ExperimentResult, labels_of: Labels, measure: str) -> Sample | None:
    """The variant's sample in the middle by that measure, to be shown for all of them."""
    have = [sample for sample in result.good if sample.labels == labels_of and measure in sample.values]
    return sorted(have, key=lambda sample: sample.values[measure])[len(have) // 2] if have else None


def _groups(result: ExperimentResult) -> list[Labels]:
    known = [*(each.labels for each in result.variants), *(each.labels for each in result.missing)]
    order = {name: list(found) for name, found in result.experiment.dimensions().items()}
    known.sort(key=lambda one: [order[name].index(label) for name, label in one.items()])
    groups: list[Labels] = []
    for one in known:
        group = {name: label for name, label in one.items() if name != result.experiment.compare}
        if group not in groups:
            groups.append(group)
    return groups


def _row(result: ExperimentResult, group: Labels, measure: str) -> Row:
    asked = result.experiment
    variants = {label: _labelled(asked, group, label) for label in labels(asked)}
    chosen = alike.choose({label: _good(result, variant) for label, variant in variants.items()})
    cells = {label: _cell(result, variants[label], measure, chosen.samples[label]) for label in variants}
    contrasts = {}
    if base := cells.get(asked.baseline):
        for label, cell in cells.items():
            if label != asked.baseline and cell.values and base.values:
                found = contrast(cell.values, base.values)
                contrasts[label] = Contrast(found.ratio, found.probability, _paper_ratio(cell, base))
    return Row(measure, group, chosen.placement, cells, contrasts)


def _labelled(asked: Experiment, group: Labels, label: str) -> Labels:
    """The variant's labels, in the file's order of dimensions."""
    own = group | ({asked.compare: label} if asked.compare in asked.vary else {})
    return {name: own[name] for name in asked.vary}


def _good(result: ExperimentResult, variant: Labels) -> list[Sample]:
    return [sample for sample in result.good if sample.labels == variant]


def _cell(result: ExperimentResult, variant: Labels, measure: str, samples: Sequence[Sample]) -> Cell:
    values = _values(samples, measure)
    return Cell(
        values=values,
        interval=stats.median(values) if values else None,
        failed=sum(sample.labels == variant for sample in result.failed),
        reason=next((each.reason for each in result.missing if each.labels == variant), None),
        paper=[
            figure
            for figure in result.experiment.paper
            if figure.measure == measure and figure.where and _matches(variant, figure.where)
        ],
    )


def _paper_ratio(cell: Cell, base: Cell) -> float | None:
    if len(cell.paper) == 1 and len(base.paper) == 1:
        return cell.paper[0].value / base.paper[0].value
    return None


def _matches(variant: Labels, where: Mapping[str, str]) -> bool:
    return all(variant.get(name) == label for name, label in where.items())


def _verdicts(result: ExperimentResult, expected: Expectation) -> Iterator[Verdict]:
    for variant in (each.labels for each in result.variants):
        if _matches(variant, expected.where):
            yield from _alone(result, expected, variant) if expected.alone else _versus(result, expected, variant)


def _alone(result: ExperimentResult, expected: Expectation, variant: Labels) -> Iterator[Verdict]:
    chosen = alike.choose({"": _good(result, variant)})
    values = _values(chosen.samples[""], expected.measure)
    found = stats.median(values) if values else None
    yield Verdict(expected, words(variant), "", found, None, chosen.placement)


def _versus(result: ExperimentResult, expected: Expectation, variant: Labels) -> Iterator[Verdict]:
    versus = expected.versus or {result.experiment.compare: result.experiment.baseline}
    other = variant | versus
    if variant == other:
        return
    chosen = alike.choose({"one": _good(result, variant), "other": _good(result, other)})
    found = contrast(*(_values(chosen.samples[side], expected.measure) for side in ("one", "other")))
    yield Verdict(expected, words(variant), words(versus), found.ratio, found, chosen.placement)


def _values(samples: Sequence[Sample], measure: str) -> list[float]:
    return [sample.values[measure] for sample in samples if measure in sample.values]
