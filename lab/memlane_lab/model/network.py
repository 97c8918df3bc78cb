"""The queueing network: pairs of guests as a closed network on a host's CPUs. Pure arithmetic, no data.

Each pair has three service centers: the sender's processor, the receiver's, and the switch, which all pairs share. So
many batches circulate in a pair; a batch is served at each center and, before, waits for a processor to wake (a delay
center). A pair's rate is that of balanced job bounds of mean value analysis (Zahorjan and others 1982): K batches, of
which each finds the K - 1 others at the slowest center. All centers need the host's CPUs: a rate is possible if,
by max-min fairness, each center gets the time that it takes.

A load is an on-off server: it wants a guest's whole processor for that share of the time, in bursts that are long
beside a window of a flow. So a pair is in one of four states (the sender's load is on or off, the receiver's too), and
its rate is the mean of the four rates. While a load is on, the flow has a part of the processor, and each batch waits
its turn.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.float64]
_HALVINGS = 16
BATCH = float(64 << 10)
"""Bytes of a batch of messages of 64 KB."""


@dataclass(frozen=True)
class Configurations:
    """Many configurations at once, a number each."""

    pairs: Column
    load: Column
    """Share of each guest's processor that its load wants."""
    cpus: Column
    """CPUs that parties can use."""
    sender: Column
    """Seconds of CPU a byte."""
    receiver: Column
    switch: Column
    batches: Column
    """Batches that circulate in a pair."""
    wake: Column
    """Idle seconds a byte that a pair waits for processors to wake."""
    turn: Column
    """Seconds a byte that it waits for the turn of one load to end."""
    polls: NDArray[np.bool_]


@dataclass(frozen=True)
class Shared:
    """Numbers that all configurations have in common."""

    grip: float
    """Part of the processor that a flow has while a load is on."""
    softness: float
    """How sharply two limits meet."""


def rates(asked: Configurations, shared: Shared) -> Column:
    """Bytes a second of all pairs together."""
    total = np.zeros_like(asked.pairs)
    for sending in (False, True):
        for receiving in (False, True):
            chance = _chance(asked.load, sending) * _chance(asked.load, receiving)
            if chance.any():
                total += chance * _in_state(asked, shared, sending, receiving)
    return asked.pairs * total


def _chance(load: Column, on: bool) -> Column:
    return load if on else 1 - load


def _in_state(asked: Configurations, shared: Shared, sending: bool, receiving: bool) -> Column:
    """A pair's rate while its own loads are so, and those of other pairs as usual."""
    ends = (
        asked.sender / (shared.grip if sending else 1.0),
        asked.receiver / (shared.grip if receiving else 1.0),
    )
    slowest = np.maximum(np.maximum(*ends), asked.switch)
    waits = asked.wake + asked.turn * (sending + receiving)
    cycle = (ends[0] + ends[1] + asked.switch + waits + (asked.batches - 1) * slowest) / asked.batches
    low, high = np.zeros_like(slowest), 1 / slowest
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        level = np.minimum(1.0, _level(asked, middle, sending, receiving))
        possible = (slowest * middle <= level) & (asked.pairs * middle * asked.switch <= level)
        low, high = np.where(possible, middle, low), np.where(possible, high, middle)
    limits = np.stack([1 / np.maximum(low, 1e-9), cycle])
    longest = limits.max(axis=0)
    met = ((limits / longest) ** shared.softness).sum(axis=0) ** (1 / shared.softness)
    return np.asarray(1 / (longest * met), dtype=np.float64)


def _level(asked: Configurations, rate: Column, sending: bool, receiving: bool) -> Column:
    """The most that the host gives to one of its parties at this rate of each pair."""
    one, others = np.ones_like(rate), asked.pairs - 1
    ends = [np.minimum(1.0, rate * each) for each in (asked.sender, asked.receiver)]
    on = others * asked.load
    wants = [
        one if sending else ends[0], one if receiving else ends[1], one, *ends,
        np.where(asked.polls, 1.0, np.minimum(1.0, asked.pairs * rate * asked.switch)),
    ]  # fmt: skip
    counts = [one, one, 2 * on, others - on, others - on, one]
    return water_level(np.stack(wants), np.stack(counts), asked.cpus)


def water_level(wants: Column, counts: Column, capacity: Column) -> Column:
    """Max-min fairness, for each column: no party gets more than the level; infinite if that is enough for all."""
    order = np.argsort(wants, axis=0)
    wants, counts = np.take_along_axis(wants, order, 0), np.take_along_axis(counts, order, 0)
    left, many = capacity.copy(), counts.sum(axis=0)
    level = np.full_like(capacity, np.inf)
    for want, count in zip(wants, counts, strict=True):
        short = np.isinf(level) & (want * many > left)
        level = np.where(short, np.maximum(0.0, left / np.maximum(many, 1e-9)), level)
        left, many = left - want * count, many - count
    return level
