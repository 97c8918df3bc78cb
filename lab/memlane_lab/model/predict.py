"""Predictions: figures of a configuration that was not measured, with the bounds of a sample that would be."""

from dataclasses import dataclass

from memlane_lab.common.errors import LabError
from memlane_lab.model.configuration import Configuration
from memlane_lab.model.fitted import CPU, RATE, UNFAIRNESS, Model


@dataclass(frozen=True)
class Bounded:
    """A figure, and the bounds that hold 90 % of samples."""

    estimate: float
    low: float
    high: float

    def scaled(self, factor: float) -> "Bounded":
        """The same, times a factor."""
        return Bounded(self.estimate * factor, self.low * factor, self.high * factor)


@dataclass(frozen=True)
class Prediction:
    """The predicted figures of a configuration."""

    asked: Configuration
    rate: Bounded
    """Bytes, or requests, a second, of all pairs."""
    cpu: Bounded
    """CPUs in use by all parties."""
    fairness: Bounded | None
    """Jain's index, where there are several pairs."""
    outside: list[str]
    """The values that lie outside of the calibration: then it is an extrapolation."""

    @property
    def response(self) -> Bounded:
        """Seconds from a request to its answer, mean: each pair waits for one answer at a time (Little's law)."""
        pairs = self.asked.pairs
        return Bounded(pairs / self.rate.estimate, pairs / self.rate.high, pairs / self.rate.low)


def predict(model: Model, asked: Configuration, *, extrapolate: bool = False) -> Prediction:
    """The prediction; raises if it lies outside of the calibration, unless it may `extrapolate`."""
    outside = model.range(asked.path, asked.work).outside(asked)
    if outside and not extrapolate:
        raise LabError(
            f"{asked} lies outside of what was calibrated ({'; '.join(outside)}): "
            "--extrapolate predicts it none the less"
        )
    rate, cpu, unfair = (_bounded(model, asked, figure) for figure in (RATE, CPU, UNFAIRNESS))
    if rate is None or cpu is None:
        raise LabError(f"the calibration of {asked.work} has too few samples: calibrate more rounds")
    most = float(model.cpus)
    return Prediction(
        asked=asked,
        rate=rate,
        cpu=Bounded(*(min(most, each) for each in (cpu.estimate, cpu.low, cpu.high))),
        fairness=_fairness(unfair) if asked.pairs > 1 and unfair else None,
        outside=outside,
    )


def _bounded(model: Model, asked: Configuration, figure: str) -> Bounded | None:
    found = model.surface(asked.work, figure)
    return Bounded(*found.told(asked)) if found else None


def _fairness(unfair: Bounded) -> Bounded:
    return Bounded(*(1 / (1 + each) for each in (unfair.estimate, unfair.high, unfair.low)))
