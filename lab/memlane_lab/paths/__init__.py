"""Paths: ways for frames to get from guest to guest, all laid, looked at and cleared in the same way.

`path.py` is the common interface; each other file holds one path.
"""

from typing import Any

from memlane_lab.errors import LabError
from memlane_lab.paths.bridge import Bridge
from memlane_lab.paths.e1000 import E1000
from memlane_lab.paths.memlane import Memlane
from memlane_lab.paths.none import NoPath
from memlane_lab.paths.ovs_dpdk import OvsDpdk
from memlane_lab.paths.path import NetworkPath
from memlane_lab.session import Session

PATHS: dict[str, type[NetworkPath]] = {path.name: path for path in (NoPath, Bridge, E1000, OvsDpdk, Memlane)}


def make(session: Session, name: str, **options: Any) -> NetworkPath:  # noqa: ANN401
    """The path of that name, not yet laid; `options` are its own."""
    if name not in PATHS:
        raise LabError(f"there is no path {name!r}; there are: {', '.join(PATHS)}")
    return PATHS[name](session, **options)


__all__ = ["PATHS", "NetworkPath", "make"]
