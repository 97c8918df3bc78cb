"""What-ifs: costs, CPUs and rings changed before the host shares them, as `copy=0`, `wakeups=0.5`, `cores=2x`.

A model with counted path lengths changes stages of them: the copies between guests, notification and scheduling, system
calls. A model without has costs of a message, a byte and a wake-up only.
"""

import re
from collections.abc import Sequence

from memlane_lab.common.errors import LabError
from memlane_lab.common.strict import Strict
from memlane_lab.model.costs import Cost, Costs
from memlane_lab.model.sharing import Stages


class WhatIf(Strict):
    """Factors; 1 changes nothing."""

    message: float = 1.0
    """The fixed cost of a message of any length."""
    copy_: float = 1.0
    """The cost that grows with bytes: copies between users, kernels and guests, and checksums where there are any."""
    wakeups: float = 1.0
    """Of how often parties are woken, and of the time in which all wait for a CPU to wake."""
    calls: float = 1.0
    """System calls of guests and network."""
    cores: float = 1.0
    """Of the host's CPUs; a guest still has one processor."""
    ring: float = 1.0
    """Of the entries of guests' rings."""

    @property
    def changed(self) -> dict[str, float]:
        """The changed words and their factors."""
        told = {"message": self.message, "copy": self.copy_, "wakeups": self.wakeups, "calls": self.calls}
        return {
            word: factor for word, factor in (told | {"cores": self.cores, "ring": self.ring}).items() if factor != 1.0
        }

    def stages(self, stages: Stages) -> Stages:
        """The same with these costs."""
        changed = {party: self._cost(cost) for party, cost in stages.costs.of.items()}
        costs = Costs(of=changed, wakeups=stages.costs.wakeups)
        return stages.model_copy(update={"costs": costs, "latency": stages.latency * self.wakeups})

    def _cost(self, cost: Cost) -> Cost:
        return Cost(
            message=cost.message * self.message, byte=cost.byte * self.copy_, wakeup=cost.wakeup * self.wakeups
        )  # fmt: skip


def parse(words: Sequence[str]) -> WhatIf:
    """The changes of `--what-if`: NAME=FACTOR each."""
    found: dict[str, float] = {}
    for word in words:
        stated = re.fullmatch(r"(copy|wakeups|message|calls|cores|ring)=(\d+(?:\.\d+)?)x?", word)
        if not stated or (stated[1] in {"cores", "ring"} and float(stated[2]) == 0):
            raise LabError(
                f"--what-if {word!r} says nothing: it takes copy, message, wakeups, calls, cores or ring, and a "
                "factor, as copy=0, wakeups=0.5, cores=2x"
            )
        found["copy_" if stated[1] == "copy" else stated[1]] = float(stated[2])
    return WhatIf(**found)
