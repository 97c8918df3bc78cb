"""Plots: bars with intervals, CPU use by party, rates over time, distributions of latency."""

import textwrap
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from typing import Any

import plotly.graph_objects as go

from memlane_lab.experiment.experiment import measure
from memlane_lab.experiment.labels import Labels, words
from memlane_lab.results import summary
from memlane_lab.results.results import ExperimentResult, Sample
from memlane_lab.statistics.latencies import Latencies
from memlane_lab.statistics.measures import CPU_PARTIES, Better, scale
from memlane_lab.statistics.stats import Interval

COLOURS = {
    "none": "#8c8c8c",
    "bridge": "#d1853a",
    "e1000": "#b3568b",
    "vde": "#8a6fc2",
    "ovs-dpdk": "#5a9a58",
    "memlane": "#2f6db5",
}
"""Paths keep their colour throughout."""
_OTHERS = ("#2f6db5", "#d1853a", "#5a9a58", "#b3568b", "#7a66ad", "#8c6d4f", "#3f9c9c", "#8c8c8c")
_PARTIES = ("#9ecae1", "#4292c6", "#08519c", "#c7c7c7", "#fdae6b", "#238b45", "#d94801", "#525252")
_WIDE = 20
"""Times the smallest that the largest value is when bars no longer show both: then dots, on a logarithmic axis."""
LAYOUT = {
    "template": "plotly_white",
    "font": {"family": "system-ui, sans-serif", "size": 13},
    "margin": {"l": 70, "r": 20, "t": 50, "b": 60},
    "legend": {"orientation": "h", "x": 1, "xanchor": "right", "y": 1, "yanchor": "bottom"},
    "height": 420,
    "title": {"x": 0, "xref": "paper", "font": {"size": 15}},
}

_LEGEND = 34
"""Letters of a legend's row that fit a phone."""
_BESIDE_TITLE = 4
"""Labels that a legend beside the title has room for."""
WHOLE_WIDTH = "wide"
"""As a figure's meta: that it wants the page's whole width."""
BELOW = {"orientation": "h", "x": 0, "xanchor": "left", "y": 0, "yref": "container", "yanchor": "bottom"}


def bars(result: ExperimentResult, name: str) -> go.Figure | None:
    """One measure of all variants, with intervals."""
    rows = list(summary.rows(result, name))
    if not rows:
        return None
    found = measure(name)
    values = [cell.interval.estimate for row in rows for cell in row.cells.values() if cell.interval]
    used = scale(found.unit, values)
    wide = min(values) > 0 and max(values) > _WIDE * min(values)
    figure = go.Figure()
    for label, colour in coloured(summary.labels(result.experiment)):
        shown = [(row.name, row.cells[label].interval) for row in rows]
        known = [(group, interval.scaled(1 / used.factor)) for group, interval in shown if interval]
        figure.add_trace(_marks(label or "all", known, colour, dots=wide))
    better = "" if found.better is Better.NEITHER else f" ({found.better} is better)"
    figure.update_layout(barmode="group", scattermode="group", **LAYOUT)
    figure.update_layout(title_text=f"{found.title}{better}", yaxis_title=used.unit, xaxis_type="category")
    figure.update_yaxes(type="log" if wide else "linear")
    if len(figure.data) > _BESIDE_TITLE:
        figure.update_layout(legend=BELOW, margin_b=130)
    return figure


def _marks(name: str, known: list[tuple[str, Interval]], colour: str, *, dots: bool) -> Any:  # noqa: ANN401
    intervals = [interval for _, interval in known]
    reach = [
        (interval.estimate - interval.bounds[0], interval.bounds[1] - interval.estimate) if interval.bounds else None
        for interval in intervals
    ]
    stated = {
        "name": name,
        "x": [group for group, _ in known],
        "y": [interval.estimate for interval in intervals],
        "marker": {"color": colour, **({"size": 9} if dots else {})},
        "error_y": {
            "type": "data",
            "array": [each[1] if each else None for each in reach],  # no bar where there is no interval
            "arrayminus": [each[0] if each else None for each in reach],
            "thickness": 1.2,
        },
    }
    return go.Scatter(**stated, mode="markers") if dots else go.Bar(**stated)


def cpu_stack(result: ExperimentResult) -> go.Figure | None:
    """CPU use by party: per GB where bytes were moved in bulk everywhere, else as CPUs in use."""
    variants = [each.labels for each in result.variants if any(s.labels == each.labels for s in result.good)]
    if not variants:
        return None
    per_gb = all("throughput" in sample.values for sample in result.good)
    figure = go.Figure()
    names = categories(result, variants)
    for party, colour in zip(CPU_PARTIES, _PARTIES, strict=True):
        heights = [_middle(result, labels, party, per_gb) for labels in variants]
        figure.add_bar(
            name="<br>".join(textwrap.wrap(measure(party).title, _LEGEND)),
            x=heights,
            y=names,
            marker_color=colour,
            orientation="h",
        )
    title, unit = ("CPU time by party, per GB", "s/GB") if per_gb else ("CPU by party", "CPUs in use")
    figure.update_layout(barmode="stack", **LAYOUT)
    figure.update_layout(title_text=title, xaxis_title=unit, legend=BELOW, height=280 + 28 * len(variants))
    figure.update_yaxes(autorange="reversed", automargin=True)
    return figure


def rates(result: ExperimentResult) -> go.Figure | None:
    """Each flow's rate over time, in the sample in the middle of each variant; one group at a time."""

    def lines(sample: Sample) -> Iterator[tuple[str, list[float], list[float]]]:
        for flow in sample.flows:
            if flow.series:
                yield flow.name, [point[0] for point in flow.series], [point[1] / 1e9 for point in flow.series]

    figure = by_group(result, "throughput", lines)
    if figure:
        figure.update_layout(title_text="each flow over time", xaxis_title="s", yaxis_title="Gbit/s")
        figure.update_yaxes(rangemode="tozero")
    return figure


def latencies(result: ExperimentResult) -> go.Figure | None:
    """How round trips, or responses, are spread: the share that takes longer, towards the rare ones."""

    def lines(sample: Sample) -> Iterator[tuple[str, list[float], list[float]]]:
        for flow in sample.flows:
            if flow.latencies:
                told = Latencies.decoded(flow.latencies).distribution()
                points = [(1 / (1 - share), value) for share, value in told]
                yield flow.name, [point[0] for point in points], [point[1] * 1e6 for point in points]

    told = next(
        (
            name
            for name in ("rtt_p50", "response_p50", "felt_p50", "ping_p50")
            if any(name in s.values for s in result.good)
        ),
        None,
    )
    figure = by_group(result, told, lines) if told else None
    if figure:
        what = "responses" if told == "felt_p50" else "round trips"
        figure.update_layout(title_text=what, yaxis_title="µs")
        marks = {1: "0", 2: "50 %", 10: "90 %", 100: "99 %", 1000: "99.9 %", 10_000: "99.99 %"}
        figure.update_xaxes(
            type="log", title=f"share of {what} not longer", tickvals=list(marks), ticktext=list(marks.values())
        )
        figure.update_yaxes(type="log")
    return figure


Lines = Callable[[Sample], Iterator[tuple[str, list[float], list[float]]]]


def by_group(result: ExperimentResult, by: str, lines: Lines) -> go.Figure | None:
    """A figure of lines with a list above it to choose the group."""
    groups: dict[str, list[Any]] = {}
    for labels in (each.labels for each in result.variants):
        if sample := summary.typical(result, labels, by):
            own = _group(result, labels)
            groups.setdefault(own, []).extend(_traces(result, sample, labels, lines))
    groups = {group: traces for group, traces in groups.items() if traces}
    if not groups:
        return None
    first = next(iter(groups))
    shown = [(group, trace) for group, traces in groups.items() for trace in traces]
    figure = go.Figure([trace.update(visible=group == first) for group, trace in shown])
    figure.update_layout(**LAYOUT)
    figure.update_layout(legend=BELOW)
    choose(figure, [group for group, _ in shown])
    return figure


def choose(figure: go.Figure, owners: Sequence[str]) -> None:
    """Puts a list above the figure to choose the traces that are shown; `owners` is each trace's group."""
    groups = list(dict.fromkeys(owners))
    if len(groups) > 1:
        buttons = [
            {"label": group, "method": "update", "args": [{"visible": [own == group for own in owners]}]}
            for group in groups
        ]
        menu = {"buttons": buttons, "x": 1, "xanchor": "right", "y": 1.18, "showactive": True}
        figure.update_layout(updatemenus=[menu])


def _traces(result: ExperimentResult, sample: Sample, labels: Labels, lines: Lines) -> Iterator[Any]:
    label = labels.get(result.experiment.compare, "")
    colour = dict(coloured(summary.labels(result.experiment)))[label]
    dashes = cycle(("solid", "dot", "dash", "dashdot", "longdash"))
    for name, across, up in lines(sample):
        title = f"{label}: {name}" if label else name
        yield go.Scatter(
            name=title,
            x=across,
            y=up,
            mode="lines+markers",
            marker_size=4,
            line={"color": colour, "dash": next(dashes)},
        )


def _group(result: ExperimentResult, labels: Labels) -> str:
    return words(labels, but=result.experiment.compare) or "all"


def categories(result: ExperimentResult, variants: list[Labels]) -> list[Any]:
    """Two columns of names beside the bars: the group, and in it the compared label."""
    groups = [_group(result, labels) for labels in variants]
    compared = [labels.get(result.experiment.compare, "") for labels in variants]
    return compared if len(set(groups)) == 1 else [groups, compared]


def _middle(result: ExperimentResult, labels: Labels, party: str, per_gb: bool) -> float:
    """The party's CPU use in the sample that is the median by all parties' CPU time; so the stack adds up."""
    sample = summary.typical(result, labels, "cpu_per_gb" if per_gb else "cpu")
    if sample is None:
        return 0.0
    used = sample.values.get(party, 0.0)
    return used / (sample.values["throughput"] / 8e9) if per_gb and sample.values["throughput"] else used


def coloured(labels: list[str]) -> list[tuple[str, str]]:
    """Each label with its colour."""
    taken = {COLOURS.get(label) for label in labels}
    spare = cycle([colour for colour in _OTHERS if colour not in taken])
    return [(label, COLOURS.get(label) or next(spare)) for label in labels]
