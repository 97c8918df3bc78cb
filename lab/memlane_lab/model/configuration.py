"""Configurations to predict, and the parties that spend CPU time on them."""

import math
from enum import StrEnum

from pydantic import Field

from memlane_lab.common.counted import counted
from memlane_lab.common.sizes import Size, text
from memlane_lab.common.strict import Strict


class Work(StrEnum):
    """The guests' kind of work, and so its unit."""

    STREAM = "tcp"
    """Each client writes messages to its server as fast as they go; the unit is a byte."""
    ANSWERS = "request-response"
    """Each client sends a message and waits for one of the same size; the unit is a request with its answer."""


class Party(StrEnum):
    """The parties that spend CPU time."""

    SENDER = "senders"
    """Clients' programs and kernels: user time of the processes that are the guests, load included."""
    SENDER_KERNEL = "host's kernel for senders"
    """Its system calls, its TAP, on path bridge the bridge."""
    RECEIVER = "receivers"
    RECEIVER_KERNEL = "host's kernel for receivers"
    SWITCH = "switch"
    """A process of the path's own, its kernel time included; path bridge has none."""


SENDERS = (Party.SENDER, Party.SENDER_KERNEL)
RECEIVERS = (Party.RECEIVER, Party.RECEIVER_KERNEL)

SMALLEST, LARGEST = 64, 1 << 20
"""Bytes a message: the span that features are measured by, not a bound."""


class Configuration(Strict):
    """A configuration to predict."""

    path: str
    work: Work = Work.STREAM
    pairs: int = Field(ge=1, le=64)
    """Clients, each with a server of its own."""
    message: Size
    """Bytes a write, or a request and its answer each."""
    load: int = Field(default=0, ge=0, le=100)
    """Per cent of each guest's processor that a computation wants meanwhile."""
    placement: str = ""
    """Of the host's two CPUs in a sample: near, far, or moved in between. No prediction is told it."""

    @property
    def anywhere(self) -> "Configuration":
        """The same without its placement."""
        return self.model_copy(update={"placement": ""})

    @property
    def features(self) -> tuple[float, float, float]:
        """Size, pairs and load, each about 0 to 1 over the usually calibrated range."""
        size = math.log(self.message / SMALLEST) / math.log(LARGEST / SMALLEST)
        return size, math.log2(self.pairs) / 3, self.load / 90

    def __str__(self) -> str:
        """For people: path, pairs, size, load."""
        what = "" if self.work is Work.STREAM else "answers, "
        return f"{self.path}, {what}{counted(self.pairs, 'pair')}, {text(self.message)}, load {self.load} %"
