"""The path's own account: the switch's counters."""

from memlane_lab.paths import NetworkPath


def read(path: NetworkPath) -> dict[str, float]:
    """The path's counters so far, by the names of `NetworkPath.tallies`."""
    return path.tallies()
