"""The interface of all workloads: start a flow between two guests, say when it is warm, return its figures."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from memlane_lab.bed.bed import Bed
from memlane_lab.guests import Guest
from memlane_lab.guests.control import Running
from memlane_lab.statistics.latencies import Latencies
from memlane_lab.statistics.measures import Measure

POINT = 0.25
"""Seconds between points of a flow's series, usually."""


@dataclass(frozen=True)
class Flow:
    """Source and target of a flow."""

    name: str
    """Unique in its sample."""
    source: Guest
    target: Guest
    address: str
    """The target's, as the source reaches it."""
    port: int
    """Free for this flow at the target."""
    bed: Bed | None = None
    """Where it flows: for a workload that needs more of it than two guests."""


@dataclass(frozen=True)
class Timing:
    """How long a flow lasts."""

    warm_up: int
    """Seconds before the measured part."""
    seconds: int
    """The measured part."""

    @property
    def patience(self) -> float:
        """Seconds within which a flow must be over, on a busy machine too."""
        return self.warm_up + self.seconds + 30.0


@dataclass(frozen=True)
class FlowResult:
    """The figures of a flow."""

    values: dict[str, float]
    """By measure, in base units."""
    series: list[tuple[float, float]] = field(default_factory=list)
    """Its rate over time: (seconds since the measured part began, bit/s until then)."""
    latencies: Latencies | None = None
    """Every one of them."""
    lines: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    """Further things over time, by a name for each, as in `series`."""


class Run(ABC):
    """A flow with a server that is ready."""

    def __init__(self, server: Running | None = None) -> None:
        self._programs = {"server": server} if server else {}

    def said(self) -> dict[str, str]:
        """The output of its programs so far, by a name for each, errors last."""
        return {name: running.stdout + running.stderr for name, running in self._programs.items()}

    def _start(self, guest: Guest, command: Sequence[str]) -> Running:
        """Starts the client."""
        self._programs["client"] = running = guest.spawn(command)
        return running

    @abstractmethod
    def begin(self) -> None:
        """Starts the client; returns while it runs."""

    @abstractmethod
    def measuring(self) -> bool:
        """Whether its warm-up is over; raises if it has ended before its time."""

    @abstractmethod
    def over(self) -> bool:
        """Whether its client has ended."""

    @abstractmethod
    def finish(self) -> FlowResult:
        """Waits for its end; returns its figures, or raises why there are none."""

    @property
    def disturbs(self) -> bool:
        """Whether it ended guests or the network in between, so that meters that were read before tell nothing."""
        return False


class Workload(ABC):
    """A kind of traffic, with its parameters."""

    name: ClassVar[str]
    """As experiments write it."""
    title: ClassVar[str]
    """Its description, in a few words."""
    settling: ClassVar[int] = 0
    """Seconds that its programs need before anything flows; flows beside it warm up for so much longer."""
    talks: ClassVar[bool] = True
    """Whether anything flows, so that it cannot begin before the target can be reached."""
    in_shops: ClassVar[bool] = False
    """Whether it flows in shops (see `Setting.shop`), not between pairs."""
    measures: ClassVar[tuple[Measure, ...]] = ()
    """Its measures beside those of meters (the throughput is among those)."""

    class Parameters(BaseModel):
        """Its keys in an experiment."""

        model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    def __init__(self, parameters: dict[str, Any]) -> None:
        """`parameters` are checked once more, and are an object of the class `Parameters` from here on."""
        self.parameters: Any = self.Parameters.model_validate(parameters)

    @abstractmethod
    def prepare(self, flow: Flow, timing: Timing) -> Run:
        """Starts the flow's server and waits until it serves. All servers are ready before any client begins."""
