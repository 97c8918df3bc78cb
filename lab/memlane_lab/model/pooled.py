"""The model of streams over all paths together: demands by counted path lengths, few fitted numbers, a discrepancy.

Counted are the instructions of each party for a message (`path_lengths.py`). Fitted are, once for all paths: the time
of an instruction of each party (its CPI), how many batches circulate, the delay of a wake-up and of a load's turn, and
how the host shares (`network.py`); for a path without counts of its switch, that switch's cost of a message and a byte.
Their residual is a Gaussian process over configurations, in which paths are near to each other.

The numbers are known to some precision only: an ensemble of others that fit nearly as well gives the bounds of
what-ifs.
"""

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict

from memlane_lab.common.strict import Strict
from memlane_lab.model import discrepancy, network, path_lengths
from memlane_lab.model.configuration import LARGEST, SMALLEST, Configuration, Party, Work
from memlane_lab.model.discrepancy import Discrepancy
from memlane_lab.model.network import Column, Configurations, Shared
from memlane_lab.model.observations import Observation
from memlane_lab.paths import PATHS

_PRIORS = {
    # name: its prior (logarithm, or of a share the logarithm of its odds), how far it may be off
    Party.SENDER: (math.log(0.5e-9), 0.5),
    Party.SENDER_KERNEL: (math.log(1.2e-9), 0.5),
    Party.RECEIVER: (math.log(0.7e-9), 0.5),
    Party.RECEIVER_KERNEL: (math.log(2.2e-9), 0.5),
    Party.SWITCH: (math.log(0.5e-9), 0.7),
    "batches": (0.0, 1.0),
    "batches large": (1.0, 1.0),
    "wake": (math.log(20e-6), 1.5),
    "turn": (math.log(100e-6), 2.0),
    "wake by size": (0.5, 0.3),
    "turn by size": (0.5, 0.3),
    "wake by pairs": (0.0, 0.4),
    "turn by pairs": (0.0, 0.4),
    "usable": (2.5, 0.7),
    "grip": (0.0, 0.7),
    "softness": (1.6, 0.4),
    "crowd": (0.0, 0.2),
    "far": (0.0, 0.3),
}
_SWITCH = {"message": (-12.0, 1.5), "byte": (-22.0, 1.5)}
"""Of a switch that was not counted, by path."""
_OF_PATH = ((0.7, 0.5), (0.7, 0.5), (0.7, 0.5))
"""Lengths over which the discrepancies of paths differ: paths are near to each other."""
_PER_CENT = 0.1
"""Spread of rates that the fit supposes."""
_CPI_SPREAD = 0.6
"""Spread of the logarithm of a sample's time for an instruction."""
_ENSEMBLE, _SEED = 24, 1
WORDS = ("copy", "wakeups", "calls")
"""What-ifs that change a stage."""
HOST = ("cores", "ring")
"""What-ifs that change the host."""
_ACCURATE = 1.645
_ALONE = (math.log(0.7), 0.35)
"""Logarithm of the share of an instruction's time that is left where all parties share one CPU, and its spread. No
calibration tells it: two threads of a core do 1.2 to 1.4 times the work of one, and nothing passes from cache to cache.
The spread is that of measured changes (docs/benchmarks/notes/prediction.md)."""
_CROSSING = {Party.SENDER_KERNEL: Party.SENDER, Party.RECEIVER_KERNEL: Party.RECEIVER}
"""Instructions are counted on one CPU. On two the host's kernel also interrupts the other CPU and waits for it to
answer, which the fit puts into the time of its instructions; on one they take no longer than the guest's own."""
_RING = 256 * 1536 / network.BATCH
"""Batches that a receive ring of 256 buffers holds, each of a frame of the usual MTU."""


class Pooled(Strict):
    """The fitted model."""

    model_config = ConfigDict(extra="forbid", frozen=True, ignored_types=(cached_property,))

    paths: list[str]
    """Calibrated paths: the coordinates of the discrepancy."""
    knobs: dict[str, float]
    ensemble: list[dict[str, float]]
    """Other values of the knobs that fit nearly as well."""
    discrepancy: Discrepancy

    def rate(self, asked: Configuration, cpus: float, change: Mapping[str, float] | None = None) -> float:
        """Bytes a second of all pairs, by the queueing network alone."""
        return float(_rates(self.knobs, [asked], [cpus], change or {})[0])

    def told(
        self, asked: Configuration, cpus: float, change: Mapping[str, float] | None = None
    ) -> tuple[float, float, float]:
        """The rate with its discrepancy, and the bounds that hold 90 % of samples."""
        off, half = self.discrepancy.told(_features(asked, self.paths))
        middle = self.rate(asked, cpus, change) * math.exp(off)
        half = math.hypot(half, self.spread(asked, cpus, change)) if change else half
        return middle, middle * math.exp(-half), middle * math.exp(half)

    def spread(self, asked: Configuration, cpus: float, change: Mapping[str, float] | None = None) -> float:
        """How far the logarithm of a change's worth may be off (90 %), by the ensemble."""
        alone = np.random.default_rng(_SEED).normal(*_ALONE, size=len(self.ensemble))
        worth = [
            math.log(
                _rates({**each, "alone": float(own)}, [asked], [cpus], change or {})[0]
                / _rates(each, [asked], [cpus], {})[0]
            )
            for each, own in zip(self.ensemble, alone, strict=True)
        ]
        return _ACCURATE * float(np.std(worth)) if worth else 0.0

    def worth(self, asked: Configuration, cpus: float, change: Mapping[str, float]) -> tuple[float, float, float]:
        """How many times the rate a change makes it, with bounds of 90 %; the discrepancy is that of both."""
        times = self.rate(asked, cpus, change) / self.rate(asked, cpus)
        half = self.spread(asked, cpus, change)
        return times, times * math.exp(-half), times * math.exp(half)

    def demand(self, asked: Configuration, change: Mapping[str, float] | None = None) -> tuple[float, float, float]:
        """Seconds of CPU a byte: of a sender, a receiver, the switch."""
        sender, receiver, switch = _demands(self.knobs, [asked], change or {})
        return float(sender[0]), float(receiver[0]), float(switch[0])

    @property
    def usable(self) -> float:
        """Share of the host's CPUs that parties can use at most."""
        return _odds(self.knobs["usable"])

    def waits(self, asked: Configuration) -> float:
        """Seconds that a message waits for processors to wake."""
        return float(_wake(self.knobs, [asked])[0]) * asked.message


def fit(observed: Sequence[Observation], cpus: int) -> Pooled:
    """The model of all streams observed, of all paths."""
    from scipy.optimize import least_squares

    own = [each for each in observed if each.configuration.work is Work.STREAM and each.rate > 0]
    asked, left = [each.configuration for each in own], [each.left(cpus) for each in own]
    paths = sorted({each.path for each in asked})
    priors = _priors(paths)
    names = list(priors)
    middle, reach = np.array(list(priors.values())).T
    seen = np.log([each.rate for each in own])
    timed = _timed(own)

    def off(values: NDArray[np.float64]) -> NDArray[np.float64]:
        knobs = dict(zip(names, map(float, values), strict=True))
        unlike = (np.log(_rates(knobs, asked, left, {})) - seen) / _PER_CENT
        times = [(knobs[party] - each) / _CPI_SPREAD for party, told in timed.items() for each in told]
        return np.concatenate([unlike, np.array(times), (values - middle) / reach])

    found = least_squares(off, middle, loss="soft_l1", diff_step=np.full(len(names), 1e-3), max_nfev=40)
    knobs = dict(zip(names, map(float, found.x), strict=True))
    residuals = seen - np.log(_rates(knobs, asked, left, {}))
    at = [_features(each, paths) for each in asked]
    return Pooled(
        paths=paths,
        knobs=knobs,
        ensemble=_ensemble(names, found.x, np.asarray(found.jac), found.cost, len(seen)),
        discrepancy=discrepancy.fit(at, [float(each) for each in residuals], more=_OF_PATH[: len(paths)]),
    )


def _priors(paths: Sequence[str]) -> dict[str, tuple[float, float]]:
    own = {
        f"{path}: switch's {what}": prior
        for path in paths
        if not path_lengths.is_counted(path)
        for what, prior in _SWITCH.items()
    }
    return {str(name): prior for name, prior in _PRIORS.items()} | own


def _timed(observed: Sequence[Observation]) -> dict[str, list[float]]:
    """Of samples without load, by party: the logarithm of the time of an instruction, where it is known."""
    found: dict[str, list[float]] = {str(party): [] for party in Party}
    for each in observed:
        asked = each.configuration
        for party in Party if not asked.load else ():
            counted = path_lengths.instructions(asked.path, party, asked.message)
            if counted and each.cpu[party] > 0 and (party is not Party.SWITCH or not PATHS[asked.path].polls):
                found[str(party)].append(math.log(each.cpu[party] / each.rate / counted))
    return found


def _ensemble(names: Sequence[str], at: Column, slopes: Column, cost: float, many: int) -> list[dict[str, float]]:
    """Draws from the normal distribution that the fit's curvature gives, as wide as its residuals are."""
    wide = max(1.0, 2 * cost / many)
    covariance = np.linalg.inv(slopes.T @ slopes) * wide
    drawn = np.random.default_rng(_SEED).multivariate_normal(at, covariance, size=_ENSEMBLE)
    return [dict(zip(names, map(float, each), strict=True)) for each in drawn]


def _features(asked: Configuration, paths: Sequence[str]) -> tuple[float, ...]:
    return (*asked.features, *(float(asked.path == path) for path in paths[: len(_OF_PATH)]))


def _column(values: Sequence[float]) -> Column:
    return np.array(values, dtype=np.float64)


def _size(asked: Sequence[Configuration]) -> Column:
    return _column([math.log(each.message / SMALLEST) / math.log(LARGEST / SMALLEST) for each in asked])


def _demands(
    knobs: Mapping[str, float], asked: Sequence[Configuration], change: Mapping[str, float]
) -> tuple[Column, Column, Column]:
    """Seconds of CPU a byte, of senders, receivers and the switch."""
    crowd = _column([math.log(each.pairs) for each in asked]) * knobs["crowd"]
    slower = np.exp(crowd + knobs["far"] * _column([each.place for each in asked]))

    def of(*parties: Party) -> Column:
        told = [
            sum(math.exp(knobs[party]) * path_lengths.instructions(each.path, party, each.message) for party in parties)
            for each in asked
        ]
        return np.asarray(_column(told) * slower * _left(asked, change), dtype=np.float64)

    switch = of(Party.SWITCH)
    for at, each in enumerate(asked):
        if not path_lengths.is_counted(each.path):
            a_message, a_byte = (math.exp(knobs.get(f"{each.path}: switch's {what}", -30.0)) for what in _SWITCH)
            switch[at] = a_message / each.message + a_byte
    return of(Party.SENDER, Party.SENDER_KERNEL), of(Party.RECEIVER, Party.RECEIVER_KERNEL), switch


def _left(asked: Sequence[Configuration], change: Mapping[str, float]) -> Column:
    """The share of instructions that changes of stages leave."""
    left = np.ones(len(asked))
    for word, factor in change.items():
        if word in WORDS:
            left -= (1 - factor) * _column([path_lengths.share(each.path, word, each.message) for each in asked])
    return left


def _wake(knobs: Mapping[str, float], asked: Sequence[Configuration]) -> Column:
    """Idle seconds a byte."""
    sizes, pairs = _column([each.message for each in asked]), _column([each.pairs for each in asked])
    bytes_ = network.BATCH * (sizes / network.BATCH) ** knobs["wake by size"]
    return np.asarray(math.exp(knobs["wake"]) * pairs ** knobs["wake by pairs"] / bytes_, dtype=np.float64)


def _rates(
    knobs: Mapping[str, float], asked: Sequence[Configuration], cpus: Sequence[float], change: Mapping[str, Any]
) -> Column:
    demands = _demands(knobs, asked, change)
    size, pairs = _size(asked), _column([each.pairs for each in asked])
    sizes = _column([each.message for each in asked])
    turns = network.BATCH * (sizes / network.BATCH) ** knobs["turn by size"]
    left = _column(cpus) * change.get("cores", 1.0)
    # One CPU for all: no other one is interrupted or has to wake, and no cache hands anything over.
    one = np.full(len(asked), change.get("cores", 1.0) < 1) & (left <= 1)
    if one.any():
        quick = math.exp(knobs.get("alone", _ALONE[0]))
        alone = _demands({**knobs, **{kernel: knobs[own] for kernel, own in _CROSSING.items()}}, asked, change)
        both = zip(alone, demands, strict=True)
        demands = tuple(np.where(one, quick * own, usual) for own, usual in both)  # type: ignore[assignment]
    sender, receiver, switch = demands
    return network.rates(
        Configurations(
            pairs=pairs,
            load=_column([each.load / 100 for each in asked]),
            cpus=left * _odds(knobs["usable"]),
            sender=sender,
            receiver=receiver,
            switch=np.maximum(switch, 1e-15),
            batches=_batches(knobs, size, change.get("ring", 1.0)),
            wake=np.where(one, 0.0, _wake(knobs, asked) * change.get("wakeups", 1.0)),
            turn=math.exp(knobs["turn"]) * pairs ** knobs["turn by pairs"] / turns,
            polls=np.array([PATHS[each.path].polls for each in asked]),
        ),
        Shared(grip=_odds(knobs["grip"]), softness=1 + math.exp(knobs["softness"])),
    )


def _batches(knobs: Mapping[str, float], size: Column, ring: float) -> Column:
    """Batches that circulate in a pair: no more than its ring holds, which holds at least those that were seen."""
    seen = 1 + np.exp(knobs["batches"] * (1 - size) + knobs["batches large"] * size)
    return np.asarray(np.maximum(1.0, np.minimum(seen, ring * np.maximum(seen, _RING))), dtype=np.float64)


def _odds(knob: float) -> float:
    return 1 / (1 + math.exp(-knob))
