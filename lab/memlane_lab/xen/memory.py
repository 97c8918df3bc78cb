"""Memory that the network holds under Xen: the difference of free memory between states, in one boot.

Guests boot without an interface and say how much is free; dom0 attaches interfaces, and has guests talk and rest. What
is less free than before is held for the network: by guests' kernels (buffers posted for receiving, rings), by dom0's
(back ends, their threads, the bridge) and by the switch's process.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from memlane_lab.common.errors import LabError
from memlane_lab.workloads.held_memory import State
from memlane_lab.xen import bed
from memlane_lab.xen.bed import Plan

_HERE = Path(__file__).parent
_BEFORE = "before"
_LOOK = re.compile(r"^held (\w+) (\d+) (\d+)\s*$", re.MULTILINE)
_KIB = 1024
Looks = Mapping[str, Sequence[tuple[int, int]]]
"""By state: KiB that were free, and KiB that rings (in a guest) or the switch (in dom0) had, at each look."""


def measure(plan: Plan, megabytes: int, folder: Path) -> dict[State, dict[str, float]]:
    """Boots the plan's guests on its path in the empty folder `folder`; returns the measures of each state."""
    said = folder / "megabytes"
    said.write_text(f"{megabytes}\n")
    inside, outside = (_script("memory_free", name) for name in ("memory_guest", "memory_dom0"))
    parts = bed.boot(replace(plan, bare=inside, script=outside, files=[said]), folder)
    if faults := _faults(parts):
        raise LabError(f"memory cannot be measured: {faults}")
    return held(looks(parts["script"]), [looks(parts[f"guest-{name}"]) for name in plan.names()])


def _script(*names: str) -> str:
    return "".join((_HERE / name).read_text() for name in names)


def _faults(parts: Mapping[str, str]) -> str:
    """The fault, in the words of the machine that saw it; empty without one."""
    guests = [line for name, text in parts.items() if name.startswith("guest-") for line in text.splitlines()]
    words = [line for line in guests if line.startswith("held no")]
    if (status := parts["status"].strip()) != "0":
        told = parts.get("script", "").strip().splitlines()
        words.append(told[-1] if told else f"dom0's script ended with status {status}, and said nothing")
    return "; ".join(words)


def looks(text: str) -> Looks:
    """All that someone has seen, by state."""
    found: dict[str, list[tuple[int, int]]] = {}
    for state, free, own in _LOOK.findall(text):
        found.setdefault(state, []).append((int(free), int(own)))
    return found


def held(dom0: Looks, guests: Sequence[Looks]) -> dict[State, dict[str, float]]:
    """The measures of each state, in bytes: the most of its looks, guests added up."""
    return {state: _held(state, dom0, guests) for state in State}


def _held(state: State, dom0: Looks, guests: Sequence[Looks]) -> dict[str, float]:
    _, switch_before = _least(dom0, _BEFORE)
    _, switch = _least(dom0, state)
    in_guests = sum(_grown(each, state) for each in guests)
    in_dom0 = _grown(dom0, state) - (switch - switch_before)
    everything = in_guests + in_dom0 + switch
    in_kib = {
        "holds": everything,
        "holds_per_guest": everything / len(guests),
        "guests_hold": in_guests,
        "rings_hold": sum(max(rings for _, rings in each[state]) for each in guests),
        "dom0_holds": in_dom0,
        "switch_holds": switch,
    }
    return {name: kib * _KIB for name, kib in in_kib.items()}


def _least(seen: Looks, state: str) -> tuple[int, int]:
    """The look at which the least was free."""
    if state not in seen:
        raise LabError(f"memory was not measured in the state {state}")
    return min(seen[state])


def _grown(seen: Looks, state: str) -> int:
    return _least(seen, _BEFORE)[0] - _least(seen, state)[0]
