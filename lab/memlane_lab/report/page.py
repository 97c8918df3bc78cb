"""The page: everything of a run on one HTML page, plotly's program included."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jinja2
import plotly.graph_objects as go
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from memlane_lab.common.counted import counted
from memlane_lab.experiment.experiment import Where
from memlane_lab.report import counted_plots, lead, plots, profile_plots, shop_plots, shown, tables
from memlane_lab.report.profile_plots import Found
from memlane_lab.report.tables import Breakdown, MeasureTable, Text, Told
from memlane_lab.results import agreement, disturbed, results, summary
from memlane_lab.results.results import ExperimentResult, RunRecord
from memlane_lab.results.summary import Judgement, Verdict
from memlane_lab.statistics.measures import significant

NAME = "report.html"


@dataclass(frozen=True)
class Section:
    """The part of the page about one experiment."""

    result: ExperimentResult
    tables: list[MeasureTable]
    breakdowns: list[Breakdown]
    """Where instructions went, of counted experiments, or CPU time, of profiled ones."""
    sampled: str
    """How a profile was made; empty where there is none."""
    plots: list[tuple[Markup, bool]]
    """Each with whether it wants the page's whole width."""
    verdicts: dict[str, list[Told]]
    """Of primary endpoints, and of exploratory ones."""
    alone: list[str]
    """Figures of the source that stand beside none of our variants."""
    noise: str
    """How much else the machine had to do."""
    spoiled: str
    """Where that was so much that the figures are worth nothing, so; else empty."""
    command: str


def write(folder: Path) -> Path:
    """Writes the report of the results in `folder`; returns the page's path."""
    record, found = results.read(folder)
    page = folder / NAME
    profiles = {each.experiment.name: profile_plots.find(folder / each.experiment.name) for each in found}
    page.write_text(render(record, found, {name: each for name, each in profiles.items() if each}))
    return page


def render(
    record: RunRecord, found: list[ExperimentResult], profiles: Mapping[str, Found] = MappingProxyType({})
) -> str:
    """The page's text; `profiles` by the experiment's name."""
    # plotly's own program, which is no text to be escaped
    return (
        _environment(autoescape=True)
        .get_template("page.html.j2")
        .render(plotly=Markup(get_plotlyjs()), **_content(record, found, profiles, draw=True))
    )


@dataclass(frozen=True)
class Links:
    """Where a page in Markdown leads, from where it stands."""

    folder: str = "run"
    """Its samples."""
    measuring: str = "explanation/how-we-measure.md"
    """How the lab measures."""
    pictures: frozenset[str] = frozenset()
    """Experiments of which there is a picture beside the samples."""
    note: str = ""
    """A paragraph about where the run is from."""


def markdown(
    record: RunRecord,
    found: list[ExperimentResult],
    links: Links | None = None,
    beside: tuple[RunRecord, list[ExperimentResult]] | None = None,
) -> str:
    """The report in short: its tables in Markdown, without plots; the same figures of a run `beside` it, too."""
    template = _environment(autoescape=False).get_template("summary.md.j2")
    both = agreement.between(beside[1], found) if beside else []
    return template.render(
        text=_bold,
        prices=shown.prices,
        links=links or Links(),
        other_run=beside[0] if beside and both else None,
        both=[tables.of_both(each) for each in both],
        agreed=agreement.came(both),
        other_builds=agreement.other_builds(beside[0], record) if beside else "",
        **_content(record, found, {}, draw=False),
    )


def _bold(text: Text) -> str:
    """A cell of a table in one line, its main word in bold where others stand beside it."""
    return f"**{text.main}** ({text.small})" if text.small else text.main


def judge(found: Sequence[ExperimentResult]) -> list[list[Verdict]]:
    """The verdicts of each experiment of a report; p of primary endpoints is corrected for their number."""
    judged = [summary.verdicts(result) for result in found]
    told = iter(summary.corrected([verdict for each in judged for verdict in each]))
    return [[next(told) for _ in each] for each in judged]


def _content(
    record: RunRecord, found: list[ExperimentResult], profiles: Mapping[str, Found], *, draw: bool
) -> dict[str, Any]:
    judged = judge(found)
    sections = [
        _section(record, result, verdicts, profiles.get(result.experiment.name), draw=draw)
        for result, verdicts in zip(found, judged, strict=True)
    ]
    return {
        "record": record,
        "sections": sections,
        "judged": {
            kind: [
                (f"{each.result.experiment.title}: {what}", *rest)
                for each in sections
                for what, *rest in each.verdicts[kind]
            ]
            for kind in _KINDS
        },
        "came": _came(judged),
        "together": tables.together(list(zip(found, judged, strict=True))),
        "lead": lead.of(found[0]) if len(found) == 1 else None,
        "spoiled": list(dict.fromkeys(each.spoiled for each in sections if each.spoiled)),
    }


def _environment(*, autoescape: bool) -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.PackageLoader("memlane_lab", "report"),
        autoescape=autoescape,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _came(judged: list[list[Verdict]]) -> str:
    """How many expectations hold, fail and are undecided: primary endpoints, then exploratory ones."""
    told = []
    for kind, primary in _KINDS.items():
        counts = Counter(each.judgement for found in judged for each in found if each.primary is primary)
        if counts:
            told.append(f"{kind}: " + ", ".join(f"{counts[judgement]} {word}" for judgement, word in _CAME.items()))
    return "; ".join(told)


_KINDS = {"primary": True, "exploratory": False}


_CAME = {Judgement.HOLDS: "hold", Judgement.FAILS: "fail", Judgement.UNDECIDED: "undecided"}


def _section(
    record: RunRecord, result: ExperimentResult, judged: list[Verdict], profiled: Found | None, *, draw: bool
) -> Section:
    asked = result.experiment
    made = (tables.of_measure(result, name) for name in asked.measures)
    return Section(
        result=result,
        tables=[table for table in made if table],
        breakdowns=[
            *counted_plots.tables(result),
            *(profile_plots.tables(profiled) if profiled else ()),
            *_placements(result),
            *filter(None, (tables.at_best(result, name) for name in asked.measures)),
            *filter(None, (tables.drops(result),)),
        ],
        sampled=_sampled(profiled) if profiled else "",
        plots=[
            _html(figure, f"{asked.name}-{number}")
            for number, figure in enumerate(_figures(result, profiled) if draw else ())
        ],
        verdicts={
            kind: [tables.verdict(each) for each in judged if each.primary is primary]
            for kind, primary in _KINDS.items()
        },
        alone=[tables.paper(figure) for figure in asked.paper if not figure.where],
        noise=_noise(result),
        spoiled=lead.spoiled(result, record),
        command=f"memlane-lab {'profile' if profiled else 'run'} {result.file} --guest {record.guest} "
        f"--repeat {asked.repeat} --seed {result.seed}",
    )


def _placements(result: ExperimentResult) -> Iterator[Breakdown]:
    for name in result.experiment.measures if result.experiment.placements_apart else ():
        if told := tables.by_placement(result, name):
            yield told


def _sampled(profiled: Found) -> str:
    """How the profile was made, and the share of samples left out of it."""
    shown = profiled.profile
    lost = sum(sample.lost for sample in shown.samples)
    samples = counted(len(shown.samples), "sample")
    return (
        f"perf looked at every CPU {shown.rate:,} times a second ({shown.event}), in {samples}; "
        f"{lost} hits were lost. Behind ±: the error of sampling (95 %, Poisson). Idle time, other people's work and "
        "the lab's own are left out. In the flame graph, a program is one frame, and callers are the host kernel's. "
        f"The largest of the rest: {', '.join(f'{name} ({share})' for name, share in profile_plots.rest(profiled))}."
    )


def _noise(result: ExperimentResult) -> str:
    if not (others := lead.others(result)):
        return "unknown"
    told = f"{significant(others[0], 2)} CPUs (median), {significant(others[1], 2)} (at most)"
    return f"{told}, {disturbed.told(result.good)}"


def _figures(result: ExperimentResult, profiled: Found | None) -> Iterator[go.Figure]:
    if profiled:
        yield from profile_plots.figures(profiled)
    drawn: list[Any] = [plots.bars(result, name) for name in result.experiment.measures]
    if _counted(result):
        drawn = [*counted_plots.figures(result), *drawn]
    else:
        drawn += [plots.cpu_stack(result), plots.rates(result), plots.latencies(result), *shop_plots.figures(result)]
    yield from (figure for figure in drawn if figure is not None)


def _counted(result: ExperimentResult) -> bool:
    """Whether the experiment was counted, so that there are no clocks and no CPU time."""
    return result.experiment.bed is Where.COUNTED


def _html(figure: go.Figure, name: str) -> tuple[Markup, bool]:
    wide = figure.layout.barmode == "stack" or figure.layout.meta == plots.WHOLE_WIDTH
    # The page's own words wrap where there is little room; a plot's title would be cut.
    title = figure.layout.title.text or ""
    figure.update_layout(title_text=None, margin_t=figure.layout.margin.t - 20)
    made = figure.to_html(
        full_html=False,
        include_plotlyjs=False,
        div_id=f"plot-{name}",
        config={"displayModeBar": False, "responsive": True},
    )
    return Markup("<h4>{}</h4>\n").format(title) + Markup(made), wide
