"""The calibration: the experiment `calibration`, measured so that an interruption costs one sample.

Samples that failed, or were disturbed by other work on the machine, are measured once more.
"""

from collections.abc import Sequence
from pathlib import Path

from memlane_lab.commands import prepare as images
from memlane_lab.common.counted import counted
from memlane_lab.common.progress import say
from memlane_lab.experiment import experiment
from memlane_lab.host.ports import GuestKind
from memlane_lab.measuring import run
from memlane_lab.model import observations
from memlane_lab.results import results

FILE = experiment.FOLDER / "calibration.toml"
_SEED = 1
"""Of the order of samples: nothing is compared with anything that another order would be fairer to."""


def measure(kind: GuestKind, out: Path, paths: Sequence[str] = ()) -> None:
    """Measures into the folder `out`, or goes on there; some `paths` only, if they are named."""
    planned = run.prepare([FILE], kind, only=[f"path={path}" for path in paths])
    images.prepare(kind)
    narrowing = [word for path in paths for word in ("--only", f"path={path}")]
    run.measure(planned, kind, out, _SEED, resume=True, narrowing=narrowing)
    if again := forget_bad(out):
        were, them = ("was", "it") if again == 1 else ("were", "them")
        say(f"{counted(again, 'sample')} failed or {were} disturbed by other work: measuring {them} once more")
        run.measure(planned, kind, out, _SEED, resume=True, narrowing=narrowing)


def forget_bad(out: Path) -> int:
    """Drops samples that failed or were disturbed, so that a resumed run takes them again; returns their number."""
    _, (result,) = results.read(out)
    good = [each for each in result.good if each.values.get("others", 0.0) <= observations.DISTURBED]
    results.write_experiment(out, result.model_copy(update={"samples": good}))
    return len(result.samples) - len(good)
