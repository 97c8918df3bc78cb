"""Experiments and plans: the keys of a file, the messages about mistakes, the order of samples."""

import itertools
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from memlane_lab import guests, workloads
from memlane_lab.bed import events
from memlane_lab.experiment import experiment, plan, schemas
from memlane_lab.experiment.experiment import BadExperiment, Experiment
from memlane_lab.experiment.setting import Setting
from memlane_lab.guests.netns import NetnsGuest
from memlane_lab.host.ports import GuestKind
from memlane_lab.statistics import measures
from memlane_lab.statistics.measures import Measure

MINIMAL = """
title = "t"
question = "q?"
[setting]
traffic = { workload = "tcp" }
[vary]
path = ["bridge", "memlane"]
"""


_EXPECT = '[[expect]]\nmeasure = "cpu"\n'


def _read(tmp_path: Path, text: str) -> Experiment:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    return experiment.load(file)


def _variants(tmp_path: Path, text: str) -> list[plan.Variant]:
    return plan.variants(_read(tmp_path, text))


def _setting(**stated: Any) -> Setting:
    return Setting.model_validate({"path": "bridge", "traffic": {"workload": "tcp"}} | stated)


@pytest.mark.parametrize("file", [*experiment.supplied(), experiment.DEMO], ids=lambda file: file.stem)
def test_every_supplied_experiment_is_one(file: Path) -> None:
    assert plan.variants(experiment.load(file))


def test_the_papers_experiments_are_there() -> None:
    wanted = {
        "what_virtualisation_costs", "which_window", "how_many_guests", "xenvmnet_table_1", "message_sizes",
        "inside_or_outside", "latency_and_jitter",
    }  # fmt: skip
    assert wanted <= {file.stem for file in experiment.supplied()}
    assert {*experiment.files(["papers"])} <= {*experiment.supplied()}
    assert len({*experiment.PAPERS}) == 13


def test_a_file_takes_its_name_and_the_usual_timing(tmp_path: Path) -> None:
    asked = _read(tmp_path, MINIMAL)
    assert (asked.name, asked.repeat, asked.baseline) == ("mine", 8, ("bridge",))


def test_variants_are_all_combinations_but_those_skipped(tmp_path: Path) -> None:
    found = _variants(tmp_path, MINIMAL + 'load = [0, 90]\n[[skip]]\npath = "bridge"\nload = "90"\n')
    assert [each.labels for each in found] == [
        {"path": "bridge", "load": "0"},
        {"path": "memlane", "load": "0"},
        {"path": "memlane", "load": "90"},
    ]
    assert found[2].setting.load == 90


def test_a_key_that_is_no_setting_goes_to_the_traffic_that_has_it(tmp_path: Path) -> None:
    mixed = MINIMAL.replace(
        '{ workload = "tcp" }', '[{ workload = "tcp", message = "1M" }, { workload = "ping", interval = 0.1 }]'
    )
    (first, *_) = _variants(tmp_path, mixed + "streams = [3]\n")
    tcp, ping = first.setting.traffic
    assert (tcp.parameters["streams"], tcp.parameters["message"]) == (3, 1 << 20)
    assert "streams" not in ping.parameters


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (('title = "t"\n', ""), "title: must be stated"),
        (('"bridge", "memlane"', '"bridge", "brigde"'), "there is no path 'brigde'"),
        (('"tcp"', '"tpc"'), "there is no workload 'tpc'"),
        (('workload = "tcp"', 'workload = "tcp", mesage = 1'), "mesage: no such key"),
        (("[vary]", '[vary]\nlaod = [1]'), "'laod' is neither a setting nor a parameter"),
        (("title", 'measures = ["speed"]\ntitle'), "there is no measure 'speed'"),
        (("title", 'baseline = "veth"\ntitle'), "baseline: no path is labelled 'veth'"),
        (("title", "repeat = 0\ntitle"), "repeat: must be at least 1, not 0"),
        (("[setting]", '[setting]\npairs = 2\nload = 101'), "load: must be at most 100, not 101"),
        (('{ workload = "tcp" }', '{ workload = "tcp", from = "c2" }'), "the machine 'c2'; there are: c1, s1"),
        (("[setting]", '[setting]\nreceive_rates = { s9 = 1 }'), "receive_rates names the machine 's9'"),
        (("[setting]", '[setting]\nreceive_rates = { s1 = 0 }'), "receive_rates.s1: must be at least 1, not 0"),
        (
            ("[vary]", '[[expect]]\nmeasure = "cpu"\nalone = true\nversus = { path = "bridge" }\n[vary]'),
            "an expectation with `alone` has no `versus`",
        ),
        (("[vary]", f"{_EXPECT}[vary]"), "an expectation needs a bound"),
        (("[vary]", f"{_EXPECT}at_least = 2\nat_most = 1\n[vary]"), "at_least is greater than at_most"),
        (("[vary]", f'{_EXPECT}at_most = 1\nwhere = {{ path = "bridge" }}\n[vary]'), "there is no variant bridge"),
        (
            ("[vary]", f'{_EXPECT}at_most = 1\nwhere = {{ path = "memlane" }}\n[[skip]]\npath = "memlane"\n[vary]'),
            "expect.0: there is no variant memlane",
        ),
        (
            ("[vary]", f'{_EXPECT}at_most = 1\nversus = {{ path = "bridge" }}\n[[skip]]\npath = "bridge"\n[vary]'),
            "expect.0: memlane has no bridge to be compared with",
        ),
        (('[setting]', f"repeat = 5\n{_EXPECT}at_most = 1\n[setting]"), "at least 6 samples"),
        (("title", "title ="), "is not valid TOML"),
    ],
)  # fmt: skip
def test_mistakes_are_named(tmp_path: Path, change: tuple[str, str], told: str) -> None:
    with pytest.raises(BadExperiment, match=told.replace("(", r"\(")):
        _variants(tmp_path, MINIMAL.replace(*change, 1))


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(BadExperiment, match=r"title.*repeat"):
        _read(tmp_path, MINIMAL.replace('title = "t"', "repeat = -1"))


def test_flows_go_from_each_client_to_its_server_or_as_stated() -> None:
    pairs = _setting(pairs=2)
    assert pairs.machines() == ["c1", "s1", "c2", "s2"]
    assert [(source, target) for source, target, _ in pairs.flows()] == [("c1", "s1"), ("c2", "s2")]
    shared = _setting(pairs=3, shared_receiver=True)
    assert [(source, target) for source, target, _ in shared.flows()] == [("c1", "s1"), ("c2", "s1"), ("c3", "s1")]
    mixed = _setting(
        pairs=2, traffic=[{"workload": "tcp", "from": ["c1", "s2"], "to": "s1"}, {"workload": "ping", "from": "c1"}]
    )
    assert [(source, target, traffic.workload) for source, target, traffic in mixed.flows()] == [
        ("c1", "s1", "tcp"), ("s2", "s1", "tcp"), ("c1", "s1", "ping"),
    ]  # fmt: skip


def test_ends_tell_what_clients_and_servers_run_in() -> None:
    uml, netns = GuestKind.UML, GuestKind.NETNS
    assert plan.kinds(_setting(ends="guest-host"), uml) == [uml, netns]
    assert plan.kinds(_setting(ends="host-guest", pairs=2), uml) == [netns, uml, netns, uml]
    assert plan.kinds(_setting(path="none"), uml) == [netns, netns]


def test_what_cannot_be_measured_is_told_with_its_reason() -> None:
    emulated = plan.Variant({"path": "e1000"}, _setting(path="e1000"))
    assert "only QEMU" in (plan.missing(emulated, GuestKind.UML) or "")
    shared = plan.Variant({"path": "none"}, _setting(path="none", pairs=2, shared_receiver=True))
    assert "two and two" in (plan.missing(shared, GuestKind.UML) or "")


def _order(found: list[plan.Variant], rounds: Iterable[int], seed: int) -> list[str]:
    turns = (turn for number in rounds for turn in plan.turns(found, compared="path", number=number, seed=seed))
    return [turn.variant.name for turn in turns]


def test_a_kind_of_guest_is_what_its_class_says(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other(NetnsGuest):
        kind = GuestKind("other")
        takes_devices = False
        emulates = True

    emulated = plan.Variant({"path": "e1000"}, _setting(path="e1000"))
    assert plan.missing(emulated, GuestKind("other")) == "there is no kind of guest called other"
    monkeypatch.setitem(guests.KINDS, GuestKind("other"), Other)
    assert plan.missing(emulated, GuestKind("other")) is None
    assert plan.missing(emulated, GuestKind("netns")) is not None
    assert guests.choose("other") == "other"


def test_samples_are_interleaved_and_shuffled_by_the_seed(tmp_path: Path) -> None:
    found = _variants(tmp_path, MINIMAL.replace('"bridge", ', '"bridge", "ovs-dpdk", ') + "load = [0, 30, 60, 90]\n")
    one, same, other = (_order(found, range(4), seed) for seed in (1, 1, 2))
    assert one == same
    assert one != other
    assert one[12:] == _order(found, (1, 2, 3), 1)  # a run that goes on does so in the same order
    for start in range(0, len(one), 12):  # a round: every variant once
        assert len(set(one[start : start + 12])) == 12
    for start in range(0, len(one), 3):  # those compared side by side, those that poll among them
        names = sorted(one[start : start + 3])
        assert [name.split(",")[0] for name in names] == ["bridge", "memlane", "ovs-dpdk"]
        assert len({name.split(",")[1] for name in names}) == 1


def test_compared_variants_are_once_in_each_place(tmp_path: Path) -> None:
    four = '"bridge", "ovs-dpdk", "vde", '
    found = _variants(tmp_path, MINIMAL.replace('"bridge", ', four) + "load = [0, 90]\n")
    rounds = [_order(found, (number,), 1) for number in range(4)]
    idle = [[name for name in each if name.endswith("load 0")] for each in rounds]
    for place in range(4):
        assert len({each[place] for each in idle}) == 4
    assert len({pair for each in idle for pair in itertools.pairwise(each)}) == 12  # each follows each other one once
    first = [each[0].partition("load ")[2] for each in rounds]
    assert sorted(first) == ["0", "0", "90", "90"]  # so do groups
    assert _order(found, range(4, 8), 1) != _order(found, range(4), 1)  # the next square is another one


def test_a_run_may_be_narrowed_to_labels(tmp_path: Path) -> None:
    asked = _read(tmp_path, MINIMAL + f'load = [0, 90]\n{_EXPECT}at_most = 1\nwhere = {{ path = "memlane" }}\n')
    (idle,) = plan.narrowed([asked], ["load=0"])
    assert [each.name for each in plan.variants(idle)] == ["bridge, load 0", "memlane, load 0"]
    assert len(idle.expect) == 1
    alone, other = plan.narrowed([asked, _read(tmp_path, MINIMAL)], ["memlane", "90"])
    assert ([each.name for each in plan.variants(alone)], alone.expect) == (["memlane, load 90"], ())
    assert [each.name for each in plan.variants(other)] == ["memlane"]  # which has no load
    with pytest.raises(BadExperiment, match="'veth' names no label; there are: load=0"):
        plan.narrowed([asked], ["veth"])


def test_experiments_are_named_or_found() -> None:
    assert experiment.files(["promises"]) == [experiment.FOLDER / "promises.toml"]
    assert experiment.files(["all"]) == experiment.supplied()
    assert experiment.files(["mine.toml"]) == [Path("mine.toml")]


def test_editors_can_check_files_by_the_schema() -> None:
    validate = jsonschema.Draft202012Validator(schemas.experiments())
    for file in experiment.supplied():
        assert list(validate.iter_errors(tomllib.loads(file.read_text()))) == []
    assert list(validate.iter_errors(tomllib.loads(MINIMAL + "repeet = [1]\n"))) == []  # a dimension of that name
    assert list(validate.iter_errors(tomllib.loads("repeet = 1\n" + MINIMAL)))
    assert list(validate.iter_errors(tomllib.loads(MINIMAL.replace('"tcp"', '"tpc"'))))


def _on_page(page: str) -> str:
    """The experiment on a page of docs."""
    text = (experiment.FOLDER.parents[1] / "docs" / page).read_text()
    (example,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    return str(example)


def test_the_example_in_the_documentation_is_an_experiment(tmp_path: Path) -> None:
    found = _variants(tmp_path, _on_page("how-to/run-an-experiment.md"))
    assert [[traffic.parameters.get("streams") for traffic in each.setting.traffic] for each in found] == [
        [1, None], [4, None], [1, None], [4, None],
    ]  # fmt: skip


def test_the_experiment_of_the_tutorial_is_one(tmp_path: Path) -> None:
    found = _variants(tmp_path, _on_page("tutorial/3-first-experiment.md"))
    assert [each.setting.path for each in found] == ["bridge", "memlane"]
    assert [(traffic.sources, traffic.target) for traffic in found[0].setting.traffic] == [
        (("c1",), "s2"), (("c2",), "s2"),
    ]  # fmt: skip


def test_no_two_measures_have_one_name() -> None:
    """Else a table would bear the title of another."""
    brought = (found for kind in workloads.WORKLOADS.values() for found in kind.measures)
    known: dict[str, Measure] = {}
    for found in (*measures.COMMON, *events.MEASURES, *brought):
        assert known.setdefault(found.name, found) == found
