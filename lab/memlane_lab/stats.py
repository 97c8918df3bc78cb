"""Statistics of few, noisy samples: medians, bootstrap intervals, a rank test, fairness.

Randomness has a fixed seed: the same samples give the same report.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

CONFIDENCE = 0.95
_RESAMPLES = 4000
_SEED = 20261122


@dataclass(frozen=True)
class Interval:
    """An estimate and the bounds between which it would mostly lie if all were measured again."""

    estimate: float
    low: float
    high: float

    def scaled(self, factor: float) -> "Interval":
        """The same, times a factor."""
        return Interval(self.estimate * factor, self.low * factor, self.high * factor)


def median(values: Sequence[float]) -> Interval:
    """The median, with its bootstrap interval; a single value is its own."""
    estimate = statistics.median(values)
    if len(values) < 2:
        return Interval(estimate, estimate, estimate)
    return Interval(estimate, *_bootstrap((values,), _medians))


def ratio(values: Sequence[float], others: Sequence[float]) -> Interval | None:
    """The ratio of the two medians, with its bootstrap interval; None where there is none.

    Where only the other median is nothing, it is beyond all bounds.
    """
    above, below = statistics.median(values), statistics.median(others)
    if min(*values, *others) < 0 or above == below == 0:
        return None
    if below == 0:
        return Interval(math.inf, math.inf, math.inf)
    estimate = above / below
    if len(values) < 2 or len(others) < 2:
        return Interval(estimate, estimate, estimate)
    return Interval(estimate, *_bootstrap((values, others), _ratios))


def rank_test(values: Sequence[float], others: Sequence[float]) -> float | None:
    """How probable so clear a difference in ranks is if there is none (Mann-Whitney, two-sided, exact if no ties).

    None if there are too few samples for any answer.
    """
    if len(values) < 2 or len(others) < 2:
        return None
    from scipy.stats import mannwhitneyu

    return float(mannwhitneyu(values, others, alternative="two-sided").pvalue)


def jain(shares: Sequence[float]) -> float:
    """Jain's index of fairness: 1 if all shares are equal, 1/n if one has all (Jain, Chiu, Hawe 1984)."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 1.0


def _medians(values: Any, axis: int) -> Any:  # noqa: ANN401
    import numpy

    return numpy.median(values, axis=axis)


def _ratios(values: Any, others: Any, axis: int) -> Any:  # noqa: ANN401
    """Where the other median is nothing, the ratio is beyond all bounds."""
    import numpy

    above, below = _medians(values, axis), _medians(others, axis)
    endless = numpy.full_like(above, numpy.inf)
    return numpy.divide(above, below, out=endless, where=below > 0)


def _bootstrap(samples: tuple[Sequence[float], ...], statistic: Callable[..., Any]) -> tuple[float, float]:
    """Percentile bootstrap; for medians of few samples it is the one that does no harm."""
    import numpy
    from scipy.stats import bootstrap

    with numpy.errstate(invalid="ignore"):  # an endless ratio has no standard error, which nobody asks for
        found = bootstrap(
            samples,
            statistic,
            vectorized=True,
            n_resamples=_RESAMPLES,
            confidence_level=CONFIDENCE,
            method="percentile",
            rng=numpy.random.default_rng(_SEED),
        )
    return float(found.confidence_interval.low), float(found.confidence_interval.high)
