"""The profiler: records the CPUs while an experiment's flows run, and keeps the profile of all samples."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from memlane_lab.bed.bed import Bed
from memlane_lab.common.errors import LabError, NotAvailable
from memlane_lab.counting import stages
from memlane_lab.experiment.experiment import Experiment, Where
from memlane_lab.experiment.plan import Variant, kinds
from memlane_lab.host.ports import GuestKind
from memlane_lab.host.session import Session
from memlane_lab.profiling import owners, perf, profile
from memlane_lab.profiling.owners import Owners, Whose
from memlane_lab.profiling.perf import Hit, Recorder
from memlane_lab.profiling.profile import Part, Profile, Profiled, Stacks
from memlane_lab.results.results import Sample

RATE = 1999
"""Hits a second on each CPU, unless stated; no divisor of a timer's rate, so that no timer is always hit or missed."""
_PER = {
    "KB": ("throughput", 8 * 1024),
    "packet": ("data_frames", 1),
    "exchange": ("exchanges", 1),
    "interaction": ("interactions", 1),
}
"""Units of work: the measure that counts it for each second, and its divisor."""


@dataclass
class Look:
    """One look at a bed; a context, in which the measured part passes."""

    recorder: Recorder
    owners: Owners
    began: float = 0.0
    seconds: float = 0.0
    hits: list[Hit] = field(default_factory=list)
    lost: int = 0

    def __enter__(self) -> None:
        self.owners.look()
        self.recorder.begin()
        self.began = time.monotonic()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            return
        self.recorder.end()
        self.seconds = time.monotonic() - self.began
        self.owners.look()


class Profiler:
    """Looks on at samples of one experiment, and keeps the profile."""

    def __init__(self, experiment: Experiment, rate: int, folder: Path) -> None:
        """`folder` is the experiment's among the results: a profile that is there already goes on."""
        what = perf.event()
        self._folder, self._rate, self._event = folder, rate, what
        self._host = owners.host_symbols()
        self._table = stages.usual()
        begun = profile.read(folder)
        if begun and (begun.event, begun.rate) != (what.name, rate):
            raise LabError(
                f"{folder} holds a profile of {begun.event} at {begun.rate} a second: name another folder with --out"
            )
        self._profile = begun or Profile(
            experiment=experiment.name,
            compare=experiment.compare,
            baseline=experiment.baseline,
            dimensions={name: tuple(labels) for name, labels in experiment.dimensions().items()},
            event=what.name,
            unit=what.unit,
            rate=rate,
        )
        self._stacks: dict[str, Stacks] = {
            variant: profile.read_stacks(folder, variant) for variant in self._profile.variants()
        }
        self._last: Look | None = None

    @contextmanager
    def looking(self, bed: Bed, sources: Iterable[str]) -> Iterator[Look]:
        """Has perf ready for one sample on a bed; `sources` are the machines that begin flows."""
        with Session() as session:
            look = Look(Recorder(session, self._event, self._rate), Owners(bed, sources, self._host))
            yield look
            if look.seconds:
                look.hits, look.lost = look.recorder.hits()
                self._last = look

    def add(self, sample: Sample) -> None:
        """Adds the recording of the sample that has just been taken; nothing for a failed one."""
        look, self._last = self._last, None
        if look is None or sample.error is not None:
            return
        parts, chains = told(look, self._table)
        kept = Profiled(
            number=sample.number,
            round=sample.round,
            variant=sample.variant,
            labels=sample.labels,
            placement=sample.placement,
            seconds=look.seconds,
            per=done_per_second(sample.values),
            cpu=sample.values.get("cpu"),
            lost=look.lost,
            parts=tuple(parts),
        )
        self._stacks[sample.variant] = self._stacks.get(sample.variant, Stacks()) + chains
        self._profile = self._profile.model_copy(update={"samples": (*self._profile.samples, kept)})
        if (self._folder / profile.NAME).exists():
            profile.append(self._folder, kept, chains)
        else:
            profile.write(self._folder, self._profile, self._stacks)

    def close(self) -> None:
        """Writes the profile's files with all samples."""
        if self._profile.samples:
            profile.write(self._folder, self._profile, self._stacks)


def done_per_second(values: Mapping[str, float]) -> dict[str, float]:
    """Amount of work done in a second, by unit of work, from a sample's measures."""
    told_by = {unit: values.get(measure, 0.0) / by for unit, (measure, by) in _PER.items()}
    return {unit: rate for unit, rate in told_by.items() if rate} | {"second": 1.0}


def told(look: Look, table: stages.Stages) -> tuple[list[Part], Stacks]:
    """A look's parts, the most expensive first, and its chains of calls."""
    hits, cost, chains = Counter[tuple[object, ...]](), Counter[tuple[object, ...]](), Stacks()
    for hit in look.hits:
        whose = look.owners.whose(hit, table)
        key = (whose.party, whose.place, whose.stage, whose.function)
        hits[key] += 1
        cost[key] += hit.weight
        if chain := _chain(whose):
            chains[chain] += 1
    names = ("party", "place", "stage", "function")
    parts = [
        Part.model_validate({**dict(zip(names, key, strict=True)), "hits": hits[key], "cost": spent})
        for key, spent in cost.most_common()
    ]
    return parts, chains


def _chain(whose: Whose) -> str:
    """The calls that led there, as flame graphs are drawn from; empty for time that no party pays for."""
    if whose.party in profile.NOBODYS or whose.stage == stages.IDLE:
        return ""
    return ";".join(name.replace(";", ":") for name in (str(whose.party), *whose.callers, whose.function))


def check(experiment: Experiment, variants: Iterable[Variant], kind: GuestKind) -> None:
    """Raises, before anything is measured, if the experiment cannot be profiled here."""
    if experiment.bed is Where.COUNTED:
        raise LabError(
            f"{experiment.name} is counted, not timed: `memlane-lab run {experiment.name}` tells its stages; profile "
            "an experiment of the live host"
        )
    if experiment.bed is Where.RIG:
        raise LabError(f"{experiment.name} has the rig in place of guests: profile an experiment of the live host")
    for variant in variants:
        if reason := owners.refuses(kinds(variant.setting, kind)):
            raise LabError(f"{experiment.name}, {variant.name}: {reason}")
    if reason := perf.missing():
        raise NotAvailable(reason)
