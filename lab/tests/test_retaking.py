"""Samples beside other work are taken again by that reading alone: tried with made-up readings, without guests."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from memlane_lab import cli
from memlane_lab.experiment.plan import Turn
from memlane_lab.host.ports import GuestKind
from memlane_lab.measuring import machine, prices, retaking, run
from memlane_lab.results import disturbed, results
from memlane_lab.results.results import Sample
from memlane_lab.statistics.two_way import Taken
from tests import made_up

ONE = """
title = "t"
question = "q?"
repeat = 2
[setting]
path = "none"
traffic = { workload = "tcp" }
"""


def _sample(number: int, others: float | None, throughput: float = 1e9, error: str | None = None) -> Sample:
    values = {"throughput": throughput} | ({} if others is None else {"others": others})
    return (
        made_up.result()
        .good[0]
        .model_copy(update={"number": number, "values": {} if error else values, "error": error})
    )


class Readings:
    """Takes samples that other work disturbed so much; each has a better value than the one before."""

    def __init__(self, *others: float | None) -> None:
        self._samples: Iterator[Sample] = iter(
            [_sample(number, each, 1e9 * number) for number, each in enumerate(others, 1)]
        )
        self.taken = 0

    def take(self) -> Sample:
        self.taken += 1
        return next(self._samples)


@pytest.mark.parametrize(
    ("others", "kept", "again"),
    [
        ([0.1], 1, None),
        ([None], 1, None),
        ([0.11, 0.02], 2, 1),
        ([2.0, 0.4, 0.05], 3, 2),
        ([0.2, 0.3, 1.7], 3, 2),  # the last one is kept, though the first was beside less
    ],
)
def test_a_disturbed_sample_is_taken_again_twice_at_most(
    others: Sequence[float | None], kept: int, again: int | None
) -> None:
    readings = Readings(*others, 0.0)
    found = retaking.undisturbed(readings.take, retaking.MOST)
    assert (found.number, readings.taken) == (kept, len(others))
    assert found.values.get("taken_again") == again


def test_without_retakes_a_disturbed_sample_is_kept() -> None:
    readings = Readings(1.5, 0.0)
    assert retaking.undisturbed(readings.take, 0).number == readings.taken == 1


@pytest.mark.parametrize("factor", [1e-6, 1.0, 1e6])
def test_no_value_but_the_reading_decides(factor: float) -> None:
    others = (0.3, 0.09, 0.0)
    samples = iter([_sample(number, each, factor * number) for number, each in enumerate(others)])
    assert retaking.undisturbed(lambda: next(samples), 2).number == 1


def test_a_failed_sample_is_no_disturbed_one() -> None:
    failed = iter([_sample(1, None, error="LabError: it burnt down"), _sample(2, 0.0)])
    assert retaking.undisturbed(lambda: next(failed), 2).number == 1
    on_retake = iter([_sample(1, 0.5), _sample(2, None, error="LabError: it burnt down"), _sample(3, 0.0)])
    found = retaking.undisturbed(lambda: next(on_retake), 2)
    assert (found.number, found.error) == (2, "LabError: it burnt down")


class _Sampler:
    """In place of guests: every first try of a round is disturbed, in the second round every one."""

    facts: dict[str, object] = {}

    def __init__(self) -> None:
        self._number = 0
        self._tries: dict[int, int] = {}

    def __enter__(self) -> "_Sampler":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def take(self, turn: Turn) -> Sample:
        self._number += 1
        self._tries[turn.round] = again = self._tries.get(turn.round, 0) + 1
        values = {"throughput": 1e9 * self._number, "others": 0.5 if again == 1 or turn.round else 0.0}
        return Sample(
            number=self._number, round=turn.round, variant=turn.variant.name, labels={}, began="", took=1,
            placement="near", placements=("near", "near"), values=values,
        )  # fmt: skip


def test_no_trace_of_a_dropped_sample_is_in_the_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "_sampler", lambda *_: _Sampler())
    monkeypatch.setattr(machine, "describe", dict)
    monkeypatch.setattr(prices, "measure", dict)
    (tmp_path / "one.toml").write_text(ONE)
    planned = run.prepare([tmp_path / "one.toml"], GuestKind.NETNS)
    run.measure(planned, GuestKind.NETNS, tmp_path / "out", 1, retake=2)
    _, (found,) = results.read(tmp_path / "out")
    assert [(each.number, each.values.get("taken_again")) for each in found.samples] == [(2, 1), (5, 2)]
    assert found.complete
    written = (tmp_path / "out" / "one" / "samples.csv").read_text()
    assert "1000000000" not in written
    assert "taken again, because other work took 0.5" in capsys.readouterr().err
    assert disturbed.told(found.good) == "more than 0.1 beside 1 of 2 samples, 2 of them taken again"


def test_disturbed_samples_are_marked_on_the_page_and_are_a_covariate(monkeypatch: pytest.MonkeyPatch) -> None:
    from memlane_lab.report import page
    from memlane_lab.results import summary, together
    from memlane_lab.statistics import two_way

    made = made_up.result()
    samples = [
        each.model_copy(update={"values": each.values | {"others": 0.7, "taken_again": 2.0}})
        if each.round == 1
        else each
        for each in made.good
    ]
    made = made.model_copy(update={"samples": samples})
    text = page.render(made_up.record("made_up"), [made])
    assert "0.70 (at most), more than 0.1 beside 4 of 32 samples, 4 of them taken again" in text
    seen: list[Taken] = []
    monkeypatch.setattr(two_way, "effect", lambda taken, *_: seen.extend(taken))
    together.effect(made, next(each for each in summary.verdicts(made) if each.found))
    assert {each.others for each in seen if each.round == 1} == {0.7}


def test_a_run_takes_disturbed_samples_again_unless_told_otherwise() -> None:
    told = CliRunner().invoke(cli.app, ["run", "--help"], env={"COLUMNS": "200", "TERM": "dumb"}).output
    assert "--retake" in told
    assert "[default: 2]" in told.split("--retake")[1]
    assert cli._retaking(retaking.MOST) == []
    assert cli._retaking(0) == ["--retake", "0"]
