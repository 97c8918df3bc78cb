"""Predictions: a model's figures for a configuration, with the bounds of a sample that would be measured now."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from memlane_lab.common.errors import LabError
from memlane_lab.model import path_lengths
from memlane_lab.model.configuration import Configuration, Party, Work
from memlane_lab.model.fitted import CPU, RATE, UNFAIRNESS, Fitted, Model
from memlane_lab.model.pooled import HOST, WORDS, Pooled
from memlane_lab.model.what_if import WhatIf


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
    parties: Mapping[Party, Bounded]
    """Of these; they add up to all."""
    fairness: Bounded | None
    """Jain's index, where there are several pairs."""
    outside: list[str]
    """The values that lie outside of the calibration: then it is an extrapolation."""

    @property
    def response(self) -> Bounded:
        """Seconds from a request to its answer, mean: each pair waits for one answer at a time (Little's law)."""
        pairs = self.asked.pairs
        return Bounded(pairs / self.rate.estimate, pairs / self.rate.high, pairs / self.rate.low)


def predict(
    model: Model,
    asked: Configuration,
    what_if: WhatIf | None = None,
    *,
    extrapolate: bool = False,
    others: float = 0.0,
) -> Prediction:
    """The prediction; raises if it lies outside of the calibration, unless it may `extrapolate`.

    `others`: CPUs that other work takes meanwhile.
    """
    fitted = model.of(asked.path, asked.work)
    outside = fitted.range.outside(asked)
    if outside and not extrapolate:
        raise LabError(
            f"{asked} lies outside of what was calibrated ({'; '.join(outside)}): "
            "--extrapolate predicts it none the less"
        )
    change = what_if or WhatIf()
    if model.pooled and not extrapolate:
        _check_factors(change)
    if model.pooled and asked.work is Work.STREAM and asked.path in model.pooled.paths:
        _check_words(asked, change)
        found = _by_queues(model.pooled, fitted, asked, model.cpus - others, change)
    elif change.ring != 1.0:
        raise LabError("--what-if ring: only streams of a model by counted path lengths know of rings")
    else:
        found = _bounded(fitted, asked, model.cpus * change.cores - others, change)
    return Prediction(
        asked=asked,
        rate=found[RATE],
        cpu=found[CPU],
        parties=_parties(found),
        fairness=_fairness(found[UNFAIRNESS]) if asked.pairs > 1 and UNFAIRNESS in found else None,
        outside=outside,
    )


_MEASURED = {"cores": (1.0, 1.0), "ring": (0.5, 1.0)}
"""Factors between which what-ifs were held against measurements (docs/benchmarks/notes/prediction.md)."""
_MEASURED_STAGES = (0.0, 2.0)
"""The same of a stage: from its share of instructions, which is counted, to a second one."""


def _check_factors(change: WhatIf) -> None:
    """Raises for a change beyond those that were measured."""
    for word, factor in change.changed.items():
        low, high = _MEASURED.get(word, _MEASURED_STAGES)
        if not low <= factor <= high:
            span = f"{low:g} to {high:g}" if low < high else "one number of CPUs"
            raise LabError(
                f"--what-if {word}={factor:g}x lies outside of what was measured, which is {span}: "
                "--extrapolate predicts it none the less"
            )


def _check_words(asked: Configuration, change: WhatIf) -> None:
    """Raises for a change that counted path lengths do not know."""
    if unknown := [word for word in change.changed if word not in {*WORDS, *HOST}]:
        raise LabError(
            f"--what-if {unknown[0]} is no stage that was counted; there are: {', '.join(WORDS)}, "
            f"and {' and '.join(HOST)}"
        )
    if set(change.changed) & set(WORDS) and not path_lengths.is_counted(asked.path):
        raise LabError(f"--what-if: the path length of {asked.path} was not counted, so none of its stages is known")


def _by_queues(pooled: Pooled, fitted: Fitted, asked: Configuration, cpus: float, change: WhatIf) -> dict[str, Bounded]:
    """Streams: the rate of the queueing network; the CPU time that a change spares or costs is taken from the CPU."""
    changed = change.changed
    words = {word: factor for word, factor in changed.items() if word in WORDS}
    most = cpus * change.cores
    found = _bounded(fitted, asked, most, WhatIf())
    if words:
        before, after = (pooled.rate(asked, cpus, each) for each in ({}, words))
        spent = [rate * sum(pooled.demand(asked, each)) for rate, each in ((before, {}), (after, words))]
        share = max(0.0, 1 + (spent[1] - spent[0]) / found[CPU].estimate)
        found |= {name: found[name].scaled(share) for name in found if name not in {RATE, UNFAIRNESS}}
    found[CPU] = Bounded(*(min(most, each) for each in (found[CPU].estimate, found[CPU].low, found[CPU].high)))
    return found | {RATE: Bounded(*pooled.told(asked, cpus, changed))}


def _bounded(fitted: Fitted, asked: Configuration, cpus: float, what_if: WhatIf) -> dict[str, Bounded]:
    """Each figure: costs and host after the change, times the discrepancy of the calibration."""
    said = fitted.model_copy(update={"stages": what_if.stages(fitted.stages)}).figures(asked, cpus)
    found = {}
    for name, discrepancy in fitted.discrepancies.items():
        off, half = discrepancy.told(asked.features)
        middle = said[name] * math.exp(off)
        found[name] = Bounded(middle, middle * math.exp(-half), middle * math.exp(half))
    found[CPU] = Bounded(*(min(cpus, each) for each in (found[CPU].estimate, found[CPU].low, found[CPU].high)))
    return found


def _parties(found: Mapping[str, Bounded]) -> dict[Party, Bounded]:
    """The parties' shares of all CPUs in use."""
    own = {party: found[str(party)] for party in Party if str(party) in found}
    all_ = sum(each.estimate for each in own.values())
    return {party: each.scaled(found[CPU].estimate / all_) for party, each in own.items()} if all_ else {}


def _fairness(unfair: Bounded) -> Bounded:
    return Bounded(*(1 / (1 + each) for each in (unfair.estimate, unfair.high, unfair.low)))
