"""NDR and PDR of a path: `memlane-rig blast` as its guests, the load by search (`statistics/loss_search.py`)."""

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table

from memlane_lab import paths
from memlane_lab.common.errors import LabError, NotAvailable
from memlane_lab.common.progress import say
from memlane_lab.host import rust
from memlane_lab.host.ports import Endpoint, GuestKind, Port, Tap, VhostUser, mac
from memlane_lab.host.session import Session
from memlane_lab.statistics.loss_search import NDR, PDR, Found, Goal, Search, Trial
from memlane_lab.statistics.measures import significant

_BURST = 64
"""Frames that the generator may be behind its rate when a trial ends."""
_KIND = GuestKind.KVM
"""The kind of guests that the rig stands for: QEMU's, whose front end offers all features."""
LOWEST = 1000.0
"""Frames a second."""


@dataclass
class Rates:
    """The results of a path."""

    path: str
    size: int
    """Bytes of a frame."""
    found: list[Found]
    trials: list[Trial] = field(default_factory=list)


def search(path: str, size: int, highest: float, goals: Sequence[Goal], seconds: float) -> Rates:
    """Lays the path between two ports of the rig, and searches for the rates of one direction."""
    if (rig := rust.program("memlane-rig", named_by="MEMLANE_RIG")) is None:
        raise NotAvailable("no memlane-rig found: run make build")
    with Session() as session:
        laid = paths.make(session, path)
        ports = [
            place(nic.endpoint) for nic in laid.lay([Port(name, _KIND, mac(at)) for at, name in enumerate("ab", 1)])
        ]

        def measure(load: float, length: float) -> float:
            words = ["--seconds", f"{length:g}", "--warm-up", "0.2", "--sizes", str(size), "--rate-pps", f"{load:.0f}"]
            listed = [word for port in ports for word in ("--port", port)]
            loss = lost(_run([str(rig), "blast", "--json", "--pattern", "one-way", *words, *listed]), load)
            say(f"  {load:,.0f} frames/s for {length:g} s: lost {100 * loss:.3f} %")
            return loss

        done = Search(measure, min(LOWEST, highest), highest)
        return Rates(path, size, done.run(goals, seconds), done.trials)


def place(endpoint: Endpoint) -> str:
    """The endpoint as the rig names it."""
    match endpoint:
        case VhostUser(socket, guest_listens):
            return f"{'vu-listen' if guest_listens else 'vu'}:{socket}"
        case Tap(device, namespace):
            return f"tap:{device}@{namespace}"
        case _:
            raise LabError("the rig takes vhost-user sockets and TAPs only: choose another path")


def lost(report: str, load: float) -> float:
    """The share of intended frames that did not arrive: lost ones, and those that a full ring kept from being sent."""
    told: dict[str, Any] = json.loads(report)
    intended = load * told["seconds"]
    unsent = max(0.0, float(intended - told["total"]["sent"]) - _BURST)
    share = float(told["fate"]["lost"]) / max(float(told["fate"]["sent"]), 1.0)
    return min(1.0, share + float(unsent / intended))


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise LabError(f"memlane-rig blast failed: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def goals(trial: float, total: float) -> list[Goal]:
    """NDR and PDR (0.5 %, as FD.io's CSIT has it) with trials of so many seconds."""
    return [Goal(each.name, each.loss, trial=trial, total=total) for each in (NDR, PDR)]


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
