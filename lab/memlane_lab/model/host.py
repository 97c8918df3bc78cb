"""The host as fluid: how its CPUs are shared among parties, and so how fast work flows. Pure arithmetic, no data.

Every pair is like every other. A guest has one processor, which its flow and its load share. The host's scheduler gives
small wants in full, and all other parties the same (max-min fairness); a switch is one more party. A rate
is **possible** if, all wants being so shared, senders, receivers and switch each get the CPU time that it takes. The
flow's rate is the largest that is possible, but no more than the pair's own cycle allows, in which its stages overlap
only partly.

A load harms a flow in two ways. While both want the processor, they share it (`grip`). And whenever a flow has waited,
for an answer or for room in a window, it finds the load at work and waits for its turn to end (`stall`): that grows as
a queue does, with load / (1 - load), and the load uses the processor meanwhile.
"""

from dataclasses import dataclass

_STEPS = 50
"""Halvings of the interval in which the rate is looked for: far more than doubles can tell apart."""

_LEAST_IDLE = 0.03
"""Share of a processor that a load leaves idle at least: where a queue would grow without end, it does not."""


@dataclass(frozen=True)
class Demand:
    """Seconds of CPU for a unit of work of one pair."""

    sender: float
    receiver: float
    switch: float

    @property
    def total(self) -> float:
        """Of all three."""
        return self.sender + self.receiver + self.switch


@dataclass(frozen=True)
class Sharing:
    """How this host and this path share."""

    overlap: float
    """How far a pair's stages overlap: 1, strictly one after the other; large, as in a pipeline."""
    latency: float
    """Idle seconds in a unit of work: wake-ups of sleeping CPUs."""
    usable: float
    """Share of the host's CPUs that parties can use at most."""
    grip: float
    """How much of the processor a load of 100 % keeps from a flow that wants all of it: 0 none, 1 all."""
    stall: float
    """Seconds of a guest's processor that a load of 50 % takes for a unit of work because the flow waits its turn."""
    softness: float
    """How sharply the two limits of a rate meet: large, as in theory; small, both slow it down near where they meet."""
    polls: bool = False
    """Whether the switch polls, and so takes a CPU at any rate."""


@dataclass(frozen=True)
class Flow:
    """The rate of all pairs together."""

    rate: float
    """Units of work a second."""
    sender: float
    """CPUs in use by senders, their load included."""
    receiver: float
    switch: float
    load: float
    """CPUs in use by the loads of all guests."""


@dataclass(frozen=True)
class _Host:
    demand: Demand
    sharing: Sharing
    pairs: int
    load: float
    cpus: float

    def wanted(self, rate: float) -> tuple[float, float, float]:
        """CPUs that a sender, a receiver and the switch want at this rate of each pair, loads included."""
        guests = (_with_load(rate * each, self.load) for each in (self.demand.sender, self.demand.receiver))
        switch = 1.0 if self.sharing.polls else min(1.0, self.pairs * rate * self.demand.switch)
        return (*guests, switch)  # type: ignore[return-value]

    def level(self, rate: float) -> float:
        """The most that the host gives to one party at this rate."""
        sender, receiver, switch = self.wanted(rate)
        return water_level([(sender, self.pairs), (receiver, self.pairs), (switch, 1)], self.cpus * self.sharing.usable)

    def possible(self, rate: float) -> bool:
        level = min(1.0, self.level(rate))
        guests = max(_taken(self.demand, self.sharing, self.load)) * rate <= level
        return guests and self.pairs * rate * self.demand.switch <= level


def flow(demand: Demand, sharing: Sharing, pairs: int, load: float, cpus: float) -> Flow:
    """The rate of `pairs` pairs on `cpus` CPUs; `load` is the share of each guest's processor that its load wants."""
    host = _Host(demand, sharing, pairs, load, cpus)
    cycle = _cycle(demand, sharing, load)
    low, high = 0.0, 1 / max(_taken(demand, sharing, load))
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if host.possible(middle) else (low, middle)
    rate = 1 / _norm((1 / low, cycle), sharing.softness)
    level = host.level(rate)
    sender, receiver, switch = (min(level, each) for each in host.wanted(rate))
    loads = (own - rate * each for own, each in ((sender, demand.sender), (receiver, demand.receiver)))
    return Flow(
        rate=pairs * rate,
        sender=pairs * sender,
        receiver=pairs * receiver,
        switch=switch,
        load=pairs * sum(max(0.0, each) for each in loads) if load else 0.0,
    )


def water_level(wants: list[tuple[float, int]], capacity: float) -> float:
    """The level: no party gets more, and together they take the capacity; infinite if that is enough for all wants.

    `wants`: how much each of so many want. Max-min fairness: a party gets the level or its want, the lesser of them.
    """
    left, many = capacity, sum(count for _, count in wants)
    for want, count in sorted(wants):
        if want * many > left:
            return max(0.0, left / many)
        left -= want * count
        many -= count
    return float("inf")


def _with_load(work: float, load: float) -> float:
    """A guest's want for its flow and its load: its one processor at most."""
    return min(1.0, work + load)


def _cycle(demand: Demand, sharing: Sharing, load: float) -> float:
    """Seconds that a pair takes for a unit of work where no CPU is short."""
    return _norm((*_taken(demand, sharing, load), demand.switch), sharing.overlap) + sharing.latency


def _taken(demand: Demand, sharing: Sharing, load: float) -> tuple[float, float]:
    """Seconds of a sender's and of a receiver's processor that a unit of work takes, the load's part included."""
    queue = load / max(1 - load, _LEAST_IDLE)
    left = 1 - sharing.grip * load
    return (demand.sender + sharing.stall * queue) / left, (demand.receiver + sharing.stall * queue) / left


def _norm(values: tuple[float, ...], power: float) -> float:
    """The sum of positive numbers if the power is 1, nearly their largest if it is large."""
    largest = max(values)
    return float(largest * sum((each / largest) ** power for each in values) ** (1 / power))
