"""Short real runs: a file's experiment comes out as results, on every kind of guest."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from memlane_lab import guests
from memlane_lab.common.wait import until
from memlane_lab.experiment import experiment, plan
from memlane_lab.host.ports import GuestKind
from memlane_lab.measuring import run
from memlane_lab.paths.memlane import program
from memlane_lab.results import results
from memlane_lab.results.results import ExperimentResult
from memlane_lab.statistics.latencies import Latencies
from memlane_lab.statistics.measures import CPU_PARTIES

pytestmark = pytest.mark.real

SHORT = """
title = "short"
question = "Does it come out?"
seconds = 2
warm_up = 1
repeat = 1
[setting]
"""
TCP = 'traffic = { workload = "tcp", message = "128K" }\n'


def _measured(tmp_path: Path, kind: GuestKind, text: str) -> ExperimentResult:
    file = tmp_path / "short.toml"
    seconds = 8 if kind in {"tcg", "kvm"} else 4  # translated guests take their time to answer meters
    file.write_text(SHORT.replace("seconds = 2", f"seconds = {seconds}") + text)
    run.measure(run.prepare([file], kind, None), kind, tmp_path / "out", seed=1)
    record, (result,) = results.read(tmp_path / "out")
    assert record.ended
    assert result.complete
    return result


@pytest.mark.parametrize("kind", ["netns", "uml", "tcg", "kvm"])
def test_a_flow_is_measured_on_every_kind_of_guest(tmp_path: Path, kind: str) -> None:
    chosen = GuestKind(kind)
    result = _measured(tmp_path, chosen, TCP + 'path = "bridge"\n')
    if reason := guests.KINDS[chosen].missing():  # then this, and nothing else, must be the result
        assert [each.reason for each in result.missing] == [f"{kind} guests: {reason}"]
        return
    (sample,) = result.samples
    assert sample.error is None
    values = sample.values
    assert values["throughput"] > 1e6
    assert values["cpu"] == pytest.approx(sum(values[party] for party in CPU_PARTIES))
    assert 0 < values["cpu"] <= (os.cpu_count() or 1) * 1.1
    assert values["frames"] > 0
    assert kind == "netns" or values["interrupts"] > 0
    assert len(sample.flows[0].series) >= 3
    assert sum(1 for _ in (tmp_path / "out" / "short" / "raw").iterdir()) == 2


@pytest.mark.timed
def test_paths_traffic_and_load_are_what_the_file_states(tmp_path: Path) -> None:
    result = _measured(
        tmp_path,
        GuestKind.UML,
        """
pairs = 2
load = 20
traffic = [
    { workload = "tcp", from = "c1", to = "s2", streams = 2, buffer = "64K" },
    { workload = "udp", from = "s1", to = "s2", message = 1000, rate = 1000000 },
    { workload = "ping", from = "c2" },
    { workload = "request-response", from = "c1", message = 100 },
    { workload = "open-loop", from = "c2", rate = 200 },
]
[vary]
path = ["bridge", "e1000"]
""",
    )
    (missing,) = result.missing
    assert "only QEMU emulates NICs" in missing.reason
    (sample,) = result.samples
    assert sample.error is None
    assert [flow.name for flow in sample.flows] == [
        "c1 to s2, tcp", "s1 to s2, udp", "c2 to s2, ping", "c1 to s1, request-response", "c2 to s2, open-loop",
    ]  # fmt: skip
    tcp, udp, ping, asking, paced = (flow.values for flow in sample.flows)
    assert sample.values["overflows"] == sample.values["unassembled"] == 0  # so slow a flow loses nothing
    assert 0.3e6 < udp["throughput"] < 1.2e6
    assert sample.values["throughput"] == pytest.approx(tcp["throughput"] + udp["throughput"])
    assert 0 < ping["ping_p50"] <= ping["ping_p99"]
    assert 0 < asking["rtt_p50"] <= asking["rtt_p999"]
    assert asking["exchanges"] > 10
    assert paced["exchanges"] == pytest.approx(200, rel=0.02)
    assert paced["unanswered"] == 0
    assert 0 < paced["response_p50"] <= paced["response_p999"]
    counts = [Latencies.decoded(flow.latencies).count for flow in sample.flows if flow.latencies]
    assert counts[0] > 0
    assert counts[1] > 10
    assert counts[2] == 800
    assert sample.values["cpu_programs"] > 0.05  # four guests compute for a fifth of their time, if the host lets them


@pytest.mark.skipif(program() is None, reason="the switch is not built in this lane")
@pytest.mark.parametrize("kind", [GuestKind.UML, pytest.param(GuestKind.TCG, marks=pytest.mark.prove)])
def test_what_memlane_counts_is_measured(tmp_path: Path, kind: GuestKind) -> None:
    (sample,) = _measured(tmp_path, kind, TCP + 'path = "memlane"\n').samples
    assert sample.error is None
    assert kind != GuestKind.UML or sample.values["cpu_switch"] > 0  # TCG is too slow to keep it busy for a tick
    for name in (
        "kicks",
        "path_interrupts",
        "delivered",
        "worker_busy",
        "cycles_per_frame",
        "kicks_per_frame",
        "interrupts",
    ):
        assert sample.values[name] > 0, name
    assert sample.values["delivered"] * 8 > sample.values["throughput"] * 0.5


def test_a_failed_sample_stays_a_failure(tmp_path: Path) -> None:
    impossible = TCP + 'path = "bridge"\nmtu = 68\n'  # IPv6 needs 1280: the guests cannot be addressed
    result = _measured(tmp_path, GuestKind.UML, impossible)
    (sample,) = result.samples
    assert sample.error is not None
    assert sample.values == {}
    assert run.unmeasured(tmp_path / "out") == ["short"]


def test_an_interrupted_run_keeps_what_it_has_and_leaves_nothing(tmp_path: Path, own_runs: Path) -> None:
    file = tmp_path / "long.toml"
    file.write_text(SHORT.replace("repeat = 1", "repeat = 50") + TCP + 'path = "bridge"\n')
    out = tmp_path / "out"
    command = [sys.executable, "-m", "memlane_lab", "run", str(file), "--guest", "uml", "--out", str(out)]
    lab = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    kept = out / "long" / "samples.jsonl"
    until(lambda: kept.exists() and kept.read_text().count("\n") >= 1, timeout=180, what="a sample")
    lab.send_signal(signal.SIGINT)
    assert lab.wait(120) == 130
    record, (result,) = results.read(out)
    assert record.ended is None
    assert not result.complete
    assert result.samples[0].error is None
    assert "this run was interrupted" in (out / "report.html").read_text()
    assert list(own_runs.glob("ml*")) == []


def test_a_kept_bed_serves_all_samples(tmp_path: Path) -> None:
    file = tmp_path / "kept.toml"
    file.write_text(
        SHORT.replace("repeat = 1", 'repeat = 2\nboot = "once"') + TCP + 'path = "bridge"\n[vary]\nload = [0, 50]\n'
    )
    assert len(plan.variants(experiment.load(file))) == 2
    run.measure(run.prepare([file], GuestKind.UML, None), GuestKind.UML, tmp_path / "out", seed=1)
    _, (result,) = results.read(tmp_path / "out")
    assert [sample.error for sample in result.samples] == [None] * 4
    loaded = [sample.values["cpu_programs"] for sample in result.samples if sample.labels["load"] == "50"]
    idle = [sample.values["cpu_programs"] for sample in result.samples if sample.labels["load"] == "0"]
    assert min(loaded) > max(idle)
