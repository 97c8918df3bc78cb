"""Builds of memlane that experiments name: ablations, and runs narrowed to their primary endpoints."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from memlane_lab import paths
from memlane_lab.experiment import experiment, plan
from memlane_lab.experiment.experiment import Experiment
from memlane_lab.experiment.setting import Setting
from memlane_lab.host.ports import GuestKind

REPOSITORY = Path(__file__).parents[2]


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
