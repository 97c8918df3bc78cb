"""The check: predictions beside later measurements, at configurations that the calibration does not contain.

Beside the model stands a **baseline** that knows nothing of hosts: linear interpolation of the calibration (of
logarithms, over the logarithms of size and pairs, and load; outside of all points, the nearest of them). A model's
worth is its lead over that.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from memlane_lab.common.errors import LabError
from memlane_lab.model.configuration import Configuration, Work
from memlane_lab.model.fitted import Model
from memlane_lab.model.observations import Observation
from memlane_lab.model.predict import Bounded, Prediction, predict

GOAL_MEDIAN, GOAL_MOST = 0.10, 0.25
"""Of relative errors: their median, and that of the worst decile."""


@dataclass(frozen=True)
class Figure:
    """One figure of a configuration."""

    predicted: Bounded
    baseline: float
    measured: list[float]
    """By sample."""

    @property
    def middle(self) -> float:
        """The measured median."""
        return statistics.median(self.measured)

    @property
    def error(self) -> float:
        """Relative, with its sign: 0.1 if predicted a tenth too high."""
        return self.predicted.estimate / self.middle - 1

    @property
    def baseline_error(self) -> float:
        """The same of the baseline."""
        return self.baseline / self.middle - 1

    @property
    def spread(self) -> float:
        """How far samples of this configuration are from their own median, in the median."""
        return statistics.median(abs(each / self.middle - 1) for each in self.measured)


@dataclass(frozen=True)
class Checked:
    """A configuration that was held out."""

    asked: Configuration
    rate: Figure
    cpu: Figure
    fairness: Figure | None


@dataclass(frozen=True)
class Errors:
    """Of one figure over many configurations: absolute values of relative errors."""

    median: float
    decile: float
    """Worst decile: nine of ten are not above it, nearest rank."""
    most: float
    """The same at 95 %."""
    covered: float
    """Share of samples within the bounds of 90 %."""
    spread: float
    """Relative deviation of one configuration's samples from their median, where there are several."""

    @property
    def met(self) -> bool:
        """Whether the goal is met."""
        return self.median <= GOAL_MEDIAN and self.decile <= GOAL_MOST


def check(model: Model, observed: Sequence[Observation]) -> list[Checked]:
    """Every held-out configuration; raises if one of them was calibrated."""
    groups: dict[Configuration, list[Observation]] = {}
    for each in observed:
        groups.setdefault(each.configuration.model_copy(update={"placement": ""}), []).append(each)
    known = {each.configuration.model_copy(update={"placement": ""}) for each in model.observed}
    if seen := [str(asked) for asked in groups if asked in known]:
        raise LabError(f"held-out points must be unknown to the calibration, but it contains {'; '.join(seen)}")
    baselines = {kind: Baseline(model, *kind) for kind in {(asked.path, asked.work) for asked in groups}}
    return [_checked(model, found, baselines[asked.path, asked.work].of(asked)) for asked, found in groups.items()]


def _checked(model: Model, observed: Sequence[Observation], baseline: Mapping[str, float]) -> Checked:
    places = [each.configuration.placement for each in observed]
    place = statistics.mode(places)
    asked = observed[0].configuration.model_copy(update={"placement": place})
    own = [each for each in observed if each.configuration.placement == place]
    others = statistics.median(max(0.0, each.others) for each in own)
    said: Prediction = predict(model, asked, extrapolate=True, others=others)
    unfair = [each.fairness for each in own if each.fairness is not None]
    return Checked(
        asked=asked,
        rate=Figure(said.rate, baseline["rate"], [each.rate for each in own]),
        cpu=Figure(said.cpu, baseline["cpu"], [each.total for each in own]),
        fairness=Figure(said.fairness, baseline["fairness"], unfair) if said.fairness and unfair else None,
    )


class Baseline:
    """The baseline: a figure between those of the calibrated points of one path and kind of work, linearly."""

    def __init__(self, model: Model, path: str, work: Work) -> None:
        own = [each for each in model.observed if (each.configuration.path, each.configuration.work) == (path, work)]
        self._figures = {
            "rate": _interpolator(own, lambda each: each.rate),
            "cpu": _interpolator(own, lambda each: each.total),
            "fairness": _interpolator(own, lambda each: each.fairness),
        }

    def of(self, asked: Configuration) -> dict[str, float]:
        """The baseline's predictions."""
        return {name: figure(asked.features[:3]) for name, figure in self._figures.items()}


def _interpolator(
    observed: Sequence[Observation], figure: Callable[[Observation], float | None]
) -> Callable[[tuple[float, ...]], float]:
    from scipy.interpolate import LinearNDInterpolator, NearestNDInterpolator
    from scipy.spatial import QhullError

    grouped: dict[tuple[float, ...], list[float]] = {}
    for each in observed:
        if value := figure(each):
            grouped.setdefault(each.configuration.features[:3], []).append(math.log(value))
    if not grouped:
        return lambda _: math.nan
    points, values = np.array(list(grouped)), np.array([statistics.median(each) for each in grouped.values()])
    nearest = NearestNDInterpolator(points, values)
    try:
        between = LinearNDInterpolator(points, values)
    except QhullError:  # too few points to lie between
        return lambda at: math.exp(float(nearest(np.array([at]))[0]))

    def told(at: tuple[float, ...]) -> float:
        value = float(between(np.array([at]))[0])
        return math.exp(float(nearest(np.array([at]))[0]) if math.isnan(value) else value)

    return told


def errors(figures: Iterable[Figure]) -> tuple[Errors, Errors]:
    """Those of the model and those of the baseline."""
    found = list(figures)
    samples = [(each, value) for each in found for value in each.measured]
    covered = sum(each.predicted.low <= value <= each.predicted.high for each, value in samples) / len(samples)
    spread = statistics.median([each.spread for each in found if len(each.measured) > 1] or [math.nan])

    def of(off: Sequence[float]) -> Errors:
        rising = sorted(map(abs, off))
        decile, most = (rising[math.ceil(share * len(rising)) - 1] for share in (0.9, 0.95))
        return Errors(statistics.median(rising), decile, most, covered, spread)

    return of([each.error for each in found]), of([each.baseline_error for each in found])


@dataclass(frozen=True)
class Perfect:
    """The errors of a model that knew the median of each configuration: those of the samples that it is checked by."""

    spread: float
    """Standard deviation of the logarithm of a sample."""
    repeated: int
    """Configurations that it is known from."""
    median: float
    decile: float
    meets: float
    """How often it would meet both goals, in checks by as many samples."""


_CHECKS, _SEED = 20_000, 1
"""Checks of a perfect model that are drawn."""


def perfect(model: Model, figures: Sequence[Figure]) -> Perfect | None:
    """The least errors to be expected of the rates of held-out streams, or None where nothing was calibrated twice.

    A sample's spread is that of calibrated configurations which were measured again at another time, as the held-out
    ones were; the median of few samples is taken for their mean.
    """
    groups: dict[Configuration, list[float]] = {}
    for each in model.observed:
        if each.configuration.work is Work.STREAM:
            groups.setdefault(each.configuration, []).append(math.log(each.rate))
    again = [rates for rates in groups.values() if len(rates) > 1]
    if not again or not figures:
        return None
    squares = sum(statistics.variance(rates) * (len(rates) - 1) for rates in again)
    spread = math.sqrt(squares / sum(len(rates) - 1 for rates in again))
    own = [statistics.NormalDist(0, spread / math.sqrt(len(each.measured))) for each in figures]

    def exceeded(error: float) -> float:
        return 1 - statistics.mean(each.cdf(math.log1p(error)) - each.cdf(math.log1p(-error)) for each in own)

    middle, decile = (_root(exceeded, share) for share in (0.5, 0.1))
    return Perfect(spread, len(again), middle, decile, _meets([each.stdev for each in own]))


def _meets(spreads: Sequence[float]) -> float:
    """The share of checks, one error drawn for each configuration, that meet both goals."""
    drawn = np.random.default_rng(_SEED).normal(size=(_CHECKS, len(spreads))) * np.array(spreads)
    rising = np.sort(np.abs(np.expm1(drawn)), axis=1)
    decile = rising[:, math.ceil(0.9 * len(spreads)) - 1]
    return float(np.mean((np.median(rising, axis=1) <= GOAL_MEDIAN) & (decile <= GOAL_MOST)))


def _root(falling: Callable[[float], float], wanted: float) -> float:
    """The error that only the wanted share exceeds, by halving."""
    low, high = 0.0, 0.999
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) > wanted else (low, middle)
    return high


def by_path(checked: Sequence[Checked], work: Work) -> Mapping[str, list[Checked]]:
    """The configurations of one kind of work, by path; all of them under the empty name first."""
    own = [each for each in checked if each.asked.work is work]
    paths = dict.fromkeys(each.asked.path for each in own)
    return {"": own} | {path: [each for each in own if each.asked.path == path] for path in paths}
