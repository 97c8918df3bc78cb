"""Published results: the raw samples that docs/results.md is made from, small enough to be kept beside it.

    docs/results/run.json             the run and its experiments as they were stated, without samples
    docs/results/EXPERIMENT.csv.gz    every sample's measures, one row each; its flows' measures, too
    docs/results.md                   the page, made from these two alone

Whoever doubts the page makes it again, by `memlane-lab publish`, or reads the samples with any other program.
"""

import csv
import gzip
import io
from collections.abc import Iterator, Sequence
from pathlib import Path

from memlane_lab import report, results
from memlane_lab.errors import LabError
from memlane_lab.results import ExperimentResult, RunRecord, Sample
from memlane_lab.strict import Strict

FOLDER = Path(__file__).parents[2] / "docs" / "results"
_HEADER = ["sample", "round", "variant", "placement", "flow", "measure", "value"]
_FAILED = "error"
"""What a failed sample's only row says as its measure."""


class _Stated(Strict):
    """What samples do not say."""

    record: RunRecord
    experiments: list[ExperimentResult]


def publish(source: Path, folder: Path = FOLDER) -> None:
    """Takes a run's samples over, in place of those that were there, and writes the page."""
    record, found = results.read(source)
    if unfinished := [each.experiment.name for each in found if not each.complete]:
        raise LabError(f"{source} has not measured all of {', '.join(unfinished)}: go on there with --resume")
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.csv.gz"):
        old.unlink()
    for each in found:
        _samples_file(folder, each).write_bytes(_packed(_rows(each)))
    bare = [each.model_copy(update={"samples": [], "variants": _without_facts(each)}) for each in found]
    text = _Stated(record=record, experiments=bare).model_dump_json(indent=1, by_alias=True)
    (folder / "run.json").write_text(text + "\n")
    page(folder).write_text(made(folder))


def page(folder: Path = FOLDER) -> Path:
    """The page that is made from what is published."""
    return folder.with_suffix(".md")


def made(folder: Path = FOLDER) -> str:
    """The page's text, as the samples say."""
    return report.markdown(*read(folder))


def read(folder: Path = FOLDER) -> tuple[RunRecord, list[ExperimentResult]]:
    """The published run with its samples, as far as the page needs them."""
    stated = _Stated.model_validate_json((folder / "run.json").read_text())
    return stated.record, [_with_samples(folder, each) for each in stated.experiments]


def _samples_file(folder: Path, result: ExperimentResult) -> Path:
    return folder / f"{result.experiment.name}.csv.gz"


def _without_facts(result: ExperimentResult) -> list[results.VariantRecord]:
    return [each.model_copy(update={"facts": {}}) for each in result.variants]


def _rows(result: ExperimentResult) -> Iterator[Sequence[object]]:
    for sample in result.samples:
        common = (sample.number, sample.round, sample.variant, sample.placement)
        if sample.error is not None:
            yield *common, "", _FAILED, sample.error.splitlines()[0]
        for name, value in sample.values.items():
            yield *common, "", name, f"{value:.6g}"
        for flow in sample.flows:
            for name, value in flow.values.items():
                yield *common, flow.name, name, f"{value:.6g}"


def _packed(rows: Iterator[Sequence[object]]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_HEADER)
    writer.writerows(rows)
    return gzip.compress(text.getvalue().encode(), mtime=0)  # the same samples give the same file


def _with_samples(folder: Path, stated: ExperimentResult) -> ExperimentResult:
    labels = {each.name: each.labels for each in stated.variants}
    samples: dict[int, Sample] = {}
    with gzip.open(_samples_file(folder, stated), "rt") as file:
        for row in csv.DictReader(file):
            number, place = int(row["sample"]), row["placement"]
            known = samples.get(number) or Sample(
                number=number,
                round=int(row["round"]),
                variant=row["variant"],
                labels=labels[row["variant"]],
                began="",
                took=0,
                placement=place,
                placements=(place, place),
            )
            samples[number] = _taken(known, row)
    return stated.model_copy(update={"samples": list(samples.values())})


def _taken(sample: Sample, row: dict[str, str]) -> Sample:
    if row["measure"] == _FAILED:
        return sample.model_copy(update={"error": row["value"]})
    if row["flow"]:
        return sample
    return sample.model_copy(update={"values": sample.values | {row["measure"]: float(row["value"])}})
