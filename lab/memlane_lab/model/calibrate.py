"""The calibration: the experiment `calibration`, measured so that an interruption costs one sample."""

from collections.abc import Sequence
from pathlib import Path

from memlane_lab import experiment, run
from memlane_lab.images import prepare as images
from memlane_lab.ports import GuestKind

FILE = experiment.FOLDER / "calibration.toml"
_SEED = 1
"""Of the order of samples: nothing is compared with anything that another order would be fairer to."""


def measure(kind: GuestKind, out: Path, paths: Sequence[str] = ()) -> None:
    """Measures into the folder `out`, or goes on there; some `paths` only, if they are named."""
    planned = run.prepare([FILE], kind, only=[f"path={path}" for path in paths])
    images.prepare(kind)
    narrowing = [word for path in paths for word in ("--only", f"path={path}")]
    run.measure(planned, kind, out, _SEED, resume=True, narrowing=narrowing)
