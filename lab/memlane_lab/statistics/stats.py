"""Statistics of few, noisy samples. Within a run, all of it is exact and supposes nothing of distributions.

- The **interval** of a median is bounded by two of the samples themselves: by how many fair coins would fall so, the
  median of this run's circumstances lies between them with a confidence of 95 %. Fewer than six samples cannot say that
  of any bounds. The interval says nothing of another day, machine or build: that is `between_runs`.
- Two variants are compared **within rounds**: each round gives one ratio, so that a round's circumstances cancel out.
  The estimate is the median of those ratios, the interval is its.
- A ratio is tested **against a bound** by the sign test, of which that interval is the inversion: p is at most 0.05
  where the bound lies outside of the interval, and only there.
- The **test** of two variants swaps them within rounds: p is the share of all swaps that would look as clear.
- Two runs share no rounds; they are compared by all ratios of a sample of one to a sample of the other.
- **Between runs**, each run is one block: its ratio is one number, of which five or more give the mean and the interval
  of the next run (Student's t of logarithms, the only place where a distribution is supposed).
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95
FEWEST = 6
"""Samples of which an interval can be told: of five, even the smallest and the largest hold the median less often."""


@dataclass(frozen=True)
class Interval:
    """An estimate and, from so few samples as can tell, the bounds between which the truth lies."""

    estimate: float
    low: float | None = None
    high: float | None = None

    @property
    def bounds(self) -> tuple[float, float] | None:
        """Both bounds, or None if there were too few samples."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    def scaled(self, factor: float) -> "Interval":
        """The same, times a factor."""
        low, high = (None if bound is None else bound * factor for bound in (self.low, self.high))
        return Interval(self.estimate * factor, low, high)


def median(values: Sequence[float]) -> Interval:
    """The median, between order statistics."""
    rising = sorted(values)
    spared = _spared(len(rising))
    estimate = statistics.median(rising)
    return Interval(estimate) if spared is None else Interval(estimate, rising[spared], rising[-1 - spared])


def _spared(count: int) -> int | None:
    """How many of the smallest and of the largest samples lie outside of the interval."""
    if count < FEWEST:
        return None
    share, spared = 2 * 0.5**count, 0  # how often the true median lies outside of all samples
    while (share := share + 2 * math.comb(count, spared + 1) * 0.5**count) <= 1 - CONFIDENCE:
        spared += 1
    return spared


def ratio(values: Sequence[float], others: Sequence[float]) -> Interval | None:
    """The ratio of `values` to `others`, sample by sample of the same rounds.

    None where there is nothing to compare: no sample, or nothing on the other side in some round.
    """
    if not values or min(values) < 0 or min(others) <= 0:
        return None
    return median([one / other for one, other in zip(values, others, strict=True)])


def sign_test(values: Sequence[float], bound: float) -> float | None:
    """The probability that so many values lie on one side of `bound` if it is their median (two-sided, exact).

    Values that equal the bound count for the side that has fewer. None without values.
    """
    if not values:
        return None
    count = len(values)
    beyond = max(sum(value > bound for value in values), sum(value < bound for value in values))
    tail = sum(math.comb(count, number) for number in range(beyond, count + 1)) * 0.5**count
    return min(1.0, 2 * tail)


@dataclass(frozen=True)
class BetweenRuns:
    """One ratio in several runs, each of them a block."""

    estimate: float
    """The geometric mean of the runs' ratios."""
    mean: tuple[float, float] | None
    """Interval of 95 % of that mean; None of too few runs."""
    another: tuple[float, float] | None
    """Prediction interval: the bounds of the ratio of one more such run, with 95 %."""
    apart: float
    """The largest of the runs' ratios to the smallest."""


FEWEST_RUNS = 5
"""Runs of which an interval between runs is told."""


def between_runs(ratios: Sequence[float]) -> BetweenRuns | None:
    """The interval between runs; None where a ratio is not above 0, or there is none."""
    if not ratios or min(ratios) <= 0:
        return None
    logarithms = [math.log(ratio) for ratio in ratios]
    middle, count = statistics.fmean(logarithms), len(logarithms)
    apart = max(ratios) / min(ratios)
    if count < FEWEST_RUNS:
        return BetweenRuns(math.exp(middle), None, None, apart)
    another = reach_of_another(statistics.stdev(logarithms), count)
    mean = another / math.sqrt(count + 1)

    def bounds(half: float) -> tuple[float, float]:
        return math.exp(middle - half), math.exp(middle + half)

    return BetweenRuns(math.exp(middle), bounds(mean), bounds(another), apart)


def reach_of_another(deviation: float, count: int) -> float:
    """Half the prediction interval of one more run's logarithm, of so many runs with that standard deviation."""
    from scipy.stats import t

    return float(t.ppf(1 - (1 - CONFIDENCE) / 2, count - 1)) * deviation * math.sqrt(1 + 1 / count)


def swap_test(values: Sequence[float], others: Sequence[float]) -> float | None:
    """How often so clear a difference comes by chance: by all ways to swap the two within rounds (two-sided, exact).

    Rounds weigh by the rank of their difference, relative to their sum (Wilcoxon 1945, Pratt 1959). n rounds cannot
    give less than 2 / 2^n. None without samples.
    """
    import numpy

    if not values:
        return None
    gaps = [
        (one - other) / (abs(one) + abs(other)) if one != other else 0.0
        for one, other in zip(values, others, strict=True)
    ]
    ranks = [rank if gap else 0 for rank, gap in zip(_doubled_ranks([abs(gap) for gap in gaps]), gaps, strict=True)]
    seen = sum(rank for rank, gap in zip(ranks, gaps, strict=True) if gap > 0)
    chances = numpy.zeros(sum(ranks) + 1)
    chances[0] = 1.0
    for rank in filter(None, ranks):
        chances *= 0.5
        chances[rank:] += chances[:-rank].copy()
    return _both_tails(chances.tolist(), seen, sum(ranks) / 2)


def apart(values: Sequence[float], others: Sequence[float]) -> tuple[Interval | None, float | None]:
    """The ratio of two runs' samples, which share no rounds, and its exact p (Mann and Whitney 1947, Moses 1964)."""
    if not values or not others or min(values) < 0 or min(others) <= 0:
        return None, None
    chances, seen = _rank_sums(values, others)
    middle = (len(chances) - 1) / 2
    probability = _both_tails(chances, seen, middle)
    ratios = sorted(one / other for one in values for other in others)
    estimate = statistics.median(ratios)
    if min(len(values), len(others)) < FEWEST:
        return Interval(estimate), probability
    spared, share = -1, 0.0
    while (share := share + 2 * float(chances[2 * (spared + 1)])) <= 1 - CONFIDENCE:
        spared += 1
    return Interval(estimate, ratios[spared], ratios[-1 - spared]), probability


def _rank_sums(values: Sequence[float], others: Sequence[float]) -> tuple[Sequence[float], int]:
    """How probable each rank sum of `values` is, from the smallest on, and which of them was seen; ranks are doubled.

    Without ties the sum's odd places are empty; ties only move the seen sum, which keeps the answer on the safe side.
    """
    import numpy

    size, total = len(values), len(values) + len(others)
    ways = numpy.zeros((size + 1, 2 * size * len(others) + 1))
    ways[0, 0] = 1.0
    for rank in range(total):  # each rank either belongs to `values` or does not
        for chosen in range(min(rank, size - 1), -1, -1):
            step = 2 * (rank - chosen)  # by so much the sum grows beyond the smallest that so many ranks can have
            if step < ways.shape[1]:
                ways[chosen + 1, step:] += ways[chosen, : ways.shape[1] - step]
    chances = ways[size] / math.comb(total, size)
    seen = sum(_doubled_ranks([*values, *others])[:size]) - size * (size + 1)
    return chances.tolist(), seen


def _both_tails(chances: Sequence[float], seen: int, middle: float) -> float:
    distance = abs(seen - middle)
    return min(1.0, float(sum(chance for at, chance in enumerate(chances) if abs(at - middle) >= distance)))


def _doubled_ranks(values: Sequence[float]) -> list[int]:
    """Twice each value's rank from 1 on; equal values share the mean of theirs, which doubled is a whole number."""
    return [sum(other < value for other in values) + sum(other <= value for other in values) + 1 for value in values]


def holm(probabilities: Sequence[float]) -> list[float]:
    """Each p, corrected for there being so many (Holm 1979): if it is below 0.05, not even one of them is by chance."""
    order = sorted(range(len(probabilities)), key=lambda at: probabilities[at])
    corrected, largest = [0.0] * len(probabilities), 0.0
    for place, at in enumerate(order):
        largest = max(largest, min(1.0, probabilities[at] * (len(probabilities) - place)))
        corrected[at] = largest
    return corrected


def jain(shares: Sequence[float]) -> float:
    """Jain's index of fairness: 1 if all shares are equal, 1/n if one has all (Jain, Chiu, Hawe 1984).

    Where nothing was shared there is no fairness: 0.
    """
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 0.0
