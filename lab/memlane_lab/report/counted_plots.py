"""Tables and stacked bars of counted experiments: instructions by party and by stage."""

from collections.abc import Iterator, Mapping

import plotly.graph_objects as go

from memlane_lab.experiment.labels import Labels, words
from memlane_lab.report.plots import BELOW, LAYOUT, categories
from memlane_lab.report.tables import Breakdown
from memlane_lab.results import summary
from memlane_lab.results.results import ExperimentResult, Sample
from memlane_lab.statistics.measures import significant
from memlane_lab.workloads.path_length import PARTIES, STAGES

COLOURS = (
    "#9ecae1", "#6baed6", "#2171b5", "#08519c", "#74c476", "#238b45", "#fdae6b", "#d94801", "#7a66ad", "#b3568b",
    "#8c6d4f", "#c7c7c7", "#525252",
)  # fmt: skip
_KINDS: tuple[tuple[str, Mapping[str, str]], ...] = (
    ("stage", STAGES),
    ("party", {str(party): key for party, key in PARTIES.items()}),
)


def tables(result: ExperimentResult) -> Iterator[Breakdown]:
    """By stage and by party, for each group of variants that stand side by side."""
    for kind, parts in _KINDS:
        for group, samples in _groups(result).items():
            rows = [[name, *(_cell(each, key) for each in samples.values())] for name, key in parts.items()]
            used = [row for row in rows if any(cell not in {"0", "-"} for cell in row[1:])]
            total = ["all", *(_cell(each, "instructions_per_kb") for each in samples.values())]
            title = f"{group}: instructions per KB (per packet), by {kind}".removeprefix(": ")
            yield Breakdown(title, [kind, *samples], [*used, total])


def _groups(result: ExperimentResult) -> dict[str, dict[str, Sample]]:
    """By group, by compared label: the sample in the middle."""
    found: dict[str, dict[str, Sample]] = {}
    for labels in (each.labels for each in result.variants):
        if sample := _typical(result, labels):
            group = words(labels, but=result.experiment.compare)
            found.setdefault(group, {})[labels.get(result.experiment.compare, "")] = sample
    return found


def _typical(result: ExperimentResult, labels: Labels) -> Sample | None:
    sample = summary.typical(result, labels, "instructions_per_kb")
    return sample if sample and "instructions_per_packet" in sample.values else None


def _cell(sample: Sample, key: str) -> str:
    value = sample.values.get(key, 0.0)
    if not value:
        return "0"
    packet = value * sample.values["instructions_per_packet"] / sample.values["instructions_per_kb"]
    return f"{significant(value)} ({significant(packet)})"


def figures(result: ExperimentResult) -> Iterator[go.Figure]:
    """Stacked bars of all variants, by stage and by party, per KB and per packet.

    In multiples of the baseline's for the same traffic, so that small and large messages show alike.
    """
    shown = [(group, label, sample) for group, samples in _groups(result).items() for label, sample in samples.items()]
    if not shown:
        return
    names = categories(result, [sample.labels for _, _, sample in shown])
    for kind, parts in _KINDS:
        for unit, per in (("KB", "instructions_per_kb"), ("packet", "instructions_per_packet")):
            figure = go.Figure()
            bases = _bases(result, per)
            for number, (name, key) in enumerate(parts.items()):
                heights = [_height(sample, key, per) / bases.get(group, 1.0) for group, _, sample in shown]
                colour = COLOURS[number % len(COLOURS)]
                figure.add_bar(name=name, x=heights, y=names, marker_color=colour, orientation="h")
            what = f"in multiples of {result.experiment.baseline[0]}'s" if bases else ""
            figure.update_layout(barmode="stack", **LAYOUT)
            figure.update_layout(
                title_text=f"instructions per {unit}, by {kind}", xaxis_title=what, legend=BELOW,
                height=260 + 24 * len(shown), margin_b=140,
            )  # fmt: skip
            figure.update_yaxes(autorange="reversed", automargin=True)
            yield figure


def _bases(result: ExperimentResult, per: str) -> dict[str, float]:
    """By group, the baseline's instructions; nothing unless every group has it."""
    base, groups = result.experiment.baseline[0], _groups(result)
    found = {group: samples[base].values[per] for group, samples in groups.items() if base in samples}
    return found if len(found) == len(groups) else {}


def _height(sample: Sample, key: str, per: str) -> float:
    return sample.values.get(key, 0.0) * sample.values[per] / sample.values["instructions_per_kb"]
