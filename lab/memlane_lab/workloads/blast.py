"""Frames as fast as they go, and the highest rates without loss: not between guests, but by `memlane-rig blast`."""

from typing import ClassVar

from pydantic import Field

from memlane_lab.common.errors import LabError
from memlane_lab.statistics.measures import Across, Better, Measure
from memlane_lab.workloads.workload import Flow, Run, Timing, Workload

FORWARDED = Measure("forwarded", "frames that arrive, unpaced, both directions", "1/s", Better.MORE)
RATES = {
    "NDR": Measure("ndr", "highest load without loss (NDR), one way", "1/s", Better.MORE, Across.MEAN),
    "PDR": Measure("pdr", "highest load with 0.5 % loss (PDR), one way", "1/s", Better.MORE, Across.MEAN),
}
"""By the name of the goal of the search."""


class Blast(Workload):
    """The rig at both ports of a path, in place of guests."""

    name: ClassVar[str] = "blast"
    title: ClassVar[str] = "frames of memlane-rig in place of guests, unpaced and by MLRsearch (bed of the rig only)"
    measures: ClassVar[tuple[Measure, ...]] = (FORWARDED, *RATES.values())

    class Parameters(Workload.Parameters):
        """The frame and the search."""

        message: int = Field(default=64, ge=60, le=65549)
        """Bytes of a frame."""
        budget: float = Field(default=0, ge=0, le=3600)
        """Seconds for the search of NDR and PDR; 0: none."""
        highest: float = Field(default=20e6, ge=1000, le=1e9)
        """Frames a second: the highest load to try."""
        trial: float = Field(default=1.0, ge=0.1, le=60)
        """Seconds of a trial that counts in full."""
        total: float = Field(default=5.0, ge=0.1, le=600)
        """Seconds of trials that decide a load at the latest."""

    def prepare(self, flow: Flow, timing: Timing) -> Run:  # noqa: ARG002
        raise LabError('blast stands in place of guests: set bed = "rig" in the experiment')
