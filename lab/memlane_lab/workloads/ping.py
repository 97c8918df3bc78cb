"""Echo requests: the round trip of the guests' kernels alone, at a steady pace."""

import re
import time
from typing import ClassVar

from pydantic import Field

from memlane_lab.common.errors import LabError
from memlane_lab.common.sizes import Size
from memlane_lab.statistics.latencies import Latencies
from memlane_lab.statistics.measures import Across, Better, Measure
from memlane_lab.workloads.workload import Flow, FlowResult, Run, Timing, Workload


class Ping(Workload):
    """ICMP echo, one request every so many seconds."""

    name: ClassVar[str] = "ping"
    title: ClassVar[str] = "ping"
    measures: ClassVar[tuple[Measure, ...]] = (
        Measure("ping_p50", "ping, median", "s", Better.LESS, Across.MEAN),
        Measure("ping_p99", "ping, 99th percentile", "s", Better.LESS, Across.WORST),
        Measure("ping_loss", "share of pings lost", "", Better.LESS, Across.MEAN),
    )

    class Parameters(Workload.Parameters):
        """How often, how large."""

        interval: float = Field(default=0.01, ge=0.002, le=1)
        """Seconds between requests."""
        message: Size = 56

    def prepare(self, flow: Flow, timing: Timing) -> Run:
        flow.source.wait_for_ping()
        return _Run(flow, timing, self.parameters.interval, self.parameters.message)


class _Run(Run):
    def __init__(self, flow: Flow, timing: Timing, pause: float, size: int) -> None:
        super().__init__()
        self._flow, self._timing = flow, timing
        self._skipped, self._counted = round(timing.warm_up / pause), round(timing.seconds / pause)
        count = self._skipped + self._counted
        options = ["-n", "-i", str(pause), "-c", str(count), "-s", str(size), "-W", "2"]
        self._command = ["ping", *options, flow.address]

    def begin(self) -> None:
        self._client = self._start(self._flow.source, self._command)
        self._warm = time.monotonic() + self._timing.warm_up

    def measuring(self) -> bool:
        return time.monotonic() >= self._warm

    def over(self) -> bool:
        return self._client.ended

    def finish(self) -> FlowResult:
        said = self._client.wait(self._timing.patience)
        answers = re.findall(r"icmp_seq=(\d+) .*time=([\d.]+) ms", said.stdout)
        trips = [float(trip) / 1e3 for number, trip in answers if int(number) > self._skipped]
        if not trips:
            raise LabError(f"ping of flow {self._flow.name} got no answer: {said.stdout[-300:]}{said.stderr}")
        found = Latencies((trip, 1) for trip in trips)
        values = {
            "ping_p50": found.percentile(0.5),
            "ping_p99": found.percentile(0.99),
            "ping_loss": max(0.0, 1 - len(trips) / self._counted),
        }
        return FlowResult(values, latencies=found)
