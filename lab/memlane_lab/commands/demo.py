"""The demo: the standard path and memlane side by side, on the same kind of guests, in about a minute."""

from pathlib import Path

from rich.table import Table

from memlane_lab.commands.prepare import prepare
from memlane_lab.common.counted import counted
from memlane_lab.common.errors import LabError
from memlane_lab.common.progress import say
from memlane_lab.experiment import experiment
from memlane_lab.host.ports import GuestKind
from memlane_lab.measuring import run
from memlane_lab.report import lead
from memlane_lab.results import results, summary
from memlane_lab.results.results import ExperimentResult
from memlane_lab.results.summary import Row
from memlane_lab.statistics.measures import scale, significant


def measure(kind: GuestKind, out: Path) -> Table:
    """Measures into the folder `out`; returns the table to be shown."""
    planned = run.prepare([experiment.DEMO], kind, None)
    for missing in planned[0].missing:
        raise LabError(f"{missing.variant} cannot be measured: {missing.reason}")
    prepare(kind)
    say(f"two {kind} guests on TAP and bridge, two on memlane: about {planned[0].seconds:.0f} s of measuring")
    run.measure(planned, kind, out)
    record, (result,) = results.read(out)
    if told := lead.spoiled(result, record):
        say(told)
    if result.failed:
        raise LabError(f"{counted(len(result.failed), 'sample')} failed, the first because of {result.failed[0].error}")
    return table(result)


def table(result: ExperimentResult) -> Table:
    """The measured values, and the ratio in the last column."""
    asked = result.experiment
    labels = summary.labels(asked)
    ((other, base),) = summary.pairs(asked)
    shown = Table("", *labels, f"{other} / {base}", title=f"{result.guest} guests: {asked.title}")
    rows = [row for name in asked.measures for row in summary.rows(result, name)]
    for work in dict.fromkeys(row.name for row in rows):
        for row in (row for row in rows if row.name == work):
            shown.add_row(*_words(row, labels, (other, base)))
        shown.add_section()
    return shown


def _words(row: Row, labels: list[str], pair: tuple[str, str]) -> list[str]:
    found = experiment.measure(row.measure)
    intervals = {label: row.cells[label].interval for label in labels}
    used = scale(found.unit, [interval.estimate for interval in intervals.values() if interval])
    cells = [used.text(interval.estimate) if interval else "-" for interval in intervals.values()]
    ratio = row.contrasts[pair].ratio if pair in row.contrasts else None
    return [f"{row.name}: {found.title}", *cells, f"{significant(ratio.estimate)} x" if ratio else "-"]
