"""The cost of observing: figures against bars, and the command with the programs that tests run."""

import pytest

from memlane_lab.bench_gate import observe
from memlane_lab.bench_gate.verdict import Verdict
from memlane_lab.statistics.stats import Interval


def test_a_figure_is_judged_by_its_interval() -> None:
    def figure(low: float, high: float) -> observe.Figure:
        return observe.Figure("time", "ms", Interval((low + high) / 2, low, high), 50)

    assert figure(10, 50).verdict is Verdict.WITHIN
    assert figure(51, 52).verdict is Verdict.SLOWER
    assert figure(49, 51).verdict is Verdict.UNDECIDED
    assert " ".join(figure(10, 20).told().split()) == "time 15.00 (10.00 to 20.00) ms at most 50 ms: within"


def test_what_runs_beside_a_blast_costs_percents_of_it() -> None:
    costs = iter([100.0, 103.0, 206.0, 200.0] * 3)  # a slower machine in every other round, the other side first
    begun: list[bool] = []

    class Beside:
        def __enter__(self) -> None:
            begun.append(True)

        def __exit__(self, *_: object) -> None:
            begun.append(False)

    figure = observe._rounds("beside", 6, lambda: next(costs), Beside, 5)
    assert figure.value.estimate == pytest.approx(3)
    assert figure.verdict is Verdict.WITHIN
    assert begun == [True, False] * 6


@pytest.mark.real
@pytest.mark.parametrize("name", ["capture", "scrape", "top", "watchdog"])
def test_the_command_measures(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(observe, "PORTS", 20)
    monkeypatch.setattr(observe, "WINDOW", 0.2)
    monkeypatch.setattr(observe, "WATCHDOG", 1)
    assert observe.main(["--rounds", "6", "--seconds", "0.3", "--only", name]) in {0, 1, 3}
    told = capsys.readouterr()
    lines = told.out.splitlines()
    assert lines, told.err
    assert all(" at most " in line for line in lines), told.out
