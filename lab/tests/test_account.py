"""Accounts, as far as they need no bed: what flows told, turned into measures."""

import pytest

from memlane_lab.meters import account
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


def test_a_flow_alone_has_no_fairness() -> None:
    assert "fairness_1s" not in account.of_flows([_flow(1.0)])


def test_a_flow_that_moved_nothing_counts() -> None:
    starved = FlowResult({"throughput": 0.0})
    assert account.of_flows([_flow(5.0, 5.0), starved])["fairness_1s"] == pytest.approx(0.5)


def test_a_point_of_two_seconds_belongs_to_both() -> None:
    late = FlowResult({"throughput": 6.0}, [(0.25, 6.0), (2.25, 6.0), (3.0, 6.0)])
    assert account.of_flows([_flow(6.0, 6.0, 6.0), late])["fairness_1s"] == pytest.approx(1.0)
