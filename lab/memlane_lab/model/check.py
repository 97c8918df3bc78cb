"""The check: predictions beside later measurements, at configurations that the calibration does not contain.

Beside the model stand its **rivals**, which know nothing of hosts: linear interpolation of the calibration (of
logarithms, over size, pairs and load; outside of all points, the nearest of them), the nearest neighbour, the model's
own quadratic without its process, and the path's median. All are told the same: path, pairs, size and load. A model's
worth is its lead over them. Models that were **withdrawn** are kept with their predictions.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from memlane_lab.common.errors import LabError
from memlane_lab.common.strict import Strict
from memlane_lab.model import fitted
from memlane_lab.model.configuration import Configuration, Work
from memlane_lab.model.fitted import CPU, RATE, UNFAIRNESS, Model
from memlane_lab.model.observations import Observation
from memlane_lab.model.predict import Bounded, Prediction, predict

GOAL_MEDIAN, GOAL_MOST = 0.10, 0.25
"""Of relative errors: their median, and that of the worst decile."""
OWN = "this model"
"""Its name among its rivals."""
INTERPOLATION = "linear interpolation"

Rival = Callable[[Configuration], float]
"""A figure of a configuration."""


class Told(Strict):
    """One prediction of a model that was withdrawn."""

    configuration: Configuration
    rate: float
    cpu: float
    fairness: float | None = None


class Withdrawn(Strict):
    """A model that was withdrawn, with its predictions of held-out configurations."""

    name: str
    predicted: list[Told]


class AllWithdrawn(Strict):
    """The file of them."""

    models: list[Withdrawn]


@dataclass(frozen=True)
class Figure:
    """One figure of a configuration."""

    predicted: Bounded
    rivals: Mapping[str, float]
    """Predictions of the others, by name."""
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

    def error_of(self, rival: str) -> float | None:
        """The same of a rival, or of the model itself; None where it says nothing."""
        told = self.predicted.estimate if rival == OWN else self.rivals.get(rival, math.nan)
        return None if math.isnan(told) else told / self.middle - 1

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
    rms: float
    """Of errors of the logarithm: the root of their mean square."""

    @property
    def met(self) -> bool:
        """Whether the goal is met."""
        return self.median <= GOAL_MEDIAN and self.decile <= GOAL_MOST


def check(model: Model, observed: Sequence[Observation], withdrawn: Sequence[Withdrawn] = ()) -> list[Checked]:
    """Every held-out configuration; raises if one of them was calibrated."""
    groups: dict[Configuration, list[Observation]] = {}
    for each in observed:
        groups.setdefault(each.configuration.anywhere, []).append(each)
    known = {each.configuration.anywhere for each in model.observed}
    if seen := [str(asked) for asked in groups if asked in known]:
        raise LabError(f"held-out points must be unknown to the calibration, but it contains {'; '.join(seen)}")
    rivals = {work: _of_work(model, work) for work in {asked.work for asked in groups}}
    gone = {each.name: {told.configuration: told for told in each.predicted} for each in withdrawn}
    return [_checked(model, asked, found, rivals[asked.work], gone) for asked, found in groups.items()]


def _checked(
    model: Model,
    asked: Configuration,
    observed: Sequence[Observation],
    rivals: Mapping[str, Mapping[str, Rival]],
    gone: Mapping[str, Mapping[Configuration, Told]],
) -> Checked:
    said: Prediction = predict(model, asked, extrapolate=True)
    old = {name: told[asked] for name, told in gone.items() if asked in told}

    def others(figure: str) -> dict[str, float]:
        return {name: found[figure](asked) for name, found in rivals.items() if figure in found}

    fair = {name: 1 / (1 + value) for name, value in others(UNFAIRNESS).items()}
    fair |= {name: told.fairness for name, told in old.items() if told.fairness}
    unfair = [each.fairness for each in observed if each.fairness is not None]
    return Checked(
        asked=asked,
        rate=Figure(said.rate, others(RATE) | {name: told.rate for name, told in old.items()}, _values(observed, RATE)),
        cpu=Figure(said.cpu, others(CPU) | {name: told.cpu for name, told in old.items()}, _values(observed, CPU)),
        fairness=Figure(said.fairness, fair, unfair) if said.fairness and unfair else None,
    )


def _values(observed: Sequence[Observation], figure: str) -> list[float]:
    return [fitted.figures(each)[figure] for each in observed]


def _of_work(model: Model, work: Work) -> dict[str, dict[str, Rival]]:
    """The rivals, each with its figures, fitted from the same samples."""
    found: dict[str, dict[str, Rival]] = {"its quadratic alone": {}, INTERPOLATION: {}, "nearest neighbour": {},
                                          "the path's median": {}}  # fmt: skip
    for figure in (RATE, CPU, UNFAIRNESS):
        surface, own = model.surface(work, figure), model.of_figure(work, figure)
        if surface is None:
            continue
        found["its quadratic alone"][figure] = surface.trend
        found[INTERPOLATION][figure] = _by_path(own, _interpolator)
        found["nearest neighbour"][figure] = _by_path(own, _neighbour)
        found["the path's median"][figure] = _by_path(own, _middle)
    return found


Observed = Sequence[tuple[Configuration, float]]


def _by_path(own: Observed, rival: Callable[[Observed], Rival]) -> Rival:
    paths = {asked.path for asked, _ in own}
    told = {path: rival([each for each in own if each[0].path == path]) for path in paths}
    return lambda asked: told[asked.path](asked) if asked.path in told else math.nan


def _middle(own: Observed) -> Rival:
    middle = statistics.median(value for _, value in own)
    return lambda _: middle


def _points(own: Observed) -> tuple[np.ndarray[tuple[int, int], np.dtype[np.float64]], list[float]]:
    """Each calibrated point, and the logarithm of its median."""
    grouped: dict[tuple[float, ...], list[float]] = {}
    for asked, value in own:
        grouped.setdefault(asked.features, []).append(math.log(value))
    return np.array(list(grouped)), [statistics.median(each) for each in grouped.values()]


def _neighbour(own: Observed) -> Rival:
    points, values = _points(own)

    def told(asked: Configuration) -> float:
        apart = ((points - np.array(asked.features)) ** 2).sum(axis=1)
        return math.exp(values[int(apart.argmin())])

    return told


def _interpolator(own: Observed) -> Rival:
    from scipy.interpolate import LinearNDInterpolator
    from scipy.spatial import QhullError

    points, values = _points(own)
    nearest = _neighbour(own)
    try:
        between = LinearNDInterpolator(points, np.array(values))
    except QhullError:  # too few points to lie between
        return nearest

    def told(asked: Configuration) -> float:
        value = float(between(np.array([asked.features]))[0])
        return nearest(asked) if math.isnan(value) else math.exp(value)

    return told


def errors(figures: Iterable[Figure], of: str = OWN) -> Errors | None:
    """Those of the model or of a rival; None where it says nothing of any of them."""
    told = [error for each in figures if (error := each.error_of(of)) is not None]
    if not told:
        return None
    rising = sorted(map(abs, told))
    rms = math.sqrt(statistics.fmean(math.log1p(each) ** 2 for each in told))
    decile, most = (rising[math.ceil(share * len(rising)) - 1] for share in (0.9, 0.95))
    return Errors(statistics.median(rising), decile, most, rms)


def covered(figures: Sequence[Figure]) -> float:
    """Share of samples within the bounds of 90 %."""
    samples = [(each, value) for each in figures for value in each.measured]
    return sum(each.predicted.low <= value <= each.predicted.high for each, value in samples) / len(samples)


def spread(figures: Sequence[Figure]) -> float:
    """Relative deviation of one configuration's samples from their median, where there are several."""
    return statistics.median([each.spread for each in figures if len(each.measured) > 1] or [math.nan])


def names(checked: Sequence[Checked]) -> list[str]:
    """The model, its rivals and those that were withdrawn."""
    return list(dict.fromkeys([OWN, *(name for each in checked for name in each.rate.rivals)]))


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


def perfect(model: Model, measured: Sequence[Sequence[float]]) -> Perfect | None:
    """The least errors to be expected of the rates of held-out streams, or None where nothing was calibrated twice.

    A sample's spread is that of calibrated configurations which were measured again at another time, as the held-out
    ones were; the median of few samples is taken for their mean.
    """
    groups: dict[Configuration, list[float]] = {}
    for each in model.observed:
        if each.configuration.work is Work.STREAM:
            groups.setdefault(each.configuration.anywhere, []).append(math.log(each.rate))
    again = [rates for rates in groups.values() if len(rates) > 1]
    if not again or not measured:
        return None
    squares = sum(statistics.variance(rates) * (len(rates) - 1) for rates in again)
    spread = math.sqrt(squares / sum(len(rates) - 1 for rates in again))
    own = [statistics.NormalDist(0, spread / math.sqrt(len(each))) for each in measured]

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
