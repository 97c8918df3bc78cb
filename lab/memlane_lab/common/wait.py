"""Waiting for a condition, with a deadline; never for a time to pass."""

import time
from collections.abc import Callable

from memlane_lab.common.errors import LabError

_FIRST_PAUSE = 0.001
_LONGEST_PAUSE = 0.05


class Timeout(LabError):
    """A condition did not come true in time."""


def until(condition: Callable[[], bool], *, timeout: float, what: str) -> None:
    """Returns as soon as `condition` holds; raises after `timeout` seconds, with `what` in the message."""
    deadline = time.monotonic() + timeout
    pause = _FIRST_PAUSE
    while not condition():
        if time.monotonic() > deadline:
            raise Timeout(f"timeout: waited {timeout:g} s for {what}")
        time.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE)
