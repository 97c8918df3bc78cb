"""A reading: counters that only grow, and when they were read."""

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Reading:
    """The counters of a meter at one moment."""

    at: float
    """Seconds of the monotonic clock."""
    counts: dict[str, float]
    took: float = 0.0
    """Seconds."""


def take(read: Callable[[], dict[str, float]]) -> Reading:
    """Reads a meter; the time is the middle of the reading."""
    began = time.monotonic()
    counts = read()
    ended = time.monotonic()
    return Reading((began + ended) / 2, counts, ended - began)


def rates(before: Reading, after: Reading) -> dict[str, float]:
    """Each counter's growth a second; counters of one reading only are left out."""
    elapsed = after.at - before.at
    shared = before.counts.keys() & after.counts.keys()
    return {name: (after.counts[name] - before.counts[name]) / elapsed for name in shared}
