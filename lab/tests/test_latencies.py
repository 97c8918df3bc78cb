"""Histograms of latencies keep every observation, also over their way into a file."""

import pytest

from memlane_lab.statistics.latencies import Latencies


def test_percentiles_are_those_of_the_observations() -> None:
    found = Latencies((value / 1e6, 1) for value in range(1, 1001))
    assert found.count == 1000
    for share in (0.5, 0.9, 0.99, 0.999):
        assert found.percentile(share) == pytest.approx(share / 1e3, rel=2e-3)
    shares = [number / 200 for number in range(1, 201)]
    assert found.percentiles(shares) == [found.percentile(share) for share in shares]
    assert found.mean == pytest.approx(500.5e-6, rel=2e-3)
    assert found.deviation == pytest.approx(288.7e-6, rel=2e-3)


def test_a_whole_histogram_is_read_back() -> None:
    found = Latencies([(1e-6, 5), (0.0123, 7), (1000.0, 1)])  # a latency beyond its range counts as the longest
    again = Latencies.decoded(found.encoded())
    assert again.count == 13
    assert again.distribution() == found.distribution()
    assert again.percentile(1.0) == pytest.approx(100, rel=1e-3)


def test_no_share_is_told_that_nothing_lies_beyond() -> None:
    assert [share for share, _ in Latencies([(1.0, 10)]).distribution()] == [0.0, 0.25, 0.5, 0.75, 0.9]
