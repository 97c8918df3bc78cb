"""Bulk flows by iperf3: one process at each end for each flow."""

import json
import time
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from memlane_lab.common.errors import LabError
from memlane_lab.common.sizes import Size
from memlane_lab.guests import Guest
from memlane_lab.guests.control import Running
from memlane_lab.statistics.measures import Across, Better, Measure
from memlane_lab.workloads.workload import POINT, Flow, FlowResult, Run, Timing, Workload


class _Iperf3(Workload):
    """The parameters of TCP and UDP."""

    def prepare(self, flow: Flow, timing: Timing) -> Run:
        held = self._hold_settings(flow)
        server = flow.target.spawn(_command(flow, "--server", "--one-off"))
        flow.target.wait_listening(flow.port, timeout=30)
        length = ["--time", str(timing.seconds), "--omit", str(timing.warm_up)]
        client = _command(flow, "--client", flow.address, *length, *self._options())
        return _Run(self, flow, timing, server, client, held)

    @abstractmethod
    def _options(self) -> list[str]:
        """The client's options for these parameters."""

    @abstractmethod
    def values(self, end: Mapping[str, Any]) -> dict[str, float]:
        """The measures in the part `end` of the client's report."""

    def _hold_settings(self, flow: Flow) -> list["_Sysctl"]:  # noqa: ARG002
        return []


class Tcp(_Iperf3):
    """One or several TCP connections, as fast as they go."""

    name: ClassVar[str] = "tcp"
    title: ClassVar[str] = "iperf3, TCP"
    measures: ClassVar[tuple[Measure, ...]] = (Measure("retransmits", "TCP segments sent again", "1/s", Better.LESS),)

    class Parameters(Workload.Parameters):
        """Buffers that are not stated are left to Linux, which adapts them."""

        message: Size = 128 << 10
        """Bytes a write."""
        streams: int = Field(default=1, ge=1, le=128)
        buffer: Size | None = None
        """Socket buffers (and so the window), both sides, both ways."""
        receive_buffer: Size | None = None
        """Socket buffer of receivers, as Linux counts it, kept from growing."""
        send_buffer: Size | None = None
        """Socket buffer of senders, as Linux counts it, kept from growing."""
        grows: bool = False
        """Whether the two only begin so, and Linux may adapt them up to its usual largest ones."""
        rate: int = Field(default=0, ge=0)
        """Bit/s that the sender paces itself to; 0: none."""
        congestion: str | None = None
        """Congestion control: cubic or bbr."""

    def _options(self) -> list[str]:
        asked = self.parameters
        return [
            *("--length", str(asked.message), "--parallel", str(asked.streams), "--bitrate", str(asked.rate)),
            *(["--window", str(asked.buffer)] if asked.buffer else []),
            *(["--congestion", asked.congestion] if asked.congestion else []),
        ]

    def _hold_settings(self, flow: Flow) -> list["_Sysctl"]:
        wanted = (
            (flow.target, "tcp_rmem", self.parameters.receive_buffer),
            (flow.source, "tcp_wmem", self.parameters.send_buffer),
        )
        grows = self.parameters.grows
        return [_Sysctl(guest, name, size, grows=grows) for guest, name, size in wanted if size]

    def values(self, end: Mapping[str, Any]) -> dict[str, float]:
        sent = end["sum_sent"]
        return {
            "throughput": end["sum_received"]["bits_per_second"],
            "retransmits": sent["retransmits"] / max(sent["seconds"], 1e-9),
        }


class Udp(_Iperf3):
    """Datagrams, as fast as they go unless a rate is stated."""

    name: ClassVar[str] = "udp"
    title: ClassVar[str] = "iperf3, UDP"
    measures: ClassVar[tuple[Measure, ...]] = (
        Measure("sent", "throughput, sent", "bit/s"),
        Measure("datagrams", "datagrams received", "1/s", Better.MORE),
        Measure("loss", "share of datagrams lost", "", Better.LESS, Across.MEAN),
        Measure("spacing_jitter", "jitter of arrivals (RFC 3550)", "s", Better.LESS, Across.MEAN),
    )

    class Parameters(Workload.Parameters):
        """Buffers that are not stated are Linux's usual ones."""

        message: Size = 1400
        """Bytes a datagram."""
        buffer: Size | None = None
        """Socket buffers, both sides, both ways."""
        rate: int = Field(default=0, ge=0)
        """Bit/s that the sender paces itself to; 0: none."""

    def _options(self) -> list[str]:
        asked = self.parameters
        return [
            *("--udp", "--length", str(asked.message), "--bitrate", str(asked.rate)),
            *(["--window", str(asked.buffer)] if asked.buffer else []),
        ]

    def values(self, end: Mapping[str, Any]) -> dict[str, float]:
        sent, received = end["sum_sent"], end["sum_received"]
        # iperf3 before 3.17 miscounts lost datagrams when it omits a warm-up; bytes are right.
        return {
            "throughput": received["bits_per_second"],
            "sent": sent["bits_per_second"],
            "datagrams": received["bits_per_second"] / 8 / self.parameters.message,
            "loss": max(0.0, 1 - received["bytes"] / max(sent["bytes"], 1)),
            "spacing_jitter": received["jitter_ms"] / 1e3,
        }


class _Run(Run):
    def __init__(
        self, kind: _Iperf3, flow: Flow, timing: Timing, server: Running, command: list[str], held: list["_Sysctl"]
    ) -> None:
        super().__init__(server)
        self._kind, self._flow, self._timing = kind, flow, timing
        self._server, self._command, self._held = server, command, held

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
        try:
            client = self._report(self._client, "client")
            server = self._report(self._server, "server")
        finally:
            for setting in self._held:
                setting.restore()
        return FlowResult(self._kind.values(client["end"]), _series(server))

    def _report(self, running: Running, side: str) -> dict[str, Any]:
        result = running.wait(self._timing.patience)
        try:
            report: dict[str, Any] = json.loads(result.stdout)
        except ValueError:
            report = {"error": result.stderr.strip() or result.stdout[-500:] or f"exit code {result.status}"}
        if "error" in report:
            raise LabError(f"iperf3's {side} of flow {self._flow.name} failed: {report['error']}")
        return report


class _Sysctl:
    """The size of a guest's socket buffers, which is put back afterwards."""

    def __init__(self, guest: Guest, name: str, size: int, *, grows: bool) -> None:
        self._guest, self._path = guest, f"/proc/sys/net/ipv4/{name}"
        self._before = guest.get(self._path).decode().strip()
        largest = max(size, int(self._before.split()[2])) if grows else size
        self._write(f"4096 {size} {largest}")

    def restore(self) -> None:
        self._write(self._before)

    def _write(self, value: str) -> None:
        self._guest.run(["sh", "-c", f"echo {value} >{self._path}"]).check()


def _command(flow: Flow, *role: str) -> list[str]:
    return ["iperf3", *role, "--port", str(flow.port), "--interval", str(POINT), "--json"]


def _series(server: Mapping[str, Any]) -> list[tuple[float, float]]:
    """The receiver's figures, its warm-up left out."""
    sums = (interval["sum"] for interval in server["intervals"])
    return [(each["end"], each["bits_per_second"]) for each in sums if not each["omitted"] and each["seconds"] > 0.05]
