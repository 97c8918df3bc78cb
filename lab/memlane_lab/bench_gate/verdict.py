"""The verdict of a row: by the interval of the median ratio of the two sides within rounds, and the bar for it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from memlane_lab.common.errors import LabError
from memlane_lab.statistics import stats


class Verdict(Enum):
    """The verdict of a row's interval about the bar; the value is the exit code of the gate."""

    WITHIN = 0
    """All of the interval is below the bar."""
    SLOWER = 1
    """All of it is above."""
    UNDECIDED = 3
    """The bar lies in it: more rounds, or a quieter machine, would tell."""


@dataclass
class Row:
    """Costs of both sides, round by round."""

    name: str
    old: list[float] = field(default_factory=list)
    new: list[float] = field(default_factory=list)

    def add(self, old: float, new: float) -> None:
        """One round more."""
        self.old.append(old)
        self.new.append(new)


@dataclass(frozen=True)
class Judged:
    """A row and its verdict; the ratio is new to old, above 1 if new costs more."""

    row: Row
    ratio: stats.Interval
    verdict: Verdict


def judge(row: Row, slower: float) -> Judged:
    """Judges `row`, which may be slower by the share `slower`."""
    ratio = stats.ratio(row.new, row.old)
    if ratio is None:
        raise LabError(f"{row.name} has no costs to compare")
    return Judged(row, ratio, of(ratio, 1 + slower))


def of(interval: stats.Interval, bar: float) -> Verdict:
    """The verdict of an interval about a bar."""
    if interval.bounds is None:
        return Verdict.UNDECIDED
    low, high = interval.bounds
    if high <= bar:
        return Verdict.WITHIN
    return Verdict.SLOWER if low > bar else Verdict.UNDECIDED


def exit_code(judged: Sequence[Judged]) -> int:
    """0 if every row is within, 1 if one is slower, else 3."""
    return worst(one.verdict for one in judged)


def worst(all_verdicts: Iterable[Verdict]) -> int:
    """The exit code of several verdicts."""
    verdicts = set(all_verdicts)
    return next((v.value for v in (Verdict.SLOWER, Verdict.UNDECIDED) if v in verdicts), Verdict.WITHIN.value)


def table(judged: Sequence[Judged]) -> str:
    """The rows, a line each."""
    width = max((len(one.row.name) for one in judged), default=0)
    lines = [f"{'row':{width}}  {'old ns':>10} {'new ns':>10}   change (95 % interval)     verdict"]
    for one in judged:
        old, new = stats.median(one.row.old).estimate, stats.median(one.row.new).estimate
        lines.append(
            f"{one.row.name:{width}}  {old:10.1f} {new:10.1f}   {_change(one.ratio):25}  {one.verdict.name.lower()}"
        )
    return "\n".join(lines)


def _change(ratio: stats.Interval) -> str:
    percent = f"{100 * (ratio.estimate - 1):+.1f} %"
    return (
        percent
        if ratio.bounds is None
        else percent + " ({:+.1f} to {:+.1f})".format(*(100 * (b - 1) for b in ratio.bounds))
    )
