"""Published results: the raw samples that docs/results.md is made from, small enough to be kept beside it.

    docs/results/run.json             the run and its experiments as they were stated, without samples
    docs/results/EXPERIMENT.csv.gz    every sample's measures, one row each; its flows' measures, too
    docs/results.md                   the page, made from these two alone

A run of its own, such as one of another machine or of another day, has a name: its samples stand in docs/results/NAME/,
its page is docs/results/NAME.md, and docs/results.md leads there. What both have measured stands side by side on it.

A model and what it is checked against (`model/page.py`) has a folder and a page of its own, too.

Whoever doubts the page makes it again, by `memlane-lab publish`, or reads the samples with any other program.
"""

import csv
import gzip
import io
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from memlane_lab import machine, report, results
from memlane_lab.errors import LabError
from memlane_lab.results import ExperimentResult, RunRecord, Sample
from memlane_lab.strict import Strict

FOLDER = Path(__file__).parents[2] / "docs" / "results"
_HEADER = ["sample", "round", "variant", "placement", "flow", "measure", "value"]
_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")
_FAILED = "error"
"""What a failed sample's only row says as its measure."""


class _Stated(Strict):
    """What samples do not say."""

    record: RunRecord
    experiments: list[ExperimentResult]


def publish(source: Path, name: str | None = None, folder: Path = FOLDER) -> Path:
    """Takes a run's samples over, in place of those that were there, and writes the page, which is returned.

    `name`: of a run of its own; without one it is the run that docs/results.md is about.
    """
    if name is not None and not _NAME.fullmatch(name):
        raise LabError(f"'{name}' cannot be the name of a page; use small letters, digits and hyphens")
    record, found = results.read(source)
    if unfinished := [each.experiment.name for each in found if not each.complete]:
        raise LabError(f"{source} has not measured all of {', '.join(unfinished)}: go on there with --resume")
    if machine.CHANGED in (commit := record.machine.get("commit", "")):
        raise LabError(
            f"{source} was measured on {commit}, which nobody else has: commit the changes, and measure again"
        )
    own = folder / name if name else folder
    own.mkdir(parents=True, exist_ok=True)
    for old in own.glob("*.csv.gz"):
        old.unlink()
    for each in found:
        _samples_file(own, each).write_bytes(_packed(_rows(each)))
    bare = [each.model_copy(update={"samples": [], "variants": _without_facts(each)}) for each in found]
    text = _Stated(record=record, experiments=bare).model_dump_json(indent=1, by_alias=True)
    (own / "run.json").write_text(text + "\n")
    make_pages(folder)
    return page(own)


def make_pages(folder: Path = FOLDER) -> list[Path]:
    """Writes all pages anew, from what is published; returns them."""
    texts = made(folder)
    for path, text in texts.items():
        path.write_text(text)
    return list(texts)


def page(folder: Path = FOLDER) -> Path:
    """The page that is made from what is published in `folder`."""
    return folder.with_suffix(".md")


def made(folder: Path = FOLDER) -> dict[Path, str]:
    """The pages' texts, as the samples say."""
    from memlane_lab.model import page as predictions  # which asks us where pages are

    named = sorted(path.parent for path in folder.glob("*/run.json"))
    main = read(folder) if (folder / "run.json").exists() else None
    texts = {
        page(own): report.markdown(*read(own), report.Links(own.name, "../measuring.md"), beside=main) for own in named
    }
    checked = [path.parent for path in folder.glob(f"*/{predictions.HELD_OUT}")]
    texts |= {page(own): predictions.made(own) for own in checked}
    if main:
        links = report.Links(folder.name, others=sorted(own.name for own in (*named, *checked)))
        texts[page(folder)] = report.markdown(*main, links)
    return texts


def read_either(folder: Path) -> tuple[RunRecord, list[ExperimentResult]]:
    """A run with its samples, from its own folder or from where it is published."""
    file = folder / "run.json"
    return read(folder) if file.exists() and "record" in json.loads(file.read_text()) else results.read(folder)


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
