"""Plots of a shop: response time by interaction, where it was spent, and how it went over time."""

from collections.abc import Iterator
from itertools import cycle

import plotly.graph_objects as go

from memlane_lab.report import plots
from memlane_lab.results import summary
from memlane_lab.results.results import ExperimentResult, Sample
from memlane_lab.shop.interactions import PARTS, TITLES, of_interaction

_MARK = "felt_mean"
"""Measures that every sample of a shop has."""
_STATISTIC = "mean"
_SHADES = ("#bdbdbd", "#9ecae1", "#6a51a3", "#6baed6", "#238b45", "#3182bd", "#d1853a", "#dddddd")
"""Of the parts of a response: blues are network."""
_TIMES = {"response": ("mean response", "s"), "answers": ("answers", "1/s"), "failures": ("failures", "1/s")}


def figures(result: ExperimentResult) -> Iterator[go.Figure]:
    """All that there is to draw; nothing where there is no shop."""
    if not any(_MARK in sample.values for sample in result.good):
        return
    drawn = [by_interaction(result), parts(result), *(over_time(result, name) for name in _TIMES)]
    yield from (figure for figure in drawn if figure is not None)


def by_interaction(result: ExperimentResult) -> go.Figure | None:
    """The mean response time of each interaction, compared labels side by side, one group at a time."""
    groups: dict[str, dict[str, list[tuple[str, float, float, float]]]] = {}
    for name, called in TITLES.items():
        for row in summary.rows(result, of_interaction(name, _STATISTIC)):
            for label, cell in row.cells.items():
                if found := cell.interval:
                    bar = (called, found.estimate, *(found.bounds or (found.estimate, found.estimate)))
                    groups.setdefault(row.name or "all", {}).setdefault(label, []).append(bar)
    if not groups:
        return None
    first = next(iter(groups))
    colours = dict(plots.coloured(summary.labels(result.experiment)))
    shown = [
        (group, _bar(label, bars, colours[label], visible=group == first))
        for group, labels in groups.items()
        for label, bars in labels.items()
    ]
    figure = go.Figure([bar for _, bar in shown])
    figure.update_layout(barmode="group", **plots.LAYOUT)
    figure.update_layout(title_text="mean response time by interaction", yaxis_title="ms", legend=plots.BELOW)
    figure.update_layout(height=520, meta=plots.WHOLE_WIDTH)
    plots.choose(figure, [group for group, _ in shown])
    return figure


def _bar(label: str, bars: list[tuple[str, float, float, float]], colour: str, *, visible: bool) -> go.Bar:
    return go.Bar(
        name=label or "all",
        x=[bar[0] for bar in bars],
        y=[bar[1] * 1e3 for bar in bars],
        error_y={
            "type": "data",
            "array": [(high - middle) * 1e3 for _, middle, _, high in bars],
            "arrayminus": [(middle - low) * 1e3 for _, middle, low, _ in bars],
            "thickness": 1.2,
        },
        marker_color=colour,
        visible=visible,
    )


def parts(result: ExperimentResult) -> go.Figure | None:
    """Where a mean response was spent, in the sample in the middle of each variant."""
    labels = [each.labels for each in result.variants]
    typical = [(own, summary.typical(result, own, _MARK)) for own in labels]
    known = [(own, sample) for own, sample in typical if sample and all(part in sample.values for part in PARTS)]
    if not known:
        return None
    figure = go.Figure()
    names = plots.categories(result, [own for own, _ in known])
    for (part, title), colour in zip(PARTS.items(), cycle(_SHADES), strict=False):
        spent = [sample.values[part] * 1e3 for _, sample in known]
        figure.add_bar(name=title, x=spent, y=names, marker_color=colour, orientation="h")
    figure.update_layout(barmode="stack", **plots.LAYOUT)
    figure.update_layout(title_text="where a response is spent", xaxis_title="ms, mean", legend=plots.BELOW)
    figure.update_layout(height=260 + 26 * len(known))
    figure.update_yaxes(autorange="reversed", automargin=True)
    return figure


def over_time(result: ExperimentResult, name: str) -> go.Figure | None:
    """One of `_TIMES` in the sample in the middle of each variant; failures only where there are any."""
    if name == "failures" and not any(sample.values.get("failed") for sample in result.good):
        return None

    def lines(sample: Sample) -> Iterator[tuple[str, list[float], list[float]]]:
        for flow in sample.flows:
            if points := flow.lines.get(name):
                yield flow.name, [at for at, _ in points], [value for _, value in points]

    title, unit = _TIMES[name]
    figure = plots.by_group(result, _MARK, lines)
    if figure:
        figure.update_layout(title_text=f"{title} over time", xaxis_title="s", yaxis_title=unit)
        figure.update_yaxes(rangemode="tozero")
    return figure
