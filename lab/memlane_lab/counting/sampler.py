"""Samples of an experiment whose bed is counted: all flows of a path in one boot of the counted host, once a round.

A round is a phase (`host.run`): the same round gives the same counts to the instruction, another one shows how much
hangs on when timers strike.
"""

import hashlib
import json
import shutil
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from memlane_lab.counting import counts, host, kernel, machine
from memlane_lab.counting.counts import Party, Summary, Tables
from memlane_lab.counting.host import Flow, Told, Window
from memlane_lab.errors import LabError
from memlane_lab.paths import memlane
from memlane_lab.plan import Turn, Variant
from memlane_lab.results import Sample
from memlane_lab.setting import Ends, Setting
from memlane_lab.workloads.path_length import PARTIES, STAGES, PathLength

EXACT = "exact"
"""The placement of such samples: one emulated processor, nobody else's work."""
_SENDING = (Party.SENDER_PROGRAM, Party.SENDER_GUEST, Party.SENDER_HOST, Party.SENDER_XEN)
_RECEIVING = (Party.RECEIVER_PROGRAM, Party.RECEIVER_GUEST, Party.RECEIVER_HOST, Party.RECEIVER_XEN)
_SWITCHING = (Party.SWITCH, Party.SWITCH_HOST, Party.SWITCH_XEN, Party.HOST)


def refuses(setting: Setting) -> str | None:
    """Why the setting cannot be counted, or None."""
    if setting.path not in host.PATHS:
        return f"path {setting.path} cannot be laid in the counted host; there are: {', '.join(host.PATHS)}"
    if len(setting.traffic) != 1 or setting.traffic[0].workload != PathLength.name:
        return f"a counted host carries one flow of the workload {PathLength.name} at a time, and nothing beside it"
    if setting.pairs != 1 or setting.shop or setting.load or setting.apart or setting.events:
        return "a counted host holds one pair without load, shop, other host or events"
    if setting.ends is not Ends.GUEST_GUEST or setting.mtu != 1500 or setting.queues != 1:
        return "a counted host has guests at both ends, an MTU of 1500 and one queue"
    return None


def missing(setting: Setting) -> str | None:
    """Why the variant cannot be counted on this machine, or None."""
    if reason := refuses(setting) or machine.missing():
        return reason
    return memlane.Memlane.missing() if setting.path == "memlane" else None


class CountingSampler(AbstractContextManager["CountingSampler"]):
    """Takes an experiment's samples; like `sample.Sampler`."""

    def __init__(self, variants: Sequence[Variant], raw: Path, *, first: int = 1) -> None:
        """`raw` is the folder for what the hosts say; `first` is the first sample's number."""
        self._variants, self._raw, self._number = variants, raw, first
        self._booted: dict[tuple[int, str], tuple[Told, Tables] | LabError] = {}
        self.facts: dict[str, dict[str, Any]] = {}

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._booted.clear()

    def take(self, turn: Turn) -> Sample:
        """Takes a sample; one that fails says why."""
        began, clock = datetime.now(UTC), time.monotonic()
        number, self._number = self._number, self._number + 1
        values: dict[str, float] = {}
        parties: dict[str, dict[str, float]] = {}
        error = None
        try:
            values, parties = self._count(turn)
        except LabError as fault:
            error = f"{type(fault).__name__}: {fault}"
        return Sample(
            number=number,
            round=turn.round,
            variant=turn.variant.name,
            labels=turn.variant.labels,
            began=began.isoformat(timespec="seconds"),
            took=time.monotonic() - clock,
            placement=EXACT,
            placements=(EXACT, EXACT),
            values=values,
            parties=parties,
            error=error,
        )

    def _count(self, turn: Turn) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
        key = _key(turn.variant.setting)
        together = [each for each in self._variants if _key(each.setting) == key]
        booted = self._booted.get((turn.round, key)) or self._boot(turn.round, key, together)
        self._booted = {(turn.round, key): booted} | {
            other: kept for other, kept in self._booted.items() if other[0] == turn.round
        }
        if isinstance(booted, LabError):
            raise booted
        told, tables = booted
        window = told.windows[[each.name for each in together].index(turn.variant.name)]
        return told_values(window, counts.summary(counts.shares(window, tables)))

    def _boot(self, number: int, key: str, together: Sequence[Variant]) -> tuple[Told, Tables] | LabError:
        setting = together[0].setting
        folder = self._raw / f"round-{number}-{setting.path}-{hashlib.sha256(key.encode()).hexdigest()[:6]}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        switch = Path(setting.program) if setting.program else memlane.program()
        try:
            flows = [_flow(each.setting) for each in together]
            told = host.run(setting.path, setting.path_options, flows, switch, folder, phase=number)
            tables = Tables(told, kernel.kernel().symbols, switch if setting.path == "memlane" else None)
        except LabError as fault:
            return fault  # of all its flows, without another boot
        return told, tables


def _key(setting: Setting) -> str:
    """The same for settings whose flows can be counted in one boot."""
    return json.dumps([setting.path, setting.path_options, setting.program], sort_keys=True)


def _flow(setting: Setting) -> Flow:
    stated = setting.traffic[0].parameters
    return Flow(stated["protocol"], stated["message"], stated["messages"], stated["burst"])


def told_values(window: Window, summary: Summary) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """A flow's measures, and who used what."""
    told = window.flow
    kilobytes, packets = told["sent"] * told["size"] / 1024, max(told["frames_out"], 1)
    repeats = summary.repeats
    values: dict[str, float] = {
        "instructions": summary.instructions,
        "instructions_per_kb": summary.instructions / kilobytes,
        "instructions_per_packet": summary.instructions / packets,
        "instructions_per_message": summary.instructions / told["sent"],
        "loads_per_kb": sum(summary.loads.values()) / kilobytes,
        "stores_per_kb": sum(summary.stores.values()) / kilobytes,
        "repeats_per_kb": repeats / kilobytes,
        "steps_per_kb": (summary.instructions + repeats) / kilobytes,
        "packets": told["frames_out"],
        "packet_bytes": told["sent"] * told["size"] / packets,
        "lost": told["sent"] - told["came"],
    }
    for name, parties in (("sending", _SENDING), ("receiving", _RECEIVING), ("switching", _SWITCHING)):
        spent = sum(summary.by_party.get(party, 0) for party in parties)
        values |= {f"{name}_per_packet": spent / packets, f"{name}_per_kb": spent / kilobytes}
    values |= {key: summary.by_stage.get(stage, 0) / kilobytes for stage, key in STAGES.items()}
    values |= {key: summary.by_party.get(party, 0) / kilobytes for party, key in PARTIES.items()}
    return values, {
        "loads per KB": {stage: number / kilobytes for stage, number in summary.loads.items()},
        "stores per KB": {stage: number / kilobytes for stage, number in summary.stores.items()},
        "instructions per KB": {name: number / kilobytes for name, number in summary.functions.items()},
    }
