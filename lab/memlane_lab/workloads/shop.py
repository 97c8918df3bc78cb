"""A shop under load: browsers on one side, three tiers on the other; response times as their users feel them."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from memlane_lab.bed.bed import Bed
from memlane_lab.common.errors import LabError
from memlane_lab.shop import account, browsers
from memlane_lab.shop.account import Logs
from memlane_lab.shop.interactions import MEASURES
from memlane_lab.shop.tiers import Place, Tiers
from memlane_lab.statistics.measures import Measure
from memlane_lab.workloads.workload import Flow, FlowResult, Run, Timing, Workload

_MARGIN = 2
"""Seconds that the load goes on after the measured part, so that its end is under load, too."""
_AFTER = 60.0
"""Seconds that browsers may take to end: their patience, several times."""


class ThreeTiers(Workload):
    """Browsers that shop. Flows go from a shop's `load` machine to the one that holds its web server."""

    name: ClassVar[str] = "shop"
    title: ClassVar[str] = "a bookstore in three tiers (after TPC-W), k6"
    settling: ClassVar[int] = 3
    in_shops: ClassVar[bool] = True
    measures: ClassVar[tuple[Measure, ...]] = MEASURES

    class Parameters(Workload.Parameters):
        """Whether sessions arrive at a rate (open) or so many browsers take turns with thinking (closed)."""

        load: Literal["open", "closed"] = "open"
        mix: Literal["browsing", "shopping", "ordering"] = "shopping"
        rate: float = Field(default=0, ge=0)
        """Interactions a second that are due (open)."""
        share: float = Field(default=0, ge=0, le=2)
        """The same, as a share of the shop's limit on the bridge, which is measured first (open)."""
        browsers: int = Field(default=24, ge=1, le=1000)
        """How many (closed)."""
        think: float = Field(default=0.7, ge=0, le=70)
        """Seconds that a browser thinks, in the mean; TPC-W has ten times as many. 0: the shop's limit (closed)."""
        session: int = Field(default=5, ge=1, le=1000)
        """Interactions of a session, in the mean."""
        at_once: int = Field(default=600, ge=1, le=10_000)
        """Sessions that the generator can have under way (open); where it would need more, the sample fails."""
        pictures: bool = True
        """Whether browsers fetch the pictures of pages."""
        lateness: float = Field(default=0.25, gt=0)
        """Seconds by which the generator may be late for one in a hundred sessions; later, and the sample fails."""
        errors: float = Field(default=0, ge=0, le=1)
        """Share of answers that may be wrong; more, and the sample fails. Where there is a fault, all may."""
        fault: Literal["", "application dies", "database dies", "network restarts"] = ""
        """The fault after a third of the measured part; it is mended at once."""

        @model_validator(mode="after")
        def _one_rate(self) -> Self:
            if self.load == "open" and not (self.rate or self.share):
                raise ValueError("open load needs a rate, or a share of the bridge's limit")
            return self

    def prepare(self, flow: Flow, timing: Timing) -> Run:
        bed = flow.bed
        assert bed is not None
        tiers = bed.services.get(flow.target.name)
        if tiers is None:
            tiers = bed.services[flow.target.name] = _tiers(bed, flow)
            tiers.start()
        return _Run(flow, bed, tiers, timing, self.parameters.model_dump())


def _tiers(bed: Bed, flow: Flow) -> Tiers:
    """The shop of the flow's target, a web server."""
    number = flow.target.name.lstrip("abcdefghijklmnopqrstuvwxyz")
    web = Place(flow.target, flow.address)
    if f"db{number}" not in bed.named:
        here = Place(flow.target, "127.0.0.1")
        return Tiers(web, here, here)
    application, database = (Place(bed.named[name], bed.address_of(name)) for name in (f"app{number}", f"db{number}"))
    return Tiers(web, application, database)


@dataclass(frozen=True)
class _Usage:
    """Counters at some moment."""

    at: float
    counts: dict[str, float]
    """By measure: seconds, frames, kicks."""

    def rates(self, before: "_Usage") -> dict[str, float]:
        """Use a second."""
        elapsed = self.at - before.at
        return {name: (count - before.counts[name]) / elapsed for name, count in self.counts.items()}


class _Run(Run):
    def __init__(self, flow: Flow, bed: Bed, tiers: Tiers, timing: Timing, asked: dict[str, Any]) -> None:
        super().__init__()
        self._flow, self._bed, self._tiers, self._timing, self._asked = flow, bed, tiers, timing, asked
        self._logs: dict[str, str] = {}
        self._flowing: float | None = None
        self._warm: float | None = None
        self._fault: float | None = None
        self._mended = 0.0
        self._faults: dict[str, Callable[[], None]] = {
            "application dies": self._application_dies,
            "database dies": self._database_dies,
            "network restarts": self._bed.restart_network,
        }

    def begin(self) -> None:
        seconds = self._timing.warm_up + self._timing.seconds + _MARGIN
        self._flow.source.process.go_first()
        self._flow.source.run(["rm", "-f", browsers.LINES]).check()
        command = browsers.command(self._flow.address, self._asked, self._tiers.size(), seconds)
        self._client = self._start(self._flow.source, command)

    def measuring(self) -> bool:
        now = time.time()
        if self._flowing is None and self._has_begun():
            self._flowing = now
        if self._warm is None and self._flowing is not None and now >= self._flowing + self._timing.warm_up:
            self._measure_from(now)
        if self._warm is not None and self._fault is None and self._asked["fault"]:
            self._break_at(self._warm + self._timing.seconds / 3)
        return self._warm is not None

    def _has_begun(self) -> bool:
        if self._client.ended:
            said = self._client.wait(1)
            raise LabError(
                f"the load generator of {self._flow.name} has ended: {said.stderr[-800:] or said.stdout[-800:]}"
            )
        return self._flow.source.run(["test", "-s", browsers.LINES]).status == 0

    def _measure_from(self, now: float) -> None:
        self._warm = now
        self._work = self._tiers.work()
        self._used = self._usage()

    def _usage(self) -> _Usage:
        """Use of the tiers so far; tiers that share a guest are told as the first of them."""
        guests = {"load": self._flow.source, "web": self._tiers.web.guest}
        guests |= {"app": self._tiers.application.guest, "db": self._tiers.database.guest}
        firsts = {guest.name: tier for tier, guest in reversed(guests.items())}
        kicks = self._bed.path.kicks()
        counts: dict[str, float] = {}
        for name, tier in firsts.items():
            counts |= {f"cpu_{tier}": guests[tier].cpu().total, f"frames_{tier}": guests[tier].received().frames}
            counts |= {f"kicks_{tier}": kicks[name]} if name in kicks else {}
        return _Usage(time.monotonic(), counts)

    def over(self) -> bool:
        return self._client.ended

    def said(self) -> dict[str, str]:
        return {**super().said(), **self._logs, **self._tiers.said()}

    @property
    def disturbs(self) -> bool:
        return self._fault is not None

    def finish(self) -> FlowResult:
        assert self._warm is not None
        usage = {} if self.disturbs else self._usage().rates(self._used)
        work = None if self.disturbs else self._tiers.work()
        said = self._client.wait(_AFTER)
        browsers.check_summary(said.stdout)
        lines = self._flow.source.get(browsers.LINES).decode()
        self._logs["browsers"] = lines
        found = account.measured(browsers.read(lines), self._warm, self._timing.seconds)
        values = account.responses(found, self._timing.seconds) | usage
        if work is not None:
            questions = max(work.questions - self._work.questions, 1)
            seconds = (work.seconds - self._work.seconds) / questions
            logs = self._logs | {"web": self._tiers.web_log(), "application": self._tiers.application_log()}
            self._logs = logs
            values |= account.parts(found, Logs(logs["web"], logs["application"], seconds))
        if self._fault is not None:
            values |= account.outage(found, self._fault, self._mended, self._warm + self._timing.seconds)
        self._check(values, lines)
        return FlowResult(
            values,
            latencies=account.latencies(found),
            lines=account.over_time(found, self._warm, self._timing.seconds),
        )

    def _check(self, values: dict[str, float], lines: str) -> None:
        asked = self._asked
        if values.get("lateness", 0.0) > asked["lateness"] and asked["load"] == "open" and not asked["fault"]:
            late = values["lateness"]
            raise LabError(
                f"the load generator could not keep its rate: one session in a hundred began {late:.3f} s late"
            )
        if values["errors"] > (1.0 if asked["fault"] else asked["errors"]):
            faults = sorted({words[-1] for words in map(str.split, lines.splitlines()) if words[-1] != "-"})
            said = "; ".join(f"{name}: {text[-300:]}" for name, text in self._tiers.said().items() if text)
            raise LabError(f"{values['failed']:.0f} interactions failed ({', '.join(faults)}); {said}")

    def _break_at(self, moment: float) -> None:
        if time.time() >= moment:
            self._fault = time.time()
            self._faults[self._asked["fault"]]()
            self._mended = time.time()

    def _application_dies(self) -> None:
        self._bed.restart(self._tiers.application.guest.name)
        self._tiers.start_application()

    def _database_dies(self) -> None:
        self._bed.restart(self._tiers.database.guest.name)
        self._tiers.start_database()
