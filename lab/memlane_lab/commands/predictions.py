"""Predictions on the command line: `calibrate`, then `predict`; `model fit` and `model check` are the steps between."""

import re
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
from memlane_lab.model import changes as changing
from memlane_lab.model import check as checking
from memlane_lab.model import fitted, observations, page, planning, sweep, tables, what_if
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
    _tell_costs(model)
    tell(f"the model: {file}; `memlane-lab predict` knows it as this machine's")


def _tell_costs(model: Model) -> None:
    for table in tables.costs(model):
        results.print(table, "")


@app.command()
def fit(
    runs: Annotated[list[Path], typer.Argument(help="folders of `memlane-lab calibrate`, or of other runs of `tcp`")],
    out: Annotated[Path | None, typer.Option("--out", help="model file; by default this machine's own")] = None,
    disturbance: Annotated[
        float,
        typer.Option(min=0, help="CPUs that other programs may use during a sample; samples with more are left out"),
    ] = observations.DISTURBED,
) -> None:
    """Fit the model from runs, and print the cost of a message, a byte and a wake-up for each party.

    memlane-lab model fit results/calibration --out other.json
    """
    model = fitted.fit(runs, disturbance)
    fitted.write(model, out or own_file())
    _tell_costs(model)
    tell(f"the model: {out or own_file()}")


@app.command()
def check(
    runs: Annotated[list[Path], typer.Argument(help="folders of runs that the model has not seen: of `held_out`")],
    host: HostOption = None,
    publish: Annotated[bool, typer.Option("--publish", help="copy model and samples into docs/benchmarks")] = False,
) -> None:
    """Compare predictions with measurements; exit code 1 if they are worse than their goal or than interpolation.

    memlane-lab run held_out --out results/held-out && memlane-lab model check results/held-out
    """
    model, held = fitted.read(host or own_file()), page.held_out(runs)
    if changed := fitted.differences(model.machine, held.machine):
        raise LabError(f"the calibrated and the held-out runs differ: {changed}")
    checked = checking.check(model, held.observed)
    for table in tables.errors(checked):
        results.print(table)
    results.print(tables.checked(checked))
    if publish:
        for each in published.publish_predictions(model, held):
            tell(f"the page: {each}")
    raise typer.Exit(0 if tables.goals_met(checked) else 1)


@app.command("what-if")
def check_changes(
    runs: Annotated[list[Path], typer.Argument(help="folders of runs of what_if, what_if_ring, or others like them")],
    host: HostOption = None,
) -> None:
    """Compare what-ifs with measured changes; exit code 1 if one is off by more than 15 %.

    memlane-lab run what_if what_if_ring --out results/what-if && memlane-lab model what-if results/what-if
    """
    model = fitted.read(host or own_file())
    found = changing.check(model, [each for folder in runs for each in published.read_either(folder)[1]])
    show(tables.changes(found), found)
    raise typer.Exit(0 if all(each.met for each in found) else 1)


def predict_command(
    message: Annotated[str, typer.Option("--message", help="bytes of a message, as 1400, 16K, 1M")] = "128K",
    pairs: Annotated[int, typer.Option("--pairs", min=1, max=64, help="pairs of guests")] = 1,
    load: Annotated[str, typer.Option("--load", help="CPU load by a computation in each guest, as 50%")] = "0%",
    path: Annotated[list[str] | None, typer.Option("--path", help="a path, or several; by default all")] = None,
    placement: Annotated[str | None, typer.Option(help="near or far; by default the one calibrated most")] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--what-if", help="copy=0, wakeups=0.5, calls=0.5, cores=2x, ring=0.5"),
    ] = None,
    host: HostOption = None,
    over: Annotated[sweep.Over | None, typer.Option("--sweep", help="draw curves over pairs, message or load")] = None,
    out: Annotated[Path, typer.Option("--out", help="the page that --sweep draws")] = Path("sweep.html"),
    extrapolate: Annotated[
        bool, typer.Option("--extrapolate", help="also predict beyond the calibrated range, with a mark")
    ] = False,
) -> None:
    """Predict throughput, latency and CPU time of a configuration that was not measured.

    Throughput, CPU by party, Jain's index, and the time of an answer, each with bounds that hold 90 % of samples.

    memlane-lab predict --pairs 6 --message 16K --load 50% --path memlane

    memlane-lab predict --pairs 4 --message 1M --what-if copy=0

    memlane-lab predict --message 128K --sweep pairs --out curves.html
    """
    model = fitted.read(host) if host else _own()
    asked = [
        _asked(model, name, Work.STREAM, pairs, _size(message), _load(load), placement)
        for name in path or dict.fromkeys(each.path for each in model.fitted if each.work is Work.STREAM)
    ]
    change = what_if.parse(changes or ())
    if over:
        tell(f"the curves: {sweep.write(model, asked, over, change, out)}")
        return
    for each in asked:
        plain = _told(model, each, what_if.WhatIf(), extrapolate=extrapolate)
        changed = _told(model, each, change, extrapolate=extrapolate) if changes else None
        show(tables.prediction(plain, changed, changes or ()), {"predicted": plain, "changed": changed})


def plan_command(
    number: Annotated[int | None, typer.Option("--guests", min=2, max=128, help="guests; none: as many as fit")] = None,
    each: Annotated[
        str | None, typer.Option("--each", help="rate that each guest sends, as 200Mbit; none: the most that fits")
    ] = None,
    message: Annotated[str, typer.Option("--message", help="bytes of a message, as 1400, 16K, 1M")] = "128K",
    path: Annotated[str, typer.Option("--path", help="a path that was calibrated")] = "memlane",
    host: HostOption = None,
    extrapolate: Annotated[bool, typer.Option("--extrapolate", help="also plan beyond the calibrated range")] = False,
) -> None:
    """Say whether guests fit on this host, each sending at a rate, with the CPU left and the time of a message.

    Exit code 1: they do not fit.

    memlane-lab plan --guests 12 --each 200Mbit

    memlane-lab plan --each 200Mbit

    memlane-lab plan --guests 12
    """
    model = fitted.read(host) if host else _own()
    size, rate = _size(message), _bits(each) if each else None
    if number is not None and rate is not None:
        found = planning.plan(model, path, size, number, rate, extrapolate=extrapolate)
    elif rate is not None:
        found = planning.most_guests(model, path, size, rate, extrapolate=extrapolate)
    elif number is not None:
        found = planning.most_each(model, path, size, number, extrapolate=extrapolate)
    else:
        raise typer.BadParameter("a plan needs --guests, --each, or both")
    show(tables.plan(found), found)
    raise typer.Exit(0 if found.fits else 1)


def _bits(stated: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([kMG]?)(?:bit(?:/s)?)?", stated)
    if not found or not float(found[1]):
        raise typer.BadParameter(f"{stated!r} is no rate; rates are as 200Mbit, 1.5Gbit")
    return float(found[1]) * {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9}[found[2]]


def _told(
    model: Model, asked: Configuration, change: what_if.WhatIf, *, extrapolate: bool
) -> tuple[Prediction, Prediction | None]:
    """The prediction of a stream, and of request and response of the same size if that was calibrated."""
    stream = predict(model, asked, change, extrapolate=extrapolate)
    if change.changed and model.pooled:
        return stream, None  # counted stages are those of streams
    answers = asked.model_copy(update={"work": Work.ANSWERS})
    known = any((each.path, each.work) == (asked.path, Work.ANSWERS) for each in model.fitted)
    if not known or (model.of(asked.path, Work.ANSWERS).range.outside(answers) and not extrapolate):
        return stream, None
    return stream, predict(model, answers, change, extrapolate=extrapolate)


def _asked(
    model: Model, path: str, work: Work, pairs: int, message: int, load: int, placement: str | None
) -> Configuration:
    place = placement or model.of(path, work).range.placements[0]
    return Configuration(path=path, work=work, pairs=pairs, message=message, load=load, placement=place)


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
