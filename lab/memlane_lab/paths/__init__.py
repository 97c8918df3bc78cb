"""Paths: ways for frames to get from guest to guest, all laid, looked at and cleared in the same way.

`path.py` is the common interface; each other file brings a path (or helps one), and is found by being here.
"""

from typing import Any

from memlane_lab.common import plugins
from memlane_lab.common.errors import LabError
from memlane_lab.host.session import Session
from memlane_lab.paths.path import NetworkPath

_FOUND = plugins.found(__name__, __path__, NetworkPath, named_by="name")  # type: ignore[type-abstract]
PATHS: dict[str, type[NetworkPath]] = {path.name: path for path in sorted(_FOUND, key=lambda path: path.rank)}


def make(session: Session, name: str, **options: Any) -> NetworkPath:  # noqa: ANN401
    """The path of that name, not yet laid; `options` are its own."""
    if name not in PATHS:
        raise LabError(f"there is no path {name!r}; there are: {', '.join(PATHS)}")
    return PATHS[name](session, **options)


__all__ = ["PATHS", "NetworkPath", "make"]
