"""The profile's files, beside an experiment's results.

    DIR/EXPERIMENT/profile.json    all of it: event, unit and rate, and of each sample its parts
    DIR/EXPERIMENT/profile.csv     the same, tidy: one row for each part of each sample
    DIR/EXPERIMENT/profile.jsonl   while the experiment is measured: the samples that the others lack, one a line
    DIR/EXPERIMENT/stacks/VARIANT.folded   the calls of all samples of a variant, as flamegraph.pl reads them

A **part** is all that was hit of one function in one place for one party: `hits` of it, which stand for `cost` in the
profile's unit (ns or cycles). A sample's `per` holds the amount of work done in a second of it, by unit of work: KB
(1024 bytes that receivers got), packet (frames that receivers' NICs got), exchange, interaction, second (always 1). So
a part's cost per KB is cost / seconds / per["KB"].
"""

import csv
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from memlane_lab.common import journal, strict
from memlane_lab.common.errors import LabError
from memlane_lab.common.strict import Strict
from memlane_lab.counting import stages
from memlane_lab.counting.counts import Party
from memlane_lab.counting.stages import Place
from memlane_lab.experiment.labels import Labels

VERSION = 1
"""Of the file's format."""
NAME = "profile.json"
_JOURNAL = "profile.jsonl"
NOBODYS = (Party.LAB,)
"""Parties that are not the network's or its users'."""


class Part(Strict):
    """All hits of one function in one place for one party."""

    party: Party
    place: Place
    stage: str
    function: str
    hits: int
    cost: float
    """In the profile's unit."""

    @property
    def counts(self) -> bool:
        """Whether a party of the network pays for it: it is neither idle time nor the lab's or a stranger's."""
        return self.party not in NOBODYS and self.stage != stages.IDLE


class Profiled(Strict):
    """One sample's profile."""

    number: int
    """As in result.json."""
    round: int
    variant: str
    labels: Labels
    placement: str
    seconds: float
    """For which perf looked."""
    per: dict[str, float]
    """Amount of work done in a second, by unit of work."""
    cpu: float | None
    """CPUs that the kernel's own account says the parties used; None where it does not say."""
    lost: int
    """Hits that the kernel had no room for."""
    parts: tuple[Part, ...]

    @property
    def own(self) -> list[Part]:
        """The parts that a party of the network pays for."""
        return [part for part in self.parts if part.counts]


class Profile(Strict):
    """All samples of an experiment."""

    format_version: int = VERSION
    experiment: str
    compare: str
    """The dimension to compare: its labels stand side by side."""
    baseline: tuple[str, ...]
    event: str
    """cpu-clock or cycles."""
    unit: str
    """ns or cycles."""
    rate: int
    """Hits a second that were asked for on each CPU."""
    dimensions: dict[str, tuple[str, ...]] = {}
    """The labels of each dimension, in their order."""
    stages: tuple[str, ...] = stages.usual().stages
    """In their order along the packet's way."""
    samples: tuple[Profiled, ...] = ()

    def variants(self) -> dict[str, list[Profiled]]:
        """The samples of each variant, by its name, in the order of labels; those of a variant in that of rounds."""
        found: dict[str, list[Profiled]] = {}
        for sample in sorted(self.samples, key=self._place):
            found.setdefault(sample.variant, []).append(sample)
        return found

    def _place(self, sample: Profiled) -> tuple[list[int], int]:
        orders = [(self.dimensions.get(name, ()), label) for name, label in sample.labels.items()]
        return [order.index(label) if label in order else len(order) for order, label in orders], sample.round


Stacks = Counter[str]
"""How often each chain of calls was hit, as `party;outermost;...;innermost`."""


class _Added(Strict):
    """A line of profile.jsonl."""

    sample: Profiled
    stacks: dict[str, int]


def append(folder: Path, sample: Profiled, stacks: Stacks) -> None:
    """Adds a sample to the files that `write` has written."""
    journal.append(folder / _JOURNAL, _Added(sample=sample, stacks=stacks))


def write(folder: Path, profile: Profile, stacks: Mapping[str, Stacks]) -> None:
    """Writes all files into an experiment's folder; `stacks` by variant."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / NAME).write_text(profile.model_dump_json(indent=1) + "\n")
    _write_csv(folder / "profile.csv", profile)
    for variant, chains in stacks.items():
        lines = (f"{chain} {hits}\n" for chain, hits in sorted(chains.items()))
        place = folded(folder, variant)
        place.parent.mkdir(exist_ok=True)
        place.write_text("".join(lines))
    (folder / _JOURNAL).unlink(missing_ok=True)


def folded(folder: Path, variant: str) -> Path:
    """Where a variant's calls stand."""
    return folder / "stacks" / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', variant)}.folded"


def read_stacks(folder: Path, variant: str) -> Stacks:
    """A variant's calls, as far as they were kept."""
    place, found = folded(folder, variant), Stacks()
    for line in place.read_text().splitlines() if place.exists() else ():
        chain, _, hits = line.rpartition(" ")
        found[chain] += int(hits)
    for each in _added(folder):
        if each.sample.variant == variant:
            found.update(each.stacks)
    return found


def read(folder: Path) -> Profile | None:
    """The profile in an experiment's folder; None if it has none; raises if the file is of another kind or version."""
    path = folder / NAME
    if not path.exists():
        return None
    found = strict.read(path, Profile, VERSION)
    known = {sample.number for sample in found.samples}
    added = (each.sample for each in _added(folder) if each.sample.number not in known)
    return found.model_copy(update={"samples": (*found.samples, *added)})


def _added(folder: Path) -> Iterator[_Added]:
    return journal.read(folder / _JOURNAL, _Added)


def find(folder: Path) -> list[tuple[Path, Profile]]:
    """The profiles of all experiments of a run, each with its folder; raises if there is none."""
    found = [(path.parent, read(path.parent)) for path in sorted(folder.glob(f"*/{NAME}"))]
    profiles = [(place, profile) for place, profile in found if profile]
    if not profiles:
        raise LabError(f"{folder} holds no profile: make one with `memlane-lab profile EXPERIMENT --out {folder}`")
    return profiles


def _write_csv(path: Path, profile: Profile) -> None:
    units = sorted({unit for sample in profile.samples for unit in sample.per})
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        common = ["experiment", "sample", "round", "variant", "placement", "seconds", "event", "unit"]
        part = ["party", "place", "stage", "function", "hits", "cost"]
        writer.writerow([*common, *part, *(f"cost per {unit}" for unit in units)])
        writer.writerows(_rows(profile, units))


def _rows(profile: Profile, units: Sequence[str]) -> Iterator[list[object]]:
    for sample in profile.samples:
        common = [profile.experiment, sample.number, sample.round, sample.variant, sample.placement]
        for part in sample.parts:
            own = [part.party, part.place, part.stage, part.function, part.hits, f"{part.cost:.0f}"]
            per = [
                f"{part.cost / sample.seconds / rate:.6g}" if (rate := sample.per.get(unit)) else "" for unit in units
            ]
            yield [*common, f"{sample.seconds:.4f}", profile.event, profile.unit, *own, *per]
