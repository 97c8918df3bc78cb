"""Curves with bands: predictions over pairs, sizes or loads, on one page."""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path

from memlane_lab.common.counted import counted
from memlane_lab.common.sizes import text
from memlane_lab.model.configuration import Configuration
from memlane_lab.model.fitted import Model, Range
from memlane_lab.model.predict import Bounded, Prediction, predict

_POINTS = 40


class Over(StrEnum):
    """Dimensions that are swept, over their calibrated range."""

    PAIRS = "pairs"
    MESSAGE = "message"
    LOAD = "load"


def write(model: Model, asked: Sequence[Configuration], over: Over, file: Path) -> Path:
    """Draws each path's throughput, CPU and fairness over one dimension; the others are as asked."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    from memlane_lab.report.plots import COLOURS, LAYOUT

    titles = ("throughput, all pairs, Gbit/s", "CPU, all parties", "Jain's index")
    figure = make_subplots(rows=1, cols=3, subplot_titles=titles)
    for each in asked:
        found = list(curve(model, each, over))
        shown = [
            (1, [(at, said.rate.scaled(8e-9)) for at, said in found]),
            (2, [(at, said.cpu) for at, said in found]),
            (3, [(at, said.fairness) for at, said in found if said.fairness]),
        ]
        for column, points in shown:
            for trace in _band(go, each.path, COLOURS.get(each.path, "#7a66ad"), points, legend=column == 1):
                figure.add_trace(trace, row=1, col=column)
    fixed = _fixed(asked[0], over)
    figure.update_layout(**LAYOUT)
    figure.update_layout(title_text=f"Predicted over {over}: {fixed}; bands hold 90 % of samples", height=480)
    figure.update_layout(margin_t=110, legend={"y": 1.1})
    figure.update_xaxes(title_text=f"{over}{_UNITS[over]}", type="log" if over is Over.MESSAGE else "linear")
    figure.update_yaxes(rangemode="tozero", col=1)
    figure.update_yaxes(rangemode="tozero", col=2)
    figure.update_yaxes(range=[0.5, 1.02], col=3)
    figure.write_html(file, include_plotlyjs=True)
    return file


_UNITS = {Over.PAIRS: "", Over.MESSAGE: ", bytes", Over.LOAD: ", %"}


def curve(model: Model, asked: Configuration, over: Over) -> Iterator[tuple[int, Prediction]]:
    """Predictions over the range that was calibrated."""
    for value in values(model.range(asked.path, asked.work), over):
        yield value, predict(model, asked.model_copy(update={str(over): value}))


def values(calibrated: Range, over: Over) -> list[int]:
    """Where a curve has its points: evenly; sizes evenly in their logarithms."""
    low, high = getattr(calibrated, over)
    if over is Over.MESSAGE:
        found = (low * (high / low) ** (number / (_POINTS - 1)) for number in range(_POINTS))
    else:
        steps = min(_POINTS - 1, high - low) or 1
        found = (low + (high - low) * number / steps for number in range(steps + 1))
    return sorted({min(high, max(low, round(value))) for value in found})


def _band(go, name: str, colour: str, points: list[tuple[int, Bounded]], *, legend: bool) -> Iterator[object]:  # type: ignore[no-untyped-def]  # noqa: ANN001
    at = [each for each, _ in points]
    shade = {"x": at, "line": {"width": 0}, "showlegend": False, "hoverinfo": "skip", "mode": "lines"}
    yield go.Scatter(y=[each.low for _, each in points], **shade)
    yield go.Scatter(y=[each.high for _, each in points], fill="tonexty", fillcolor=_faint(colour), **shade)
    yield go.Scatter(
        x=at, y=[each.estimate for _, each in points], name=name, line={"color": colour}, showlegend=legend,
        legendgroup=name, mode="lines",
    )  # fmt: skip


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, 0.15)"


def _fixed(asked: Configuration, over: Over) -> str:
    """The fixed dimensions, in words."""
    told = {
        Over.PAIRS: counted(asked.pairs, "pair"),
        Over.MESSAGE: f"messages of {text(asked.message)}",
        Over.LOAD: f"load {asked.load} %",
    }
    return ", ".join(words for dimension, words in told.items() if dimension is not over)
