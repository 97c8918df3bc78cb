"""Results: the files of a run, which outlive the lab's own versions.

    DIR/run.json                     the run: command, machine, versions, which experiments
    DIR/EXPERIMENT/result.json       the experiment as it was stated, its variants, every sample, missing variants
    DIR/EXPERIMENT/samples.jsonl     while the experiment is measured: the samples that result.json lacks, one a line
    DIR/EXPERIMENT/samples.csv       the same samples, tidy: one row for each measure of each sample or flow
    DIR/EXPERIMENT/parties.csv       each party's own account, one row a figure
    DIR/EXPERIMENT/series.csv        each flow's rate over time, one row a point
    DIR/EXPERIMENT/raw/              the output of the programs in the guests, word by word; the logs of failed samples
    DIR/report.html                  all of it for people

Every JSON file states its format's version; a lab that does not know it says so instead of guessing.
"""

import csv
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from memlane_lab.common import journal, strict
from memlane_lab.common.errors import LabError
from memlane_lab.common.strict import Strict
from memlane_lab.experiment.experiment import Experiment, measure
from memlane_lab.experiment.labels import Labels
from memlane_lab.statistics import measures

VERSION = 2
"""Of the JSON files' format. A reader knows its own version only."""


class FlowRecord(Strict):
    """The figures of one flow."""

    name: str
    source: str
    target: str
    workload: str
    values: dict[str, float]
    """By measure, in base units."""
    series: list[tuple[float, float]] = []
    """(seconds since the measured part began, bit/s until then)."""
    latencies: str | None = None
    """Every one of them: a HdrHistogram of nanoseconds (V2, compressed, base64)."""
    lines: dict[str, list[tuple[float, float]]] = {}
    """Further things over time, by name: (seconds since the measured part began, value until then)."""


class Sample(Strict):
    """One measurement of one variant."""

    number: int
    """In the order in which they were taken, from 1."""
    round: int
    variant: str
    labels: Labels
    began: str
    """Date and time, ISO 8601."""
    took: float
    """Seconds, booting included."""
    placement: str
    """near, far, moved (not the same before and after) or unknown."""
    placements: tuple[str, str]
    """Before and after."""
    values: dict[str, float] = {}
    parties: dict[str, dict[str, float]] = {}
    """Rates and memory of each machine, the switch, its helpers, the lab and the whole host, counted by the host."""
    drops: dict[str, float] = {}
    """Frames that the network dropped, by reason, 1/s."""
    flows: list[FlowRecord] = []
    error: str | None = None
    """Why there are no values."""

    @field_validator("values")
    @classmethod
    def _present_names(cls, values: dict[str, float]) -> dict[str, float]:
        return {measures.present(name): value for name, value in values.items()}


class VariantRecord(Strict):
    """A variant and the description of its machines."""

    name: str
    labels: Labels
    setting: dict[str, Any]
    facts: dict[str, Any] = {}
    """Kernels, offloads and sysctls of the first sample's machines."""


class Missing(Strict):
    """A variant that could not be measured, and why."""

    variant: str
    labels: Labels
    reason: str


class ExperimentResult(Strict):
    """All that is known of an experiment."""

    format_version: int = VERSION
    experiment: Experiment
    file: str = ""
    """Where it was stated: a path in the repository, or the name alone."""
    guest: str
    """The kind of guests that was chosen."""
    seed: int
    """Of the order of samples."""
    complete: bool = False
    """Whether all planned samples were taken."""
    variants: list[VariantRecord] = []
    missing: list[Missing] = []
    samples: list[Sample] = []
    digest: str = ""
    """Of all samples, as they were written; empty: of a lab that wrote none."""

    @field_validator("experiment", mode="before")
    @classmethod
    def _present_names(cls, stated: object) -> object:
        return _with_present_names(stated) if isinstance(stated, dict) else stated

    @property
    def good(self) -> list[Sample]:
        """The samples that have values."""
        return [sample for sample in self.samples if sample.error is None]

    @property
    def failed(self) -> list[Sample]:
        """The others."""
        return [sample for sample in self.samples if sample.error is not None]


def _with_present_names(experiment: dict[str, Any]) -> dict[str, Any]:
    """A stored experiment with the present names of its measures, without keys that there are no longer."""
    kept = {key: value for key, value in experiment.items() if key not in _GONE}
    named = kept | {"measures": [measures.present(name) for name in experiment.get("measures", [])]}
    for key in ("paper", "expect"):
        named[key] = [each | {"measure": measures.present(each["measure"])} for each in experiment.get(key, [])]
    return {key: value for key, value in named.items() if key in experiment}


_GONE = {"same_placement"}
"""Keys of experiments that older runs have stored."""


class RunRecord(Strict):
    """A run of the lab."""

    format_version: int = VERSION
    commands: list[str]
    """The command that repeats it; several if experiments were added."""
    guest: str
    began: str
    ended: str | None = None
    machine: dict[str, Any] = Field(default_factory=dict)
    """The description of the machine (`measuring/machine.py`)."""
    experiments: list[str] = []
    """Names, in the order in which they were run: each is a folder."""


class _Taken(Strict):
    """A line of samples.jsonl."""

    sample: Sample
    facts: dict[str, Any] = {}
    """Of the sample's variant, until one of its samples is good."""


def write(folder: Path, record: RunRecord) -> None:
    """Writes the run's own file."""
    folder.mkdir(parents=True, exist_ok=True)
    _replace(folder / "run.json", record.model_dump_json(indent=1, by_alias=True))


def write_experiment(folder: Path, result: ExperimentResult) -> None:
    """Writes an experiment's files, each in one step, so that a reader never sees half of one."""
    place = folder / result.experiment.name
    place.mkdir(parents=True, exist_ok=True)
    stated = result.model_dump(mode="json", by_alias=True)
    stated["digest"] = digest(stated["samples"])
    _replace(place / "result.json", json.dumps(stated, indent=1))
    (place / _JOURNAL).unlink(missing_ok=True)
    for name, table in _TABLES.items():
        _write_csv(place / name, [*_COMMON, *result.experiment.vary, *table.columns], _rows(table, result))


def append_sample(folder: Path, result: ExperimentResult, sample: Sample) -> None:
    """Adds a sample, the last of `result`, to the files that `write_experiment` has written: its cost is the sample's.

    `write_experiment` puts all samples into result.json in the end.
    """
    place = folder / result.experiment.name
    first = not any(each.variant == sample.variant for each in result.good if each is not sample)
    facts = next((each.facts for each in result.variants if first and each.name == sample.variant), {})
    journal.append(place / _JOURNAL, _Taken(sample=sample, facts=facts))
    for name, table in _TABLES.items():
        with (place / name).open("a", newline="") as file:
            csv.writer(file).writerows(_rows_of(table, result, sample))


def read(folder: Path) -> tuple[RunRecord, list[ExperimentResult]]:
    """Reads a run's results."""
    if not (folder / "run.json").exists():
        raise LabError(f"{folder} holds no results of the lab: there is no run.json in it")
    if is_published(folder):
        raise LabError(f"{folder} holds samples that are published, not a run's own folder: its page is {folder}.md")
    record = strict.read(folder / "run.json", RunRecord, VERSION)
    return record, [_with_journal(folder / name, _unedited(folder / name)) for name in record.experiments]


def is_published(folder: Path) -> bool:
    """Whether a folder holds the samples of a page; a file that is no JSON is left to its reader."""
    try:
        stated = json.loads((folder / "run.json").read_text())
    except (OSError, ValueError):
        return False
    return isinstance(stated, dict) and "record" in stated


def digest(samples: object) -> str:
    """The digest of samples as JSON has them."""
    return hashlib.sha256(json.dumps(samples, sort_keys=True).encode()).hexdigest()


def _unedited(place: Path) -> ExperimentResult:
    """The experiment's file; raises if its samples are not those that were written."""
    file = place / "result.json"
    result = strict.read(file, ExperimentResult, VERSION)
    if result.digest and digest(json.loads(file.read_text())["samples"]) != result.digest:
        raise LabError(f"samples in {file} were changed after they had been measured: their digest differs")
    return result.model_copy(update={"digest": ""})


def _with_journal(place: Path, result: ExperimentResult) -> ExperimentResult:
    """The result with the samples that have been appended since result.json was written."""
    known = {each.number for each in result.samples}
    added = [each for each in journal.read(place / _JOURNAL, _Taken) if each.sample.number not in known]
    facts = {each.sample.variant: each.facts for each in reversed(added) if each.facts}
    variants = [
        each if each.facts else each.model_copy(update={"facts": facts.get(each.name, {})}) for each in result.variants
    ]
    samples = [*result.samples, *(each.sample for each in added)]
    return result.model_copy(update={"samples": samples, "variants": variants})


_JOURNAL = "samples.jsonl"
_COMMON = ("experiment", "guest", "sample", "round", "placement")


def _common(result: ExperimentResult, sample: Sample) -> list[Any]:
    labels = [sample.labels.get(dimension, "") for dimension in result.experiment.vary]
    return [result.experiment.name, result.guest, sample.number, sample.round, sample.placement, *labels]


@dataclass(frozen=True)
class _Table:
    """A CSV file: its columns after the common ones, and the rows of a sample."""

    columns: tuple[str, ...]
    rows: Callable[[Sample], Iterator[list[Any]]]


def _rows(table: _Table, result: ExperimentResult) -> Iterator[list[Any]]:
    for sample in result.samples:
        yield from _rows_of(table, result, sample)


def _rows_of(table: _Table, result: ExperimentResult, sample: Sample) -> Iterator[list[Any]]:
    common = _common(result, sample)
    return ([*common, *row] for row in table.rows(sample))


def _values(sample: Sample) -> Iterator[list[Any]]:
    """The flow is empty where a value is of the whole sample; a failed sample's only row says so."""
    if sample.error is not None:
        yield ["", "error", sample.error, ""]
    for name, value in sample.values.items():
        yield ["", name, value, measure(name).unit]
    for flow in sample.flows:
        for name, value in flow.values.items():
            yield [flow.name, name, value, measure(name).unit]


def _accounts(sample: Sample) -> Iterator[list[Any]]:
    for party, figures in sample.parties.items():
        for name, value in figures.items():
            yield [party, name, value]


def _points(sample: Sample) -> Iterator[list[Any]]:
    for flow in sample.flows:
        for seconds, rate in flow.series:
            yield [flow.name, seconds, rate]


_TABLES = {
    "samples.csv": _Table(("flow", "measure", "value", "unit"), _values),
    "parties.csv": _Table(("party", "figure", "value"), _accounts),
    "series.csv": _Table(("flow", "seconds", "bit/s"), _points),
}


def _write_csv(path: Path, header: list[str], rows: Iterator[list[Any]]) -> None:
    scratch = path.with_name(f".{path.name}.new")
    with scratch.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)
    scratch.replace(path)


def _replace(path: Path, text: str) -> None:
    scratch = path.with_name(f".{path.name}.new")
    scratch.write_text(text + os.linesep)
    scratch.replace(path)
