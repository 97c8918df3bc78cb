"""The load generator: k6 with the browsers' script, and its output."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from memlane_lab.common.errors import LabError
from memlane_lab.images.shop import PLACE
from memlane_lab.shop.tiers import Size

LINES = "/tmp/browsers.log"
"""Where the browsers write, in their guest."""
PATIENCE = 8.0
"""Seconds that a browser waits for an answer before it calls it none."""
_NICE = -10
"""Of the generator, which is the clock: it must not wait for the guests. Its CPU time is told as `cpu_load`."""


@dataclass(frozen=True)
class Interaction:
    """One thing that a browser did."""

    name: str
    due: float
    """When it was to begin: seconds since 1970."""
    late: float
    """Seconds that it began later."""
    page: float
    """Seconds from the page's request to its end."""
    response: float
    """Seconds from when it was due until the page and its pictures were there."""
    bytes: int
    turn: int
    """Which of its session it was, from 0."""
    id: str
    fault: str | None
    """The fault of the answer, or None."""

    @property
    def end(self) -> float:
        """When the answer was there, or was given up: seconds since 1970."""
        return self.due + self.response


def command(address: str, asked: dict[str, Any], size: Size, seconds: int) -> list[str]:
    """The generator's command line for these parameters of the workload."""
    settings = {
        "SHOP": f"http://{address}",
        "LOAD": asked["load"],
        "MIX": asked["mix"],
        "RATE": asked["rate"],
        "BROWSERS": asked["browsers"],
        "THINK": asked["think"],
        "SESSION": asked["session"],
        "SECONDS": seconds,
        "PICTURES": int(asked["pictures"]),
        "ITEMS": size.items,
        "CUSTOMERS": size.customers,
        "PATIENCE": PATIENCE,
        "AT_ONCE": asked["at_once"],
    }
    stated = [word for name, value in settings.items() for word in ("--env", f"{name}={value}")]
    quiet = [
        "--quiet",
        "--no-usage-report",
        "--no-color",
        "--address",
        "",
        "--log-format",
        "raw",
        "--console-output",
        LINES,
    ]
    return ["nice", "-n", str(_NICE), "k6", "run", *quiet, *stated, f"/{PLACE}/load/browsers.js"]


def read(lines: str) -> list[Interaction]:
    """The interactions in the browsers' lines, by when they were due."""
    found = [_interaction(line.split()) for line in lines.splitlines() if line]
    return sorted(found, key=lambda each: each.due)


def _interaction(words: Sequence[str]) -> Interaction:
    name, due, late, page, response, size, _pictures, turn, known_as, fault = words
    return Interaction(
        name=name,
        due=float(due) / 1e3,
        late=float(late) / 1e3,
        page=float(page) / 1e3,
        response=float(response) / 1e3,
        bytes=int(size),
        turn=int(turn),
        id=known_as,
        fault=None if fault == "-" else fault,
    )


def check_summary(said: str) -> None:
    """Raises if the generator could not begin all the sessions that it was to begin."""
    try:
        told = json.loads(said.splitlines()[-1])
        dropped = int(told["dropped"])
    except (IndexError, ValueError, KeyError) as error:
        raise LabError(f"the load generator ended without its summary: {said[-500:]}") from error
    if dropped:
        raise LabError(f"the load generator could not keep its rate: it left {dropped} sessions out")
