"""NDR and PDR of a path in a table."""

from rich.table import Table

from memlane_lab.measuring.rig import Rates
from memlane_lab.statistics.measures import significant


def table(rates: Rates) -> Table:
    """The rates, their bounds, and whether the search came to its end."""
    shown = Table(
        "rate", "loss", "kilo-frames/s", "up to", "arrive", "", title=f"{rates.path}, frames of {rates.size} B"
    )
    for each in rates.found:
        low, high = (significant(bound / 1e3) if bound else "-" for bound in (each.lower, each.upper))
        word = "" if each.finished else "out of time"
        if each.finished and each.upper is None:
            word = "the highest load asked for"
        if each.finished and each.lower is None:
            word = "even the lowest load loses more"
        loss = f"at most {100 * each.goal.loss:g} %"
        shown.add_row(each.goal.name, loss, low, high, significant(each.throughput / 1e3), word)
    return shown
