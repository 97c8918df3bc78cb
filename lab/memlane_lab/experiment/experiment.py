"""An experiment: a question, the dimensions varied to answer it, and the findings of others. One TOML file each.

A file states a `[setting]` (`setting.py`), and under `[vary]` the **dimensions**: each a list of values of one
setting, or a table of labels that each change several settings. Every combination of labels is a **variant**
(`plan.py`). A key that is no setting goes to the traffic: `message = [1024, 2048]` varies that parameter of the
workload.

The file is checked whole; all mistakes are told at once.
"""

import tomllib
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, ValidationError, field_validator, model_validator

from memlane_lab import workloads
from memlane_lab.bed import events
from memlane_lab.common.errors import LabError
from memlane_lab.common.strict import Strict, told
from memlane_lab.experiment.setting import listed
from memlane_lab.statistics import measures
from memlane_lab.statistics.measures import Measure

FOLDER = Path(__file__).parents[2] / "experiments"
"""The experiments that come with the lab."""
DEMO = Path(__file__).parents[2] / "demo.toml"


class BadExperiment(LabError):
    """A file that is no experiment; the text names every mistake in it."""


class Boot(StrEnum):
    """When guests are booted."""

    EACH_SAMPLE = "each-sample"
    """Anew for every sample, so that samples do not share the luck of one boot."""
    ONCE = "once"
    """Once for all samples of the same bed: quicker."""


class Where(StrEnum):
    """The kind of host that is measured."""

    LIVE = "live"
    """This one, by its clock."""
    COUNTED = "counted"
    """One that is emulated, by its instructions (`counting/`): every one of them, the same each time."""
    RIG = "rig"
    """This one, with `memlane-rig blast` in place of guests."""


class PaperFigure(Strict):
    """A figure that a source gives, and which of our variants it stands beside."""

    measure: str
    value: float
    """In the measure's base unit."""
    where: dict[str, str] = {}
    """Labels of our variants, by dimension; none: it stands by itself."""
    what: str = ""
    """The quantity that the source measured, where it differs from ours."""


class Expectation(Strict):
    """An expected result: bounds of the ratio of one variant's measure to that of another, or of the measure itself."""

    measure: str
    at_least: float | None = None
    at_most: float | None = None
    where: dict[str, str] = {}
    """Labels of the variants that it is about."""
    versus: dict[str, str] = {}
    """Labels that differ in the other variant; none: each baseline."""
    alone: bool = False
    """Whether the bounds are those of the measure itself, in its base unit; there is no other variant then."""
    primary: bool = False
    """Whether it is one of the few endpoints, at most eight, that the experiment is made to decide: they are corrected
    for their number. All others are exploratory."""

    @model_validator(mode="after")
    def _means_something(self) -> Self:
        if self.alone and self.versus:
            raise ValueError("an expectation with `alone` has no `versus`: remove one of the two")
        if self.at_least is None and self.at_most is None:
            raise ValueError("an expectation needs a bound: at_least, at_most or both")
        if self.at_least is not None and self.at_most is not None and self.at_least > self.at_most:
            raise ValueError("at_least is greater than at_most: exchange them")
        return self

    @field_validator("measure")
    @classmethod
    def _known_measure(cls, name: str) -> str:
        return measure(name).name


class Experiment(Strict):
    """The file's content."""

    name: str
    """The file's name without its ending."""
    title: str
    """Of the report's section."""
    question: str
    """What is asked, in one sentence."""
    source: str = ""
    """Where the question comes from."""
    found: str = ""
    """The source's finding, in words."""
    reading: str = ""
    """Differences to keep in mind when our figures are compared with the source's."""
    measures: tuple[str, ...] = ("throughput", "cpu_per_gb")
    """The measures that the report tabulates, in this order."""
    compare: str = "path"
    """The dimension to compare: its labels stand side by side."""
    baseline: Annotated[tuple[str, ...], BeforeValidator(listed, json_schema_input_type=str | tuple[str, ...])] = (
        "bridge",
    )
    """The label, or the labels, that the others are compared with."""
    repeat: int = Field(default=8, ge=1, le=100)
    """Samples of each variant: as many rounds."""
    seconds: int = Field(default=3, ge=1, le=600)
    """Seconds of a sample's measured part."""
    warm_up: int = Field(default=1, ge=0, le=60)
    """Seconds of the workload before that."""
    boot: Boot = Boot.EACH_SAMPLE
    """When guests are booted: for each sample, or once for all of the same bed."""
    bed: Where = Where.LIVE
    """The host that is measured: this one by its clock, with guests or the rig, or an emulated one by instructions."""
    placements_apart: bool = False
    """Whether the report also tells samples apart by how far the host's CPUs were from each other."""
    best_over: str = ""
    """A dimension, such as the placement on CPUs, at whose best label each compared label is shown once more."""
    setting: dict[str, Any]
    """Common to all variants; keys below."""
    vary: dict[str, list[Any] | dict[str, dict[str, Any]]] = {}
    """Dimensions: a list of values of one setting, or a table of labels that each change several settings."""
    skip: tuple[dict[str, str], ...] = ()
    """Combinations of labels that are left out."""
    paper: tuple[PaperFigure, ...] = ()
    """Figures of the source, and the variants that they stand beside."""
    expect: tuple[Expectation, ...] = ()
    """Bounds of the ratio of a measure of two variants, or of the measure itself."""

    @field_validator("measures")
    @classmethod
    def _known_measures(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            measure(name)
        return names

    @property
    def looks_at_memory(self) -> bool:
        """Whether memory is among its measures."""
        return any(found.name in self.measures for found in measures.MEMORY)

    def dimensions(self) -> dict[str, dict[str, dict[str, Any]]]:
        """By dimension, by label: the settings that the label changes."""
        return {
            name: stated if isinstance(stated, dict) else {str(value): {name: value} for value in stated}
            for name, stated in self.vary.items()
        }


def known_measures() -> dict[str, Measure]:
    """All measures, by name: those of meters and those of workloads."""
    brought = (found for kind in workloads.WORKLOADS.values() for found in kind.measures)
    return {found.name: found for found in (*measures.COMMON, *measures.MEMORY, *events.MEASURES, *brought)}


def measure(name: str) -> Measure:
    """The measure of that name."""
    if not (found := known_measures().get(name)):
        raise ValueError(f"there is no measure {name!r}; there are: {', '.join(known_measures())}")
    return found


def load(path: Path) -> Experiment:
    """Reads an experiment's file; raises with all its mistakes."""
    try:
        stated = tomllib.loads(path.read_text())
        return Experiment.model_validate({"name": path.stem, **stated})
    except OSError as error:
        raise BadExperiment(f"cannot read the experiment {path}: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise BadExperiment(f"{path} is not valid TOML: {error}") from error
    except ValidationError as error:
        raise BadExperiment(f"{path}: {told(error, Experiment)}") from error


PAPERS = (
    "promises", "response_times", "is_it_fair", "noisy_neighbour", "who_pays", "what_virtualisation_costs",
    "beside_its_own_bulk", "is_the_link_right", "how_many_guests", "latency_and_jitter", "message_sizes",
    "xenvmnet_table_1", "which_window",
)  # fmt: skip
"""Experiments of the papers' questions and of memlane's guarantees, with guests that run on this machine."""


def files(named: Sequence[str]) -> list[Path]:
    """The files of experiments that are named: by their place, or as the lab's by their name, `papers` or `all`."""
    return [file for name in named for file in _of_name(name)]


def _of_name(name: str) -> list[Path]:
    if name == "all":
        return supplied()
    return [_file(each) for each in (PAPERS if name == "papers" else [name])]


def _file(name: str) -> Path:
    own = FOLDER / f"{name}.toml"
    return own if own.exists() and not Path(name).exists() else Path(name)


def supplied() -> list[Path]:
    """The files of the experiments that come with the lab."""
    return sorted(FOLDER.glob("*.toml"))
