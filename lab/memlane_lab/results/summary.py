"""Summaries of samples: variants side by side, each with its median and interval, and their differences.

A **row** is one group of variants that differ only in the compared dimension, and one measure; it has a **cell** for
each compared label and, against each baseline, a **contrast**. A **verdict** judges one **claim** (`claims.py`): it
holds or fails only if the whole interval does; all else is undecided. Claims that the experiment names **primary** are
judged together: each must also be beyond chance after correction for their number. All others are **exploratory**.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from memlane_lab.common.counted import counted
from memlane_lab.experiment import claims
from memlane_lab.experiment.claims import Claim
from memlane_lab.experiment.experiment import Expectation, Experiment, PaperFigure
from memlane_lab.experiment.experiment import measure as measure_of
from memlane_lab.experiment.labels import Labels, words
from memlane_lab.results import alike
from memlane_lab.results.alike import Chosen
from memlane_lab.results.results import ExperimentResult, Sample
from memlane_lab.statistics import stats
from memlane_lab.statistics.measures import THROUGHPUT, Better, scale
from memlane_lab.statistics.stats import Interval


@dataclass(frozen=True)
class Cell:
    """One variant's measure."""

    values: list[float]
    interval: Interval | None
    """The median and its interval; None where nothing was measured."""
    failed: int
    """Samples that failed, of all placements."""
    reason: str | None
    """Why the variant is missing."""
    paper: list[PaperFigure]


@dataclass(frozen=True)
class Sensitivity:
    """A figure once more, by the rounds of one placement of the host's CPUs alone."""

    placement: str
    found: Interval | None
    rounds: int


@dataclass(frozen=True)
class Contrast:
    """How one variant differs from another."""

    ratio: Interval | None
    """Of the first to the second, round by round; None where there is nothing to compare."""
    probability: float | None
    """Of so clear a difference if there is none."""
    rounds: int
    placement: str
    """That of all these rounds, or "mixed"."""
    one_placement: "Sensitivity | None" = None
    """The same by the rounds of one placement alone."""
    paper: float | None = None
    """The ratio of the source's figures."""


@dataclass(frozen=True)
class Row:
    """One group, one measure."""

    measure: str
    group: Labels
    cells: dict[str, Cell]
    """By the compared dimension's label."""
    contrasts: dict[tuple[str, str], Contrast]
    """By label and baseline."""

    @property
    def name(self) -> str:
        """The group's, for people."""
        return words(self.group) or "all"


class Judgement(StrEnum):
    """The verdict about an expectation."""

    HOLDS = "holds"
    """The whole interval is within the bounds; of a primary endpoint, also after correction."""
    FAILS = "fails"
    """The whole interval is outside of them."""
    UNDECIDED = "undecided"
    """A bound is within the interval, or there is none."""


def within(bounds: tuple[float, float], expected: Expectation) -> Judgement:
    """Whether a whole interval is within the bounds of an expectation, or outside of them."""
    low, high = bounds
    least = -math.inf if expected.at_least is None else expected.at_least
    most = math.inf if expected.at_most is None else expected.at_most
    if least <= low and high <= most:
        return Judgement.HOLDS
    return Judgement.FAILS if high < least or low > most else Judgement.UNDECIDED


def wanted(expected: Expectation) -> str:
    """The bounds of an expectation in words."""
    bounds = (("at least", expected.at_least), ("at most", expected.at_most))
    unit = measure_of(expected.measure).unit if expected.alone else "x"
    return " and ".join(f"{word} {bound:g} {unit}".rstrip() for word, bound in bounds if bound is not None)


@dataclass(frozen=True)
class Verdict:
    """An expectation of one variant, and its verdict."""

    claim: Claim
    found: Interval | None
    """The ratio, or the measure itself; None if there is nothing to judge."""
    rounds: int
    placement: str
    lack: str = ""
    """Why nothing can be judged."""
    better: str = ""
    """Where the measure stands alone: the baseline that does better all the same."""
    probability: float | None = None
    """Of rounds so far on one side of the bound, if the bound is the true value; of two bounds, the larger one."""
    corrected: float | None = None
    """The same of a primary endpoint, for as many of them as the report judges."""
    one_placement: Sensitivity | None = None
    """The same by the rounds of one placement alone."""

    @property
    def primary(self) -> bool:
        """Whether the experiment named it a primary endpoint beforehand."""
        return self.claim.expectation.primary

    @property
    def what(self) -> str:
        """The variant that it is about."""
        return words(self.claim.variant)

    @property
    def versus(self) -> str:
        """The labels that differ in the other variant; empty where the measure stands alone."""
        other = self.claim.versus or {}
        return words({name: label for name, label in other.items() if self.claim.variant.get(name) != label})

    @property
    def wanted(self) -> str:
        """The bounds in words."""
        return wanted(self.claim.expectation)

    @property
    def judgement(self) -> Judgement:
        """Holds or fails if the whole interval does."""
        if self.found is None or self.found.bounds is None:
            return Judgement.UNDECIDED
        if self._by_chance:
            return Judgement.UNDECIDED
        return within(self.found.bounds, self.claim.expectation)

    @property
    def _by_chance(self) -> bool:
        return self.corrected is not None and self.corrected > 1 - stats.CONFIDENCE

    @property
    def reason(self) -> str:
        """Why it is undecided; empty if it is not."""
        if self.judgement is not Judgement.UNDECIDED:
            return ""
        if self.found is None:
            return self.lack
        if self.found.bounds is None:
            return f"{counted(self.rounds, 'sample')} {'is' if self.rounds == 1 else 'are'} too few for an interval"
        if self._by_chance and self.probability is not None and self.probability <= 1 - stats.CONFIDENCE:
            return f"{counted(self.rounds, 'round')} are too few for so many primary endpoints"
        return "the bound is within the interval"


def labels(experiment: Experiment) -> list[str]:
    """The labels that stand side by side; a single nameless one where nothing is compared."""
    return list(experiment.dimensions().get(experiment.compare, {"": {}}))


def rows(result: ExperimentResult, measure: str) -> Iterator[Row]:
    """All groups, in the order in which the file states them, without those in which no variant has the measure."""
    for group in _groups(result):
        row = _row(result, group, measure)
        if any(cell.interval for cell in row.cells.values()):
            yield row


def verdicts(result: ExperimentResult) -> list[Verdict]:
    """Every expectation that the experiment states, for every variant that it is about, measured or missing."""
    return [_judged(result, claim) for claim in claims.of(result.experiment, known(result))]


def corrected(judged: Sequence[Verdict]) -> list[Verdict]:
    """The verdicts of a whole report, each p of a primary endpoint corrected for their number."""
    tested = [each.probability for each in judged if each.primary and each.probability is not None]
    told = iter(stats.holm(tested))
    return [
        replace(each, corrected=next(told)) if each.primary and each.probability is not None else each
        for each in judged
    ]


def typical(result: ExperimentResult, labels_of: Labels, measure: str) -> Sample | None:
    """The variant's sample in the middle by that measure, to be shown for all of them."""
    have = [sample for sample in result.good if sample.labels == labels_of and measure in sample.values]
    return sorted(have, key=lambda sample: sample.values[measure])[len(have) // 2] if have else None


def known(result: ExperimentResult) -> list[Labels]:
    """The labels of all variants, measured or missing, in the file's order."""
    found = [*(each.labels for each in result.variants), *(each.labels for each in result.missing)]
    order = {name: list(stated) for name, stated in result.experiment.dimensions().items()}
    return sorted(found, key=lambda one: [order[name].index(label) for name, label in one.items()])


def _groups(result: ExperimentResult) -> list[Labels]:
    groups: list[Labels] = []
    for one in known(result):
        group = {name: label for name, label in one.items() if name != result.experiment.compare}
        if group not in groups:
            groups.append(group)
    return groups


def _row(result: ExperimentResult, group: Labels, measure: str) -> Row:
    asked = result.experiment
    variants = {label: _labelled(asked, group, label) for label in labels(asked)}
    good = {label: _good(result, variant) for label, variant in variants.items()}
    cells = {label: _cell(result, variants[label], measure, good[label]) for label in variants}
    contrasts = {
        (label, base): contrast(result, measure, *(variants[each] for each in (label, base)))
        for label, base in pairs(asked)
        if cells[label].values and cells[base].values
    }
    return Row(measure, group, cells, contrasts)


@dataclass(frozen=True)
class AtBest:
    """Compared labels, each at that label of another dimension that is best for it."""

    group: Labels
    """Without the compared dimension and the other one."""
    chosen: dict[str, str]
    """The best label of the other dimension, by compared label."""
    cells: dict[str, Cell]
    contrasts: dict[tuple[str, str], Contrast]


def at_best(result: ExperimentResult, measure: str) -> Iterator[AtBest]:
    """Each group with every compared label at its best; nothing where the experiment names no such dimension.

    The best is that of the medians of the same samples, for all alike.
    """
    asked, found = result.experiment, measure_of(measure)
    if not asked.best_over or found.better is Better.NEITHER:
        return
    groups: dict[str, tuple[Labels, list[Row]]] = {}
    for row in rows(result, measure):
        group = {name: label for name, label in row.group.items() if name != asked.best_over}
        groups.setdefault(words(group), (group, []))[1].append(row)
    for group, members in groups.values():
        best = {label: _best(members, label, found.better) for label in labels(asked)}
        chosen = {label: row for label, row in best.items() if row}
        variants = {label: _labelled(asked, row.group, label) for label, row in chosen.items()}
        yield AtBest(
            group,
            {label: row.group[asked.best_over] for label, row in chosen.items()},
            {label: row.cells[label] for label, row in chosen.items()},
            {
                (label, base): contrast(result, measure, variants[label], variants[base])
                for label, base in pairs(asked)
                if label in chosen and base in chosen
            },
        )


def _best(members: Sequence[Row], label: str, better: Better) -> Row | None:
    known = [(cell.interval.estimate, row) for row in members if (cell := row.cells[label]).interval]
    sign = 1 if better is Better.MORE else -1
    return max(known, key=lambda each: sign * each[0], default=(0.0, None))[1]


def pairs(experiment: Experiment) -> list[tuple[str, str]]:
    """Which labels are compared: each that is no baseline with each that is one."""
    found = labels(experiment)
    bases = [label for label in found if label in experiment.baseline]
    return [(label, base) for label in found if label not in bases for base in bases]


def contrast(result: ExperimentResult, measure: str, variant: Labels, other: Labels) -> Contrast:
    """How the first variant differs from the second by a measure, round by round."""
    chosen, (values, others), sensitivity = _in_rounds(result, measure, variant, other)
    figures = [_paper(result, each, measure) for each in (variant, other)]
    paper = figures[0][0].value / figures[1][0].value if all(len(each) == 1 for each in figures) else None
    dead = any(_delivered_nothing(result, measure, each) for each in (variant, other))
    found, probability = None if dead else stats.ratio(values, others), stats.swap_test(values, others)
    return Contrast(found, probability, len(values), chosen.placement, sensitivity, paper)


def ratios(result: ExperimentResult, measure: str, variant: Labels, other: Labels) -> list[float]:
    """The ratio of two variants in each round that has both."""
    _, (values, others), _ = _in_rounds(result, measure, variant, other)
    return [one / two for one, two in zip(values, others, strict=True) if two > 0]


def _in_rounds(
    result: ExperimentResult, measure: str, variant: Labels, other: Labels
) -> tuple[Chosen, tuple[list[float], list[float]], Sensitivity | None]:
    """The compared rounds, the two variants' values round by round, and the ratio by one placement alone."""
    have = {
        side: [sample for sample in _good(result, each) if measure in sample.values]
        for side, each in (("one", variant), ("other", other))
    }
    chosen, fewer = alike.rounds(have), alike.of_one_placement(have)
    sensitivity = None
    if fewer:
        values, others = _both(fewer, measure)
        sensitivity = Sensitivity(fewer.placement, stats.ratio(values, others), len(values))
    return chosen, _both(chosen, measure), sensitivity


def _delivered_nothing(result: ExperimentResult, measure: str, variant: Labels) -> int:
    """In how many rounds the variant lacks the measure because it delivered nothing.

    Costs of a byte are not defined there. A ratio of the other rounds alone would be one of its good moments.
    """
    lacking = (sample for sample in _good(result, variant) if measure not in sample.values)
    return sum(sample.values.get(THROUGHPUT.name) == 0 for sample in lacking)


def _both(chosen: Chosen, measure: str) -> tuple[list[float], list[float]]:
    return _values(chosen.samples["one"], measure), _values(chosen.samples["other"], measure)


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
        reason=_missing(result, variant),
        paper=_paper(result, variant, measure),
    )


def _missing(result: ExperimentResult, variant: Labels) -> str | None:
    return next((each.reason for each in result.missing if each.labels == variant), None)


def _paper(result: ExperimentResult, variant: Labels, measure: str) -> list[PaperFigure]:
    figures = (figure for figure in result.experiment.paper if figure.measure == measure and figure.where)
    return [figure for figure in figures if claims.matches(variant, figure.where)]


def _judged(result: ExperimentResult, claim: Claim) -> Verdict:
    for variant in filter(None, (claim.variant, claim.versus)):
        if reason := _missing(result, variant):
            return Verdict(claim, None, 0, "", f"{words(variant)} is missing: {reason}")
    return _alone(result, claim) if claim.versus is None else _versus(result, claim, claim.versus)


def _alone(result: ExperimentResult, claim: Claim) -> Verdict:
    name = claim.expectation.measure
    samples = [sample for sample in _good(result, claim.variant) if name in sample.values]
    if not samples:
        return Verdict(claim, None, 0, "", "nothing was measured")
    values = _values(samples, name)
    found = stats.median(values)
    return Verdict(
        claim,
        found,
        len(values),
        alike.common_placement(samples),
        better=_better(result, claim, found.estimate),
        probability=_beyond(claim, values),
    )


def _beyond(claim: Claim, values: Sequence[float]) -> float | None:
    """The p of the values against the claim's bounds: of two, the larger one."""
    stated = (claim.expectation.at_least, claim.expectation.at_most)
    told = (stats.sign_test(values, bound) for bound in stated if bound is not None)
    return max((each for each in told if each is not None), default=None)


def _better(result: ExperimentResult, claim: Claim, estimate: float) -> str:
    """The baselines that do better than the variant, with their figures."""
    asked, found = result.experiment, measure_of(claim.expectation.measure)
    sign = {Better.MORE: 1, Better.LESS: -1, Better.NEITHER: 0}[found.better]
    told = []
    for label in asked.baseline if asked.compare in claim.variant else ():
        samples = _good(result, claim.variant | {asked.compare: label})
        if values := _values(samples, found.name):
            theirs = stats.median(values).estimate
            if sign * theirs > sign * estimate:
                told.append(f"{label}: {scale(found.unit, [theirs]).text(theirs)}")
    return ", ".join(told)


def _versus(result: ExperimentResult, claim: Claim, other: Labels) -> Verdict:
    chosen, (values, others), sensitivity = _in_rounds(result, claim.expectation.measure, claim.variant, other)
    place = chosen.placement
    if not values:
        return Verdict(claim, None, 0, place, "there is no round in which both were measured")
    for each in (claim.variant, other):
        if dead := _delivered_nothing(result, claim.expectation.measure, each):
            lack = f"{words(each)} delivered nothing in {dead} of {counted(len(_good(result, each)), 'round')}"
            return Verdict(claim, None, len(values), place, lack)
    found = stats.ratio(values, others)
    if found is None:
        dead = sum(each <= 0 for each in others)
        return Verdict(
            claim, None, len(values), place, f"{words(other)} gave nothing in {dead} of {counted(len(others), 'round')}"
        )
    ratios = [one / two for one, two in zip(values, others, strict=True)]
    beyond = _beyond(claim, ratios)
    return Verdict(claim, found, len(values), place, probability=beyond, one_placement=sensitivity)


def _values(samples: Sequence[Sample], measure: str) -> list[float]:
    return [sample.values[measure] for sample in samples if measure in sample.values]
