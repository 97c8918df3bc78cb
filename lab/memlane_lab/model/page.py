"""The page of the check, docs/benchmarks/DATE/prediction.md, with the model and the samples that it is generated from.

docs/benchmarks/DATE/prediction/model.json       the model, with every observation that it was fitted from
docs/benchmarks/DATE/prediction/held-out.json    every observation that it is checked against
docs/benchmarks/DATE/prediction/withdrawn.json   predictions of models that were withdrawn
"""

from collections.abc import Sequence
from pathlib import Path

import jinja2

from memlane_lab.common import strict
from memlane_lab.common.errors import LabError
from memlane_lab.common.strict import Strict
from memlane_lab.model import check as checking
from memlane_lab.model import fitted, observations, tables
from memlane_lab.model.configuration import Work
from memlane_lab.model.fitted import Model
from memlane_lab.model.observations import Observation

MODEL, HELD_OUT, WITHDRAWN = "model.json", "held-out.json", "withdrawn.json"


class HeldOut(Strict):
    """The measurements that a model is checked against."""

    machine: dict[str, str]
    commands: list[str]
    """The commands that measure it again."""
    began: str
    observed: list[Observation]


def held_out(runs: Sequence[Path]) -> HeldOut:
    """The samples of these runs, or those of a published check."""
    if len(runs) == 1 and (file := runs[0] / HELD_OUT).exists():
        return strict.read(file, HeldOut, None)
    read = [observations.read(folder) for folder in runs]
    record = read[0][0]
    machine = fitted.describe(record.machine, record.guest)
    for folder, (other, _) in zip(runs, read, strict=True):
        if changed := fitted.differences(machine, fitted.describe(other.machine, other.guest)):
            raise LabError(f"{runs[0]} and {folder} cannot be checked together, because they differ: {changed}")
    return HeldOut(
        machine=machine,
        commands=list(dict.fromkeys(command for other, _ in read for command in other.commands)),
        began=record.began,
        observed=[each for _, found in read for each in found],
    )


def write(model: Model, held: HeldOut, folder: Path) -> None:
    """Writes both into `folder`, in place of those that were there."""
    folder.mkdir(parents=True, exist_ok=True)
    fitted.write(model, folder / MODEL)
    (folder / HELD_OUT).write_text(held.model_dump_json() + "\n")


def withdrawn(folder: Path) -> list[checking.Withdrawn]:
    """The models that were withdrawn, as far as the folder has their predictions."""
    file = folder / WITHDRAWN
    return strict.read(file, checking.AllWithdrawn, None).models if file.exists() else []


def made(folder: Path) -> str:
    """The page's text, as model and samples say."""
    model = fitted.read(folder / MODEL)
    held = HeldOut.model_validate_json((folder / HELD_OUT).read_text())
    checked = checking.check(model, held.observed, withdrawn(folder))
    streams = [each.rate.measured for each in checked if each.asked.work is Work.STREAM]
    template = jinja2.Environment(
        loader=jinja2.PackageLoader("memlane_lab", "model"),
        autoescape=False,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    ).get_template("page.md.j2")
    return template.render(
        model=model,
        held=held,
        errors={work: list(tables.error_rows(checked, work)) for work in Work},
        compared=tables.compared(checked),
        errors_header=tables.ERRORS_HEADER,
        header=tables.CHECKED_HEADER,
        rows=[tables.checked_row(each) for each in checked],
        met=tables.goals_met(checked),
        perfect=checking.perfect(model, streams),
        goal=(checking.GOAL_MEDIAN, checking.GOAL_MOST),
    )
