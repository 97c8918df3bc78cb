"""Nothing at all: guests that are there, and send nothing."""

import time
from typing import ClassVar

from memlane_lab.workloads.workload import Flow, FlowResult, Run, Timing, Workload


class Idle(Workload):
    """Two guests that leave each other alone."""

    name: ClassVar[str] = "idle"
    title: ClassVar[str] = "nothing: what guests cost that are only there"
    talks: ClassVar[bool] = False

    def prepare(self, flow: Flow, timing: Timing) -> Run:  # noqa: ARG002
        return _Run(timing)


class _Run(Run):
    def __init__(self, timing: Timing) -> None:
        super().__init__()
        self._timing = timing

    def begin(self) -> None:
        self._warm = time.monotonic() + self._timing.warm_up

    def measuring(self) -> bool:
        return time.monotonic() >= self._warm

    def over(self) -> bool:
        return time.monotonic() >= self._warm + self._timing.seconds

    def finish(self) -> FlowResult:
        return FlowResult({})
