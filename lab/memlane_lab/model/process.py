"""Residuals of a trend: a Gaussian process over configurations, and the bounds that come with it.

Observed = trend + process + noise, of logarithms. The process is smooth in size, pairs, load and path; how smooth, and
how strong beside the noise of single samples, follow from the calibration's likelihood (with weak priors). Near
calibrated points it corrects the trend, far from them it fades, and the bounds widen.

The bounds are widened once more so that they hold as promised for calibrated points that are left out one at a time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

COVERAGE = 0.9
"""Of a prediction's bounds: how many samples they shall hold."""
_PRIORS = (
    # logarithms of: strength, lengths of size, pairs, load; noise. Median, how far it may be off.
    (-1.6, 0.5), (-0.5, 0.35), (-0.2, 0.35), (-0.2, 0.35), (-2.0, 0.35),
)  # fmt: skip
_PATH = (0.7, 0.5)
"""The same of the length over which paths differ: paths are near to each other."""
_COMMON = 0.3
"""How far the trend may be off everywhere alike."""
NORMAL = 1.645
"""Standard deviations that hold 90 % of a normal distribution."""

Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Process:
    """Of one figure's residuals."""

    at: Sequence[tuple[float, ...]]
    """Features of the observed configurations."""
    off: Sequence[float]
    """By how much the logarithm of the observation is above the trend."""
    knobs: tuple[float, ...]
    """Logarithms of strength, lengths, noise."""
    widened: float = 1.0
    """The factor by which the bounds had to be widened to hold for points left out."""

    def told(self, features: Sequence[float]) -> tuple[float, float]:
        """The residual of a configuration, and half the width of its bounds, both of logarithms."""
        here = np.array([features])
        near = _likeness(here, np.array(self.at), self.knobs)[0]
        inverse = self._inverse
        middle = float(near @ inverse @ np.array(self.off))
        own = float(_likeness(here, here, self.knobs)[0, 0])
        noise = float(np.exp(2 * self.knobs[-1]))
        spread = np.sqrt(max(own - float(near @ inverse @ near), 0.0) + noise)
        return middle, float(NORMAL * self.widened * spread)

    @cached_property
    def _inverse(self) -> Matrix:
        return np.asarray(np.linalg.inv(_covariance(np.array(self.at), self.knobs)), dtype=np.float64)


def fit(at: Sequence[tuple[float, ...]], off: Sequence[float]) -> Process:
    """The most probable process, given the residuals observed `at` some features: size, pairs, load, then paths."""
    from scipy.optimize import minimize

    points, values = np.array(at), np.array(off)
    paths = points.shape[1] - (len(_PRIORS) - 2)
    prior = np.array([*_PRIORS[:-1], *[_PATH] * paths, _PRIORS[-1]])

    def surprise(knobs: Matrix) -> float:
        covariance = _covariance(points, tuple(knobs))
        sign, size = np.linalg.slogdet(covariance)
        unlikely = float(((knobs - prior[:, 0]) ** 2 / prior[:, 1] ** 2).sum())
        if sign <= 0:
            return 1e9
        return float(values @ np.linalg.solve(covariance, values)) + float(size) + unlikely

    found = minimize(surprise, prior[:, 0], method="L-BFGS-B", bounds=[(low - 3, low + 3) for low in prior[:, 0]])
    knobs = tuple(map(float, found.x))
    return Process(at=list(at), off=list(off), knobs=knobs, widened=_widened(points, values, knobs))


def _widened(points: Matrix, values: Matrix, knobs: tuple[float, ...]) -> float:
    """How much wider bounds must be, at least 1, so that they hold for that share of points, each left out in turn.

    Left out are the points of all paths at once: of a path that is alike, another one's would tell too much.
    """
    inverse = np.linalg.inv(_covariance(points, knobs))
    weights, apart = inverse @ values, []
    for own in groups([tuple(each[: len(_PRIORS) - 2]) for each in points]):
        left = np.linalg.inv(inverse[np.ix_(own, own)])  # the covariance of these points, given all others
        apart += list(np.abs(left @ weights[own]) / np.sqrt(np.diag(left)))  # in standard deviations
    many = len(values)
    rank = min(many, int(np.ceil(COVERAGE * (many + 1))))
    return max(1.0, float(np.sort(apart)[rank - 1]) / NORMAL)


def groups(at: Sequence[tuple[float, ...]]) -> list[list[int]]:
    """The numbers of equal entries, together."""
    found: dict[tuple[float, ...], list[int]] = {}
    for number, each in enumerate(at):
        found.setdefault(each, []).append(number)
    return list(found.values())


def _covariance(points: Matrix, knobs: Sequence[float]) -> Matrix:
    noise = np.exp(2 * knobs[-1]) * np.eye(len(points))
    return _likeness(points, points, knobs) + np.asarray(noise, dtype=np.float64)


def _likeness(one: Matrix, other: Matrix, knobs: Sequence[float]) -> Matrix:
    """How much the residuals of configurations vary together: more, the nearer they are."""
    strength, lengths = np.exp(2 * knobs[0]), np.exp(np.array(knobs[1:-1]))
    apart = ((one[:, None, :] - other[None, :, :]) / lengths) ** 2
    return np.asarray(_COMMON**2 + strength * np.exp(-apart.sum(axis=2) / 2), dtype=np.float64)
