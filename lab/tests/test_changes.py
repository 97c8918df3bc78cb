"""What-ifs beside measured changes: their words, the ratio, the goal; and the builds that the changes need."""

import re
import statistics
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from memlane_lab import cli, paths
from memlane_lab.commands import published
from memlane_lab.common.errors import LabError
from memlane_lab.experiment import experiment, plan
from memlane_lab.experiment.experiment import Experiment
from memlane_lab.experiment.setting import Setting
from memlane_lab.host.ports import GuestKind
from memlane_lab.model import changes, fitted
from memlane_lab.model.configuration import Configuration
from memlane_lab.model.fitted import Model
from memlane_lab.model.pooled import Pooled
from memlane_lab.model.predict import predict
from memlane_lab.model.what_if import parse
from memlane_lab.results import results
from memlane_lab.results.results import ExperimentResult, VariantRecord

from .made_up import record, result

MODEL = published.FOLDER / "2026-11-25" / "prediction" / "model.json"
REPOSITORY = Path(__file__).parents[2]
ONE_MB = Configuration(path="memlane", pairs=4, message=1 << 20)


@cache
def _model() -> Model:
    return fitted.read(MODEL)


def _pooled() -> Pooled:
    found = _model().pooled
    assert found
    return found


def _measured(times: dict[str, float], **stated: Any) -> ExperimentResult:
    """Changes that multiply the throughput by so much."""
    asked: dict[str, Any] = {
        "name": "what_if",
        "compare": "change",
        "baseline": "as calibrated",
        "setting": {"path": "memlane", "pairs": 4, "traffic": {"workload": "tcp", "message": "1M"}},
        "vary": {"change": {"as calibrated": {}} | {label: {"pinning": "apart"} for label in times}},
        "expect": [],
        "paper": [],
    }
    found = result(lambda labels: {"throughput": 1e9 * times.get(labels["change"], 1.0)}, **(asked | stated))
    settings = {each.name: each.setting for each in plan.variants(found.experiment)}
    variants = [
        VariantRecord(
            name=each.name, labels=each.labels, setting=settings[each.name].model_dump(mode="json", by_alias=True)
        )
        for each in found.variants
    ]
    return found.model_copy(update={"variants": variants})


def test_a_change_is_near_if_its_ratio_is_predicted_to_15_per_cent() -> None:
    told, low, high = _pooled().worth(ONE_MB, 2, {"copy": 2.0})
    assert 0.8 < low < told < high < 1
    near, far = changes.check(_model(), [_measured({"copy=2, warm": told * 1.1, "copy=2, cold": told * 0.8})])
    assert (near.change, near.rounds, near.asked.pairs) == ("copy=2, warm", 8, 4)
    assert near.measured.estimate == pytest.approx(told * 1.1)
    assert near.error == pytest.approx(1 / 1.1 - 1)
    assert (near.met, far.met) == (True, False)


def test_one_cpu_has_no_other_to_wake() -> None:
    half, low, high = _pooled().worth(ONE_MB, 2, {"cores": 0.5})
    assert 0.5 < half < 1
    assert high / low > 1.2, "no calibration tells what sharing a CPU spares"
    told = predict(_model(), ONE_MB, parse(["cores=0.5"]), extrapolate=True)
    assert told.rate.estimate / predict(_model(), ONE_MB).rate.estimate == pytest.approx(half)
    assert told.cpu.high <= 1


def test_bounds_of_one_cpu_meet_the_published_ratios() -> None:
    """Nothing was fitted to them; the goal of 15 % is missed, as the notes say of the same figures."""
    notes = (published.FOLDER / "notes" / "prediction.md").read_text()
    _, (result,) = published.read(published.FOLDER / "2026-11-27" / "fair-baselines")
    rates = {
        (each.labels["path"], each.labels["work"], each.labels["cpus"], each.round): each.values["throughput"]
        for each in result.good
        if "throughput" in each.values
    }
    off = []
    for path in ("bridge", "memlane"):
        for work, message in (("TCP, 128 KB writes", 128 << 10), ("TCP, 1 MB writes", 1 << 20)):
            rounds = [key[3] for key in rates if key[:3] == (path, work, "one CPU")]
            ratios = [rates[path, work, "one CPU", each] / rates[path, work, "free", each] for each in rounds]
            asked = Configuration(path=path, pairs=1, message=message)
            told, low, high = _pooled().worth(asked, 2, {"cores": 0.5})
            assert len(ratios) == 6
            assert low < max(ratios)
            assert high > min(ratios)
            found = (told, low, high, statistics.median(ratios), min(ratios), max(ratios))
            (row,) = re.findall(rf"^\| {path}, {work[5:].removesuffix(' writes')} \|.*", notes, re.MULTILINE)
            assert [float(each) for each in re.findall(r"[0-9.]+", " ".join(row.split("|")[3:5]))] == pytest.approx(
                found, rel=0.006, abs=0.006
            )
            off.append(abs(told / statistics.median(ratios) - 1))
    assert f"in the median of these four {100 * statistics.median(off):.0f} %" in notes


def test_a_second_copy_is_predicted_to_15_per_cent() -> None:
    """By the published ablation, which no model was fitted from."""
    notes = (published.FOLDER / "notes" / "prediction.md").read_text()
    _, (result,) = published.read(published.FOLDER / "2026-11-27" / "what-each-idea-is-worth")
    own = {
        (each.labels["idea"], each.round): each.values["throughput"]
        for each in result.good
        if each.labels["work"] == "TCP, 1 MB writes"
    }
    told, low, high = _pooled().worth(ONE_MB.model_copy(update={"pairs": 1}), 2, {"copy": 2.0})
    for label in ("warm", "cold"):
        ratios = [own[f"a second copy, {label}", at] / own["as it is", at] for at in range(result.experiment.repeat)]
        (row,) = re.findall(rf"^\| `copy=2`, {label} \|.*", notes, re.MULTILINE)
        shown = [float(each) for each in re.findall(r"(?<![=\d])\d\.\d+", row)]
        assert shown[:4] == pytest.approx([told, low, high, statistics.median(ratios)], abs=0.0006)
        assert abs(told / statistics.median(ratios) - 1) <= changes.GOAL


def test_a_ring_matters_where_it_holds_less_than_circulates() -> None:
    ratio = [_pooled().worth(ONE_MB, 2, {"ring": factor})[0] for factor in (2.0, 1.0, 0.5, 0.05)]
    assert ratio[:2] == [1.0, 1.0]
    assert ratio[1] >= ratio[2] > ratio[3] > 0


def test_what_cannot_be_checked_is_said() -> None:
    with pytest.raises(LabError, match="make ablation"):
        changes.check(_model(), [result()])
    with pytest.raises(LabError, match="says nothing"):
        changes.check(_model(), [_measured({"twice the copies": 1.0})])
    with pytest.raises(LabError, match="knows no what-if of path memlane"):
        changes.check(_model().model_copy(update={"pooled": None}), [_measured({"copy=2": 1.0})])
    with pytest.raises(LabError, match="calibration has no tcp on path 'vde'"):
        changes.check(_model(), [_measured({"copy=2": 1.0}, setting={"path": "vde", "traffic": {"workload": "tcp"}})])


def test_the_check_is_a_command(tmp_path: Path) -> None:
    results.write(tmp_path, record("what_if"))
    results.write_experiment(tmp_path, _measured({"copy=2, warm": 0.2}))
    host = ["--host", str(MODEL)]
    told = CliRunner().invoke(cli.app, ["model", "what-if", str(tmp_path), *host])
    assert told.exit_code == 1, told.output
    assert "0 of 1 changes are predicted to 15 %" in told.output
    assert max(map(len, told.output.splitlines())) <= 80
    told = CliRunner().invoke(cli.app, ["--json", "model", "what-if", str(tmp_path), *host])
    assert '"change": "copy=2, warm"' in told.output


@pytest.mark.parametrize("name", ["what_if", "what_if_ring"])
def test_the_supplied_changes_are_words_of_a_what_if(name: str) -> None:
    stated = experiment.load(experiment.FOLDER / f"{name}.toml")
    labels = [label for label in stated.dimensions()["change"] if label not in stated.baseline]
    assert all(parse([label.partition(",")[0]]).changed for label in labels)


def test_every_ablation_that_is_measured_is_built_and_every_one_built_is_measured() -> None:
    features = tomllib.loads((REPOSITORY / "switch/daemon/Cargo.toml").read_text())["features"]
    built = {"as-it-is", *(name.removeprefix("ablation-") for name in features)}
    files = ("what_each_idea_is_worth", "what_each_waiting_rule_is_worth")
    measured = (each for name in files for each in plan.variants(experiment.load(experiment.FOLDER / f"{name}.toml")))
    programs = {each.setting.program or "" for each in measured}
    assert {re.fullmatch(r"target/ablation/([a-z-]+)/memlane", each)[1] for each in programs} == built  # type: ignore[index]


def test_a_variant_with_a_build_of_its_own_needs_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths.PATHS["memlane"], "missing", classmethod(lambda _: "no memlane found"))
    stated: dict[str, Any] = {"path": "memlane", "traffic": {"workload": "tcp"}}
    usual, own = (Setting.model_validate(stated | more) for more in ({}, {"program": str(tmp_path / "memlane")}))
    assert "no memlane found" in (plan.missing(plan.Variant({}, usual), GuestKind.NETNS) or "")
    assert "make ablation" in (plan.missing(plan.Variant({}, own), GuestKind.NETNS) or "")
    (tmp_path / "memlane").touch()
    assert "memlane found" not in (plan.missing(plan.Variant({}, own), GuestKind.NETNS) or "")


def test_a_run_may_be_narrowed_to_primary_endpoints() -> None:
    promises = experiment.load(experiment.FOLDER / "promises.toml")
    fewer = plan.of_primaries(promises)
    assert isinstance(fewer, Experiment)
    assert all(each.primary for each in fewer.expect)
    assert len(fewer.expect) == sum(each.primary for each in promises.expect)
    kept = plan.variants(fewer)
    assert 0 < len(kept) < len(plan.variants(promises))
    assert plan.of_primaries(experiment.load(experiment.FOLDER / "which_window.toml")) is None
