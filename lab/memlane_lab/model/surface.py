"""A figure as a smooth function of the configuration: a quadratic, and a Gaussian process over its residuals.

The logarithm of the figure is quadratic in size, pairs and load (`Configuration.features`), with an offset for each
path; the weights are those of ridge regression, whose penalty predicts calibrated configurations best that are left out
in turn, of all paths at once. No physics: docs/adr/0038 has the attempts and their worth.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from memlane_lab.model import process
from memlane_lab.model.configuration import Configuration
from memlane_lab.model.process import Matrix, Process

_PENALTIES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
_FREE = 1e-9
"""Penalty of the constant: none, but that of arithmetic."""


@dataclass(frozen=True)
class Surface:
    """One figure of all paths of one kind of work."""

    paths: Sequence[str]
    weights: Matrix
    covariance: Matrix
    """Of the weights, by the spread of residuals."""
    residuals: Process

    def trend(self, asked: Configuration) -> float:
        """The quadratic alone."""
        return math.exp(float(_quadratic(_features(asked, self.paths)) @ self.weights))

    def told(self, asked: Configuration) -> tuple[float, float, float]:
        """The figure, and the bounds that hold 90 % of samples."""
        features = _features(asked, self.paths)
        off, half = self.residuals.told(features)
        row = _quadratic(features)
        half = math.hypot(half, process.NORMAL * math.sqrt(float(row @ self.covariance @ row)))
        middle = self.trend(asked) * math.exp(off)
        return middle, middle * math.exp(-half), middle * math.exp(half)


def fit(asked: Sequence[Configuration], values: Sequence[float]) -> Surface:
    """The surface of these figures, which are above 0."""
    paths = sorted({each.path for each in asked})
    at = [_features(each, paths) for each in asked]
    rows, told = np.array([_quadratic(each) for each in at]), np.log(values)
    groups = process.groups([each.features for each in asked])
    penalty = min(_PENALTIES, key=lambda each: _left_out(rows, told, groups, each))
    inverse = np.linalg.inv(rows.T @ rows + _ridge(rows, penalty))
    weights = inverse @ rows.T @ told
    off = told - rows @ weights
    free = max(1, len(told) - rows.shape[1])
    covariance = np.asarray(inverse * float(off @ off) / free, dtype=np.float64)
    return Surface(paths, weights, covariance, process.fit(at, list(map(float, off))))


def _left_out(rows: Matrix, told: Matrix, groups: Sequence[list[int]], penalty: float) -> float:
    """The squared error of configurations that are left out in turn (PRESS), without fitting so often."""
    hat = rows @ np.linalg.solve(rows.T @ rows + _ridge(rows, penalty), rows.T)
    off = told - hat @ told
    errors = (np.linalg.solve(np.eye(len(own)) - hat[np.ix_(own, own)], off[own]) for own in groups)
    return float(sum((each**2).sum() for each in errors))


def _ridge(rows: Matrix, penalty: float) -> Matrix:
    return np.diag([_FREE, *[penalty] * (rows.shape[1] - 1)])


def _features(asked: Configuration, paths: Sequence[str]) -> tuple[float, ...]:
    return (*asked.features, *(float(asked.path == path) for path in paths))


def _quadratic(features: Sequence[float]) -> Matrix:
    size, pairs, load, *paths = features
    squares = (size * size, pairs * pairs, load * load, size * pairs, size * load, pairs * load)
    return np.array([1.0, size, pairs, load, *squares, *paths])
