"""Workloads: the traffic between guests that is measured.

`workload.py` is the common interface; each other file brings workloads, and is found by being here.
"""

from memlane_lab.common import plugins
from memlane_lab.workloads.workload import POINT, Flow, FlowResult, Run, Timing, Workload

_FOUND = plugins.found(__name__, __path__, Workload, named_by="name")  # type: ignore[type-abstract]
WORKLOADS: dict[str, type[Workload]] = {workload.name: workload for workload in _FOUND}


def kind(name: str) -> type[Workload]:
    """The workload of that name."""
    if name not in WORKLOADS:
        raise ValueError(f"there is no workload {name!r}; there are: {', '.join(WORKLOADS)}")
    return WORKLOADS[name]


__all__ = ["POINT", "WORKLOADS", "Flow", "FlowResult", "Run", "Timing", "Workload", "kind"]
