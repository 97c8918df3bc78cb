"""Latencies, every one of them: a HdrHistogram of nanoseconds, exact to three significant digits.

Percentiles of whole histograms can be taken at will later, and histograms of several samples be added; percentiles
cannot.
"""

from collections.abc import Iterable, Sequence

from hdrh.histogram import HdrHistogram

_LONGEST = 100 * 10**9
"""Nanoseconds; a longer latency counts as this."""
_SHARES = (0.0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.995, 0.999, 0.9995, 0.9999, 0.99999)


class Latencies:
    """A histogram of times."""

    def __init__(self, seen: Iterable[tuple[float, int]] = ()) -> None:
        """`seen`: (seconds, how often)."""
        self._histogram = HdrHistogram(1, _LONGEST, 3)
        for seconds, count in seen:
            self._histogram.record_value(min(max(1, round(seconds * 1e9)), _LONGEST), count)

    @classmethod
    def decoded(cls, text: str) -> "Latencies":
        """The latencies in a text of `encoded`."""
        found = cls()
        found._histogram.decode_and_add(text)
        return found

    @classmethod
    def added(cls, texts: Iterable[str]) -> "Latencies":
        """The latencies of several texts of `encoded` together."""
        found = cls()
        for text in texts:
            found._histogram.decode_and_add(text)
        return found

    def encoded(self) -> str:
        """The whole histogram in HdrHistogram's own format (V2, compressed, base64)."""
        text: bytes = self._histogram.encode()
        return text.decode()

    @property
    def count(self) -> int:
        """How many observations there are."""
        return int(self._histogram.total_count)

    def percentile(self, share: float) -> float:
        """Seconds that so large a share of observations does not exceed."""
        return float(self._histogram.get_value_at_percentile(100 * share)) / 1e9

    def percentiles(self, shares: Sequence[float]) -> list[float]:
        """`percentile` of each share, in one walk over the histogram."""
        told = self._histogram.get_percentile_to_value_dict([100 * share for share in shares])
        return [float(told[100 * share]) / 1e9 for share in shares]

    @property
    def mean(self) -> float:
        """Seconds."""
        return float(self._histogram.get_mean_value()) / 1e9

    @property
    def deviation(self) -> float:
        """The standard deviation, in seconds."""
        return float(self._histogram.get_stddev()) / 1e9

    def distribution(self) -> list[tuple[float, float]]:
        """(share of observations, not longer than so many seconds), rising; no share that nothing lies beyond."""
        told = [share for share in _SHARES if round((1 - share) * self.count, 6) >= 1]
        return [(share, self.percentile(share)) for share in told]
