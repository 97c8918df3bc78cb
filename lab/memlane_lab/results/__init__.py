"""Results: the files of a run, the samples that may be compared, their summary, and two runs side by side."""

from pathlib import Path
from typing import Any


def to_frame(folder: Path) -> Any:  # noqa: ANN401
    """All samples of a run as one table, a DataFrame of pandas (`frame.py` has its columns)."""
    from memlane_lab.results import frame, results

    return frame.to_frame(results.read(folder)[1])
