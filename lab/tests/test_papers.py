"""Outputs for papers: figures, one table of all samples, JSON, plugins, a budget."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from rich.table import Table
from typer.testing import CliRunner

from memlane_lab import cli, guests, paths, workloads
from memlane_lab.commands import published
from memlane_lab.common import progress
from memlane_lab.common.errors import LabError
from memlane_lab.experiment import outside
from memlane_lab.host.ports import GuestKind
from memlane_lab.measuring import run
from memlane_lab.report import papers
from memlane_lab.results import frame, results, summary, to_frame
from memlane_lab.results.results import ExperimentResult
from tests import made_up


def _written(folder: Path, *found: ExperimentResult, began: str = "2026-11-22T00:00:00") -> Path:
    record = made_up.record(*(each.experiment.name for each in found))
    results.write(folder, record.model_copy(update={"began": began}))
    for each in found:
        results.write_experiment(folder, each)
    return folder


def test_figures_are_as_wide_as_a_column_and_show_every_sample(tmp_path: Path) -> None:
    files = papers.write([made_up.result()], tmp_path)
    names = sorted(file.name for file in files)
    assert "made-up-throughput.svg" in names
    assert "made-up-times-load-0.pdf" in names
    assert "made-up-course-load-90.svg" in names
    svg = (tmp_path / "made-up-throughput.svg").read_text()
    (width,) = re.findall(r'<svg [^>]*width="([0-9.]+)pt"', svg)
    assert float(width) <= 72 * papers.WIDTH * 1.05
    assert "throughput, received [Gbit/s]" in svg
    assert svg.count("<use ") >= 4 * 8  # a dot for each sample
    assert (tmp_path / "made-up-throughput.pdf").read_bytes().startswith(b"%PDF")


def test_a_median_of_few_samples_has_no_error_bar() -> None:
    def bars(count: int) -> int:
        made = made_up.result(spread=made_up.SPREAD[:count], expect=[])
        figure = papers._dots(made, list(summary.rows(made, "throughput")))
        return sum(line.get_marker() == "None" for line in figure.axes[0].lines)

    assert (bars(8), bars(5)) == (4, 0)  # two paths, with and without load


def test_the_same_samples_give_the_same_figures(tmp_path: Path) -> None:
    made = made_up.result(
        measures=["throughput"], vary={"path": ["bridge", "memlane"], "load": [90]}, paper=[], expect=[]
    )
    for name in ("one", "other"):
        papers.write([made], tmp_path / name)
    for file in (tmp_path / "one").glob("*.svg"):
        assert file.read_bytes() == (tmp_path / "other" / file.name).read_bytes()


def test_a_dimension_of_numbers_is_drawn_as_a_curve() -> None:
    made = made_up.result(vary={"path": ["bridge", "memlane"], "load": [0, 45, 90]}, paper=[], expect=[])
    assert "throughput-over-load-" in {name for name, _ in papers._figures(made)}


def test_published_samples_can_be_drawn(tmp_path: Path) -> None:
    folder = str(published.FOLDER / "2026-11-26" / "promises")
    told = CliRunner().invoke(cli.app, ["report", folder, "--figures", str(tmp_path)])
    assert told.exit_code == 0, told.output
    assert (tmp_path / "promises-throughput.svg").exists()


def test_all_samples_are_one_table(tmp_path: Path) -> None:
    import pandas

    folder = _written(tmp_path / "run", made_up.result())
    found = to_frame(folder)
    whole = found[(found.measure == "throughput") & (found.flow == "") & (found.path == "memlane")]
    assert len(whole) == 16
    assert set(whole.unit) == {"bit/s"}
    assert whole.began.iloc[0] == pandas.Timestamp("2026-11-22")
    assert list(found[found.error.notna()].error) == ["LabError: <the cable> broke"]
    for ending in ("parquet", "csv"):
        file = tmp_path / f"samples.{ending}"
        told = CliRunner().invoke(cli.app, ["report", str(folder), "--table", str(file)])
        assert told.exit_code == 0, told.output
        again = pandas.read_parquet(file) if ending == "parquet" else pandas.read_csv(file)
        assert len(again) == len(found)
        assert again.value.sum() == pytest.approx(found.value.sum())
    with pytest.raises(LabError, match=r"its ending is \.parquet or \.csv"):
        frame.write([made_up.result()], tmp_path / "samples.xls")


def test_results_are_had_as_json_lines(tmp_path: Path) -> None:
    folders = [str(_written(tmp_path / name, made_up.result())) for name in ("one", "other")]
    for command, key in ((["agree", *folders], None), (["compare", *folders], "changes"), (["list"], "rows")):
        told = CliRunner().invoke(cli.app, ["--json", *command])
        assert told.exit_code in {0, 1, 3}, told.output
        lines = [json.loads(line) for line in told.stdout.splitlines()]
        assert lines
        assert key is None or lines[0][key]
    both = json.loads(CliRunner().invoke(cli.app, ["--json", "agree", *folders]).stdout)
    assert both[0]["ratio"]["one"]["found"]["estimate"] == pytest.approx(2.0)
    assert cli._json_first(["list", "--json"]) == ["--json", "list"]
    assert cli._json_first(["guest", "--", "ls", "--json"]) == ["guest", "--", "ls", "--json"]
    assert cli._json_first(["topo", "status", "--json"]) == ["topo", "status", "--json"]


_MODEL = ("--host", str(published.FOLDER / "2026-11-25" / "prediction" / "model.json"))
_ASKED = ("predict", "--pairs", "4", "--message", "1M", *_MODEL)


@pytest.mark.parametrize(
    "command",
    [
        ("list",),
        ("compare", "0", "1"),
        ("agree", "0", "1"),
        ("between", "0", "1", "2", "3", "4"),
        _ASKED,
        (*_ASKED, "--path", "memlane"),
        (*_ASKED, "--path", "memlane", "--sweep", "pairs", "--out", "curves.html"),
        ("report", "0"),
        ("report", "0", "--table", "samples.csv"),
    ],
)
def test_every_result_fits_80_columns_and_is_json_on_request(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    for number in range(5):
        made = made_up.result(expect=[{"measure": "throughput", "at_least": 1.5}])
        _written(tmp_path / str(number), made, began=f"2026-11-2{number}T00:00:00")
    told = CliRunner().invoke(cli.app, command)
    assert told.exit_code in {0, 1, 3}, told.output
    assert told.stdout
    assert [line for line in told.stdout.splitlines() if len(line) > 80] == []
    lines = CliRunner().invoke(cli.app, ["--json", *command]).stdout.splitlines()
    assert lines
    assert all(json.loads(line) for line in lines)


def test_a_table_that_is_too_wide_is_told_row_by_row(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("variant", "measure", "before", "after", title="it")
    table.add_row("memlane, TCP, 1 MB writes", "throughput, received", "1.00 Gbit/s", "2.00 Gbit/s")
    narrow = progress.Results(width=40)
    narrow.print(table)
    told = capsys.readouterr().out
    assert told.splitlines() == [
        "", "it", "", "memlane, TCP, 1 MB writes", "  measure: throughput, received", "  before: 1.00 Gbit/s",
        "  after: 2.00 Gbit/s",
    ]  # fmt: skip
    progress.Results(width=120).print(table)
    assert "1.00 Gbit/s" in capsys.readouterr().out.splitlines()[4]


GOOD = """
from memlane_lab.paths.bridge import Bridge
class Mine(Bridge):
    name, title = "mine", "a bridge of one's own"
"""
HALF = """
from memlane_lab.workloads import Workload
class Half(Workload):
    name, title = "half", "lacks the rest"
"""


@pytest.fixture
def _as_before() -> Iterator[None]:
    tables: list[dict[Any, Any]] = [paths.PATHS, guests.KINDS, workloads.WORKLOADS]
    before = [dict(table) for table in tables]
    yield
    for table, kept in zip(tables, before, strict=True):
        table.clear()
        table.update(kept)
    for name in [name for name in sys.modules if name.startswith("memlane_lab_plugin_")]:
        del sys.modules[name]


@pytest.mark.usefixtures("_as_before")
def test_plugins_come_from_a_folder_and_faults_are_told_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(outside, "say", said.append)
    for name, text in {"good": GOOD, "half": HALF, "broken": "import nothing_of_this_name", "empty": "x = 1"}.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.setenv(outside.FOLDERS, f"{tmp_path}:{tmp_path}/nowhere")
    outside.load()
    assert paths.PATHS["mine"].title == "a bridge of one's own"
    assert "half" not in workloads.WORKLOADS
    assert len(said) == 4
    assert any("broken.py cannot be loaded: ModuleNotFoundError: No module named 'nothing" in each for each in said)
    assert any("half is left out: its class Half lacks " in each for each in said)
    assert any("empty is left out: it has no class made from" in each for each in said)
    assert any("nowhere cannot be loaded: FileNotFoundError" in each for each in said)


@pytest.mark.usefixtures("_as_before")
def test_plugins_come_from_packages_that_are_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(outside, "say", said.append)
    monkeypatch.delenv(outside.FOLDERS, raising=False)
    (tmp_path / "memlane_lab_plugin_theirs.py").write_text(GOOD)
    (tmp_path / "memlane_lab_plugin_ends.py").write_text("raise SystemExit(1)")
    stated = tmp_path / "theirs-1.0.dist-info"
    stated.mkdir()
    (stated / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    points = {"mine": "memlane_lab_plugin_theirs", "ends": "memlane_lab_plugin_ends", "lost": "memlane_lab_plugin_lost"}
    listed = "".join(f"{name} = {module}\n" for name, module in points.items())
    (stated / "entry_points.txt").write_text(f"[{outside.GROUP}]\n{listed}")
    monkeypatch.syspath_prepend(tmp_path)
    outside.load()
    assert paths.PATHS["mine"].title == "a bridge of one's own"
    assert sorted(each.partition(":")[2].split(":")[0].strip() for each in said) == [
        "the plugin ends (memlane_lab_plugin_ends) cannot be loaded",
        "the plugin lost (memlane_lab_plugin_lost) cannot be loaded",
    ]


def test_a_plugin_does_not_replace_what_is_there() -> None:
    module = ModuleType("theirs")
    module.Mine = type("Mine", (paths.PATHS["bridge"],), {"name": "memlane", "__module__": "theirs"})  # type: ignore[attr-defined]
    assert list(outside.register(module)) == ["there is a NetworkPath called 'memlane' already"]


STATED = """
title = "t"
question = "q?"
seconds = 3
[setting]
traffic = { workload = "tcp" }
[vary]
path = ["bridge", "memlane"]
"""


def test_a_budget_gives_the_rounds_that_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMLANE", "/bin/true")
    file = tmp_path / "t.toml"
    file.write_text(STATED)
    planned = run.prepare([file], GuestKind.UML)
    (narrowed,) = run.within(planned, 60)  # a round of two samples takes about 13 s
    assert narrowed.experiment.repeat == 4
    with pytest.raises(LabError, match="a budget of 5 s is too small for one round, which takes about 13 s"):
        run.within(planned, 5)
    told = CliRunner().invoke(cli.app, ["run", str(file), "--budget", "soon"])
    assert told.exit_code == 2


def test_progress_counts_the_samples_that_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMLANE", "/bin/true")
    file = tmp_path / "t.toml"
    file.write_text(STATED.replace('path = ["bridge", "memlane"]', 'path = ["bridge"]\nload = [0, 90]'))
    (planned,) = run.prepare([file], GuestKind.UML, 3)
    assert run.remaining(planned, []) == 6
    taken = [
        sample.model_copy(update={"variant": name, "round": at})
        for sample in made_up.result().samples[:1]
        for name, at in (("bridge, load 0", 0), ("bridge, load 90", 0), ("bridge, load 0", 7), ("gone", 1))
    ]
    assert run.remaining(planned, taken) == 4
