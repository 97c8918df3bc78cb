"""Request and answer by sockperf: one message at a time, there and back."""

import re
import signal
import time
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from memlane_lab.common.errors import LabError
from memlane_lab.common.sizes import Size
from memlane_lab.guests.control import Running
from memlane_lab.statistics.latencies import Latencies
from memlane_lab.statistics.measures import Across, Better, Measure
from memlane_lab.workloads.workload import Flow, FlowResult, Run, Timing, Workload

_OWN_WARM_UP = 0.4
"""Seconds at its start that sockperf itself leaves out, and a little more at its end."""
_FIRST_FRAMES = 20
"""So many frames at the server show that messages have begun to flow: sockperf needs seconds to get ready."""


class RequestResponse(Workload):
    """Round trips, one after the other; TCP unless stated (a lost datagram would end the test)."""

    name: ClassVar[str] = "request-response"
    title: ClassVar[str] = "sockperf, request and answer"
    settling: ClassVar[int] = 3
    measures: ClassVar[tuple[Measure, ...]] = (
        Measure("rtt_p50", "round trip, median", "s", Better.LESS, Across.MEAN),
        Measure("rtt_p90", "round trip, 90th percentile", "s", Better.LESS, Across.MEAN),
        Measure("rtt_p99", "round trip, 99th percentile", "s", Better.LESS, Across.WORST),
        Measure("rtt_p999", "round trip, 99.9th percentile", "s", Better.LESS, Across.WORST),
        Measure("rtt_mean", "round trip, mean", "s", Better.LESS, Across.MEAN),
        Measure("jitter", "jitter: standard deviation of the round trip", "s", Better.LESS, Across.MEAN),
        Measure("exchanges", "requests answered", "1/s", Better.MORE),
    )

    class Parameters(Workload.Parameters):
        """One size for requests and answers."""

        message: Annotated[Size, Field(ge=14, le=65000)] = 14
        """Bytes; 14 is the least that sockperf sends."""
        protocol: Literal["tcp", "udp"] = "tcp"

    def prepare(self, flow: Flow, timing: Timing) -> Run:
        protocol = ["--tcp"] if self.parameters.protocol == "tcp" else []
        server = flow.target.spawn(["sockperf", "server", "--port", str(flow.port), *protocol])
        flow.target.wait_listening(flow.port, self.parameters.protocol, timeout=30)
        command = [
            *("sockperf", "ping-pong", *protocol, "--ip", flow.address, "--port", str(flow.port), "--full-rtt"),
            *("--time", str(timing.seconds + 1), "--msg-size", str(self.parameters.message)),
        ]
        return _Run(flow, timing, server, command, f"/tmp/sockperf-{flow.port}")


class _Run(Run):
    def __init__(self, flow: Flow, timing: Timing, server: Running, command: list[str], log: str) -> None:
        super().__init__(server)
        self._flow, self._timing, self._server, self._log = flow, timing, server, log
        self._command = [*command, "--full-log", log]
        self._flowing: float | None = None

    def begin(self) -> None:
        self._frames = self._flow.target.received().frames
        self._client = self._start(self._flow.source, self._command)

    def measuring(self) -> bool:
        if self._client.ended:
            self.finish()
        now = time.monotonic()
        if self._flowing is None and self._flow.target.received().frames >= self._frames + _FIRST_FRAMES:
            self._flowing = now
        return self._flowing is not None and now >= self._flowing + _OWN_WARM_UP

    def over(self) -> bool:
        return self._client.ended

    def finish(self) -> FlowResult:
        said = self._client.wait(self._timing.patience)
        self._server.signal(signal.SIGINT)
        self._server.wait(10)
        if said.status:
            raise LabError(f"sockperf of flow {self._flow.name} failed: {said.stderr.strip() or said.stdout[-500:]}")
        plain = re.sub(r"\x1b\[[0-9;]*m", "", said.stdout)
        found = self._latencies()
        values = {
            **{name: found.percentile(share) for name, share in _NAMED.items()},
            "rtt_mean": found.mean,
            "jitter": found.deviation,
            "exchanges": found.count / float(_find(plain, r"\[Valid Duration\] RunTime=([\d.]+)")),
        }
        return FlowResult(values, latencies=found)

    def _latencies(self) -> Latencies:
        """Every round trip that counts, as sockperf has written them down."""
        source = self._flow.source
        counted = source.run(["awk", "-F", ", *", _COUNT, self._log], timeout=60).check().stdout
        source.run(["rm", self._log]).check()
        pairs = (line.split() for line in counted.splitlines())
        return Latencies((float(value) / 1e9, int(count)) for value, count in pairs)


_NAMED = {"rtt_p50": 0.5, "rtt_p90": 0.9, "rtt_p99": 0.99, "rtt_p999": 0.999}
_COUNT = """
/^[0-9]+, / {
    value = int($4 * 1000); step = 1
    while (value / step >= 1000) step *= 10
    seen[int(value / step) * step + int(step / 2)]++
}
END { for (value in seen) print value, seen[value] }
"""
"""Nanoseconds to three significant digits, and how often each was seen."""


def _find(text: str, pattern: str) -> str:
    if not (found := re.search(pattern, text)):
        raise LabError(f"sockperf printed no line that matches {pattern}: {text[-500:]}")
    return found[1]
