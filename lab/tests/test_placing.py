"""Placement of the two ends and the network: the keys, the CPUs in use, the counters."""

import os
import threading
import time
from pathlib import Path

import pytest
from pydantic import ValidationError

from memlane_lab import paths
from memlane_lab.common.wait import until
from memlane_lab.experiment import experiment, plan
from memlane_lab.experiment.plan import Variant
from memlane_lab.experiment.setting import Setting
from memlane_lab.host import procfs
from memlane_lab.host.ports import GuestKind
from memlane_lab.host.session import Session
from memlane_lab.measuring import sample
from memlane_lab.report import tables
from tests import made_up

TRAFFIC = {"workload": "tcp"}


def _setting(path: str, clients: int, servers: int, network: int) -> Setting:
    place = {"clients": clients, "servers": servers, "network": network}
    return Setting.model_validate({"path": path, "traffic": TRAFFIC, "place": place})


def test_machines_are_placed_in_one_way_only() -> None:
    stated = {"path": "bridge", "traffic": TRAFFIC, "place": {"clients": 0, "servers": 0, "network": 0}}
    with pytest.raises(ValidationError, match="remove one of the two"):
        Setting.model_validate(stated | {"pinning": "apart"})


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        (_setting("bridge", 0, 0, 1), "works in the calls of those who send"),
        (_setting("bridge", 0, 4096, 0), "names CPU number 4096, counted from 0"),
    ],
)
def test_a_place_that_cannot_be_kept_to_is_told(setting: Setting, told: str) -> None:
    assert told in (plan.missing(Variant({}, setting), GuestKind.NETNS) or "")


def test_every_placement_of_two_cpus_is_there() -> None:
    asked = experiment.load(experiment.FOLDER / "same_or_separate.toml")
    places = {
        (place.clients == place.servers, place.clients == place.network, place.servers == place.network)
        for each in plan.variants(asked)
        if each.setting.path == "memlane" and (place := each.setting.place)
    }
    together, receiver, sender, network = (True,) * 3, (False, True, False), (False, False, True), (True, False, False)
    assert places == {together, receiver, sender, network}


@pytest.mark.real
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU only: there is one placement")
def test_the_ends_and_the_switch_run_where_they_are_placed(session: Session) -> None:
    first, second = sorted(os.sched_getaffinity(0))[:2]
    bed = sample.lay(session, _setting("memlane", 0, 1, 1), GuestKind.NETNS)
    kept = [os.sched_getaffinity(bed.named[name].process.pid) for name in ("c1", "s1")]
    assert kept == [{first}, {second}]
    (switch,) = bed.path.parties()

    def of_workers() -> list[set[int]]:
        workers = [thread.pid for thread in procfs.threads(switch.pid) if thread.name.startswith("worker")]
        return [os.sched_getaffinity(worker) for worker in workers]

    until(lambda: of_workers() == [{second}], timeout=60, what="the switch's worker on its CPU")


def test_every_network_with_a_process_can_be_kept_to_a_cpu() -> None:
    kept = {name for name, path in paths.PATHS.items() if path.kept_to(1)}
    assert kept == {name for name, path in paths.PATHS.items() if path.parties is not paths.NetworkPath.parties}


def test_waiting_is_told_from_being_pushed() -> None:
    counted: list[procfs.Switches] = []

    # A sleep always gives the CPU up: a process that waits for a byte may find it there just before it would.
    def sleep_often() -> None:
        for _ in range(100):
            time.sleep(0.001)
        counted.append(procfs.context_switches(str(threading.get_native_id())))

    thread = threading.Thread(target=sleep_often)
    thread.start()
    thread.join()
    assert counted[0].waiting >= 50
    assert counted[0].total >= counted[0].waiting
    assert procfs.context_switches("0") == procfs.Switches()


def test_interrupts_between_cpus_only_grow() -> None:
    before = procfs.between_cpus()
    if before is None:
        assert "Rescheduling" not in Path("/proc/interrupts").read_text()
        return
    after = procfs.between_cpus()
    assert after is not None
    assert after >= before > 0


def test_near_and_far_samples_are_told_apart() -> None:
    result = made_up.result()
    far = [each.model_copy(update={"placement": "far"}) if each.round % 2 else each for each in result.samples]
    told = tables.by_placement(result.model_copy(update={"samples": far}), "throughput")
    assert told is not None
    assert told.header == ["variant", "far", "near"]
    assert told.rows[0][1:] == ["2.02 (n = 4)", "1.98 (n = 4)"]
    assert tables.by_placement(result, "throughput") is None
