"""Tables and stacked bars of a profile by stage and by party, and a flame graph."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import plotly.graph_objects as go

from memlane_lab.counting import stages
from memlane_lab.counting.counts import Party
from memlane_lab.experiment.labels import words
from memlane_lab.profiling import costs, profile
from memlane_lab.profiling.costs import Cost
from memlane_lab.profiling.profile import Profile, Profiled, Stacks
from memlane_lab.report.counted_plots import COLOURS
from memlane_lab.report.plots import BELOW, LAYOUT, WHOLE_WIDTH, choose, coloured
from memlane_lab.report.tables import Breakdown
from memlane_lab.statistics.measures import significant

_SHOWN = 2
"""Units of work that are shown: per KB and per packet, where there are these."""
_NAMED = 8
"""Functions of "the rest" that are named."""
_SMALLEST = 0.002
"""Share of all below which a function is not drawn in a flame graph."""


@dataclass(frozen=True)
class Found:
    """An experiment's profile with its calls."""

    profile: Profile
    stacks: Mapping[str, Stacks]
    """By variant."""


def find(folder: Path) -> Found | None:
    """The profile in an experiment's folder, with its stacks."""
    found = profile.read(folder)
    if found is None or not found.samples:
        return None
    return Found(found, {variant: profile.read_stacks(folder, variant) for variant in found.variants()})


def tables(found: Found) -> Iterator[Breakdown]:
    """By stage and by party, for each group of variants that stand side by side."""
    for by in ("stage", "party"):
        for group, variants in groups(found.profile).items():
            for unit in costs.units(found.profile.samples)[:_SHOWN]:
                yield table(found.profile, group, variants, by, unit)


def rest(found: Found) -> list[tuple[str, str]]:
    """The largest functions that no rule of the table of stages names: their names, their share of all."""
    own = [part for sample in found.profile.samples for part in sample.own]
    hits: Counter[str] = Counter()
    for part in own:
        if part.stage == stages.REST:
            hits[f"{part.party}: {part.function}"] += part.hits
    every = sum(part.hits for part in own)
    return [(name, f"{count / every:.2%}") for name, count in hits.most_common(_NAMED)]


def groups(shown: Profile) -> dict[str, dict[str, list[Profiled]]]:
    """By group, by compared label: the samples."""
    found: dict[str, dict[str, list[Profiled]]] = {}
    for samples in shown.variants().values():
        labels = samples[0].labels
        found.setdefault(words(labels, but=shown.compare), {})[labels.get(shown.compare, "all")] = samples
    return found


def table(shown: Profile, group: str, variants: Mapping[str, Sequence[Profiled]], by: str, unit: str) -> Breakdown:
    """One group's costs for each unit of work; each cell with the error of sampling."""
    told = {label: costs.of(samples, by, unit) for label, samples in variants.items()}
    names = ordered(shown, by, {name for each in told.values() for name in each})
    rows = [[name, *(cell(each.get(name)) for each in told.values())] for name in names]
    whole = ["all", *(cell(costs.whole(samples, unit)) for samples in variants.values())]
    account = ["all, by the kernel's own account", *(_account(shown, each, unit) for each in variants.values())]
    title = f"{group}: CPU time, {shown.unit} per {unit}, by {by}".removeprefix(": ")
    return Breakdown(title, [by, *variants], [*rows, whole, account])


def ordered(shown: Profile, by: str, names: set[str]) -> list[str]:
    """Names in the order in which they are shown: stages along the packet's way, parties from the sender on."""
    known = shown.stages if by == "stage" else [str(party) for party in Party]
    return [name for name in known if name in names] + sorted(names - set(known))


def cell(cost: Cost | None) -> str:
    """A cost with the error of sampling."""
    if cost is None or not cost.hits:
        return "0"
    return f"{significant(cost.value)} ± {significant(max(cost.high - cost.value, cost.value - cost.low), 2)}"


def _account(shown: Profile, samples: Sequence[Profiled], unit: str) -> str:
    """The kernel's own account of the same parties and time, which tells whether the sampling is right."""
    if shown.unit != "ns" or any(sample.cpu is None for sample in samples):
        return "-"
    spent = sum((sample.cpu or 0.0) * sample.seconds for sample in samples) * 1e9
    return significant(spent / sum(sample.seconds * sample.per[unit] for sample in samples))


def figures(found: Found) -> Iterator[go.Figure]:
    """Stacked bars by stage and by party, per KB and per packet; stages side by side; a flame graph."""
    units = costs.units(found.profile.samples)[:_SHOWN]
    for by in ("stage", "party"):
        for unit in units:
            yield _stack(found.profile, by, unit)
    yield _side_by_side(found.profile, units[0])
    yield _flames(found, units[0])


def _stack(shown: Profile, by: str, unit: str) -> go.Figure:
    variants = [(group, label, each) for group, of in groups(shown).items() for label, each in of.items()]
    told = [costs.of(samples, by, unit) for _, _, samples in variants]
    names: list[object] = [label for _, label, _ in variants]
    if len({group for group, _, _ in variants}) > 1:
        names = [[group for group, _, _ in variants], names]
    figure = go.Figure()
    for number, part in enumerate(ordered(shown, by, {name for each in told for name in each})):
        spent = [each.get(part) for each in told]
        figure.add_bar(
            name=part,
            x=[cost.value if cost else 0.0 for cost in spent],
            y=names,
            marker_color=COLOURS[number % len(COLOURS)],
            orientation="h",
            customdata=[cell(cost) for cost in spent],
            hovertemplate=f"{part}: %{{customdata}} {shown.unit}<extra></extra>",
        )
    whole = [costs.whole(samples, unit) for _, _, samples in variants]
    figure.add_scatter(
        x=[cost.value for cost in whole],
        y=names,
        mode="markers",
        marker={"color": "#222", "size": 3},
        error_x={"type": "data", "array": [cost.high - cost.value for cost in whole], "thickness": 1.2},
        name="error of sampling, all",
        hovertemplate="all: %{x:.4g}<extra></extra>",
    )
    figure.update_layout(barmode="stack", **LAYOUT)
    figure.update_layout(
        title_text=f"CPU time per {unit}, by {by}", xaxis_title=f"{shown.unit} per {unit}",
        legend=BELOW | {"traceorder": "normal"}, height=280 + 26 * len(variants), margin_b=140,
    )  # fmt: skip
    figure.update_yaxes(autorange="reversed", automargin=True)
    return figure


def _side_by_side(shown: Profile, unit: str) -> go.Figure:
    """Each stage of all compared variants, with the error of sampling; the group is chosen from a list."""
    figure, owners = go.Figure(), []
    by_group = groups(shown)
    for group, variants in by_group.items():
        told = {label: costs.of(samples, "stage", unit) for label, samples in variants.items()}
        names = ordered(shown, "stage", {name for each in told.values() for name in each})
        for label, colour in coloured(list(variants)):
            spent = [told[label].get(name) for name in names]
            figure.add_bar(
                name=label,
                x=names,
                y=[cost.value if cost else 0.0 for cost in spent],
                error_y={
                    "type": "data",
                    "array": [cost.high - cost.value if cost else 0.0 for cost in spent],
                    "arrayminus": [cost.value - cost.low if cost else 0.0 for cost in spent],
                    "thickness": 1.2,
                },
                marker_color=colour,
                visible=group == next(iter(by_group)),
            )
            owners.append(group)
    figure.update_layout(barmode="group", **LAYOUT)
    figure.update_layout(
        title_text=f"stages side by side, with the error of sampling (95 %), {shown.unit} per {unit}",
        meta=WHOLE_WIDTH,
        margin_b=150,
        legend=BELOW,
    )
    choose(figure, owners)
    return figure


def _flames(found: Found, unit: str) -> go.Figure:
    """A flame graph of each variant, chosen from a list: widths are costs, colours are stages."""
    figure, owners = go.Figure(), []
    variants = found.profile.variants()
    for variant, samples in variants.items():
        whole = costs.whole(samples, unit)
        figure.add_trace(_flame(found, variant, samples, whole).update(visible=variant == next(iter(variants))))
        owners.append(variant)
    figure.update_layout(**LAYOUT)
    figure.update_layout(
        title_text=f"flame graph: below each party what was called; {found.profile.unit} per {unit}, coloured by stage",
        height=640,
        meta=WHOLE_WIDTH,
        margin={"l": 10, "r": 10, "t": 80, "b": 10},
    )
    choose(figure, owners)
    return figure


def _flame(found: Found, variant: str, samples: Sequence[Profiled], whole: Cost) -> go.Icicle:
    stacks = found.stacks.get(variant, Stacks())
    total = sum(stacks.values())
    weights: Counter[str] = Counter()
    seen: dict[str, Counter[str]] = defaultdict(Counter)
    stage_of = {(str(part.party), part.function): part.stage for each in samples for part in each.parts}
    for chain, hits in stacks.items():
        frames = chain.split(";")
        stage = stage_of.get((frames[0], frames[-1]), "")
        for depth in range(1, len(frames) + 1):
            node = ";".join(frames[:depth])
            weights[node] += hits
            seen[node][stage] += hits
    kept = [node for node, hits in weights.items() if hits >= _SMALLEST * total]
    per_hit = whole.value / total if total else 0.0
    colours = {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(found.profile.stages)}
    mostly = {node: seen[node].most_common(1)[0][0] for node in kept}
    return go.Icicle(
        ids=kept,
        labels=[node.rpartition(";")[2] for node in kept],
        parents=[node.rpartition(";")[0] for node in kept],
        values=[weights[node] * per_hit for node in kept],
        branchvalues="total",
        tiling={"orientation": "v"},
        marker={"colors": [colours.get(mostly[node], "#dddddd") for node in kept], "line": {"width": 0.5}},
        customdata=[[mostly[node], weights[node] / total, weights[node]] for node in kept],
        hovertemplate="%{label}<br>%{value:.4g} (%{customdata[1]:.1%} of all, %{customdata[2]} hits)<br>"
        "mostly: %{customdata[0]}<extra></extra>",
        sort=True,
    )
