"""The prices of a machine's primitives: measured before a run, and told with its figures."""

import os

from memlane_lab import report
from memlane_lab.measuring import prices
from memlane_lab.report import shown
from tests import made_up


def test_each_primitive_has_a_price() -> None:
    before = os.sched_getaffinity(0)
    told = prices.measure()
    assert os.sched_getaffinity(0) == before
    assert set(told) >= {"system call", "page fault", "eventfd there and back, one CPU", prices.OTHERS}
    assert ("eventfd there and back, two CPUs" in told) == (len(before) > 1)
    assert all(0 < value < 1 for name, value in told.items() if name != prices.OTHERS)
    assert told["system call"] < told["eventfd there and back, one CPU"]  # which takes four system calls


def test_prices_are_told_with_the_figures() -> None:
    told = {"system call": 1.5e-7, "eventfd there and back, two CPUs": 8e-5, prices.OTHERS: 0.31}
    words = "system call 0.15 µs, eventfd there and back, two CPUs 80 µs, beside 0.31 CPUs of other work"
    assert shown.prices({"prices": told}) == words
    assert shown.prices({}) == "not recorded"
    page = report.markdown(made_up.record("made_up", prices=told), [made_up.result()])
    assert f"| prices | {words} |" in page
    assert "| prices |" not in report.markdown(made_up.record("made_up"), [made_up.result()])
