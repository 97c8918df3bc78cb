"""Residuals of costs and host: a Gaussian process over configurations, and the bounds that come with it.

As in Kennedy and O'Hagan, *Bayesian calibration of computer models* (2001): observed = model + discrepancy + noise,
here of logarithms. The discrepancy is smooth in size, pairs, load and placement; how smooth, and how strong beside the
noise of single samples, follow from the calibration's likelihood (with weak priors). Near calibrated points it
corrects the model, far from them it fades, and the bounds widen.

The bounds are widened once more so that they hold as promised for calibrated points that are left out one at a time.
"""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict

from memlane_lab.common.strict import Strict

COVERAGE = 0.9
"""Of a prediction's bounds: how many samples they shall hold."""
_PRIORS = (
    # logarithms of: strength, lengths of size, pairs, load, placement; noise. Median, how far it may be off.
    (-1.6, 0.5), (-0.5, 0.35), (-0.2, 0.35), (-0.2, 0.35), (0.0, 0.5), (-2.0, 0.35),
)  # fmt: skip
_COMMON = 0.3
"""How far the model may be off everywhere alike."""
_NORMAL = 1.645
"""Standard deviations that hold 90 % of a normal distribution."""

Matrix = NDArray[np.float64]


class Discrepancy(Strict):
    """Of one figure, for one path and one kind of work."""

    model_config = ConfigDict(extra="forbid", frozen=True, ignored_types=(cached_property,))

    at: list[tuple[float, ...]]
    """Features of the observed configurations."""
    off: list[float]
    """By how much the logarithm of the observation is above the model's."""
    knobs: tuple[float, ...]
    """Logarithms of strength, lengths, noise."""
    widened: float = 1.0
    """The factor by which the bounds had to be widened to hold for points left out."""

    def told(self, features: Sequence[float]) -> tuple[float, float]:
        """The discrepancy of a configuration, and half the width of its bounds, both of logarithms."""
        here = np.array([features])
        near = _likeness(here, np.array(self.at), self.knobs)[0]
        inverse = self._inverse
        middle = float(near @ inverse @ np.array(self.off))
        own = float(_likeness(here, here, self.knobs)[0, 0])
        noise = float(np.exp(2 * self.knobs[-1]))
        spread = np.sqrt(max(own - float(near @ inverse @ near), 0.0) + noise)
        return middle, float(_NORMAL * self.widened * spread)

    @cached_property
    def _inverse(self) -> Matrix:
        return np.asarray(np.linalg.inv(_covariance(np.array(self.at), self.knobs)), dtype=np.float64)


def fit(
    at: Sequence[tuple[float, ...]], off: Sequence[float], *, more: Sequence[tuple[float, float]] = ()
) -> Discrepancy:
    """The most probable discrepancy, given the residuals observed `at` some features.

    `more`: priors of the lengths of further features behind size, pairs, load and placement.
    """
    from scipy.optimize import minimize

    points, values = np.array(at), np.array(off)
    prior = np.array([*_PRIORS[:-1], *more, _PRIORS[-1]])

    def surprise(knobs: Matrix) -> float:
        covariance = _covariance(points, tuple(knobs))
        sign, size = np.linalg.slogdet(covariance)
        unlikely = float(((knobs - prior[:, 0]) ** 2 / prior[:, 1] ** 2).sum())
        if sign <= 0:
            return 1e9
        return float(values @ np.linalg.solve(covariance, values)) + float(size) + unlikely

    found = minimize(surprise, prior[:, 0], method="L-BFGS-B", bounds=[(low - 3, low + 3) for low in prior[:, 0]])
    knobs = tuple(map(float, found.x))
    return Discrepancy(at=[tuple(map(float, each)) for each in at], off=list(map(float, off)), knobs=knobs,
                       widened=_widened(points, values, knobs))  # fmt: skip


def _widened(points: Matrix, values: Matrix, knobs: tuple[float, ...]) -> float:
    """How much wider bounds must be, at least 1, so that they hold for that share of points, each left out in turn."""
    inverse = np.linalg.inv(_covariance(points, knobs))
    apart = np.abs(inverse @ values) / np.sqrt(np.diag(inverse))  # in standard deviations, as if it had been left out
    many = len(values)
    rank = min(many, int(np.ceil(COVERAGE * (many + 1))))
    return max(1.0, float(np.sort(apart)[rank - 1]) / _NORMAL)


def _covariance(points: Matrix, knobs: Sequence[float]) -> Matrix:
    noise = np.exp(2 * knobs[-1]) * np.eye(len(points))
    return _likeness(points, points, knobs) + np.asarray(noise, dtype=np.float64)


def _likeness(one: Matrix, other: Matrix, knobs: Sequence[float]) -> Matrix:
    """How much the discrepancies of configurations vary together: more, the nearer they are."""
    strength, lengths = np.exp(2 * knobs[0]), np.exp(np.array(knobs[1:-1]))
    apart = ((one[:, None, :] - other[None, :, :]) / lengths) ** 2
    return np.asarray(_COMMON**2 + strength * np.exp(-apart.sum(axis=2) / 2), dtype=np.float64)
