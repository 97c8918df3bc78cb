"""Profiling: the party of a hit, costs of parts with their errors, refusals; and one real profile."""

import random
import re
import subprocess
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from memlane_lab import cli, report
from memlane_lab.common.errors import LabError
from memlane_lab.common.wait import until
from memlane_lab.counting import stages
from memlane_lab.counting.counts import Party
from memlane_lab.counting.stages import Place, Symbols
from memlane_lab.experiment import experiment, plan
from memlane_lab.host.ports import GuestKind
from memlane_lab.measuring import run
from memlane_lab.profiling import costs, owners, perf, profile, profiler
from memlane_lab.profiling.explain import explain
from memlane_lab.profiling.owners import Maps, Owner, Owners
from memlane_lab.profiling.perf import Hit
from memlane_lab.profiling.profile import Part, Profile, Profiled
from memlane_lab.results import results
from tests import made_up

_TCP, _IDLE, _HALT, _SOFTIRQ, _LOCK = (0xFFFFFFFF81000000 + 0x100 * number for number in range(5))
_NAMES = ("tcp_sendmsg", "default_idle", "pv_halt", "do_softirq", "_raw_spin_unlock")
_HOST = Symbols.of((0xFFFFFFFF81000000 + 0x100 * number, 0x80, name) for number, name in enumerate(_NAMES))
_SAID = """iperf3   101/102 [000]   486.876093:     500250 
\tffffffff81000010
\tfffffffffffffe00
\t    7f0012345678

swapper     0/0     [001]   486.876583:     500250 
\tffffffff81000110

  PERF_RECORD_LOST lost 3
uml user  103/103 [000]   486.877074:     500250 

"""  # noqa: W291


def test_what_perf_says_is_read() -> None:
    found = list(perf.parse(_SAID))
    assert found == [
        Hit("iperf3", 101, 500250, (0xFFFFFFFF81000010, 0x7F0012345678)),
        Hit("swapper", 0, 500250, (0xFFFFFFFF81000110,)),
        Hit("uml user", 103, 500250, ()),
    ]
    assert [hit.in_kernel for hit in found] == [True, True, False]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("Error:\nAccess to performance monitoring and observability operations is limited.", "run as root"),
        ("Failure: Operation not permitted", "perf_event_paranoid is 4"),
        ("event syntax error: 'cpu-clocks'\n", "cannot record: event syntax error"),
        ("", "does not say why"),
    ],
)
def test_a_perf_that_does_not_record_is_told_in_one_sentence(said: str, told: str) -> None:
    assert told in perf.refused(said, "4")


def _owners(by_process: dict[int, Owner]) -> Owners:
    bed: Any = SimpleNamespace(guests=[], path=SimpleNamespace(name="none", parties=list))
    found = Owners(bed, ["c1"], _HOST)
    found._by_process.update(by_process)
    return found


@pytest.mark.parametrize(
    ("hit", "party", "stage"),
    [
        (Hit("iperf3", 1, 1, (_TCP,)), Party.SENDER_HOST, "socket and TCP/UDP"),
        (Hit("iperf3", 1, 1, (_LOCK, _TCP)), Party.SENDER_HOST, "socket and TCP/UDP"),
        (Hit("iperf3", 1, 1, (0x401000, _TCP)), Party.SENDER_PROGRAM, "program"),
        (Hit("uml-userspace", 2, 1, (_TCP,)), Party.RECEIVER_HOST, "system call"),
        (Hit("uml-userspace", 2, 1, ()), Party.RECEIVER_PROGRAM, "program"),
        (Hit("swapper", 0, 1, (_IDLE,)), Party.HOST, stages.IDLE),
        (Hit("swapper", 0, 1, (_HALT, _IDLE)), Party.HOST, stages.IDLE),
        (Hit("swapper", 0, 1, (_TCP, _SOFTIRQ, _IDLE)), Party.HOST, stages.REST),
        (Hit("kthreadd", 2**22, 1, (_TCP,)), Party.LAB, stages.REST),
        (Hit("somebody", 2**22 + 1, 1, (0x401000,)), Party.LAB, stages.REST),
    ],
)
def test_a_hit_belongs_to_the_task_that_ran(hit: Hit, party: Party, stage: str) -> None:
    known = _owners(
        {
            1: Owner(Party.SENDER_PROGRAM, Party.SENDER_HOST, Place.PROGRAM, Place.NATIVE_KERNEL),
            2: Owner(Party.RECEIVER_PROGRAM, Party.RECEIVER_HOST, Place.PROGRAM, Place.HOST_KERNEL),
        }
    )
    found = known.whose(hit, stages.usual())
    assert (found.party, found.stage) == (party, stage)


def test_callers_stand_the_outermost_first() -> None:
    known = _owners({1: Owner(Party.SENDER_PROGRAM, Party.SENDER_HOST, Place.PROGRAM, Place.NATIVE_KERNEL)})
    found = known.whose(Hit("iperf3", 1, 1, (_TCP, _SOFTIRQ, _HALT)), stages.usual())
    assert (found.callers, found.function) == (("pv_halt", "do_softirq"), "tcp_sendmsg")


def test_functions_of_a_program_are_found_where_it_is_mapped() -> None:
    sleeping = subprocess.Popen(["sleep", "60"])
    try:
        until(lambda: _is_loaded(sleeping.pid), timeout=60, what="sleep to be loaded")
        maps = Maps(sleeping.pid)
        with pytest.raises(LabError, match="is stripped"):
            maps.insist("memlane::")
        libc = next(entry for entry in maps._files if entry[3].name.startswith("libc.so"))
        table = owners.exported(libc[3])
        assert table is not None
        write = next(at for at, name in zip(table.addresses, table.names, strict=True) if name.startswith("write"))
        assert maps.function(libc[2] + write).startswith("write")
        assert maps.function(0) == "(unknown)"
    finally:
        sleeping.kill()
        sleeping.wait()


def _is_loaded(pid: int) -> bool:
    """Whether the loader has mapped the code of the C library, which it does after its headers."""
    return re.search(r" r-xp .*libc", Path(f"/proc/{pid}/maps").read_text()) is not None


def test_guests_below_qemu_are_refused() -> None:
    assert owners.refuses([GuestKind.UML, GuestKind.NETNS]) is None
    assert "profile uml guests" in (owners.refuses([GuestKind.UML, GuestKind.TCG]) or "")


def test_a_counted_experiment_is_refused() -> None:
    asked = experiment.load(experiment.FOLDER / "path_length.toml")
    with pytest.raises(LabError, match="counted, not timed"):
        profiler.check(asked, plan.variants(asked), GuestKind.UML)


def test_the_error_of_sampling_is_poissons() -> None:
    assert costs.poisson(0) == pytest.approx((0.0, 3.689), abs=1e-3)  # Garwood's own table
    assert costs.poisson(10) == pytest.approx((4.795, 18.39), abs=1e-2)


def test_bounds_hold_the_truth_as_often_as_they_say() -> None:
    chance = random.Random(3)
    truth, held = 25.0, 0
    for _ in range(400):
        hits = sum(chance.random() < truth / 5000 for _ in range(5000))
        low, high = costs.poisson(hits)
        held += low <= truth <= high
    assert held >= 0.93 * 400


def _sample(variant: str, number: int, hits: dict[tuple[Party, str], int]) -> Profiled:
    parts = [
        Part(party=party, place=Place.HOST_KERNEL, stage=stage, function=f"of {stage}", hits=count, cost=count * 1000.0)
        for (party, stage), count in hits.items()
    ]
    return Profiled(
        number=number, round=number, variant=variant, labels={"path": variant}, placement="near", seconds=2.0,
        per={"KB": 10.0, "second": 1.0}, cpu=1e-4, lost=0, parts=tuple(parts),
    )  # fmt: skip


_COPY, _IP = (Party.SENDER_HOST, "copy guest-guest"), (Party.SENDER_HOST, "IP")
_NOT_OURS = {(Party.LAB, "IP"): 1000, (Party.HOST, stages.IDLE): 1000}


def _made(bridge: int = 1000, memlane: int = 500) -> Profile:
    taken = [_sample("bridge", 1, {_COPY: bridge, _IP: 100} | _NOT_OURS)]
    taken += [_sample("memlane", 2, {_COPY: memlane, _IP: 101} | _NOT_OURS)]
    return Profile(
        experiment="made_up", compare="path", baseline=("bridge",), event="cpu-clock", unit="ns", rate=1999,
        samples=tuple(taken),
    )  # fmt: skip


def test_costs_are_of_those_who_are_the_networks() -> None:
    found = _made()
    told = costs.of(found.variants()["bridge"], "stage", "KB")
    assert {name: cost.value for name, cost in told.items()} == {"copy guest-guest": 50_000.0, "IP": 5_000.0}
    assert costs.whole(found.variants()["bridge"], "KB").value == 55_000.0
    assert told["IP"].low < told["IP"].value < told["IP"].high
    with pytest.raises(LabError, match="does not tell how many units of 'packet'"):
        costs.of(found.variants()["bridge"], "stage", "packet")


def test_differences_are_told_the_largest_first_and_add_up() -> None:
    variants = _made().variants()
    found = explain(variants["bridge"], variants["memlane"], "stage", "KB")
    assert [part.name for part in found.parts] == ["copy guest-guest", "IP"]
    assert [part.told_apart for part in found.parts] == [True, False]
    assert sum(part.more for part in found.parts) == pytest.approx(found.all.more)
    assert found.ratio == pytest.approx(601 / 1100)


def _rounds(variant: str, counts: tuple[int, ...], first: int = 0) -> list[Profiled]:
    return [_sample(variant, number, {_COPY: count}) for number, count in enumerate(counts, first)]


def test_rounds_that_differ_widen_the_bounds() -> None:
    alike = explain(_rounds("a", (10_000,) * 3), _rounds("b", (10_500,) * 3), "stage", "KB")
    unlike = explain(_rounds("a", (8_000, 10_000, 12_000)), _rounds("b", (12_500, 10_500, 8_500)), "stage", "KB")
    assert alike.all.told_apart
    assert not unlike.all.told_apart


def test_what_a_round_was_like_cancels_out_where_rounds_are_shared() -> None:
    one = _rounds("a", (8_000, 10_000, 12_000))
    assert explain(one, _rounds("b", (8_500, 10_500, 12_500)), "stage", "KB").all.told_apart
    assert not explain(one, _rounds("b", (8_500, 10_500, 12_500), first=3), "stage", "KB").all.told_apart


def test_a_profile_is_read_as_it_was_written(tmp_path: Path) -> None:
    chains = {"bridge": Counter({"switch;a;b": 3, "switch;a": 1})}
    profile.write(tmp_path, _made(), chains)
    assert profile.read(tmp_path) == _made()
    assert profile.read_stacks(tmp_path, "bridge") == chains["bridge"]
    rows = (tmp_path / "profile.csv").read_text().splitlines()
    assert rows[0].endswith("hits,cost,cost per KB,cost per second")
    assert len(rows) == 1 + sum(len(sample.parts) for sample in _made().samples)
    (tmp_path / profile.NAME).write_text('{"format_version": 7}')
    with pytest.raises(LabError, match="format version 7"):
        profile.read(tmp_path)


def test_an_appended_profile_is_read_as_one_written_at_once(tmp_path: Path) -> None:
    made, calls = _made(), Counter({"switch;a;b": 3})
    profile.write(tmp_path, made.model_copy(update={"samples": made.samples[:1]}), {made.samples[0].variant: calls})
    for sample in made.samples[1:]:
        profile.append(tmp_path, sample, calls)
    found = profile.read(tmp_path)
    assert found == made
    for variant, samples in made.variants().items():
        assert profile.read_stacks(tmp_path, variant)["switch;a;b"] == 3 * len(samples)
    profile.write(tmp_path, made, {})
    assert profile.read(tmp_path) == made


def _run_folder(folder: Path) -> None:
    results.write(folder, made_up.record("made_up"))
    results.write_experiment(folder, made_up.result())
    profile.write(folder / "made_up", _made(), {"bridge": Counter({"host kernel for the sender;f;of IP": 9})})


def test_the_report_shows_stages_parties_and_flames(tmp_path: Path) -> None:
    _run_folder(tmp_path)
    page = report.write(tmp_path).read_text()
    assert "CPU time, ns per KB, by stage" in page
    assert "CPU time, ns per KB, by party" in page
    assert "flame graph" in page
    assert "1,999 times a second" in page


def test_two_variants_are_explained_on_the_terminal(tmp_path: Path) -> None:
    _run_folder(tmp_path)
    said = CliRunner().invoke(cli.app, ["explain", "bridge", "memlane", "--in", str(tmp_path)])
    assert said.exit_code == 0, said.output
    assert "memlane costs 0.546 x of bridge" in said.output
    assert "copy guest-guest" in said.output


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("bridge", "carrier-pigeon"), "labels are: bridge, memlane"),
        (("bridge", "memlane", "--per", "acre"), "does not tell how many units of 'acre'"),
    ],
)
def test_what_cannot_be_explained_is_told(tmp_path: Path, words: tuple[str, ...], told: str) -> None:
    _run_folder(tmp_path)
    said = CliRunner().invoke(cli.app, ["explain", *words, "--in", str(tmp_path)])
    assert told in str(said.exception)


@pytest.mark.parametrize(
    ("begun", "became"),
    [
        ("memlane-lab profile same", "same_or_separate"),
        ("memlane-lab run who_h", "who_holds_memory"),
        ("memlane-lab ex", "explain"),
    ],
)
def test_a_shell_completes_commands_and_names(begun: str, became: str) -> None:
    asked = {"_MEMLANE_LAB_COMPLETE": "complete_bash", "COMP_WORDS": begun, "COMP_CWORD": str(len(begun.split()) - 1)}
    said = CliRunner().invoke(cli.app, [], prog_name="memlane-lab", env=asked)
    assert became in said.output.split()


def test_a_run_without_a_profile_is_told(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="holds no profile"):
        profile.find(tmp_path)


_NATIVE = """
title = "t"
question = "q"
measures = ["throughput"]
seconds = 2
baseline = "none"
[setting]
traffic = { workload = "tcp" }
[vary]
path = ["none"]
"""


_PAIR = _NATIVE.replace('"none"', '"memlane"').replace("seconds = 2", "seconds = 1")


@pytest.mark.real
@pytest.mark.timed
def test_functions_of_guests_and_of_the_switch_are_named(tmp_path: Path, own_runs: Path) -> None:  # noqa: ARG001
    (tmp_path / "pair.toml").write_text(_PAIR)
    planned = run.prepare([tmp_path / "pair.toml"], GuestKind.UML, 1)
    run.measure(planned, GuestKind.UML, tmp_path / "out", 1, rate=1999)
    found = profile.read(tmp_path / "out" / "pair")
    assert found is not None
    (sample,) = found.samples
    copies = {part.party for part in sample.own if part.function.startswith("memlane_virtq::copy::")}
    assert copies == {Party.SWITCH}
    both = costs.of([sample], "both", "KB")
    assert both[f"{Party.SWITCH}: copy guest-guest"].hits > 0
    assert both[f"{Party.RECEIVER_GUEST}: copy user-kernel"].hits > 0
    unnamed = sum(part.hits for part in sample.own if part.stage == stages.REST)
    assert unnamed < 0.1 * sum(part.hits for part in sample.own)


@pytest.mark.real
@pytest.mark.timed
def test_a_live_profile_agrees_with_the_kernels_account(tmp_path: Path, own_runs: Path) -> None:  # noqa: ARG001
    if reason := perf.missing():
        pytest.fail(f"perf comes with make deps: {reason}")
    (tmp_path / "native.toml").write_text(_NATIVE)
    planned = run.prepare([tmp_path / "native.toml"], GuestKind.NETNS, 1)
    run.measure(planned, GuestKind.NETNS, tmp_path / "out", 1, rate=1999)
    found = profile.read(tmp_path / "out" / "native")
    assert found is not None
    (sample,) = found.samples
    assert sample.cpu
    own = sum(part.cost for part in sample.own if part.party is not Party.HOST) / 1e9 / sample.seconds
    assert own == pytest.approx(sample.cpu, rel=0.15)
    told = costs.of([sample], "stage", "KB")
    assert told["copy user-kernel"].value > told["IP"].value
    assert told.get(stages.REST, costs.Cost(0, 0.0, 0.0, 0.0, ())).value < 0.15 * costs.whole([sample], "KB").value
