"""How host and path share, fitted: the few numbers of `host.Sharing`, from the rates of all samples of a path."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from memlane_lab.common.strict import Strict
from memlane_lab.model.configuration import RECEIVERS, SENDERS, Configuration, Party, Work
from memlane_lab.model.costs import Cost, Costs
from memlane_lab.model.host import Demand, Flow, Sharing, flow
from memlane_lab.model.observations import Observation


class Stages(Strict):
    """Costs and shares of one path and one kind of work: the model without its discrepancy."""

    costs: Costs
    overlap: float
    """How far stages of the smallest messages overlap: 1, not at all."""
    overlap_large: float
    """The same of messages of 1 MB; between, by logarithms."""
    latency: float
    """Seconds; none but where answers are waited for."""
    usable: float
    grip: float
    stall: float
    """Seconds a unit of work, at a load of 50 %, of one pair."""
    crowd: float
    """The power of the number of pairs by which that grows: a task that lets go of a CPU waits for more others."""
    softness: float
    polls: bool

    def demand(self, asked: Configuration) -> Demand:
        """Seconds of CPU for a unit of work."""
        sender, receiver = (
            sum(self.costs.a_unit(party, asked) for party in side) for side in (SENDERS, RECEIVERS)
        )  # fmt: skip
        return Demand(sender, receiver, self.costs.a_unit(Party.SWITCH, asked))

    def flow(self, asked: Configuration, cpus: float) -> Flow:
        """The rate of all pairs, and the CPU time of each party."""
        size, *_ = asked.features
        sharing = Sharing(
            overlap=1 + (self.overlap - 1) ** (1 - size) * (self.overlap_large - 1) ** size if self.overlap > 1 else 1,
            latency=self.latency,
            usable=self.usable,
            grip=self.grip,
            stall=self.stall * asked.pairs**self.crowd,
            softness=self.softness,
            polls=self.polls,
        )
        return flow(self.demand(asked), sharing, asked.pairs, asked.load / 100, cpus)

    def cpu(self, asked: Configuration, cpus: float) -> dict[Party, float]:
        """CPUs in use by each party; a guest's load is part of the guest."""
        found, told = self.flow(asked, cpus), {}
        for side, spent in ((SENDERS, found.sender), (RECEIVERS, found.receiver)):
            own, kernel = (found.rate * self.costs.a_unit(party, asked) for party in side)
            told[side[1]] = kernel
            told[side[0]] = max(own, spent - kernel)
        return told | {Party.SWITCH: found.switch}


_KNOBS = {
    # name: its prior (logarithm of the odds, or of the value), how far it may be off
    "overlap": (0.5, 0.8),
    "overlap large": (1.5, 0.8),
    "crowd": (0.2, 0.2),
    "usable": (2.5, 0.7),
    "grip": (-1.0, 0.7),
    "softness": (1.6, 0.4),
    "latency": (-9.2, 1.5),
    "stall byte": (-20.2, 1.5),
    "stall request": (-7.6, 1.5),
    "switch byte": (-22.0, 1.5),
    "switch message": (-12.0, 1.5),
}

_OF_STREAMS = ("overlap", "overlap large", "stall byte", "crowd")


def fit(costs: Costs, observed: Sequence[Observation], work: Work, cpus: float, *, polls: bool) -> Stages:
    """The numbers that come nearest to the observed rates, in logarithms; outliers weigh less (soft L1).

    A switch that polls takes a CPU at any rate, so its capacity is known from rates alone.
    """
    from scipy.optimize import least_squares

    names = ["usable", "grip", "softness"]
    names += ["latency", "stall request"] if work is Work.ANSWERS else [*_OF_STREAMS]
    names += ["switch byte", "switch message"] if polls else []
    prior = np.array([_KNOBS[name] for name in names])
    rates = np.log([each.rate for each in observed])

    def off(knobs: NDArray[np.float64]) -> NDArray[np.float64]:
        stages = _stages(costs, dict(zip(names, map(float, knobs), strict=True)), polls=polls)
        told = [stages.flow(each.configuration, each.left(cpus)).rate for each in observed]
        unlike = (np.log(np.maximum(told, 1e-9)) - rates) / 0.1
        return np.concatenate([unlike, (knobs - prior[:, 0]) / prior[:, 1]])

    found = least_squares(off, prior[:, 0], loss="soft_l1", diff_step=np.full(len(names), 1e-3), max_nfev=60)
    return _stages(costs, dict(zip(names, map(float, found.x), strict=True)), polls=polls)


def _stages(costs: Costs, knobs: dict[str, float], *, polls: bool) -> Stages:
    if polls:
        switch = Cost(
            message=float(np.exp(knobs["switch message"])), byte=float(np.exp(knobs["switch byte"])), wakeup=0
        )
        costs = costs.model_copy(update={"of": costs.of | {Party.SWITCH: switch}})
    return Stages(
        costs=costs,
        overlap=1 + float(np.exp(knobs["overlap"])) if "overlap" in knobs else 1.0,
        overlap_large=1 + float(np.exp(knobs["overlap large"])) if "overlap large" in knobs else 1.0,
        latency=float(np.exp(knobs["latency"])) if "latency" in knobs else 0.0,
        usable=_share(knobs["usable"]),
        grip=_share(knobs["grip"]),
        stall=float(np.exp(knobs["stall byte" if "stall byte" in knobs else "stall request"])),
        crowd=knobs.get("crowd", 0.0),
        softness=1 + float(np.exp(knobs["softness"])),
        polls=polls,
    )


def _share(odds: float) -> float:
    return float(1 / (1 + np.exp(-odds)))
