"""Plans: whether so many guests fit on a host, each sending at a rate, the CPU left, and the time of a message.

Each guest sends to another one and is sent to by another one, at the same rate. The demand of a byte is that of the
calibrated streams with as many pairs; guests and switch have a processor each at most. A message's time is its demand,
stretched by how busy the CPUs are (processor sharing, M/G/1: 1 / (1 - u)), and the wake-ups; its 99th percentile is
that of an exponential time with this mean. Both are approximations; rates that were not calibrated have wider bounds.
"""

import math
from dataclasses import dataclass

from memlane_lab.common.errors import LabError
from memlane_lab.model.configuration import Configuration, Work
from memlane_lab.model.fitted import Model
from memlane_lab.model.pooled import Pooled

_MOST = 4096
"""Guests that are looked for at most."""


@dataclass(frozen=True)
class Plan:
    """The answer."""

    guests: int
    each: float
    """Bit/s that each guest sends."""
    fits: bool
    needed: tuple[float, float]
    """CPUs: the estimate, and with the model's error (the upper bound of 90 %)."""
    left: float
    """CPUs that are left of those that can be used."""
    p99: float
    """Seconds of a message; infinite where it does not fit."""
    reason: str
    """Why it does not fit; empty if it does."""


def plan(model: Model, path: str, message: int, guests: int, each: float, *, extrapolate: bool = False) -> Plan:
    """Whether it fits; raises outside of the calibrated range."""
    pooled, asked = _asked(model, path, message, guests, extrapolate=extrapolate)
    sender, receiver, switch = pooled.demand(asked)
    _, low, high = pooled.told(asked, model.cpus)
    wide = math.sqrt(high / low)
    rate = each / 8
    usable = model.cpus * pooled.usable
    needed = guests * rate * (sender + receiver + switch)
    busy = {
        "the host's CPUs": needed / usable,
        "a guest's processor": rate * (sender + receiver),
        "the switch's worker": guests * rate * switch,
    }
    short = max(busy, key=lambda name: busy[name])
    fits = busy[short] < 1
    mean = message * (sender + receiver + switch) / (1 - busy[short]) + pooled.waits(asked) if fits else math.inf
    return Plan(
        guests=guests,
        each=each,
        fits=fits,
        needed=(needed, needed * wide),
        left=max(0.0, usable - needed),
        p99=mean * math.log(100),
        reason="" if fits else f"{short} would be busy for {100 * busy[short]:.0f} % of the time",
    )


def most_guests(model: Model, path: str, message: int, each: float, *, extrapolate: bool = False) -> Plan:
    """The most guests that fit, each sending at that rate."""
    fitting = None
    for guests in range(2, _MOST + 1, 2):
        try:
            found = plan(model, path, message, guests, each, extrapolate=extrapolate)
        except LabError:
            if fitting is None:
                raise
            return fitting  # more were not calibrated
        if not found.fits:
            break
        fitting = found
    if fitting is None:
        raise LabError(f"not even two guests fit with {each / 1e6:g} Mbit/s each on path {path}: {found.reason}")
    return fitting


def most_each(model: Model, path: str, message: int, guests: int, *, extrapolate: bool = False) -> Plan:
    """The highest rate of each of so many guests that fits, to a thousandth."""
    low, high = 0.0, 1e12
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        fits = plan(model, path, message, guests, middle, extrapolate=extrapolate).fits
        low, high = (middle, high) if fits else (low, middle)
    return plan(model, path, message, guests, low, extrapolate=extrapolate)


def _asked(model: Model, path: str, message: int, guests: int, *, extrapolate: bool) -> tuple[Pooled, Configuration]:
    if model.pooled is None:
        raise LabError("this model has no demands by counted path lengths: calibrate again")
    calibrated = model.of(path, Work.STREAM).range
    asked = Configuration(
        path=path, pairs=max(1, min(64, guests // 2)), message=message, placement=calibrated.placements[0]
    )
    outside = calibrated.outside(asked)
    if guests > 2 * calibrated.pairs[1]:
        outside = [f"{guests} guests, calibrated {2 * calibrated.pairs[0]} to {2 * calibrated.pairs[1]}"]
    if outside and not extrapolate:
        raise LabError(
            f"the plan lies outside of what was calibrated ({'; '.join(outside)}): --extrapolate plans it none the less"
        )
    return model.pooled, asked
