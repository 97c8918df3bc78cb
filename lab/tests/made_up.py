"""Made-up results, to test their readers. Values follow from the arguments, not from luck."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from memlane_lab.experiment import plan
from memlane_lab.experiment.experiment import Experiment
from memlane_lab.report import headlines
from memlane_lab.results import results
from memlane_lab.results.results import ExperimentResult, FlowRecord, Missing, RunRecord, Sample, VariantRecord
from memlane_lab.statistics.latencies import Latencies

STATED: dict[str, Any] = {
    "name": "made_up",
    "title": "Made up & <escaped>",
    "question": "Does the report show what is in the results?",
    "measures": ["throughput", "cpu_per_gb", "rtt_p50"],
    "setting": {"traffic": {"workload": "tcp"}},
    "vary": {"path": ["bridge", "memlane", "none"], "load": [0, 90]},
    "paper": [
        {"measure": "throughput", "value": 1e9, "where": {"path": "bridge", "load": "0"}},
        {"measure": "throughput", "value": 2.5e9, "where": {"path": "memlane", "load": "0"}, "what": "theirs"},
        {"measure": "cpu", "value": 0.5, "what": "standing alone"},
    ],
    "expect": [{"measure": "throughput", "at_least": 1.5, "where": {"path": "memlane"}}],
}

FACTS = {"kernel": "7.2.12", "offloads": {"tcp-segmentation-offload": "on"}, "tcp_rmem": "1 2 3", "tcp_wmem": "4 5 6"}
LATENCIES = Latencies([(5e-5, 200), (1e-4, 700), (3e-4, 90), (1e-3, 10)]).encoded()
SPREAD = (0.9, 0.95, 0.98, 1.0, 1.0, 1.02, 1.05, 1.1)


def usual(labels: dict[str, str]) -> dict[str, float]:
    """On memlane, twice the throughput without load, the same with it."""
    rate = 4e9 if labels["path"] == "memlane" and labels["load"] == "0" else 2e9
    parties = {"cpu_programs": 0.1, "cpu_guest_kernel": 0.2, "cpu_host_kernel": 0.5, "cpu_switch": 0.1}
    return {"throughput": rate, "cpu": 0.9, "cpu_per_gb": 0.9 * 8e9 / rate, "rtt_p50": 1e-4, "others": 0.01, **parties}


def result(
    values: Callable[[dict[str, str]], dict[str, float]] = usual, spread: Sequence[float] = SPREAD, **stated: Any
) -> ExperimentResult:
    """An experiment of two paths measured with and without load; the path `none` is missing; one sample failed."""
    asked = Experiment.model_validate(STATED | stated)
    variants = [each for each in plan.variants(asked) if each.labels.get("path") != "none"]
    samples = [
        _sample(number, turn, variant, values(variant.labels), factor)
        for number, (turn, factor, variant) in enumerate((t, f, v) for t, f in enumerate(spread) for v in variants)
    ]
    failed = samples[0].model_copy(update={"number": 99, "error": "LabError: <the cable> broke", "values": {}})
    missing = [
        Missing(variant=each.name, labels=each.labels, reason="there is no veth here")
        for each in plan.variants(asked)
        if each.labels.get("path") == "none"
    ]
    return ExperimentResult(
        experiment=asked, guest="uml", seed=3, complete=True, missing=missing, samples=[*samples, failed],
        variants=[
            VariantRecord(name=each.name, labels=each.labels, setting={}, facts={"c1": FACTS}) for each in variants
        ],
    )  # fmt: skip


def record(*names: str, **machine: Any) -> RunRecord:
    """A run of experiments of these names."""
    described = {"cpu": "Abacus", "kernel": "Linux", "versions": {"memlane": "1"}} | machine
    return RunRecord(
        commands=["memlane-lab run made_up.toml"], guest="uml", began="2026-11-22T00:00:00",
        ended="2026-11-22T00:10:00", machine=described, experiments=list(names),
    )  # fmt: skip


def headline(run: Path, number: int, factor: float, spread: Sequence[float] = SPREAD, **machine: Any) -> Path:
    """Writes a run of the experiment that `make headlines` repeats, of the day 20 + `number`; two primary endpoints."""

    def values(labels: dict[str, str]) -> dict[str, float]:
        told = usual(labels)
        return told | {"throughput": told["throughput"] * (factor if labels["path"] == "memlane" else 1)}

    wanted = {"measure": "throughput", "at_least": 1.5, "where": {"path": "memlane"}, "versus": {"path": "bridge"}}
    told = record(headlines.EXPERIMENT, **machine)
    results.write(run, told.model_copy(update={"began": f"2026-11-{20 + number}T00:00:00"}))
    expect = [wanted | {"primary": True}, wanted | {"at_least": 1.0}]
    results.write_experiment(run, result(values, spread, name=headlines.EXPERIMENT, expect=expect))
    return run


def front(run: Path, number: int, factor: float, guest: str = "uml", **machine: Any) -> Path:
    """Writes a run, of the day 20 + `number`, with a figure of the front page: memlane has 2 `factor` the bridge's."""

    def values(labels: dict[str, str]) -> dict[str, float]:
        rate = 4e9 * factor if labels["path"] == "memlane" else 2e9
        return usual(labels | {"load": "0"}) | {"throughput": rate}

    work = {"TCP, 1 MB writes": {"traffic": {"workload": "tcp", "message": "1M"}}}
    vary = {"path": ["bridge", "memlane"], "work": work}
    told = result(values, name="promises", vary=vary, paper=[], expect=[])
    samples = [
        each.model_copy(update={"values": each.values | {"throughput": 2e9}})
        if each.labels["path"] == "bridge"
        else each
        for each in told.good
    ]
    described = record("promises", **({"cpus": 2, "versions": {"memlane": "1"}} | machine))
    began = {"began": f"2026-11-{20 + number}T00:00:00", "guest": guest}
    results.write(run, described.model_copy(update=began))
    results.write_experiment(run, told.model_copy(update={"samples": samples, "guest": guest}))
    return run


def _sample(number: int, turn: int, variant: plan.Variant, values: dict[str, float], factor: float) -> Sample:
    rate = values["throughput"] * factor
    flow = FlowRecord(
        name="c1 to s1, tcp", source="c1", target="s1", workload="tcp", values={"throughput": rate},
        series=[(0.5, rate), (1.0, rate * 1.1)], latencies=LATENCIES,
    )  # fmt: skip
    return Sample(
        number=number + 1, round=turn, variant=variant.name, labels=variant.labels, began="2026-11-22T00:00:00",
        took=5, placement="near", placements=("near", "near"), flows=[flow],
        values={name: value * factor if name == "throughput" else value for name, value in values.items()},
    )  # fmt: skip
