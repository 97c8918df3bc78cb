"""By which parts two variants differ, largest first.

The bounds of a difference are the wider of two: of the error of sampling (both costs' variances added, as hits are
Poisson's), and of the difference between rounds: Student's t of the differences within rounds if both are sampled in
the same rounds, else Welch's. A difference that may be none is marked.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from memlane_lab.profiling import costs
from memlane_lab.profiling.costs import Cost
from memlane_lab.profiling.profile import Profiled

_ENOUGH = 3
"""Rounds of which a spread can be told."""
_SURE = 1.96
"""Standard deviations that hold 95 %."""


@dataclass(frozen=True)
class Difference:
    """One part, in both variants."""

    name: str
    one: float
    """The cost in the first variant, per unit of work."""
    other: float
    error: float
    """How far the difference may be off, either way (95 %)."""

    @property
    def more(self) -> float:
        """The second variant's additional cost, or, below zero, its saving."""
        return self.other - self.one

    @property
    def told_apart(self) -> bool:
        """Whether it is sure that there is a difference."""
        return abs(self.more) > self.error


@dataclass(frozen=True)
class Explanation:
    """Two variants, told apart."""

    one: str
    other: str
    unit: str
    """Of work: KB, packet ..."""
    all: Difference
    parts: list[Difference]
    """The largest first, by size."""

    @property
    def ratio(self) -> float:
        """How many times as much the second variant costs."""
        return self.all.other / self.all.one if self.all.one else math.inf


def explain(one: Sequence[Profiled], other: Sequence[Profiled], by: str, unit: str) -> Explanation:
    """Compares two variants' samples, by `by` (see `costs.BY`), per `unit` of work."""
    first, second = costs.of(one, by, unit), costs.of(other, by, unit)
    shared = _in_the_same_rounds(one, other)
    parts = [_difference(name, first.get(name), second.get(name), shared=shared) for name in {**first, **second}]
    parts.sort(key=lambda part: abs(part.more), reverse=True)
    every = _difference("all", costs.whole(one, unit), costs.whole(other, unit), shared=shared)
    return Explanation(one[0].variant, other[0].variant, unit, every, parts)


def _in_the_same_rounds(one: Sequence[Profiled], other: Sequence[Profiled]) -> bool:
    """Whether sample number i of the one was taken in the same round as that of the other."""
    return [sample.round for sample in one] == [sample.round for sample in other]


def _difference(name: str, one: Cost | None, other: Cost | None, *, shared: bool) -> Difference:
    known = [each for each in (one, other) if each]
    chance = _SURE * math.sqrt(sum(each.value**2 / each.hits for each in known if each.hits))
    rounds = [each.rounds for each in known]
    if shared and len(rounds) == 2:
        rounds = [tuple(second - first for first, second in zip(*rounds, strict=True))]
    return Difference(name, one.value if one else 0.0, other.value if other else 0.0, max(chance, _spread(rounds)))


def _spread(rounds: Sequence[Sequence[float]]) -> float:
    """The error of the sum of these means from differences between rounds (Welch 1947); 0 of few rounds.

    Of one mean it is Student's.
    """
    from scipy.stats import t

    if any(len(each) < _ENOUGH for each in rounds):
        return 0.0
    terms = [(statistics.variance(each) / len(each), len(each) - 1) for each in rounds]
    variance = sum(term for term, _ in terms)
    if not variance:
        return 0.0
    freedom = variance**2 / sum(term**2 / count for term, count in terms)
    return float(t.ppf(1 - (1 - costs.CONFIDENCE) / 2, freedom)) * math.sqrt(variance)
