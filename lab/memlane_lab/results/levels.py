"""The variance of primary endpoints by level, from runs and their samples.

Levels are nested: builds hold days, days hold runs, runs hold boots, boots hold samples. A value is the logarithm of
one round's ratio. Guests that are booted for each sample have one sample a boot, so that these two are told together.
"""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memlane_lab.experiment import claims, plan
from memlane_lab.experiment.claims import Claim
from memlane_lab.experiment.experiment import Boot, Expectation, Experiment
from memlane_lab.experiment.labels import Labels, words
from memlane_lab.results import agreement, summary
from memlane_lab.results.results import ExperimentResult, RunRecord
from memlane_lab.results.summary import Judgement
from memlane_lab.statistics import levels, stats
from memlane_lab.statistics.levels import Level, Unit

NAMES = ("build", "day", "run", "boot", "sample")
"""Levels, the coarsest first."""
_RUN = NAMES.index("run") + 1
"""Names of a unit that tell its run."""
Run = tuple[RunRecord, Sequence[ExperimentResult]]
"""A run, and its experiments with their samples."""


@dataclass(frozen=True)
class Spread:
    """One endpoint in several runs."""

    what: str
    expectation: Expectation
    runs: int
    levels: list[Level]
    mean: float
    """The geometric mean of the runs' ratios."""
    rounds: float
    """In a run, mean."""

    @property
    def another(self) -> tuple[float, float] | None:
        """Bounds of one more run, as five runs with these variances and this mean would give it; None if unknown.

        By them a headline is decided (`stats.between_runs`).
        """
        finest, *above = [each.variance for each in reversed(self.levels)]
        known = [each for each in above if each is not None]
        if finest is None or not known:
            return None
        reach = stats.reach_of_another(math.sqrt(sum(known) + finest / self.rounds), stats.FEWEST_RUNS)
        return self.mean * math.exp(-reach), self.mean * math.exp(reach)

    @property
    def judgement(self) -> Judgement:
        """What five such runs would say of the expectation."""
        return summary.within(self.another, self.expectation) if self.another else Judgement.UNDECIDED


def of_endpoints(runs: Sequence[Run], asked: Experiment | None = None) -> list[Spread]:
    """Each primary endpoint of an experiment in all runs that measured it as the newest of them did.

    `asked` names the endpoints; None: the newest run that names any.
    """
    ordered = sorted(runs, key=lambda run: run[0].began, reverse=True)
    told = []
    for name, claim in _endpoints(ordered, asked):
        values = list(_values(ordered, name, claim))
        if values:
            by_run: dict[Unit, list[float]] = {}
            for unit, value in values:
                by_run.setdefault(unit[:_RUN], []).append(value)
            mean = math.exp(statistics.fmean(map(statistics.fmean, by_run.values())))
            found = levels.components(NAMES, values)
            rounds = len(values) / len(by_run)
            told.append(Spread(_what(claim), claim.expectation, len(by_run), found, mean, rounds))
    return told


def _endpoints(ordered: Sequence[Run], asked: Experiment | None) -> list[tuple[str, Claim]]:
    """Primary endpoints, each with its experiment's name."""
    if asked is not None:
        return [(asked.name, each) for each in _primary(asked, [own.labels for own in plan.variants(asked)])]
    for _, found in ordered:
        named = [(one.experiment.name, each) for one in found for each in _primary(one.experiment, summary.known(one))]
        if named:
            return named
    return []


def _primary(asked: Experiment, known: Sequence[Labels]) -> list[Claim]:
    return [each for each in claims.of(asked, known) if each.expectation.primary and each.versus]


def _what(claim: Claim) -> str:
    other = claim.versus or {}
    rival = words({name: label for name, label in other.items() if claim.variant.get(name) != label})
    return f"{words(claim.variant)} by {rival}"


def _values(ordered: Sequence[Run], name: str, claim: Claim) -> Iterator[tuple[Unit, float]]:
    """The logarithm of each round's ratio in all runs, with its units."""
    newest: tuple[str, ExperimentResult] | None = None
    assert claim.versus is not None
    for record, found in ordered:
        for result in (each for each in found if each.experiment.name == name):
            reference = newest or (record.guest, result)
            if record.guest != reference[0] or not _measured_alike(result, reference[1], (claim.variant, claim.versus)):
                continue
            newest = reference
            ratios = summary.ratios(result, claim.expectation.measure, claim.variant, claim.versus)
            each_boots = result.experiment.boot is Boot.EACH_SAMPLE
            around = (_build(record, ordered), record.began[: len("2026-11-25")], record.began)
            for number, ratio in enumerate(ratios):
                if ratio > 0:
                    yield (*around, number if each_boots else 0), math.log(ratio)


def _build(record: RunRecord, every: Sequence[Run]) -> int:
    """The place of the first run of the same build."""
    return next(place for place, (other, _) in enumerate(every) if not agreement.other_builds(other, record))


def _measured_alike(one: ExperimentResult, other: ExperimentResult, labels: Sequence[Labels]) -> bool:
    """Whether both experiments measured these variants by the same settings, for as long."""
    return one.experiment.seconds == other.experiment.seconds and all(
        (mine := _setting(one, each)) is not None
        and (theirs := _setting(other, each)) is not None
        and all(mine[key] == theirs[key] for key in mine.keys() & theirs.keys())
        for each in labels
    )


def _setting(result: ExperimentResult, labels: Labels) -> Mapping[str, Any] | None:
    return next((each.setting for each in result.variants if each.labels == labels), None)
