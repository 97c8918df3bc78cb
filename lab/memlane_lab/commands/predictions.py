"""Predictions on the command line: `calibrate`, then `predict`; `model fit` and `model check` are the steps between."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from memlane_lab import guests, paths
from memlane_lab.commands import calibrate as calibration
from memlane_lab.commands import published
from memlane_lab.common import cache
from memlane_lab.common.errors import LabError
from memlane_lab.common.progress import results, show, tell
from memlane_lab.common.sizes import parse as size
from memlane_lab.measuring import machine
from memlane_lab.model import check as checking
from memlane_lab.model import fitted, observations, page, sweep, tables
from memlane_lab.model.configuration import Configuration, Work
from memlane_lab.model.fitted import Model
from memlane_lab.model.predict import Prediction, predict

app = typer.Typer(no_args_is_help=True, help="Fit and check the model of `memlane-lab predict`.")


def own_file() -> Path:
    """Where this machine's own model is kept."""
    return cache.folder() / "model.json"


HostOption = Annotated[
    Path | None,
    typer.Option("--host", dir_okay=False, help="model file of any machine; by default this machine's own"),
]


def calibrate(
    out: Annotated[Path, typer.Option("--out", help="folder of the samples; a run in it is continued")] = Path(
        "results/calibration"
    ),
    kind: Annotated[
        str, typer.Option("--guest", help="kind of guests; auto chooses the best that this machine runs")
    ] = "auto",
    only: Annotated[list[str] | None, typer.Option("--path", help="paths to calibrate; none: all")] = None,
) -> None:
    """Measure the samples that predictions are fitted from, in about a quarter of an hour, and fit the model.

    Interrupted, it goes on where it was.

    memlane-lab calibrate && memlane-lab predict --pairs 6 --message 16K --load 50% --path memlane
    """
    for path in only or ():
        _known_path(path)
    calibration.measure(guests.choose(_known_kind(kind)), out, only or ())
    _keep(fitted.fit([out]), out / "model.json")


def _keep(model: Model, file: Path) -> None:
    fitted.write(model, file)
    fitted.write(model, own_file())
    tell(f"the model: {file}; `memlane-lab predict` knows it as this machine's")


@app.command()
def fit(
    runs: Annotated[list[Path], typer.Argument(help="folders of `memlane-lab calibrate`, or of other runs of `tcp`")],
    out: Annotated[Path | None, typer.Option("--out", help="model file; by default this machine's own")] = None,
    disturbance: Annotated[
        float,
        typer.Option(min=0, help="CPUs that other programs may use during a sample; samples with more are left out"),
    ] = observations.DISTURBED,
) -> None:
    """Fit the model from runs.

    memlane-lab model fit results/calibration --out other.json
    """
    model = fitted.fit(runs, disturbance)
    fitted.write(model, out or own_file())
    tell(f"the model: {out or own_file()}")


@app.command()
def check(
    runs: Annotated[list[Path], typer.Argument(help="folders of runs that the model has not seen: of `held_out`")],
    host: HostOption = None,
    publish: Annotated[bool, typer.Option("--publish", help="copy model and samples into docs/benchmarks")] = False,
) -> None:
    """Compare the model and trivial rivals with measurements; exit code 1 if it misses its goal or a rival is nearer.

    memlane-lab run held_out --out results/held-out && memlane-lab model check results/held-out

    What is published, with models that were withdrawn: memlane-lab model check docs/benchmarks/2026-11-25/prediction
    """
    model, held = fitted.read(host or _beside(runs) or own_file()), page.held_out(runs)
    if changed := fitted.differences(model.machine, held.machine):
        raise LabError(f"the calibrated and the held-out runs differ: {changed}")
    checked = checking.check(model, held.observed, page.withdrawn(runs[0]))
    for table in tables.errors(checked):
        results.print(table)
    results.print(tables.checked(checked))
    if publish:
        for each in published.publish_predictions(model, held):
            tell(f"the page: {each}")
    raise typer.Exit(0 if tables.goals_met(checked) else 1)


def _beside(runs: Sequence[Path]) -> Path | None:
    """The model of a published check, beside its samples."""
    file = runs[0] / page.MODEL
    return file if len(runs) == 1 and (runs[0] / page.HELD_OUT).exists() and file.exists() else None


def predict_command(
    message: Annotated[str, typer.Option("--message", help="bytes of a message, as 1400, 16K, 1M")] = "128K",
    pairs: Annotated[int, typer.Option("--pairs", min=1, max=64, help="pairs of guests")] = 1,
    load: Annotated[str, typer.Option("--load", help="CPU load by a computation in each guest, as 50%")] = "0%",
    path: Annotated[list[str] | None, typer.Option("--path", help="a path, or several; by default all")] = None,
    host: HostOption = None,
    over: Annotated[sweep.Over | None, typer.Option("--sweep", help="draw curves over pairs, message or load")] = None,
    out: Annotated[Path, typer.Option("--out", help="the page that --sweep draws")] = Path("sweep.html"),
    extrapolate: Annotated[
        bool, typer.Option("--extrapolate", help="also predict beyond the calibrated range, with a mark")
    ] = False,
) -> None:
    """Predict throughput, latency and CPU time of a configuration that was not measured.

    Throughput, CPU, Jain's index, and the time of an answer, each with bounds that hold 90 % of samples.

    memlane-lab predict --pairs 6 --message 16K --load 50% --path memlane

    memlane-lab predict --message 128K --sweep pairs --out curves.html
    """
    model = fitted.read(host) if host else _own()
    paths_asked = path or [name for name, work in model.ranges if work is Work.STREAM]
    asked = [
        Configuration(path=name, pairs=pairs, message=_size(message), load=_load(load))
        for name in dict.fromkeys(paths_asked)
    ]
    if over:
        tell(f"the curves: {sweep.write(model, asked, over, out)}")
        return
    for each in asked:
        stream = predict(model, each, extrapolate=extrapolate)
        answers = _answers(model, each, extrapolate=extrapolate)
        show(tables.prediction(stream, answers), {"predicted": (stream, answers)})


def _answers(model: Model, stream: Configuration, *, extrapolate: bool) -> Prediction | None:
    """The prediction of request and response of the same size, if that was calibrated."""
    asked = stream.model_copy(update={"work": Work.ANSWERS})
    calibrated = model.ranges.get((asked.path, Work.ANSWERS))
    if calibrated is None or (calibrated.outside(asked) and not extrapolate):
        return None
    return predict(model, asked, extrapolate=extrapolate)


def _own() -> Model:
    """The model of this machine; raises if there is none, or if it is of another machine or build."""
    file = own_file()
    if not file.exists():
        raise LabError("this machine has no calibration yet: run `memlane-lab calibrate`, or name a --host")
    model = fitted.read(file)
    here = fitted.describe(machine.describe(), model.machine["guests"])
    if changed := fitted.differences(model.machine, here):
        raise LabError(
            f"the calibration is of another machine or build ({changed}): calibrate again, or name it with "
            f"--host {file} to predict for what it was"
        )
    return model


def _size(stated: str) -> int:
    found = size(stated)
    if not isinstance(found, int) or found < 1:
        raise typer.BadParameter(f"{stated!r} is no size; sizes are as 1400, 16K, 1M")
    return found


def _load(stated: str) -> int:
    found = re.fullmatch(r"(\d{1,3}) ?%?", stated)
    if not found or int(found[1]) > 100:
        raise typer.BadParameter(f"{stated!r} is no load; loads are per cent of a guest's processor, as 50%")
    return int(found[1])


def _known_path(name: str) -> str:
    if name not in paths.PATHS:
        raise typer.BadParameter(f"there is no path {name!r}; there are: {', '.join(paths.PATHS)}")
    return name


def _known_kind(name: str) -> str:
    if name not in {"auto", *guests.KINDS}:
        raise typer.BadParameter(f"there are no guests {name!r}; there are: auto, {', '.join(guests.KINDS)}")
    return name
