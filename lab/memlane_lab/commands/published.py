"""Published runs: raw samples, small enough to be committed, and the pages that are generated from them.

    docs/benchmarks/DATE/NAME/run.json             the run and its experiments as they were stated, without samples
    docs/benchmarks/DATE/NAME/EXPERIMENT.csv.gz    every sample's measures, one row each; its flows' measures, too
    docs/benchmarks/DATE/NAME.md                   the page of the run, generated from these two alone
    docs/benchmarks/DATE/NAME/page.md.gz           the same of a run with a newer one beside it; its NAME.md says so
    docs/benchmarks/DATE/NAME/EXPERIMENT.svg       its picture: the first measure, generated too
    docs/benchmarks/index.md                       the list of all pages
    docs/benchmarks/headlines.md                   headlines: how many runs and days each build has, their ratios
    docs/SUMMARY.md                                the book's contents: a line for each page, in place of those before
    docs/benchmarks/kits/DATE/DIGEST...            the same of runs that readers sent, each with its page
    docs/benchmarks/kits.md                        their figures beside ours
    docs/benchmarks/figures.md                     the front page's figures, with every run behind each
    README.md, docs/index.md, docs/explanation/performance.md    the table between their marks (`report/shown.py`)
    docs/explanation/performance-*.svg             the plots of the page of performance

DATE is the day on which the run began. Ratios that the first run named `promises` judged too stand beside it: do days
and machines agree?

A model, with the measurements that it is checked against (`model/page.py`), has a folder and a page of its own, too.

To verify a page, generate it again by `memlane-lab publish`, or read the samples with any other program.
"""

import csv
import gzip
import hashlib
import io
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from memlane_lab import report
from memlane_lab.common import strict
from memlane_lab.common.errors import LabError
from memlane_lab.common.strict import Strict
from memlane_lab.experiment import experiment
from memlane_lab.kit import archive
from memlane_lab.measuring import machine
from memlane_lab.model import page as predictions
from memlane_lab.model.fitted import Model
from memlane_lab.model.page import HeldOut
from memlane_lab.report import figures, headlines, machines, shown
from memlane_lab.results import results
from memlane_lab.results.agreement import LAB_COMMIT
from memlane_lab.results.results import ExperimentResult, RunRecord, Sample
from memlane_lab.statistics import measures

FOLDER = Path(__file__).parents[3] / "docs" / "benchmarks"
MEASURING = "../../explanation/how-we-measure.md"
"""How the lab measures, from a run's page."""
_MEASURING_HERE = "../explanation/how-we-measure.md"
"""The same from the pages about all runs."""
_FIRST = "what-each-idea-is-worth"
"""Name of the runs that stand first in the list: the ablation of memlane's own ideas."""
_KITS = "kits"
"""Folder of runs that readers sent (`kit/`), DATE/DIGEST each: in no other page's figures."""
_FROM_OUTSIDE = (
    "**Measured by a reader with memlane's kit, on a machine that the project has not got: the figures are as the "
    "archive tells them.**"
)
_COMPARED = "promises"
"""Name of the runs of which the first stands beside all others."""
_ARCHIVE = "page.md.gz"
"""The whole page of a run that was measured again since."""
_AFTER_RUN = "Figures are medians"
"""Begin of a page's second paragraph; the first says which run it is."""
_HEADER = ["sample", "round", "variant", "placement", "began"]
"""Columns before those of the experiment's dimensions. Runs published before 2026-11-27 have neither."""
_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")
_FAILED = "error"
"""Name of the measure in a failed sample's only row."""


Run = tuple[RunRecord, list[ExperimentResult]]
"""A run, and its experiments with their samples."""


class _Stated(Strict):
    """The run without its samples."""

    record: RunRecord
    experiments: list[ExperimentResult]
    digests: dict[str, str] = {}
    """SHA-256 of each file of samples, by its name."""


def publish(source: Path, name: str | None = None, folder: Path = FOLDER) -> Path:
    """Copies a run's samples into `folder` and generates the pages; a run that is there already is replaced by itself.

    `name`: the page's; without one, its first experiment's. Returns the run's page.
    """
    if name is not None and not _NAME.fullmatch(name):
        raise LabError(f"'{name}' cannot be the name of a page; use small letters, digits and hyphens")
    record, found = results.read(source)
    if unfinished := [each.experiment.name for each in found if not each.complete]:
        raise LabError(f"{source} has not measured all of {', '.join(unfinished)}: continue with --resume")
    for each in (commit := record.machine.get("commit", ""), record.machine.get(LAB_COMMIT, "")):
        if machine.CHANGED in each:
            raise LabError(
                f"{source} was measured on {each}, which nobody else has: commit the changes, and measure again"
            )
    if "," in commit:
        raise LabError(f"{source} mixes samples of several commits ({commit}): measure them on one")
    own = folder / day(record.began) / (name or found[0].experiment.name.replace("_", "-"))
    _refuse_another(own, record)
    _store(own, record, found)
    make_pages(folder)
    return page(own)


def publish_archive(file: Path, folder: Path = FOLDER) -> Path:
    """Shows a kit's archive beside our own runs: takes its samples and generates the pages; returns the run's page.

    The page's name is a digest of the archive, so that the same one is shown once.
    """
    record, result = archive.read(file)
    own = folder / _KITS / day(record.began) / _digest(file)[:12]
    _store(own, record, [result])
    make_pages(folder)
    return page(own)


def _store(own: Path, record: RunRecord, found: Sequence[ExperimentResult]) -> None:
    """Writes a run's samples, and all else that pages are made of."""
    own.mkdir(parents=True, exist_ok=True)
    for old in own.glob("*.csv.gz"):
        old.unlink()
    for each in found:
        _samples_file(own, each).write_bytes(_packed(each.experiment.vary, _rows(each)))
    bare = [each.model_copy(update={"samples": [], "variants": _without_facts(each)}) for each in found]
    digests = {file.name: _digest(file) for file in sorted(own.glob("*.csv.gz"))}
    text = _Stated(record=record, experiments=bare, digests=digests).model_dump_json(indent=1, by_alias=True)
    (own / "run.json").write_text(text + "\n")


def _refuse_another(own: Path, record: RunRecord) -> None:
    """Raises if a folder holds the samples of another run, which would be lost."""
    file = own / "run.json"
    before = strict.read(file, _Stated, None).record.began if file.exists() else record.began
    if before != record.began:
        raise LabError(
            f"{own} holds another run, which began at {before}: give this one another name by --as, or remove that one"
        )


def publish_predictions(model: Model, held: HeldOut, folder: Path = FOLDER) -> list[Path]:
    """Copies both into `folder`, in place of those of the same day, and generates the pages, which are returned."""
    predictions.write(model, held, folder / day(held.began) / "prediction")
    return make_pages(folder)


def day(began: str) -> str:
    """The day of a moment in ISO 8601, which is the name of its folder."""
    return began[: len("2026-11-25")]


def make_pages(folder: Path = FOLDER) -> list[Path]:
    """Generates all pages again, from the published samples; returns them."""
    texts = made(folder)
    for path, text in texts.items():
        path.write_text(text)
    kept = archives(folder)
    for path, text in kept.items():
        if not path.exists() or archived(path) != text:
            path.write_bytes(gzip.compress(text.encode(), mtime=0))
    return [*texts, *kept]


def page(folder: Path) -> Path:
    """The page that is generated from the samples in `folder`."""
    return folder.with_suffix(".md")


def archived(file: Path) -> str:
    """The page in an archive."""
    return gzip.decompress(file.read_bytes()).decode()


def whole_page(folder: Path) -> str:
    """The whole page of the run in `folder`, from its archive where it has one."""
    file = folder / _ARCHIVE
    return archived(file) if file.exists() else page(folder).read_text()


def archives(folder: Path = FOLDER) -> dict[Path, str]:
    """Whole pages of the runs that were measured again since, by their archives."""
    runs = _runs(folder)
    return {own / _ARCHIVE: _beside_first(own, runs)[page(own)] for own in _superseded(runs)}


def _runs(folder: Path) -> dict[Path, Run]:
    return {path.parent: read(path.parent) for path in sorted(folder.glob("*/*/run.json"))}


def _superseded(runs: Mapping[Path, Run]) -> dict[Path, Path]:
    """Runs of which each experiment was measured again later, with the same guests; and the newest run of the first."""
    newest: dict[tuple[str, str], Path] = {}
    for own in sorted(runs, key=lambda own: runs[own][0].began):
        newest |= {(runs[own][0].guest, each.experiment.name): own for each in runs[own][1]}
    found = {}
    for own, (record, results_of) in runs.items():
        later = [newest[record.guest, each.experiment.name] for each in results_of]
        if all(runs[each][0].began > record.began for each in later):
            found[own] = later[0]
    return found


def _beside_first(own: Path, runs: Mapping[Path, Run]) -> dict[Path, str]:
    """The page of a run, with the verdicts of the first one of the promises beside its own, and its pictures."""
    first = next((each for each in runs if each.name == _COMPARED), None)
    return _of_run(own, runs[own], MEASURING, beside=runs[first] if first and own != first else None)


def _pointer(own: Path, whole: str, newer: Path) -> str:
    """The page of a run that was measured again: which run it was, and where its whole page and the newer run are."""
    head, _, _ = whole.partition(f"\n\n{_AFTER_RUN}")
    to = f"../{newer.parent.name}/{newer.name}.md"
    where = f"docs/benchmarks/{own.parent.name}/{own.name}/{_ARCHIVE}"
    return (
        f"{head}\n\n[{newer.name}, {newer.parent.name}]({to}) measured the same later. The whole page of this run is "
        f"in [{_ARCHIVE}]({own.name}/{_ARCHIVE}): `zcat {where}`\n"
    )


def made(folder: Path = FOLDER) -> dict[Path, str]:
    """The pages' texts, generated from the samples."""
    runs = _runs(folder)
    texts: dict[Path, str] = {}
    for own in runs:
        texts |= _beside_first(own, runs)
    texts |= {page(own): _pointer(own, texts[page(own)], newer) for own, newer in _superseded(runs).items()}
    kits = {path.parent: read(path.parent) for path in sorted(folder.glob(f"{_KITS}/*/*/run.json"))}
    for own, run in kits.items():
        texts |= _of_run(own, run, f"../{MEASURING}", note=_FROM_OUTSIDE)
    models = sorted(path.parent for path in folder.glob(f"*/*/{predictions.HELD_OUT}"))
    texts |= {page(own): predictions.made(own) for own in models}
    by_name = {str(own.relative_to(folder)): run for own, run in runs.items()}
    texts[folder / "headlines.md"] = headlines.markdown(by_name, _MEASURING_HERE)
    ours = shown.of_release(by_name, _release(folder))
    texts |= _shown(folder, ours)
    theirs = {str(own.relative_to(folder)): run for own, run in kits.items()}
    texts[folder / f"{_KITS}.md"] = machines.markdown(ours, theirs, _MEASURING_HERE)
    return texts | {folder / "index.md": _index(folder, runs, models)} | _contents(folder, [*runs, *models, *kits])


def _of_run(own: Path, run: Run, measuring: str, beside: Run | None = None, note: str = "") -> dict[Path, str]:
    """The page of a run, and its pictures."""
    drawn = {each.experiment.name: figures.picture(each) for each in run[1]}
    pictures = {name: text for name, text in drawn.items() if text}
    links = report.Links(own.name, measuring, frozenset(pictures), note)
    pages = {own / f"{name}.svg": text for name, text in pictures.items()}
    return {page(own): report.markdown(*run, links, beside=beside)} | pages


def _shown(folder: Path, runs: shown.Runs) -> dict[Path, str]:
    """The front page's figures, wherever they stand; nothing where no run has any of them."""
    docs = folder.parent
    if not any(cell.runs for row in shown.cells(runs) for cell in row):
        return {}
    short = [row for row in shown.ROWS if shown.in_short(row)]
    tables = {
        docs.parent / "README.md": shown.table(runs, "docs/benchmarks/"),
        docs / "index.md": shown.table(runs, "benchmarks/", short),
        docs / "explanation" / "performance.md": shown.table(runs, "../benchmarks/"),
    }
    texts = {page: shown.placed(page.read_text(), block) for page, block in tables.items() if page.exists()}
    texts |= {docs / "explanation" / name: text for name, text in figures.drawn(runs).items()}
    return texts | {folder / "figures.md": shown.page(runs, _MEASURING_HERE)}


def _release(folder: Path) -> str:
    """The release of the repository that holds these pages; empty where it states none."""
    file = folder.parents[1] / "Cargo.toml"
    if not file.exists():
        return ""
    return str(tomllib.loads(file.read_text())["workspace"]["package"]["version"])


def front(folder: Path = FOLDER) -> shown.Runs:
    """The runs that figures of the front page may be of: those of this release."""
    every = {str(path.parent.relative_to(folder)): read(path.parent) for path in sorted(folder.glob("*/*/run.json"))}
    return shown.of_release(every, _release(folder))


def _index(folder: Path, runs: Mapping[Path, Run], models: Sequence[Path]) -> str:
    """The list of all pages, the newest day first, after the ablations."""
    rows = {own: (", ".join(each.experiment.title for each in found), record) for own, (record, found) in runs.items()}
    lines = [
        f"| {own.parent.name} | [{own.name}]({page(own).relative_to(folder)}) | {title} | {record.guest} | "
        f"{record.machine.get('cpu', 'unknown')} |"
        for own, (title, record) in rows.items()
    ]
    lines += [
        f"| {own.parent.name} | [{own.name}]({page(own).relative_to(folder)}) | Predictions beside measurements | | |"
        for own in models
    ]
    order = sorted(lines, key=lambda line: (f"[{_FIRST}]" in line, line), reverse=True)
    return _INDEX + "".join(f"{line}\n" for line in order) + (_unpublished(runs.values()) if folder == FOLDER else "")


def _contents(folder: Path, owns: Iterable[Path]) -> dict[Path, str]:
    """The book's contents with a line for each page: the ablations, then the newest day first."""
    file = folder.parent / "SUMMARY.md"
    if not file.exists():
        return {}
    order = sorted(owns, key=lambda own: (own.name == _FIRST, own.parent.name, own.name), reverse=True)
    lines = [f"  - [{own.name}, {own.parent.name}]({page(own).relative_to(file.parent)})\n" for own in order]
    kept = [line for line in file.read_text().splitlines(keepends=True) if not _IN_CONTENTS.search(line)]
    after = 1 + max(
        (at for at, line in enumerate(kept) if f"({folder.name}/" in line and "/notes/" not in line), default=-1
    )
    return {file: "".join([*kept[:after], *lines, *kept[after:]])}


_IN_CONTENTS = re.compile(r"/\d{4}-\d\d-\d\d/[^/)]+\.md\)")
"""A line of the book's contents that names the page of a run."""


def _unpublished(runs: Iterable[Run]) -> str:
    """The list of the lab's experiments that no page shows."""
    shown = {each.experiment.name for _, found in runs for each in found} | set(_OF_MODELS)
    left = [experiment.load(file) for file in experiment.supplied() if file.stem not in shown]
    return _LEFT + "".join(f"- `{each.name}`: {each.question}\n" for each in left) if left else ""


_OF_MODELS = ("calibration", "held_out")
"""Experiments whose samples lie beside the page of predictions."""
_LEFT = """
## Experiments without a published run

Figures of these, where notes tell any, have no committed samples; `memlane-lab run NAME` measures each.

"""
_INDEX = """<!-- Generated by `memlane-lab publish`. Do not edit. -->

# Benchmarks

[What was learnt](what-was-learnt.md), in 600 words; [figures of the front page](figures.md), by rule;
[headlines](headlines.md), with the days that they rest on; [other machines](kits.md). Every published run; its samples
lie in the folder of the page's name, and `memlane-lab publish` generates pages from them.

| day | page | experiments | guests | CPU |
|---|---|---|---|---|
"""


def read_either(folder: Path) -> Run:
    """A run with its samples, from its own folder or from where it is published."""
    return read(folder) if results.is_published(folder) else results.read(folder)


def read(folder: Path) -> Run:
    """The published run with its samples, as far as the page needs them."""
    stated = strict.read(folder / "run.json", _Stated, None)
    for name, told in stated.digests.items():
        if not (folder / name).exists():
            raise LabError(f"{folder} lacks {name}, which its run.json names: copy the whole folder")
        if _digest(folder / name) != told:
            raise LabError(
                f"{folder / name} is not the file that was published: its digest differs from that in run.json"
            )
    return stated.record, [_with_samples(folder, each) for each in stated.experiments]


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _samples_file(folder: Path, result: ExperimentResult) -> Path:
    return folder / f"{result.experiment.name}.csv.gz"


def _without_facts(result: ExperimentResult) -> list[results.VariantRecord]:
    return [each.model_copy(update={"facts": {}}) for each in result.variants]


def _rows(result: ExperimentResult) -> Iterator[Sequence[object]]:
    for sample in result.samples:
        labels = [sample.labels.get(dimension, "") for dimension in result.experiment.vary]
        common = (sample.number, sample.round, sample.variant, sample.placement, sample.began, *labels)
        if sample.error is not None:
            yield *common, "", _FAILED, sample.error.splitlines()[0]
        for name, value in sample.values.items():
            yield *common, "", name, f"{value:.6g}"
        for flow in sample.flows:
            for name, value in flow.values.items():
                yield *common, flow.name, name, f"{value:.6g}"


def _packed(dimensions: Iterable[str], rows: Iterator[Sequence[object]]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*_HEADER, *dimensions, "flow", "measure", "value"])
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
                began=row.get("began") or "",
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
    return sample.model_copy(update={"values": sample.values | {measures.present(row["measure"]): float(row["value"])}})
