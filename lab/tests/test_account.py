"""Accounts without guests: figures of flows and meters become measures that add up."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from memlane_lab.common.errors import LabError
from memlane_lab.guests.uml import UmlGuest
from memlane_lab.host import procfs
from memlane_lab.meters import account
from memlane_lab.meters.account import Readings
from memlane_lab.meters.inside import Asked
from memlane_lab.meters.reading import Reading
from memlane_lab.statistics.measures import CPU_PARTIES
from memlane_lab.workloads import FlowResult


def _flow(*rates: float) -> FlowResult:
    """Four points a second, all seconds of one rate."""
    points = [rate for rate in rates for _ in range(4)]
    series = [((index + 1) / 4, rate) for index, rate in enumerate(points)]
    return FlowResult({"throughput": sum(rates) / len(rates)}, series)


def test_flows_that_take_turns_are_fair_in_the_long_run_only() -> None:
    values = account.of_flows([_flow(8.0, 0.0), _flow(0.0, 8.0)])
    assert values["fairness"] == pytest.approx(1.0)
    assert values["fairness_1s"] == pytest.approx(0.5)
    assert values["throughput"] == pytest.approx(8.0)


def test_the_first_flow_is_told_in_equal_shares() -> None:
    assert account.of_flows([_flow(1.0), _flow(4.0), _flow(4.0)])["first_share"] == pytest.approx(1 / 3)


def test_seconds_that_a_flow_did_not_live_through_are_left_out() -> None:
    longer = _flow(3.0, 3.0, 3.0)
    shorter = FlowResult({"throughput": 3.0}, _flow(3.0, 3.0, 3.0).series[:6])
    assert account.of_flows([longer, shorter])["fairness_1s"] == pytest.approx(1.0)


def test_a_dip_is_told_by_the_mean() -> None:
    assert account.of_flows([_flow(4.0, 4.0, 1.0, 3.0)])["lowest"] == pytest.approx(1 / 3)


def test_a_flow_alone_has_no_fairness() -> None:
    assert "fairness_1s" not in account.of_flows([_flow(1.0)])


def test_a_flow_that_moved_nothing_counts() -> None:
    starved = FlowResult({"throughput": 0.0})
    assert account.of_flows([_flow(5.0, 5.0), starved])["fairness_1s"] == pytest.approx(0.5)


def test_a_point_of_two_seconds_belongs_to_both() -> None:
    late = FlowResult({"throughput": 6.0}, [(0.25, 6.0), (2.25, 6.0), (3.0, 6.0)])
    assert account.of_flows([_flow(6.0, 6.0, 6.0), late])["fairness_1s"] == pytest.approx(1.0)


def test_nothing_that_is_delivered_is_not_fair() -> None:
    dead = [FlowResult({"throughput": 0.0}, [(1.0, 0.0), (2.0, 0.0)])] * 2
    values = account.of_flows(dead)
    assert (values["fairness"], values["fairness_1s"], values["first_share"]) == (0.0, 0.0, 0.0)


INSIDE = {"user": 0.1, "system": 0.6, "softirq": 0.2, "irq": 0.0, "idle": 0.0, "steal": 0.0}
COUNTED = {"frames": 1000.0, "bytes": 1e6, "discards": 0.0, "unassembled": 0.0, "overflows": 0.0}


def _inside(number: int, frames: float = 1.0, *, took: float = 0.01) -> "Future[Reading]":
    answer: Future[Reading] = Future()
    counts = {name: number * 2 * value for name, value in (INSIDE | COUNTED).items()}
    answer.set_result(Reading(10.0 + 2 * number, counts | {"frames": number * frames}, took))
    return answer


def _readings(number: int, busy: float = 1.5, **inside: "Future[Reading]") -> Readings:
    host: dict[str, float] = {"host.busy": busy, "host.softirq": 0.0, "host.steal": 0.05}
    for guest, used in (("c1", 0.5), ("s1", 0.4)):
        host |= {f"{guest}.user": used, f"{guest}.system": 0.2, f"{guest}.switches": 100.0}
        host |= {f"{guest}.leader.user": used - 0.1, f"{guest}.leader.system": 0.2}
        host |= {f"{guest}.vhost.user": 0.0, f"{guest}.vhost.system": 0.0}
    host |= {"switch.user": 0.3, "switch.system": 0.0, "helpers.user": 0.05, "lab.user": 0.02}
    counts = {name: number * 2 * value for name, value in host.items()}
    return Readings(Reading(10.0 + 2 * number, counts), Reading(10.0 + 2 * number, {}), Asked(inside))


def _measured(busy: float = 1.75, **after: "Future[Reading]") -> account.Account:
    machine: dict[str, Any] = {"split": UmlGuest.split, "process": SimpleNamespace(group=None)}
    client, server = (SimpleNamespace(name=name, **machine) for name in ("c1", "s1"))
    path = SimpleNamespace(parties=list, helpers=list)
    bed: Any = SimpleNamespace(guests=[client, server], path=path)
    before = _readings(0, busy, c1=_inside(0), s1=_inside(0))
    flow: Any = SimpleNamespace(source=client, target=server)
    answers = {"c1": _inside(1, 200), "s1": _inside(1, 2000)} | after
    return account.measured(bed, before, _readings(1, busy, **answers), [(flow, FlowResult({"throughput": 8e9}))])


def test_parties_helpers_and_others_add_up_to_the_host() -> None:
    values = _measured().values
    assert values["cpu"] == pytest.approx(0.7 + 0.6 + 0.3)
    assert values["cpu"] == pytest.approx(sum(values[party] for party in CPU_PARTIES))
    assert values["cpu"] + values["cpu_helpers"] + values["others"] == pytest.approx(values["host_busy"])
    assert values["cpu_sender"] == pytest.approx(0.7)
    assert values["cpu_receiver"] == pytest.approx(0.6)
    assert values["cpu_helpers"] == pytest.approx(0.07)
    assert values["steal"] == pytest.approx(0.05)
    assert values["switches"] == pytest.approx(200)


def test_the_host_is_busy_when_it_is_not_idle() -> None:
    """In two seconds of two CPUs: 2.5 s idle, 0.2 s waiting, 0.1 s stolen; ticks found 3.9 s of work."""

    def told(user: int, idle: int, iowait: int, steal: int) -> str:
        return f"cpu  {user} 0 0 {idle} {iowait} 0 7 {steal} 0 0\ncpu0 1 2\ncpu1 1 2\nintr 5\n"

    before = procfs.parse_host(told(100, 1000, 10, 5), 50.0)
    after = procfs.parse_host(told(490, 1250, 30, 15), 52.0)
    assert after.busy - before.busy == pytest.approx(2 * 2 - 2.5 - 0.2 - 0.1)
    assert (after.steal - before.steal, after.softirq) == pytest.approx((0.1, 0.07))


def test_others_may_be_less_than_nothing_and_are_shown() -> None:
    assert _measured(busy=1.5).values["others"] == pytest.approx(1.5 - 1.67)


def test_data_and_answers_are_counted_apart() -> None:
    values = _measured().values
    assert (values["data_frames"], values["answer_frames"], values["frames"]) == (1000, 100, 1100)
    assert values["frame_bytes"] == pytest.approx(1e6 / 1000)


def test_a_guest_that_answers_late_loses_its_own_row_and_nobody_elses() -> None:
    silent: Future[Reading] = Future()
    silent.set_exception(LabError("it said nothing"))
    whole = _measured().values
    for late in (_inside(1, 2000, took=1.0), silent):
        values = _measured(s1=late).values
        assert values["cpu"] == pytest.approx(whole["cpu"])
        assert values["cpu"] == pytest.approx(sum(values[party] for party in CPU_PARTIES))
        assert values["cpu_untold"] == pytest.approx(0.3)  # of its kernel; its programs the host knows
        assert (values["cpu_receiver"], values["host_busy"]) == (whole["cpu_receiver"], whole["host_busy"])
        assert values["answer_frames"] == whole["answer_frames"]
        assert not values.keys() & {"data_frames", "frames", "overflows", "inside_user"}


def test_each_partys_own_account_is_kept() -> None:
    parties = _measured().parties
    assert parties["s1"]["user"] == pytest.approx(0.4)
    assert parties["switch"]["user"] == pytest.approx(0.3)


def test_drops_are_told_by_reason_from_the_first_one_on() -> None:
    before = Reading(10.0, {"drops": 5, "drops.same-port": 5, "drops.link-loss": 1})
    after = Reading(12.0, {"drops": 16, "drops.same-port": 5, "drops.link-loss": 3, "drops.receiver-stalled": 8})
    assert account._drops(before, after) == {"link-loss": 1.0, "receiver-stalled": 4.0}
    assert account._network({"drops": 5.5, "drops.link-loss": 1.0}) == {"drops": 5.5}
