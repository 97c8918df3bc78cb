"""Path lengths: instructions that each party executes for a message, as the counted host has counted them.

They come from the published experiment `path_length` and lie beside this module (`path_lengths.json`), so that a model
needs no samples of it. A path that was not counted has the guests of memlane's (the same driver, virtio_net) and a
switch of unknown demand.
"""

import json
import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from statistics import median

import numpy as np

from memlane_lab.common.sizes import parse
from memlane_lab.common.strict import Strict
from memlane_lab.model.configuration import Party
from memlane_lab.results.results import ExperimentResult

FILE = Path(__file__).with_name("path_lengths.json")
_LIKE = "memlane"
"""The path whose guests stand for those of a path that was not counted."""
_COUNTED = {
    Party.SENDER: ("party_sender_s_program", "party_sender_s_guest_kernel"),
    Party.SENDER_KERNEL: ("party_host_kernel_for_the_sender",),
    Party.RECEIVER: ("party_receiver_s_program", "party_receiver_s_guest_kernel"),
    Party.RECEIVER_KERNEL: ("party_host_kernel_for_the_receiver",),
    Party.SWITCH: ("party_switch", "party_host_kernel_for_the_switch"),
}
_STAGES = {
    "copy": ("stage_copy_guest_guest",),
    "wakeups": ("stage_notification_and_wake_up", "stage_scheduling"),
    "calls": ("stage_system_call",),
}
"""Stages that a what-if can change, by its word."""


class Length(Strict):
    """Instructions for a message of one size."""

    message: int
    parties: dict[Party, float]
    stages: dict[str, float]
    """Of all parties together, by the word of a what-if."""


def made(result: ExperimentResult) -> dict[str, list[Length]]:
    """The path lengths of TCP, by path, from the samples of `path_length`: medians."""
    found: dict[str, list[Length]] = {}
    traffics = result.experiment.dimensions()["traffic"]
    for each in result.variants:
        traffic = traffics[each.labels["traffic"]]
        if traffic["protocol"] == "tcp":
            values = [sample.values for sample in result.good if sample.variant == each.name]
            found.setdefault(each.labels["path"], []).append(_length(int(parse(traffic["message"])), values))
    return {path: sorted(lengths, key=lambda length: length.message) for path, lengths in found.items()}


def _length(message: int, values: list[dict[str, float]]) -> Length:
    def a_message(names: tuple[str, ...]) -> float:
        told = sum(median(each.get(name, 0.0) for each in values) for name in names)
        return round(told * message / 1024, 1)

    return Length(
        message=message,
        parties={party: a_message(names) for party, names in _COUNTED.items()},
        stages={stage: a_message(names) for stage, names in _STAGES.items()},
    )


def text(found: Mapping[str, list[Length]]) -> str:
    """The text of the file."""
    stated = {path: [each.model_dump(mode="json") for each in lengths] for path, lengths in found.items()}
    return json.dumps(stated, indent=1) + "\n"


@cache
def known() -> dict[str, list[Length]]:
    """Those beside this module."""
    stated = json.loads(FILE.read_text())
    return {path: [Length.model_validate(each) for each in lengths] for path, lengths in stated.items()}


def is_counted(path: str) -> bool:
    """Whether the path's switch was counted."""
    return path in known()


def instructions(path: str, party: Party, message: float) -> float:
    """Instructions of a party for a byte of messages of that size; 0 of a switch that was not counted."""
    if not is_counted(path) and party is Party.SWITCH:
        return 0.0
    lengths = known()[path if is_counted(path) else _LIKE]
    return _between([(each.message, each.parties[party]) for each in lengths], message) / message


def share(path: str, stage: str, message: float) -> float:
    """The share of a stage in all instructions for messages of that size."""
    lengths = known()[path if is_counted(path) else _LIKE]
    shares = [(each.message, each.stages[stage] / sum(each.parties.values())) for each in lengths]
    return float(np.interp(math.log(message), [math.log(size) for size, _ in shares], [told for _, told in shares]))


def _between(points: list[tuple[int, float]], message: float) -> float:
    """Between two counted sizes by logarithms; beyond the largest each further byte costs as much as the last ones."""
    (size, low), (last, high) = points[-2:]
    if high < 1:
        return 0.0
    if message > last:
        return high + (high - low) / (last - size) * (message - last)
    sizes, told = ([math.log(max(each[at], 1)) for each in points] for at in (0, 1))
    return math.exp(float(np.interp(math.log(message), sizes, told)))
