"""Samples of an experiment with the counted bed: all flows of a path in one boot of the counted host, once a round.

Where guests are Xen's (`guest = "xen"`), that host is Xen with its dom0 (`xen/`): its path `bridge` is xen-netback's
with the bridge, `none` two namespaces of dom0. A boot measures instructions (the workload `path-length`), or
memory (`held-memory`).

A round is a phase (`host.run`): the same round gives the same counts to the instruction, another one shows how much
hangs on when timers strike. Xen boots for a minute before anything can be counted: there a boot holds all rounds that
are wanted, six at most.
"""

import hashlib
import json
import shutil
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from memlane_lab.counting import counts, host, kernel, machine
from memlane_lab.counting.counts import Party, Summary, Tables
from memlane_lab.counting.host import Flow, Window
from memlane_lab.experiment.plan import Turn, Variant
from memlane_lab.experiment.setting import XEN, Ends, Setting
from memlane_lab.measuring import taking
from memlane_lab.measuring.taking import Measured
from memlane_lab.meters.account import Account
from memlane_lab.paths import memlane
from memlane_lab.results.results import Sample
from memlane_lab.workloads.held_memory import HeldMemory
from memlane_lab.workloads.path_length import MISSES, PARTIES, STAGES, PathLength
from memlane_lab.xen import bed, memory
from memlane_lab.xen import counts as domains

Values = tuple[dict[str, float], dict[str, dict[str, float]]]
"""Of a sample: its measures, and the figures of each party."""
EXACT = "exact"
"""The placement of such samples: one emulated processor, without other work."""
_ROUNDS_OF_XEN = 6
"""Most of them in a boot."""
_XENVMNIC = "xenvmnic"
"""An option of the path `bridge` under Xen: guests have XenVMNIC beside their ordinary interface; its parameters."""
_HERE = {Ends.GUEST_HOST: "s1", Ends.HOST_GUEST: "c1"}
"""Which machine is a program of dom0."""
_SENDING = (Party.SENDER_PROGRAM, Party.SENDER_GUEST, Party.SENDER_HOST, Party.SENDER_XEN)
_RECEIVING = (Party.RECEIVER_PROGRAM, Party.RECEIVER_GUEST, Party.RECEIVER_HOST, Party.RECEIVER_XEN)
_SWITCHING = (Party.SWITCH, Party.SWITCH_HOST, Party.SWITCH_XEN, Party.HOST)


def refuses(setting: Setting) -> str | None:
    """Why the setting cannot be counted, or None."""
    paths = bed.PATHS if setting.guest == XEN else host.PATHS
    if setting.path not in paths:
        return f"path {setting.path} cannot be laid in the counted host; there are: {', '.join(paths)}"
    if len(setting.traffic) != 1 or setting.traffic[0].workload not in (PathLength.name, HeldMemory.name):
        return f"a counted host carries one flow of the workload {PathLength.name} at a time, and nothing beside it"
    if reason := _refuses_memory(setting) if _looks_at_memory(setting) else _refuses_pairs(setting):
        return reason
    if setting.shop or setting.load or setting.apart or setting.events:
        return "a counted host has no load, shop, other host or events"
    if setting.mtu != 1500 or setting.queues != 1:
        return "a counted host has an MTU of 1500 and one queue"
    if setting.ends is not Ends.GUEST_GUEST and (setting.guest != XEN or setting.ends not in _HERE):
        return f'a counted host has guests at both ends, or dom0 at one of them (guest = "{XEN}")'
    if setting.ends in _HERE and (setting.path == "none" or _XENVMNIC in setting.path_options):
        return "dom0 is at an end of back ends only: of the paths bridge and memlane"
    if setting.guest == XEN and setting.path != "memlane" and (unknown := {*setting.path_options} - {_XENVMNIC}):
        return f"path {setting.path} of a counted host of Xen has no option {', '.join(sorted(unknown))}"
    if not setting.offloads and setting.guest != XEN:
        return f'offloads are taken from guests of Xen only (guest = "{XEN}")'
    return None


def _looks_at_memory(setting: Setting) -> bool:
    return setting.traffic[0].workload == HeldMemory.name


def _refuses_memory(setting: Setting) -> str | None:
    if setting.guest != XEN or setting.path == "none" or setting.ends is not Ends.GUEST_GUEST or not setting.offloads:
        return (
            "memory is looked at in guests of Xen as they are, on the paths bridge and memlane: "
            f'state guest = "{XEN}", and neither ends nor offloads'
        )
    if setting.pairs * 2 > len(bed.NAMES):
        return f"an emulated Xen holds {len(bed.NAMES)} guests at most"
    return None


def _refuses_pairs(setting: Setting) -> str | None:
    return None if setting.pairs == 1 else "a counted host holds one pair where instructions are counted"


def missing(setting: Setting) -> str | None:
    """Why the variant cannot be counted on this machine, or None."""
    if reason := refuses(setting) or machine.missing():
        return reason
    return memlane.Memlane.missing() if setting.path == "memlane" else None


def seconds(setting: Setting) -> float:
    """About how long a sample takes, its share of the boot included."""
    return 40.0 if _looks_at_memory(setting) else 2.5


class CountingSampler(AbstractContextManager["CountingSampler"]):
    """Takes an experiment's samples; like `sample.Sampler`.

    Counts do not depend on other work of the machine: as many hosts are booted side by side as it has
    processors for, ahead of the turns that ask for them.
    """

    def __init__(self, variants: Sequence[Variant], raw: Path, *, rounds: int, taken: Sequence[Sample] = ()) -> None:
        """`raw` is the folder for the hosts' output; of so many `rounds`, the samples `taken` are there already."""
        self._raw, self._rounds = raw, rounds
        self._number = max((each.number for each in taken), default=0) + 1
        self._taken = {(each.round, each.variant) for each in taken if not each.error}
        self._together: dict[str, list[Variant]] = {}
        for each in variants:
            self._together.setdefault(_key(each.setting), []).append(each)
        self._booted: dict[tuple[int, str], Future[list[Values]]] = {}
        self._boots = ThreadPoolExecutor(machine.at_once())
        self.facts: dict[str, dict[str, Any]] = {}

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._boots.shutdown(wait=False, cancel_futures=True)
        while not all(boot.done() for boot in self._booted.values()):  # also those that come to their QEMU only now
            machine.end_all()
            time.sleep(0.1)

    def take(self, turn: Turn) -> Sample:
        """Takes a sample; one that fails says why."""
        number, self._number = self._number, self._number + 1
        return taking.take(turn, number, lambda: Measured(Account(*self._count(turn))), lambda: EXACT)

    def _count(self, turn: Turn) -> Values:
        key = _key(turn.variant.setting)
        first = self._of_one_boot(turn.variant.setting, turn.round).start
        if (first, key) not in self._booted:
            self._begin(turn.round, key)
        booted = self._booted[first, key].result()
        together = self._together[key]
        place = [each.name for each in together].index(turn.variant.name)
        return booted[(turn.round - first) * len(together) + place]

    def _of_one_boot(self, setting: Setting, number: int) -> range:
        """The rounds that are counted in one boot with that round."""
        most = _ROUNDS_OF_XEN if setting.guest == XEN and not _looks_at_memory(setting) else 1
        first = number - number % most
        return range(first, min(first + most, self._rounds))

    def _begin(self, number: int, asked: str) -> None:
        """Starts all boots still needed in that round and in those of the same boots; the one of `asked` first."""
        self._booted = {known: kept for known, kept in self._booted.items() if known[0] + _ROUNDS_OF_XEN > number}
        for key, together in sorted(self._together.items(), key=lambda each: each[0] != asked):
            rounds = self._of_one_boot(together[0].setting, number)
            lacking = {(each, one.name) for each in rounds for one in together} - self._taken
            if lacking and (rounds.start, key) not in self._booted:
                self._booted[rounds.start, key] = self._boots.submit(self._boot, rounds, key, together)

    def _boot(self, rounds: range, key: str, together: Sequence[Variant]) -> list[Values]:
        """All variants of the first round, then of the next ones."""
        setting = together[0].setting
        folder = self._raw / f"round-{rounds[0]}-{setting.path}-{hashlib.sha256(key.encode()).hexdigest()[:6]}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        if _looks_at_memory(setting):
            return _in_memory([each.setting for each in together], folder)
        flows = [_flow(each.setting) for each in together]
        if setting.guest == XEN:
            return _in_xen(setting, flows, folder, rounds)
        return _in_host(setting, flows, folder, rounds[0])


def _in_host(setting: Setting, flows: Sequence[Flow], folder: Path, phase: int) -> list[Values]:
    switch = _switch(setting)
    told = host.run(setting.path, setting.path_options, flows, switch, folder, phase=phase)
    tables = Tables(told, kernel.kernel().symbols, switch)
    return [told_values(window, counts.summary(counts.shares(window, tables))) for window in told.windows]


def _in_xen(setting: Setting, flows: Sequence[Flow], folder: Path, phases: Sequence[int]) -> list[Values]:
    windows, tables = bed.count(replace(_plan(setting), flows=flows, phases=phases), folder)
    return [told_values(window, counts.summary(domains.shares(window, tables))) for window in windows]


def _in_memory(settings: Sequence[Setting], folder: Path) -> list[Values]:
    """Of all states, in one boot."""
    asked = settings[0]
    plan = replace(_plan(asked), guests=bed.NAMES[: 2 * asked.pairs])
    found = memory.measure(plan, asked.traffic[0].parameters["megabytes"], folder)
    return [(found[each.traffic[0].parameters["state"]], {}) for each in settings]


def _plan(setting: Setting) -> bed.Plan:
    """The plan of a boot for a setting of Xen, still without flows."""
    options = dict(setting.path_options)
    module = options.pop(_XENVMNIC, None)
    return bed.Plan(
        path=bed.PATHS[setting.path] if module is None else _XENVMNIC,
        here=_HERE.get(setting.ends, ""),
        offloads="" if setting.offloads else bed.NO_OFFLOADS,
        switch=_switch(setting),
        options=options,
        module=module or "",
    )


def _switch(setting: Setting) -> Path | None:
    if setting.path != "memlane":
        return None
    return setting.build or memlane.program()


def _key(setting: Setting) -> str:
    """The same for settings that can be counted in one boot."""
    stated: list[Any] = [setting.path, setting.path_options, setting.program, setting.guest]
    stated += [setting.offloads, setting.ends]
    if _looks_at_memory(setting):
        stated += [HeldMemory.name, setting.pairs, setting.traffic[0].parameters["megabytes"]]
    return json.dumps(stated, sort_keys=True)


def _flow(setting: Setting) -> Flow:
    stated = setting.traffic[0].parameters
    names = ("protocol", "message", "messages", "burst", "send_buffer", "receive_buffer")
    return Flow(*(stated[name] for name in names))


def told_values(window: Window, summary: Summary) -> Values:
    """A flow's measures, and the figures of each party."""
    told = window.flow
    kilobytes, packets = told["sent"] * told["size"] / 1024, max(told["frames_out"], 1)
    repeats, simulated = summary.repeats, any(summary.missed.values())
    values: dict[str, float] = {
        "instructions": summary.instructions,
        "instructions_per_kb": summary.instructions / kilobytes,
        "instructions_per_packet": summary.instructions / packets,
        "instructions_per_message": summary.instructions / told["sent"],
        "loads_per_kb": sum(summary.loads.values()) / kilobytes,
        "stores_per_kb": sum(summary.stores.values()) / kilobytes,
        "repeats_per_kb": repeats / kilobytes,
        "steps_per_kb": (summary.instructions + repeats) / kilobytes,
        **{key: sum(summary.missed[name].values()) / kilobytes for name, key in MISSES.items() if simulated},
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
        **{
            f"{name} misses per KB{by}": {part: number / kilobytes for part, number in missed[name].items()}
            for by, missed in (("", summary.missed), (", by party", summary.missed_by))
            for name in MISSES
        },
    }
