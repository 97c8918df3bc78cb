"""NDR and PDR by search: bounds, conditional throughput, searches of networks with known rates."""

import json
import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from memlane_lab import cli, paths
from memlane_lab.common.errors import LabError
from memlane_lab.host.ports import Device, GuestKind, Tap, VhostUser
from memlane_lab.host.session import Session
from memlane_lab.measuring import rig, run
from memlane_lab.paths import memlane
from memlane_lab.results import results, to_frame
from memlane_lab.statistics.loss_search import (
    NDR,
    PDR,
    Bound,
    Goal,
    Search,
    Trial,
    classified,
    conditional_throughput,
)  # fmt: skip

GOAL = Goal("goal", 0.01, exceed=0.5, trial=1.0, total=10.0)


def _trials(*kinds: str) -> list[Trial]:
    """G, B: full trials that keep or miss the goal; g, b: short ones."""
    return [Trial(100.0, 1.0 if kind.isupper() else 0.25, 0.0 if kind in "gG" else 0.5) for kind in "".join(kinds)]


@pytest.mark.parametrize(
    ("seen", "bound"),
    [
        ("", Bound.UNDECIDED),
        ("GGGG", Bound.UNDECIDED),  # six further seconds could still be bad: more than half of ten
        ("GGGGG", Bound.LOWER),  # five of ten are good for sure
        ("BBBBB", Bound.UNDECIDED),
        ("BBBBBB", Bound.UPPER),  # six of ten are bad for sure
        ("GGGGBBBBBB", Bound.UPPER),
        ("GGGGGBBBBB", Bound.LOWER),
        ("b" * 20, Bound.UNDECIDED),  # five seconds: half of ten
        ("b" * 21, Bound.UPPER),
        ("g" * 40, Bound.UNDECIDED),  # short trials alone never make a lower bound
        ("b" * 21 + "g", Bound.UNDECIDED),  # a good short trial outweighs a bad one
    ],
)
def test_a_load_is_decided_when_no_further_trial_could_change_it(seen: str, bound: Bound) -> None:
    """By hand, after appendix A: exceed ratio 0.5, duration sum 10 s."""
    assert classified(GOAL, _trials(seen)) is bound


def test_conditional_throughput_leaves_out_the_loss_of_the_allowed_time() -> None:
    """After appendix B: of ten trials of a second, sorted by loss, the fifth counts where half may be worse."""
    trials = [Trial(100.0, 1.0, loss) for loss in (0, 0, 0, 0.002, 0.004, 0.1, 0.2, 0.3, 0.4, 0.5)]
    assert conditional_throughput(GOAL, 100.0, trials) == pytest.approx(99.6)
    assert conditional_throughput(GOAL, 100.0, trials[:4]) == 0.0  # not tried for long enough


def _capacity(rate: float, noise: float = 0.0, seed: int = 0) -> Callable[[float, float], float]:
    """A network that carries so many frames a second; in a share of trials it hiccups and loses 3 %."""
    luck = random.Random(seed)

    def measure(load: float, _: float) -> float:
        hiccup = 0.03 if luck.random() < noise else 0.0
        return max(hiccup, 1 - rate / load, 0.0)

    return measure


def test_both_rates_of_a_known_network_are_found() -> None:
    search = Search(_capacity(3.3e6), 1e3, 20e6)
    ndr_found, pdr_found = search.run([NDR, PDR])
    assert ndr_found.finished
    assert ndr_found.lower is not None
    assert ndr_found.upper is not None
    assert ndr_found.lower <= 3.3e6 < ndr_found.upper <= ndr_found.lower / (1 - NDR.width) * 1.0001
    assert pdr_found.lower is not None
    assert pdr_found.lower <= 3.3e6 / 0.995 * 1.0001
    assert pdr_found.lower >= ndr_found.lower
    assert pdr_found.throughput == pytest.approx(3.3e6, rel=0.01)


@pytest.mark.parametrize("seed", range(20))
def test_hiccups_in_a_fifth_of_trials_do_not_move_the_rate(seed: int) -> None:
    (found,) = Search(_capacity(1e6, noise=0.2, seed=seed), 1e3, 20e6).run([NDR])
    assert found.lower == pytest.approx(1e6, rel=0.06)


def test_a_network_that_is_never_full_or_always_too_slow_says_so() -> None:
    (fast,) = Search(_capacity(1e9), 1e3, 1e6).run([NDR])
    assert (fast.lower, fast.upper, fast.finished) == (1e6, None, True)
    (dead,) = Search(lambda *_: 1.0, 1e3, 1e6).run([NDR])
    assert (dead.lower, dead.upper, dead.throughput, dead.finished) == (None, 1e3, 0.0, True)


def test_a_search_ends_with_its_time() -> None:
    search = Search(_capacity(1e6), 1e3, 20e6)
    (found,) = search.run([NDR], seconds=3)
    assert not found.finished
    assert sum(each.seconds for each in search.trials) <= 3 + NDR.trial


def test_trials_are_bounded() -> None:
    search = Search(_capacity(1e6, noise=0.5, seed=3), 1e3, 20e6)
    search.run([NDR, PDR])
    assert len(search.trials) < 60 * NDR.total
    assert all(1e3 <= each.load <= 20e6 and math.isfinite(each.loss) for each in search.trials)


REPORT = '{"seconds": 1.0, "total": {"sent": 900}, "fate": {"sent": 1000, "lost": 10}}'


def test_frames_that_a_full_ring_kept_back_count_as_lost() -> None:
    assert rig.lost(REPORT, 950) == pytest.approx(0.01)  # 50 behind: within a burst
    assert rig.lost(REPORT, 2000) == pytest.approx(0.01 + (2000 - 900 - 64) / 2000)


def test_endpoints_are_named_as_the_rig_names_them() -> None:
    assert rig.place(VhostUser(Path("/x/a.sock"))) == "vu:/x/a.sock"
    assert rig.place(VhostUser(Path("/x/a.sock"), guest_listens=True)) == "vu-listen:/x/a.sock"
    assert rig.place(Tap("port-a", "ns")) == "tap:port-a@ns"
    with pytest.raises(LabError, match="vhost-user sockets and TAPs only"):
        rig.place(Device("a", None))


def test_rates_are_told_in_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    def searched(path: str, size: int, highest: float, goals: list[Goal], seconds: float) -> rig.Rates:
        assert (path, size, seconds) == ("memlane", 64, 600)
        search = Search(_capacity(1e6), 1e3, highest)
        return rig.Rates(path, size, search.run(goals), search.trials)

    monkeypatch.setattr(rig, "search", searched)
    told = CliRunner().invoke(cli.app, ["ndr"])
    assert told.exit_code == 0, told.output
    assert "NDR" in told.output
    assert "PDR" in told.output
    assert replace(NDR, trial=2.0) == rig.goals(2.0, 11.0)[0]


FRAMES = """
title = "frames"
question = "How many?"
bed = "rig"
seconds = 1
repeat = 1
measures = ["forwarded", "ndr", "pdr"]
baseline = "bridge"
[setting]
traffic = { workload = "blast", budget = 0.3, trial = 1.0, total = 1.0 }
[vary]
path = ["bridge", "memlane", "vde"]
message = [64]
"""


def test_the_rig_stands_for_guests_of_paths_that_it_can_drive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMLANE", "/bin/true")
    file = tmp_path / "frames.toml"
    file.write_text(FRAMES)
    (planned,) = run.prepare([file], GuestKind.UML)
    assert "vde, message 64" in [each.variant for each in planned.missing]
    assert planned.seconds == pytest.approx(len(planned.variants) * (2 + 1 + 2 * 0.3))
    file.write_text(FRAMES.replace("[vary]", "pairs = 3\nload = 50\n[vary]"))
    (planned,) = run.prepare([file], GuestKind.UML)
    assert {each.reason for each in planned.missing} == {
        "the rig has two ports and nothing else: it does not know pairs, load"
    }


def test_a_trial_that_a_busy_host_missed_is_repeated_for_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "rig"
    said = tmp_path / "said"
    program.write_text(
        f'#!/bin/sh\necho "$*" >> {said}\ncase "$*" in *"--seconds 0.04 "*) echo "{{}}";; '
        f'*"--sizes 99"*) echo "no such port" >&2; exit 1;; *) echo "{rig._MISSED}" >&2; exit 1;; esac\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("MEMLANE_RIG", str(program))
    assert rig._blast(["vu:a"], 64, 0.02) == "{}\n"
    assert len(said.read_text().splitlines()) == 2
    with pytest.raises(LabError, match="no such port"):
        rig._blast(["vu:a"], 99, 0.02)
    assert len(said.read_text().splitlines()) == 3
    with pytest.raises(LabError, match="interrupted before"):
        rig._blast(["vu:a"], 64, 0.05)
    assert len(said.read_text().splitlines()) == 3 + rig._TRIES


@pytest.mark.real
@pytest.mark.skipif(memlane.program() is None, reason="the switch is not built in this lane")
def test_the_rigs_rates_are_samples_like_any_others(tmp_path: Path) -> None:
    file = tmp_path / "frames.toml"
    file.write_text(FRAMES.replace(', "vde"', ""))
    run.measure(run.prepare([file], GuestKind.UML), GuestKind.UML, tmp_path / "out", seed=1)
    _, (result,) = results.read(tmp_path / "out")
    assert [sample.error for sample in result.samples] == [None] * 2
    assert all(sample.values["forwarded"] > 0 for sample in result.samples)
    assert len(list((tmp_path / "out" / "frames" / "raw").glob("*-trials.json"))) == 2
    assert set(to_frame(tmp_path / "out").measure) >= {"forwarded"}


@pytest.mark.real
@pytest.mark.prove
def test_the_newest_open_vswitch_carries_frames() -> None:
    with Session() as session:
        path = paths.make(session, "ovs-dpdk", newest=True, max_sleep=500)
        told = json.loads(rig._blast(rig._ports(path), 64, 0.5))
    assert told["total"]["received"] > 0
