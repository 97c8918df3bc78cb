"""In which order a run takes its samples, and how it ends: tried without guests."""

from pathlib import Path

import pytest

from memlane_lab import cli
from memlane_lab.common.errors import LabError
from memlane_lab.experiment.plan import Turn
from memlane_lab.host.ports import GuestKind
from memlane_lab.measuring import run
from memlane_lab.measuring.builds import Unchanged
from memlane_lab.results import results
from memlane_lab.results.results import ExperimentResult, Sample
from tests import made_up

STATED = """
title = "t"
question = "q?"
repeat = 6
[setting]
traffic = { workload = "tcp" }
[vary]
path = ["bridge", "memlane"]
load = [0, 90]
"""

COUNTED = """
title = "t"
question = "q?"
repeat = 6
bed = "counted"
[setting]
path = "none"
traffic = { workload = "path-length" }
[vary.traffic]
TCP = { protocol = "tcp" }
"""


@pytest.fixture(autouse=True)
def _built(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans as where memlane is built; nothing starts it."""
    monkeypatch.setenv("MEMLANE", "/bin/true")


def _planned(tmp_path: Path, text: str = STATED) -> run.Planned:
    file = tmp_path / "rounds.toml"
    file.write_text(text)
    (planned,) = run.prepare([file], GuestKind.UML)
    return planned


def _sample(turn: Turn) -> Sample:
    return Sample(
        number=1, round=turn.round, variant=turn.variant.name, labels=turn.variant.labels, began="", took=1,
        placement="near", placements=("near", "near"), values={"throughput": 1.0},
    )  # fmt: skip


def test_a_run_has_the_rounds_that_are_asked_for(tmp_path: Path) -> None:
    taken: list[Turn] = []

    def take(turn: Turn) -> Sample:
        taken.append(turn)
        return _sample(turn).model_copy(update={"error": "it burnt down"})

    run.take_all(_planned(tmp_path, COUNTED), [], take, seed=1)
    assert [turn.round for turn in taken] == list(range(6))


def test_what_was_taken_before_is_not_taken_again(tmp_path: Path) -> None:
    planned = _planned(tmp_path, STATED)
    whole: list[Turn] = []
    run.take_all(planned, [], lambda turn: whole.append(turn) or _sample(turn), seed=1)  # type: ignore[func-returns-value]
    rest: list[Turn] = []
    before = [_sample(turn) for turn in whole[:9]]
    run.take_all(planned, before, lambda turn: rest.append(turn) or _sample(turn), seed=1)  # type: ignore[func-returns-value]
    assert rest == whole[9:]


@pytest.mark.parametrize("stated", [COUNTED, STATED])
def test_what_failed_is_tried_once_more_only_where_time_does_not_matter(tmp_path: Path, stated: str) -> None:
    planned = _planned(tmp_path, stated)
    taken: list[Sample] = []
    run.take_all(planned, taken, _sample, seed=1)
    taken[3] = taken[3].model_copy(update={"error": "it burnt down"})
    again: list[Turn] = []
    run.take_all(planned, list(taken), lambda turn: again.append(turn) or _sample(turn), seed=1)  # type: ignore[func-returns-value]
    failed = [(taken[3].round, taken[3].variant)] if stated == COUNTED else []
    assert [(turn.round, turn.variant.name) for turn in again] == failed


def test_a_run_that_went_on_names_every_commit_that_it_was_measured_on(tmp_path: Path) -> None:
    record = made_up.record("one", commit="0123456789ab")
    for commit in ("0123456789ab", "123456789abc", "123456789abc with changes"):
        record = run._added(record, made_up.record("one", commit=commit), tmp_path, resume=True)
    assert record.machine["commit"] == "0123456789ab, 123456789abc, 123456789abc with changes"


@pytest.mark.parametrize(("bound", "code"), [(0.5, 0), (3.0, 1), (1.0, 3)])
def test_a_run_ends_with_what_came_of_its_expectations(tmp_path: Path, bound: float, code: int) -> None:
    def values(labels: dict[str, str]) -> dict[str, float]:
        return made_up.usual(labels) | {"first_share": 1.0}

    result = made_up.result(
        values, expect=[{"measure": "first_share", "at_least": bound, "alone": True, "where": {"path": "memlane"}}]
    )
    wavering = [
        each.model_copy(update={"values": {"first_share": 1.0 + 0.1 * (-1) ** each.round}}) for each in result.good
    ]
    results.write(tmp_path, made_up.record("made_up"))
    results.write_experiment(tmp_path, result.model_copy(update={"samples": wavering}))
    assert cli.tell_verdicts(tmp_path) == code


def test_a_run_goes_on_only_with_what_it_was() -> None:
    made = made_up.result()
    asked = made.model_copy(update={"seed": 99, "samples": []})
    assert run.going_on(asked, None) == asked
    on = run.going_on(asked, made)
    assert (on.seed, on.samples, on.complete) == (made.seed, made.samples, False)
    other = asked.model_copy(update={"experiment": asked.experiment.model_copy(update={"seconds": 9})})
    with pytest.raises(LabError, match="made_up cannot be resumed, because it has changed: seconds"):
        run.going_on(other, made)


def test_a_run_does_not_go_on_with_other_primary_endpoints() -> None:
    made = made_up.result()
    named = tuple(each.model_copy(update={"primary": True}) for each in made.experiment.expect)
    asked = made.model_copy(update={"samples": [], "experiment": made.experiment.model_copy(update={"expect": named})})
    with pytest.raises(LabError, match="its primary endpoints have changed since its first sample"):
        run.going_on(asked, made)
    assert run.going_on(asked, made.model_copy(update={"samples": []})).experiment.expect == named


def test_a_run_with_primary_endpoints_ends_with_the_rounds_that_it_began_with() -> None:
    """Otherwise one might end it, or go on, by the look of its verdicts."""

    def of(rounds: int, *, primary: bool) -> ExperimentResult:
        made = made_up.result()
        expect = tuple(each.model_copy(update={"primary": primary}) for each in made.experiment.expect)
        stated = made.experiment.model_copy(update={"expect": expect, "repeat": rounds})
        return made.model_copy(update={"experiment": stated})

    begun = of(8, primary=True).model_copy(update={"complete": False})
    for before in (of(8, primary=True), begun):
        for rounds in (6, 12):
            with pytest.raises(LabError, match=r"made_up began with 8 rounds, .* continue with --repeat 8"):
                run.going_on(of(rounds, primary=True), before)
    assert run.going_on(of(8, primary=True), of(8, primary=True)).samples
    assert run.going_on(of(12, primary=False), of(8, primary=False)).samples
    assert run.going_on(of(8, primary=True), begun).samples
    unseen = begun.model_copy(update={"samples": []})
    assert run.going_on(of(12, primary=True), unseen).experiment.repeat == 12


def test_a_folder_takes_samples_of_one_build_only(tmp_path: Path) -> None:
    one, other = made_up.record("made_up"), made_up.record("made_up", versions={"memlane": "2"})
    assert run._added(one, one, tmp_path, resume=True).experiments == ["made_up"]
    with pytest.raises(LabError, match=r"holds results of a different set-up \(version: memlane.*: name another"):
        run._added(one, other, tmp_path, resume=True)
    with pytest.raises(LabError, match="holds results of made_up already"):
        run._added(one, one, tmp_path, resume=False)


def test_a_switch_that_is_built_anew_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    switch = tmp_path / "memlane"
    switch.write_text("one")
    monkeypatch.setenv("MEMLANE", str(switch))
    programs = run._programs([_planned(tmp_path)])
    assert programs == {switch}
    unchanged = Unchanged(programs)
    unchanged.check()
    (tmp_path / "again").write_text("one")
    (tmp_path / "again").replace(switch)
    unchanged.check()  # the same program, linked once more
    switch.write_text("other")
    with pytest.raises(LabError, match="memlane was built anew while it was measured, further samples would be"):
        unchanged.check()
    switch.unlink()
    with pytest.raises(LabError, match="memlane was built anew while it was measured"):
        unchanged.check()
    assert run._programs([_planned(tmp_path, STATED.replace('"bridge", "memlane"', '"bridge", "none"'))]) == set()
