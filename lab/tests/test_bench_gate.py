"""The gate of speed: its statistics against rounds of known truth, and its readers of programs' output."""

import json
import random
from pathlib import Path

import pytest

from memlane_lab.bench_gate import __main__ as command
from memlane_lab.bench_gate import rows, sides, verdict
from memlane_lab.bench_gate.verdict import Row, Verdict
from memlane_lab.common.errors import LabError

PERCENT = 0.02


def rounds(truth: float, count: int, noise: float, source: random.Random) -> Row:
    """Rounds of a machine that drifts by half from round to round; the new side costs `truth` times the old one."""
    row = Row("made up")
    for _ in range(count):
        drift = source.lognormvariate(0, 0.5)
        row.add(*(cost * drift * source.lognormvariate(0, noise) for cost in (100.0, 100.0 * truth)))
    return row


def share(truth: float, wanted: Verdict, noise: float, count: int = 10, runs: int = 1000) -> float:
    """How many of `runs` gates end so."""
    source = random.Random(1)
    gates = (verdict.judge(rounds(truth, count, noise, source), PERCENT) for _ in range(runs))
    return sum(gate.verdict is wanted for gate in gates) / runs


@pytest.mark.parametrize("count", [6, 10, 15])
@pytest.mark.parametrize("noise", [0.002, 0.01, 0.05])
def test_what_is_at_the_bar_is_seldom_judged_and_never_more_often_than_said(count: int, noise: float) -> None:
    wrong = share(1.02, Verdict.SLOWER, noise, count), share(1.02, Verdict.WITHIN, noise, count)
    assert all(one <= 0.025 + 0.012 for one in wrong)


def test_what_is_as_fast_passes_and_what_is_slower_is_found() -> None:
    assert share(1.0, Verdict.WITHIN, 0.005) > 0.95
    assert share(1.0, Verdict.SLOWER, 0.01) == 0
    assert share(1.05, Verdict.SLOWER, 0.01) > 0.9
    assert share(1.05, Verdict.WITHIN, 0.01) == 0
    assert share(0.8, Verdict.WITHIN, 0.01) == 1


def test_noise_makes_undecided_and_not_slower() -> None:
    assert share(1.0, Verdict.UNDECIDED, 0.2) > 0.8
    assert share(1.0, Verdict.SLOWER, 0.2) <= 0.025


def test_drift_from_round_to_round_does_not_count() -> None:
    row = Row("drifts", old=[100, 200, 400, 100, 50, 800], new=[101, 202, 404, 101, 50.5, 808])
    judged = verdict.judge(row, PERCENT)
    assert judged.ratio.bounds is not None
    assert list(judged.ratio.bounds) == pytest.approx([1.01, 1.01])
    assert judged.verdict is Verdict.WITHIN
    assert verdict.judge(row, 0.005).verdict is Verdict.SLOWER


def test_too_few_rounds_decide_nothing_and_no_costs_are_a_fault() -> None:
    assert verdict.judge(Row("few", old=[1.0] * 5, new=[2.0] * 5), PERCENT).verdict is Verdict.UNDECIDED
    for nothing in (Row("none"), Row("zero", old=[0.0] * 6, new=[1.0] * 6)):
        with pytest.raises(LabError, match=f"{nothing.name} has no costs"):
            verdict.judge(nothing, PERCENT)


def test_the_worst_row_is_the_exit_code_and_each_row_is_told() -> None:
    within = verdict.judge(Row("same", [100.0] * 6, [100.0] * 6), PERCENT)
    slower = verdict.judge(Row("slow", [100.0] * 6, [110.0] * 6), PERCENT)
    undecided = verdict.judge(Row("wide", [100.0] * 6, [90.0, 110, 90, 110, 90, 110]), PERCENT)
    assert verdict.exit_code([within]) == 0
    assert verdict.exit_code([within, undecided]) == 3
    assert verdict.exit_code([undecided, slower, within]) == 1
    lines = verdict.table([within, slower, undecided]).splitlines()
    assert lines[1].endswith("+0.0 % (+0.0 to +0.0)      within")
    assert lines[2].endswith("+10.0 % (+10.0 to +10.0)   slower")
    assert lines[3].endswith("+0.0 % (-10.0 to +10.0)    undecided")


def test_reads_criterion(tmp_path: Path) -> None:
    for name, time in (("worker/64", 12.5), ("worker/seven guests to one", 90.0)):
        folder = tmp_path / name.replace(" ", "_") / "new"
        folder.mkdir(parents=True)
        (folder / "benchmark.json").write_text(json.dumps({"full_id": name}))
        (folder / "estimates.json").write_text(json.dumps({"median": {"point_estimate": time}, "mean": {}}))
    assert rows.estimates(tmp_path) == {"worker/64": 12.5, "worker/seven guests to one": 90.0}
    with pytest.raises(LabError, match="left no estimates"):
        rows.estimates(tmp_path / "nothing")


def test_reads_per_frame_and_blast() -> None:
    assert rows.nanoseconds("256 guests: 400000 frames, 21.5 ns each\n") == 21.5
    assert rows.per_frame(json.dumps({"total": {"mpps": 8.0}})) == 125
    with pytest.raises(LabError, match="printed no time"):
        rows.nanoseconds("256 guests: 0 frames, 0.0 ns each\n")
    with pytest.raises(LabError, match="no delivered frame"):
        rows.per_frame(json.dumps({"total": {"mpps": 0.0}}))


def test_finds_the_programs_that_cargo_built() -> None:
    built = {"reason": "compiler-artifact", "target": {"name": "ring"}, "executable": "/t/ring-1"}
    library = built | {"target": {"name": "memlane"}, "executable": None}
    messages = [json.dumps(one) for one in (library, built, {"reason": "build-finished", "success": True})]
    assert sides.executables(messages) == {"ring": Path("/t/ring-1")}


class Made(rows.Runs):
    """Costs that follow from the side, and the order in which sides ran."""

    name = "made"

    def __init__(self, costs: dict[str, float]) -> None:
        self.costs, self.ran = costs, ""

    def run(self, side: sides.Side, work: Path, seconds: float) -> dict[str, float]:
        self.ran += side.name[0]
        assert work.is_dir()
        return {"made": self.costs[side.name], f"only {side.name}": seconds}


@pytest.mark.parametrize(("cost", "code"), [(100.0, 0), (103.0, 1)])
def test_the_command_runs_the_sides_in_turn(
    cost: float, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = Made({"old": 100.0, "new": cost})
    monkeypatch.setattr(rows, "ALL", (made,))
    monkeypatch.setattr(sides, "commit", lambda _: sides.Side("old", {}))
    monkeypatch.setattr(sides, "here", lambda: sides.Side("new", {"memlane-rig": Path("rig")}))
    assert command.main(["HEAD~1", "--rounds", "6"]) == code
    assert made.ran == "onno" * 3
    told = capsys.readouterr().out
    assert "made" in told
    assert "only" not in told


def test_builds_as_the_user_and_runs_as_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = Made({"here": 100.0, "old": 100.0})
    monkeypatch.setattr(rows, "ALL", (made,))
    monkeypatch.setattr(sides, "_folder", lambda: tmp_path / "kept")
    monkeypatch.setattr(sides, "commit", lambda _: sides.Side("old", {}))
    assert command.main(["HEAD", "--built"]) == 2, "nothing is built yet"
    for program in (*sides.BENCHES, *sides.PROGRAMS):
        (tmp_path / program).write_text(program)
    monkeypatch.setattr(sides, "_build", lambda *_: {path.name: path for path in tmp_path.iterdir() if path.is_file()})
    assert command.main(["HEAD", "--build"]) == 0
    assert made.ran == ""
    assert (tmp_path / "kept/here/memlane").read_text() == "memlane"
    assert command.main(["HEAD", "--built", "--rounds", "6"]) == 0
    assert made.ran == "ohho" * 3


def test_the_command_tells_what_it_cannot_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["no-such-commit"]) == 2
    assert "unknown git commit 'no-such-commit'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        command.main(["HEAD", "--rounds", "5"])
    assert "fewer than 6 rounds have no interval" in capsys.readouterr().err
