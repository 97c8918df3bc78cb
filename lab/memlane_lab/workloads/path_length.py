"""Messages with every instruction counted: not on the live host, but in one that QEMU emulates (`counting/`)."""

from typing import ClassVar, Literal

from pydantic import Field

from memlane_lab.common.errors import LabError
from memlane_lab.common.sizes import Size
from memlane_lab.counting import counts, stages
from memlane_lab.counting.counts import Party
from memlane_lab.statistics.measures import Across, Better, Measure
from memlane_lab.workloads.workload import Flow, Run, Timing, Workload


def _key(kind: str, name: str) -> str:
    return f"{kind}_{''.join(each if each.isalnum() else '_' for each in name)}"


STAGES = {stage: _key("stage", stage) for stage in stages.usual().stages if stage != stages.IDLE}
"""By stage, the measure that tells its instructions per KB."""
PARTIES = {party: _key("party", party) for party in Party if party is not Party.LAB}
"""By party, the same."""
MISSES = {name: f"{name.lower()}_misses_per_kb" for name in counts.MISSES}
"""By simulated cache or TLB, the measure of its misses."""
TOTALS = (
    Measure("instructions", "instructions between the marks, all parties", "", Better.LESS, Across.MEAN),
    Measure("instructions_per_kb", "instructions per KB", "", Better.LESS, Across.MEAN),
    Measure("instructions_per_packet", "instructions per packet", "", Better.LESS, Across.MEAN),
    Measure("instructions_per_message", "instructions per message", "", Better.LESS, Across.MEAN),
    Measure("sending_per_packet", "instructions per packet, sender", "", Better.LESS, Across.MEAN),
    Measure("receiving_per_packet", "instructions per packet, receiver", "", Better.LESS, Across.MEAN),
    Measure("switching_per_packet", "instructions per packet, switch", "", Better.LESS, Across.MEAN),
    Measure("sending_per_kb", "instructions per KB, sender", "", Better.LESS, Across.MEAN),
    Measure("receiving_per_kb", "instructions per KB, receiver", "", Better.LESS, Across.MEAN),
    Measure("switching_per_kb", "instructions per KB, switch", "", Better.LESS, Across.MEAN),
    Measure("loads_per_kb", "loads per KB", "", Better.LESS, Across.MEAN),
    Measure("stores_per_kb", "stores per KB", "", Better.LESS, Across.MEAN),
    Measure("repeats_per_kb", "repetitions of string instructions per KB", "", Better.LESS, Across.MEAN),
    Measure(
        "steps_per_kb",
        "instructions per KB, each repetition of a string instruction counted",
        "",
        Better.LESS,
        Across.MEAN,
    ),
    Measure("packets", "packets that the sender's NIC sent", ""),
    Measure("packet_bytes", "bytes of messages per packet", "B"),
    Measure("lost", "messages that did not come", "", Better.LESS, Across.MEAN),
)


class PathLength(Workload):
    """A fixed number of messages, counted to the instruction."""

    name: ClassVar[str] = "path-length"
    title: ClassVar[str] = "a fixed number of messages, every instruction of the host counted (beds that count only)"
    measures: ClassVar[tuple[Measure, ...]] = (
        *TOTALS,
        *(
            Measure(key, f"simulated {name} misses per KB", "", Better.LESS, Across.MEAN)
            for name, key in MISSES.items()
        ),
        *(Measure(key, f"instructions per KB: {name}", "", Better.LESS, Across.MEAN) for name, key in STAGES.items()),
        *(Measure(key, f"instructions per KB: {name}", "", Better.LESS, Across.MEAN) for name, key in PARTIES.items()),
    )

    class Parameters(Workload.Parameters):
        """The size and the number of messages."""

        protocol: Literal["tcp", "udp"] = "tcp"
        message: Size = Field(default=65536, le=1 << 20)
        messages: int = Field(default=64, ge=1, le=100_000)
        """Between the marks; as many go before them."""
        burst: int = Field(default=1, ge=1, le=64)
        """Datagrams until the sender waits for the receiver's word."""
        send_buffer: int = Field(default=0, ge=0, le=1 << 24)
        receive_buffer: int = Field(default=0, ge=0, le=1 << 24)
        """Bytes that the sockets are given for buffers (the kernel doubles them for its own needs); 0: as it likes."""

    def prepare(self, flow: Flow, timing: Timing) -> Run:  # noqa: ARG002
        raise LabError('path-length needs a counted host: set bed = "counted" in the experiment')
