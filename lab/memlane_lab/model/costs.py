"""Costs of each party for a unit of work: a for each message, b for each byte, c for each wake-up.

After S0's cost model, whose stages a sample tells apart by party: a party's fixed cost of a message of any length
(the system call, the frame's way through driver and switch) is its `a`, the cost of a byte (copies, checksums) its
`b`, the cost of each wake-up its `c`. All three are at least 0: least squares under that condition, of relative
errors, over the samples without load.

How often a party is woken is not known beforehand; it is fitted too, as a smooth function of size, pairs and placement.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from memlane_lab.common.strict import Strict
from memlane_lab.model.configuration import RECEIVERS, SENDERS, Configuration, Party, Work
from memlane_lab.model.observations import Observation

_HELD = 1e-2
"""How strongly coefficients of wake-ups are drawn to 0 (ridge): few samples shall not bend the curve."""


class Cost(Strict):
    """Of one party."""

    message: float
    """Seconds of CPU a message (a)."""
    byte: float
    """Seconds of CPU a byte (b)."""
    wakeup: float
    """Seconds of CPU a wake-up (c)."""


class Costs(Strict):
    """Of one path and one kind of work."""

    of: dict[Party, Cost]
    wakeups: dict[Party, tuple[float, ...]]
    """Coefficients of the logarithm of wake-ups per unit of work; empty: none were seen."""

    def a_unit(self, party: Party, asked: Configuration) -> float:
        """Seconds of CPU that the party spends on a unit of work (a byte, or a request with its answer)."""
        cost, (messages, bytes_) = self.of[party], _amounts(asked)
        return cost.message * messages + cost.byte * bytes_ + cost.wakeup * self.woken(party, asked)

    def woken(self, party: Party, asked: Configuration) -> float:
        """How often the party is woken for a unit of work."""
        known = self.wakeups[_counted_with(party)]
        return float(np.exp(np.dot(known, _terms(asked)))) if known else 0.0


def fit(observed: Sequence[Observation]) -> Costs:
    """The costs of one path and kind of work, from those samples that had no load beside them."""
    free = [each for each in observed if not each.configuration.load and each.rate > 0]
    return Costs(
        of={party: _cost(party, free) for party in Party},
        wakeups={party: _wakeups(party, free) for party in (Party.SENDER, Party.RECEIVER, Party.SWITCH)},
    )


def _cost(party: Party, observed: Sequence[Observation]) -> Cost:
    from scipy.optimize import nnls

    told = [each for each in observed if each.cpu[party] > 0]
    if not told:
        return Cost(message=0, byte=0, wakeup=0)
    counted = _counted_with(party)
    spent = np.array([each.cpu[party] / each.rate for each in told])
    amounts = np.array([[*_amounts(each.configuration), each.switches[counted] / each.rate] for each in told])
    scale = np.maximum(amounts.max(axis=0), np.finfo(float).tiny)  # so that none is lost for being a small number
    found, _ = nnls(amounts / scale / spent[:, None], np.ones(len(told)))
    message, byte, wakeup = found / scale
    return Cost(message=float(message), byte=float(byte), wakeup=float(wakeup))


def _wakeups(party: Party, observed: Sequence[Observation]) -> tuple[float, ...]:
    told = [each for each in observed if each.switches[party] > 0]
    if not told:
        return ()
    terms = np.array([_terms(each.configuration) for each in told])
    often = np.log([each.switches[party] / each.rate for each in told])
    middle = often.mean()
    held = _HELD * len(told) * np.eye(terms.shape[1])
    found = np.linalg.solve(terms.T @ terms + held, terms.T @ (often - middle))
    found[0] += middle
    return tuple(map(float, found))


def _terms(asked: Configuration) -> NDArray[np.float64]:
    size, pairs, _, place = asked.features
    return np.array([1.0, size, size * size, pairs, size * pairs, place])


def _amounts(asked: Configuration) -> tuple[float, float]:
    """Messages and bytes in a unit of work."""
    return (1 / asked.message, 1.0) if asked.work is Work.STREAM else (1.0, float(asked.message))


def _counted_with(party: Party) -> Party:
    """The party with the context switches of wake-ups: the host counts a guest's own and its kernel's as one."""
    if party in SENDERS:
        return Party.SENDER
    return Party.RECEIVER if party in RECEIVERS else Party.SWITCH
