"""Requests at a set rate by the lab's own `exchange` (lab/agent): an open loop, beside sockperf's ping-pong.

A ping-pong that is held up once asks less often meanwhile, so its percentiles leave out waits of others
(coordinated omission). Here each time is counted from when the request should have been sent.
"""

import json
import time
from typing import Annotated, Any, ClassVar

from pydantic import Field

from memlane_lab.common.errors import LabError
from memlane_lab.common.sizes import Size
from memlane_lab.guests.control import Running
from memlane_lab.statistics.latencies import Latencies
from memlane_lab.statistics.measures import Across, Better, Measure
from memlane_lab.workloads.workload import Flow, FlowResult, Run, Timing, Workload


class OpenLoop(Workload):
    """Requests over TCP by a schedule that knows nothing of answers."""

    name: ClassVar[str] = "open-loop"
    title: ClassVar[str] = "requests at a set rate"
    measures: ClassVar[tuple[Measure, ...]] = (
        Measure("response_p50", "response from the intended start, median", "s", Better.LESS, Across.MEAN),
        Measure("response_p99", "response from the intended start, 99th percentile", "s", Better.LESS, Across.WORST),
        Measure("response_p999", "response from the intended start, 99.9th percentile", "s", Better.LESS, Across.WORST),
        Measure("unanswered", "share of requests without an answer", "", Better.LESS, Across.MEAN),
    )

    class Parameters(Workload.Parameters):
        """How often, how large."""

        rate: int = Field(default=1000, ge=1, le=1_000_000)
        """Requests a second."""
        message: Annotated[Size, Field(ge=8, le=65000)] = 64
        """Bytes of a request, and of its answer."""

    def prepare(self, flow: Flow, timing: Timing) -> Run:
        server = flow.target.spawn(["exchange", "serve", str(flow.port)])
        flow.target.wait_listening(flow.port, timeout=30)
        asked = (self.parameters.rate, self.parameters.message, timing.warm_up, timing.seconds)
        return _Run(flow, timing, server, ["exchange", "ask", flow.address, str(flow.port), *map(str, asked)])


class _Run(Run):
    def __init__(self, flow: Flow, timing: Timing, server: Running, command: list[str]) -> None:
        super().__init__(server)
        self._flow, self._timing, self._server, self._command = flow, timing, server, command

    def begin(self) -> None:
        self._client = self._start(self._flow.source, self._command)
        self._warm = time.monotonic() + self._timing.warm_up

    def measuring(self) -> bool:
        if self._client.ended:
            self.finish()
        return time.monotonic() >= self._warm

    def over(self) -> bool:
        return self._client.ended

    def finish(self) -> FlowResult:
        said = self._client.wait(self._timing.patience)
        self._server.wait(10)
        if said.status:
            raise LabError(f"exchange of flow {self._flow.name} failed: {said.stderr.strip()}")
        told = _read(said.stdout)
        if not told["answered"]:
            raise LabError(f"exchange of flow {self._flow.name} got no answer")
        found = Latencies((value / 1e9, count) for value, count in told["latencies"])
        values = {
            "response_p50": found.percentile(0.5),
            "response_p99": found.percentile(0.99),
            "response_p999": found.percentile(0.999),
            "unanswered": 1 - told["answered"] / told["sent"],
            "exchanges": told["answered"] / self._timing.seconds,
        }
        return FlowResult(values, latencies=found)


def _read(said: str) -> dict[str, Any]:
    try:
        told: dict[str, Any] = json.loads(said)
    except ValueError as error:
        raise LabError(f"exchange printed no result: {said[-500:]}") from error
    return told
