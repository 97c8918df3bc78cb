"""Whether two runs say the same: the ratios that both judge, side by side.

Figures are those of a machine and of a day; ratios ought to outlast both. Two runs **agree** on a ratio if their
intervals have a value in common, and are **apart** if not. Wide intervals agree with nearly anything, so they are
always shown beside the word.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from memlane_lab.results import comparison, summary
from memlane_lab.results.results import ExperimentResult
from memlane_lab.results.summary import Verdict


class Agreement(StrEnum):
    """A ratio in two runs."""

    AGREE = "agree"
    APART = "apart"
    UNDECIDED = "undecided"
    """One of them has no interval: too few samples, or none."""


@dataclass(frozen=True)
class Both:
    """An expectation, and its verdict in each of the two runs."""

    experiment: str
    """Its title."""
    one: Verdict
    other: Verdict

    @property
    def agreement(self) -> Agreement:
        """By the intervals alone, without the expectation."""
        bounds = [each.found.bounds for each in (self.one, self.other) if each.found and each.found.bounds]
        if len(bounds) < 2:
            return Agreement.UNDECIDED
        (low, high), (least, most) = bounds
        return Agreement.AGREE if low <= most and least <= high else Agreement.APART


def between(ones: Sequence[ExperimentResult], others: Sequence[ExperimentResult]) -> list[Both]:
    """Every ratio that both runs judge by the same bounds, in the order of the first.

    Left out are experiments of which more than that was changed, and those of other guests.
    """
    counterparts = {each.experiment.name: each for each in others}
    return [
        both
        for one in ones
        if (other := counterparts.get(one.experiment.name))
        and one.guest == other.guest
        and not comparison.stated_differently(one.experiment, other.experiment)
        for both in _of_experiment(one, other)
    ]


def _of_experiment(one: ExperimentResult, other: ExperimentResult) -> Iterator[Both]:
    theirs = {_about(each): each for each in summary.verdicts(other)}
    for mine in summary.verdicts(one):
        if mine.versus and (match := theirs.get(_about(mine))):
            yield Both(one.experiment.title, mine, match)


def _about(verdict: Verdict) -> tuple[str, str, str, str]:
    return verdict.what, verdict.claim.expectation.measure, verdict.versus, verdict.wanted


def came(found: Sequence[Both]) -> str:
    """How many agree, are apart and are undecided."""
    counts = Counter(each.agreement for each in found)
    return ", ".join(f"{counts[word]} {word}" for word in Agreement)


def exit_code(found: Sequence[Both]) -> int:
    """1 if any are apart, 3 if any are undecided or there are none, else 0."""
    seen = {each.agreement for each in found}
    return 1 if Agreement.APART in seen else 3 if Agreement.UNDECIDED in seen or not found else 0
