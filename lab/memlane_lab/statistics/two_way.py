"""The two-way analysis: all samples of a measure together, explained by round, variant, place in the round, other work.

Logarithms are fitted by least squares: an effect of each round and of each variant, a slope over the place in the round
(neighbours may heat a machine or fill its caches) and one over the CPUs of other work. A ratio of two variants is the
difference of their effects, its interval that of Student's t with the spread of all variants' residuals. Paired medians
suppose less and see less: they know two variants only. Both are told side by side.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from memlane_lab.statistics.stats import CONFIDENCE, Interval

_FEWEST_FREE = 8
"""Degrees of freedom that residuals must have, so that their spread is known."""


@dataclass(frozen=True)
class Taken:
    """One sample's value."""

    round: int
    variant: str
    place: int
    """In the order of its round, from 0."""
    others: float
    """CPUs of other work meanwhile."""
    value: float
    """Above 0."""


@dataclass(frozen=True)
class Effect:
    """The ratio of one variant to another."""

    ratio: Interval
    probability: float
    """Of so clear a ratio if there is no difference (two-sided)."""
    spread: float
    """Standard deviation of residuals, of logarithms."""
    rounds: int


def effect(taken: Sequence[Taken], variant: str, other: str) -> Effect | None:
    """The ratio of `variant` to `other` by all samples; None where they are too few, or none of one of the two."""
    import numpy
    from scipy.stats import t

    own = [each for each in taken if each.value > 0]
    variants, rounds = sorted({each.variant for each in own}), sorted({each.round for each in own})
    if not {variant, other} <= set(variants) or variant == other:
        return None
    rows = numpy.array([_row(each, variants, rounds) for each in own])
    told = numpy.log([each.value for each in own])
    rank = int(numpy.linalg.matrix_rank(rows))
    free = len(own) - rank
    if free < _FEWEST_FREE:
        return None
    weights = numpy.linalg.pinv(rows) @ told
    off = told - rows @ weights
    spread = math.sqrt(float(off @ off) / free)
    contrast = numpy.zeros(rows.shape[1])
    contrast[variants.index(variant)], contrast[variants.index(other)] = 1.0, -1.0
    middle = float(contrast @ weights)
    error = spread * math.sqrt(float(contrast @ numpy.linalg.pinv(rows.T @ rows) @ contrast))
    reach = float(t.ppf(1 - (1 - CONFIDENCE) / 2, free)) * error
    probability = float(2 * t.sf(abs(middle) / error, free)) if error else 0.0
    bounds = Interval(math.exp(middle), math.exp(middle - reach), math.exp(middle + reach))
    return Effect(bounds, probability, spread, len(rounds))


def _row(each: Taken, variants: Sequence[str], rounds: Sequence[int]) -> list[float]:
    """Variants, rounds but the first, place, other work."""
    labels = [float(each.variant == name) for name in variants]
    return [*labels, *(float(each.round == name) for name in rounds[1:]), float(each.place), each.others]


def tellable(spread: float, rounds: int, endpoints: int = 1, power: float = 0.8) -> float:
    """The smallest ratio above 1 that so many rounds tell from 1 with that power.

    `spread`: standard deviation of the logarithm of a round's ratio. Of the median's interval, which takes pi / 2 times
    the rounds of the mean's; `endpoints` are corrected for their number (the first step of Holm). Infinite where the
    rounds cannot reach the level at all.
    """
    from scipy.stats import norm

    level = (1 - CONFIDENCE) / endpoints
    if 2 * 0.5**rounds > level:
        return math.inf
    error = spread * math.sqrt(math.pi / 2 / rounds)
    return math.exp((float(norm.ppf(1 - level / 2)) + float(norm.ppf(power))) * error)


def rounds_for(ratio: float, spread: float, endpoints: int = 1, power: float = 0.8) -> int:
    """The fewest rounds that tell a ratio above 1 from 1; the rest as of `tellable`, of which it is the inverse."""
    from scipy.stats import norm

    level = (1 - CONFIDENCE) / endpoints
    reach = (float(norm.ppf(1 - level / 2)) + float(norm.ppf(power))) * spread / math.log(ratio)
    least = math.ceil(1 - math.log2(level))  # so that all rounds on one side are improbable enough
    return max(least, math.ceil(math.pi / 2 * reach**2 - 1e-9))
