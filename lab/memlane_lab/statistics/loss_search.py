"""NDR and PDR: the highest loads at which a network loses nothing, or next to nothing, found by repeated trials.

After *Multiple Loss Ratio Search* (draft-ietf-bmwg-mlrsearch; its parent is RFC 2544, section 26.1). A **goal** states
the loss that a trial may have, how long a trial and all trials at a load must be, and the share of time in which a
load may miss the goal. A load is a **lower bound** if its trials cannot miss the goal for longer than that any more, an
**upper bound** if they cannot meet it any more. The result of a goal is the highest lower bound below all upper bounds,
once the next upper bound is near enough; its conditional throughput leaves out the loss seen there.

Single trials lie: one hiccup of the host would halve an NDR by bisection. Here a load is tried until it is decided.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

_SHORT = 0.1
"""Part of a final trial's time that a first look at a load takes."""
_COARSE = 8.0
"""Times the goal's width that first looks narrow the load down to."""


@dataclass(frozen=True)
class Trial:
    """One measurement at a load."""

    load: float
    """Intended: frames a second."""
    seconds: float
    loss: float
    """Share of the intended frames that did not arrive."""


@dataclass(frozen=True)
class Goal:
    """A loss ratio to be kept."""

    name: str
    loss: float
    """Share of frames that a trial may lose."""
    exceed: float = 0.5
    """Share of the time in which a load may lose more; below 1."""
    trial: float = 1.0
    """Seconds of a trial that counts in full."""
    total: float = 11.0
    """Seconds of such trials that decide a load at the latest."""
    width: float = 0.005
    """Of the upper bound: how near the two bounds must be."""


NDR = Goal("NDR", 0.0)
PDR = Goal("PDR", 0.005)


class Bound(StrEnum):
    """A load, by a goal."""

    LOWER = "lower"
    UPPER = "upper"
    UNDECIDED = "undecided"


def classified(goal: Goal, trials: Sequence[Trial]) -> Bound:
    """A load by its trials (appendix A of the draft).

    Short trials that kept the goal outweigh short ones that missed it; the remaining time counts against the load. A
    load is a lower bound even if all time still to be spent there were bad, and an upper bound even if it were good.
    """
    good, bad = (
        {full: sum(each.seconds for each in trials if _is_full(goal, each) is full and _misses(goal, each) is missed)
         for full in (True, False)}
        for missed in (False, True)
    )  # fmt: skip
    outweighed = good[False] * goal.exceed / (1 - goal.exceed)
    missed = bad[True] + max(0.0, bad[False] - outweighed)
    whole = max(good[True] + missed, goal.total)
    allowed = whole * goal.exceed
    at_best, at_worst = missed <= allowed, whole - good[True] <= allowed
    if at_best and at_worst:
        return Bound.LOWER
    return Bound.UNDECIDED if at_best or at_worst else Bound.UPPER


def conditional_throughput(goal: Goal, load: float, trials: Sequence[Trial]) -> float:
    """Frames a second that arrive at a load, by the loss that is exceeded in the allowed share of time (appendix B)."""
    full = sorted((each for each in trials if _is_full(goal, each)), key=lambda each: each.loss)
    left = max(goal.total, sum(each.seconds for each in full)) * (1 - goal.exceed)
    loss = 1.0
    for each in full:
        loss = each.loss
        left -= each.seconds
        if left <= 0:
            return load * (1 - loss)
    return 0.0


def _is_full(goal: Goal, trial: Trial) -> bool:
    return trial.seconds >= 0.999 * goal.trial


def _misses(goal: Goal, trial: Trial) -> bool:
    return trial.loss > goal.loss


@dataclass(frozen=True)
class Found:
    """The result of a goal."""

    goal: Goal
    lower: float | None
    """Frames a second: the highest lower bound; None if even the lowest load misses the goal."""
    upper: float | None
    """The lowest upper bound; None if the highest load keeps the goal."""
    throughput: float
    """Conditional: frames a second that arrive."""
    finished: bool
    """Whether the bounds are as near as asked, or there is none on one side."""


@dataclass
class Search:
    """A search for several goals at once, which share their trials."""

    measure: Callable[[float, float], float]
    """The loss ratio of a trial at a load for so many seconds."""
    lowest: float
    highest: float
    trials: list[Trial] = field(default_factory=list)

    def run(self, goals: Sequence[Goal], seconds: float = math.inf) -> list[Found]:
        """The results, after at most about so many seconds of trials."""
        self._end = self._spent() + seconds
        for goal in goals:
            self._narrow(goal, short=True)
            self._narrow(goal, short=False)
        return [self._result(goal) for goal in goals]

    def bounds(self, goal: Goal) -> tuple[float | None, float | None]:
        """The relevant lower and upper bound so far."""
        loads = sorted({each.load for each in self.trials})
        known = [(load, classified(goal, self._at(load))) for load in loads]
        upper = min((load for load, bound in known if bound is Bound.UPPER), default=None)
        below = [load for load, bound in known if bound is Bound.LOWER and (upper is None or load < upper)]
        return max(below, default=None), upper

    def _narrow(self, goal: Goal, *, short: bool) -> None:
        """First looks narrow the loads down by single short trials; then each load is tried until it is decided."""
        width = goal.width * (_COARSE if short else 1.0)
        low, high = self._start(goal) if short else self._from_looks(goal)
        while (load := self._next(low, high, width)) is not None and self._spent() < self._end:
            if short:
                loss = self._try(load, goal.trial * _SHORT)
                is_upper = loss > goal.loss
            else:
                is_upper = self._decide(goal, load) is Bound.UPPER
            low, high = (low, load) if is_upper else (load, high)
            if not short:
                low, high = self._tightest(goal, low, high)

    def _start(self, goal: Goal) -> tuple[float | None, float | None]:
        low, high = self.bounds(goal)
        return low, high

    def _from_looks(self, goal: Goal) -> tuple[float | None, float | None]:
        """Both bounds as first looks found them, each decided now; where a look was wrong, the search goes on there."""
        missed = [each.load for each in self.trials if _misses(goal, each)]
        high = min(missed, default=self.highest)
        low = max((each.load for each in self.trials if not _misses(goal, each) and each.load < high), default=None)
        for load in filter(None, (low, high)):
            if self._spent() < self._end:
                self._decide(goal, load)
        return self.bounds(goal)

    def _tightest(self, goal: Goal, low: float | None, high: float | None) -> tuple[float | None, float | None]:
        lower, upper = self.bounds(goal)
        return lower if lower is not None else low, upper if upper is not None else high

    def _next(self, low: float | None, high: float | None, width: float) -> float | None:
        """The load to be tried next; None if the bounds are near enough, or there is nothing beyond them."""
        if high is None:
            return None if low is not None and low >= self.highest else self.highest
        if low is None:
            return None if high <= self.lowest else max(self.lowest, high / 2)
        return None if (high - low) / high <= width else math.sqrt(low * high)

    def _decide(self, goal: Goal, load: float) -> Bound:
        """Tries a load until it is decided; an undecided one, where time is up, counts as an upper bound."""
        while (bound := classified(goal, self._at(load))) is Bound.UNDECIDED:
            if self._spent() >= self._end:
                return Bound.UPPER
            self._try(load, goal.trial)
        return bound

    def _try(self, load: float, seconds: float) -> float:
        loss = self.measure(load, seconds)
        self.trials.append(Trial(load, seconds, loss))
        return loss

    def _at(self, load: float) -> list[Trial]:
        return [each for each in self.trials if each.load == load]

    def _spent(self) -> float:
        return sum(each.seconds for each in self.trials)

    def _result(self, goal: Goal) -> Found:
        low, high = self.bounds(goal)
        arrived = conditional_throughput(goal, low, self._at(low)) if low is not None else 0.0
        return Found(goal, low, high, arrived, finished=self._next(low, high, goal.width) is None)
