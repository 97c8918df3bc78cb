"""The path's own account: what the switch counts."""

from memlane_lab.paths import NetworkPath


def read(path: NetworkPath) -> dict[str, float]:
    """What the path has counted so far, by the names of `NetworkPath.tallies`."""
    return path.tallies()
