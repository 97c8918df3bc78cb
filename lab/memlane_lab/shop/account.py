"""Browsers' lines and tiers' logs put together: response times, and where they were spent."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from memlane_lab.shop.browsers import Interaction
from memlane_lab.shop.interactions import PARTS, of_interaction
from memlane_lab.statistics.latencies import Latencies

Series = list[tuple[float, float]]
POINT = 0.25
"""Seconds between points of a series."""
_RARE = {"p99": 100, "p999": 1000}
"""Percentiles that so many observations are needed for."""


@dataclass(frozen=True)
class Logs:
    """The logs of the tiers."""

    web: str
    application: str
    database_seconds: float
    """The database's mean time for a question."""


@dataclass(frozen=True)
class _Page:
    """A page on its way through the tiers: seconds in each, the tiers behind it included."""

    web: float
    application_seen: float
    """As the web server saw it."""
    application: float
    database_seen: float
    """As the application saw it."""
    questions: int


def measured(done: Sequence[Interaction], begin: float, seconds: float) -> list[Interaction]:
    """The interactions that were due in the measured part, which began at `begin` (seconds since 1970)."""
    return [each for each in done if begin <= each.due < begin + seconds]


def responses(found: Sequence[Interaction], seconds: float) -> dict[str, float]:
    """Response times of all answers and by interaction, rates, errors."""
    good = [each for each in found if each.fault is None]
    values = {
        "interactions": len(good) / seconds,
        "offered": len(found) / seconds,
        "failed": len(found) - len(good),
        "errors": (len(found) - len(good)) / len(found) if found else 1.0,
    }
    if not good:
        return values
    begun = sorted(each.late for each in found if each.turn == 0)  # later ones may wait for the answer before
    values |= {"lateness": percentile(begun, 0.99)} if begun else {}
    values |= {f"felt_{key}": value for key, value in spread([each.response for each in good]).items()}
    for name, times in _by_name(good).items():
        values |= {of_interaction(name, key): value for key, value in spread(times).items()}
    return values


def spread(times: Iterable[float]) -> dict[str, float]:
    """Mean, percentiles and maximum, as far as there are enough observations."""
    rising = sorted(times)
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}
    told = {key: percentile(rising, share) for key, share in shares.items() if len(rising) >= _RARE.get(key, 1)}
    return {"mean": fmean(rising), **told, "max": rising[-1]}


def percentile(rising: Sequence[float], share: float) -> float:
    """The smallest of `rising` that at least this share of them does not exceed."""
    return rising[max(0, math.ceil(share * len(rising)) - 1)]


def latencies(found: Iterable[Interaction]) -> Latencies:
    """Response times of all answers."""
    return Latencies((each.response, 1) for each in found if each.fault is None)


def parts(found: Sequence[Interaction], logs: Logs) -> dict[str, float]:
    """The parts of a mean response: see `interactions.PARTS`. Answers that a log lacks are left out."""
    pages = _pages(logs)
    both = [(each, pages[each.id]) for each in found if each.fault is None and each.id in pages]
    if not both:
        return {}
    database = fmean(page.questions for _, page in both) * logs.database_seconds
    spent = {
        "part_late": fmean(each.late for each, _ in both),
        "part_network_web": fmean(each.page - page.web for each, page in both),
        "part_web": fmean(page.web - page.application_seen for _, page in both),
        "part_network_application": fmean(page.application_seen - page.application for _, page in both),
        "part_application": fmean(page.application - page.database_seen for _, page in both),
        "part_network_database": fmean(page.database_seen for _, page in both) - database,
        "part_database": database,
        "part_pictures": fmean(each.response - each.late - each.page for each, _ in both),
    }
    assert list(spent) == list(PARTS)
    network = sum(value for name, value in spent.items() if "network" in name)
    return spent | {
        "questions": fmean(page.questions for _, page in both),
        "network_share": network / sum(spent.values()),
    }


def _pages(logs: Logs) -> Mapping[str, _Page]:
    """By request id: every page that both logs hold whole."""
    web = {words[0]: words for words in map(str.split, logs.web.splitlines()) if len(words) == 6}
    pages = {}
    for words in map(str.split, logs.application.splitlines()):
        seen = web.get(words[0])
        if seen is None or "-" in seen[2:4]:
            continue
        _, _, _, total, _waited, asked, questions, _ = words
        pages[words[0]] = _Page(float(seen[2]), float(seen[3]), int(total) / 1e6, int(asked) / 1e6, int(questions))
    return pages


def outage(found: Sequence[Interaction], fault: float, mended: float, end: float) -> dict[str, float]:
    """How a fault at the time `fault` was felt until `end`: the longest silence, and how long requests kept failing.

    `mended` is when all that had died ran again.
    """
    answered = sorted(each.end for each in found if each.fault is None and fault <= each.end <= end)
    moments = [fault, *answered, end]
    silences = [after - before for before, after in pairwise(moments)]
    failures = [each.end for each in found if each.fault is not None and each.end >= fault]
    return {
        "gap": max(silences),
        "failing": max(failures) - fault if failures else 0.0,
        "failed_after": sum(each.fault is not None and each.due + each.late >= mended for each in found),
    }


def over_time(found: Sequence[Interaction], begin: float, seconds: float) -> dict[str, Series]:
    """Mean response by due time, answers and failures a second, in points of `POINT` seconds."""
    slots: dict[int, list[Interaction]] = defaultdict(list)
    for each in found:
        slots[int((each.due - begin) / POINT)].append(each)
    lines: dict[str, Series] = {"response": [], "answers": [], "failures": []}
    for slot in range(int(seconds / POINT)):
        at, here = (slot + 1) * POINT, slots[slot]
        if here:
            lines["response"].append((at, fmean(each.response for each in here)))
        failures = sum(each.fault is not None for each in here)
        lines["answers"].append((at, (len(here) - failures) / POINT))
        lines["failures"].append((at, failures / POINT))
    return lines


def _by_name(found: Iterable[Interaction]) -> Mapping[str, list[float]]:
    times: dict[str, list[float]] = defaultdict(list)
    for each in found:
        times[each.name].append(each.response)
    return times
