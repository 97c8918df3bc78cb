"""How much memory the network holds for guests of Xen: not on the live host, but in one that QEMU emulates (`xen/`)."""

from enum import StrEnum
from typing import ClassVar

from pydantic import Field

from memlane_lab.common.errors import LabError
from memlane_lab.statistics.measures import Across, Better, Measure
from memlane_lab.workloads.workload import Flow, Run, Timing, Workload


class State(StrEnum):
    """Activity of guests at each reading; one boot passes through all, in this order."""

    IDLE = "idle"
    """Nothing, five seconds after each has sent three requests of ping to each other one."""
    BUSY = "busy"
    """The first pair moves bytes by TCP."""
    AFTER = "after"
    """Nothing, a minute after that."""


class HeldMemory(Workload):
    """Guests that are given interfaces while they run, so that the interfaces' memory can be told."""

    name: ClassVar[str] = "held-memory"
    title: ClassVar[str] = "what the network holds in guests, dom0 and the switch (counted beds of Xen only)"
    measures: ClassVar[tuple[Measure, ...]] = (
        Measure("holds", "memory that the network holds, all domains", "B", Better.LESS, Across.MEAN),
        Measure("holds_per_guest", "the same, per guest", "B", Better.LESS, Across.MEAN),
        Measure("guests_hold", "of that, guests' kernels", "B", Better.LESS, Across.MEAN),
        Measure("rings_hold", "of that, XenVMNIC's rings", "B", Better.LESS, Across.MEAN),
        Measure("dom0_holds", "dom0's kernel and daemons", "B", Better.LESS, Across.MEAN),
        Measure("switch_holds", "the switch's process", "B", Better.LESS, Across.MEAN),
    )

    class Parameters(Workload.Parameters):
        """The moment of the reading, and the traffic."""

        state: State = State.IDLE
        megabytes: int = Field(default=200, ge=1, le=1000)
        """MiB that the first pair moves while it is busy."""

    def prepare(self, flow: Flow, timing: Timing) -> Run:  # noqa: ARG002
        raise LabError('held-memory is measured under Xen only: set guest = "xen" and bed = "counted"')
