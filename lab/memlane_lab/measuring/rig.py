"""Samples of an experiment with the rig's bed: `memlane-rig blast` at both ports of a path, in place of guests.

First frames as fast as they go, both ways; then, on request, the highest loads without loss (NDR) and with 0.5 % of it
(PDR) of one way, by search (`statistics/loss_search.py`).
"""

import json
import subprocess
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from memlane_lab import paths
from memlane_lab.common.errors import LabError, NotAvailable
from memlane_lab.common.progress import say
from memlane_lab.experiment.plan import Turn
from memlane_lab.experiment.setting import Setting
from memlane_lab.host import rust
from memlane_lab.host.ports import Endpoint, GuestKind, Port, Tap, VhostUser, mac
from memlane_lab.host.session import Session
from memlane_lab.measuring import taking
from memlane_lab.measuring.taking import Measured
from memlane_lab.meters.account import Account
from memlane_lab.paths import PATHS, NetworkPath
from memlane_lab.results.results import Sample
from memlane_lab.statistics.loss_search import NDR, PDR, Found, Goal, Search, Trial
from memlane_lab.workloads.blast import FORWARDED, RATES, Blast

_BURST = 64
"""Frames that the generator may be behind its rate when a trial ends."""
_KIND = GuestKind.KVM
"""The kind of guests that the rig stands for: QEMU's, whose front end offers all features."""
LOWEST = 1000.0
"""Frames a second."""
_MISSED = "interrupted before the measurement began"
"""What the rig says where a busy host gave it no CPU within the whole of a short trial."""
_TRIES = 6
"""Of a trial that was missed so, each twice as long as the one before."""
_LAID = 2.0
"""Seconds that laying a path takes, about."""
_TRIALS = 2.0
"""Times its budget that a search takes, about: the rig starts anew for each of its short trials."""


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
    with Session() as session:
        ports = _ports(paths.make(session, path))
        done = _searched(ports, size, highest, goals, seconds)
        return Rates(path, size, done[0], done[1])


def _searched(
    ports: Sequence[str], size: int, highest: float, goals: Sequence[Goal], seconds: float
) -> tuple[list[Found], list[Trial]]:
    def measure(load: float, length: float) -> float:
        told = _blast(ports, size, length, "--pattern", "one-way", "--rate-pps", f"{load:.0f}")
        loss = lost(told, load)
        say(f"  {load:,.0f} frames/s for {length:g} s: lost {100 * loss:.3f} %")
        return loss

    done = Search(measure, min(LOWEST, highest), highest)
    return done.run(goals, seconds), done.trials


def goals(trial: float, total: float) -> list[Goal]:
    """NDR and PDR (0.5 %, as FD.io's CSIT has it) with trials of so many seconds."""
    return [Goal(each.name, each.loss, trial=trial, total=total) for each in (NDR, PDR)]


def lost(report: str, load: float) -> float:
    """The share of intended frames that did not arrive: lost ones, and those that a full ring kept from being sent."""
    told: dict[str, Any] = json.loads(report)
    intended = load * told["seconds"]
    unsent = max(0.0, float(intended - told["total"]["sent"]) - _BURST)
    share = float(told["fate"]["lost"]) / max(float(told["fate"]["sent"]), 1.0)
    return min(1.0, share + float(unsent / intended))


def place(endpoint: Endpoint) -> str:
    """The endpoint as the rig names it."""
    match endpoint:
        case VhostUser(socket, guest_listens):
            return f"{'vu-listen' if guest_listens else 'vu'}:{socket}"
        case Tap(device, namespace):
            return f"tap:{device}@{namespace}"
        case _:
            raise LabError("the rig takes vhost-user sockets and TAPs only: choose another path")


def _ports(path: NetworkPath) -> list[str]:
    """Lays the path; returns its two ports as the rig names them."""
    return [place(nic.endpoint) for nic in path.lay([Port(name, _KIND, mac(at)) for at, name in enumerate("ab", 1)])]


def _blast(ports: Sequence[str], size: int, seconds: float, *words: str) -> str:
    """The report of the rig."""
    if (rig := rust.program("memlane-rig", named_by="MEMLANE_RIG")) is None:
        raise NotAvailable("no memlane-rig found: run make build")
    listed = [word for port in ports for word in ("--port", port)]
    told = ""
    for again in range(_TRIES):
        lasting = seconds * 2**again
        usual = ["--json", "--seconds", f"{lasting:g}", "--warm-up", "0.2", "--sizes", str(size)]
        command = [str(rig), "blast", *usual, *words, *listed]
        done = subprocess.run(command, capture_output=True, text=True, timeout=lasting + 60, check=False)
        if not done.returncode:
            return done.stdout
        told = (done.stderr or done.stdout).strip()
        if _MISSED not in told:
            break
    raise LabError(f"memlane-rig blast failed: {told}")


def refuses(setting: Setting) -> str | None:
    """Why the rig cannot stand for the setting's guests, or None."""
    if len(setting.traffic) != 1 or setting.traffic[0].workload != Blast.name:
        return f"the rig carries one flow of the workload {Blast.name}, and nothing beside it"
    usual = Setting(path=setting.path, traffic=setting.traffic)
    known = {"path", "path_options", "program", "traffic"}
    odd = [
        name for name in Setting.model_fields if name not in known and getattr(setting, name) != getattr(usual, name)
    ]
    if odd:
        return f"the rig has two ports and nothing else: it does not know {', '.join(odd)}"
    return PATHS[setting.path].refuses(_KIND)


def missing(setting: Setting) -> str | None:
    """Why the variant cannot be measured on this machine, or None."""
    if reason := refuses(setting):
        return reason
    if setting.build:
        return None if setting.build.exists() else f"there is no {setting.program}: `make ablation` builds it"
    return PATHS[setting.path].missing()


def seconds(setting: Setting, unpaced: float) -> float:
    """About how long a sample takes."""
    return _LAID + unpaced + _TRIALS * float(setting.traffic[0].parameters["budget"])


class RigSampler(AbstractContextManager["RigSampler"]):
    """Takes an experiment's samples; like `sample.Sampler`."""

    def __init__(self, seconds: int, raw: Path, *, first: int = 1) -> None:
        """`raw` is the folder for the rig's reports; `first` is the first sample's number."""
        self._seconds, self._raw, self._number = seconds, raw, first
        self._raw.mkdir(parents=True, exist_ok=True)
        self.facts: dict[str, dict[str, Any]] = {}
        """None: there are no guests."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def take(self, turn: Turn) -> Sample:
        """Takes a sample; one that fails says why."""
        number, self._number = self._number, self._number + 1
        return taking.take(turn, number, lambda: Measured(Account(self._values(turn.variant.setting, number), {})))

    def _values(self, setting: Setting, number: int) -> dict[str, float]:
        asked = setting.traffic[0].parameters
        build = {"program": str(setting.build)} if setting.build else {}
        with Session() as session:
            ports = _ports(paths.make(session, setting.path, **setting.path_options, **build))
            report = _blast(ports, asked["message"], self._seconds)
            (self._raw / f"{number:04}-blast.json").write_text(report)
            told = json.loads(report)
            values = {FORWARDED.name: told["total"]["received"] / told["seconds"]}
            if asked["budget"]:
                limits = goals(asked["trial"], asked["total"])
                found, trials = _searched(ports, asked["message"], asked["highest"], limits, asked["budget"])
                (self._raw / f"{number:04}-trials.json").write_text(json.dumps([vars(each) for each in trials]))
                values |= {RATES[each.goal.name].name: each.lower for each in found if each.finished and each.lower}
        return values
