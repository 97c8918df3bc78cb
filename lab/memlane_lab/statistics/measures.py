"""Measures of a sample, each with its name, its unit, and whether more of it is better.

Values are kept in base units (bit/s, s, 1/s); `Scale` turns those of one table or plot into words of one size.
Workloads bring measures of their own (`workloads/`); those of meters are here.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Better(StrEnum):
    """Which way a measure is good."""

    MORE = "more"
    LESS = "less"
    NEITHER = "neither"


class Across(StrEnum):
    """How the flows of a sample make one value of theirs."""

    SUM = "sum"
    MEAN = "mean"
    WORST = "worst"


@dataclass(frozen=True)
class Measure:
    """A measured quantity."""

    name: str
    """As experiments, tables and CSV files call it."""
    title: str
    unit: str
    """Base unit: bit/s, s, s/GB, 1/s, CPU, B, or nothing for a share or a count."""
    better: Better = Better.NEITHER
    across: Across = Across.SUM


_RENAMED = {"calls": "path_interrupts", "calls_per_frame": "path_interrupts_per_frame"}


def present(name: str) -> str:
    """The present name of the measure that stored samples call `name`: published samples are not rewritten."""
    return _RENAMED.get(name, name)


THROUGHPUT = Measure("throughput", "throughput, received", "bit/s", Better.MORE)
FAIRNESS = Measure("fairness", "fairness of flows (Jain's index)", "", Better.MORE, Across.MEAN)
FAIRNESS_1S = Measure("fairness_1s", "fairness of flows (Jain's index), second by second", "", Better.MORE, Across.MEAN)
OTHERS = Measure("others", "whole host but the parties and helpers", "CPU")
TAKEN_AGAIN = Measure("taken_again", "samples dropped before this one, because other work disturbed them", "")
LOWEST = Measure("lowest", "a flow's slowest quarter of a second, by its mean", "", Better.MORE, Across.MEAN)
FIRST_SHARE = Measure("first_share", "the first flow's throughput, in equal shares", "", Better.MORE, Across.MEAN)

COMMON = (
    THROUGHPUT,
    FAIRNESS,
    FAIRNESS_1S,
    FIRST_SHARE,
    LOWEST,
    Measure("cpu", "CPU, all parties", "CPU", Better.LESS),
    Measure("cpu_per_gb", "CPU, all parties, per GB", "s/GB", Better.LESS),
    Measure("cpu_per_gbit_s", "CPUs, all parties, per Gbit/s", "CPU/(Gbit/s)", Better.LESS),
    Measure("cpu_per_frame", "CPU, all parties, per frame", "s", Better.LESS),
    Measure("cpu_per_exchange", "CPU, all parties, per request and answer", "s", Better.LESS),
    Measure("cpu_per_interaction", "CPU, all parties, per interaction", "s", Better.LESS),
    Measure("cpu_programs", "guests: programs", "CPU", Better.LESS),
    Measure("cpu_guest_kernel", "guests: kernel", "CPU", Better.LESS),
    Measure("cpu_guest_softirq", "guests: softirq", "CPU", Better.LESS),
    Measure("cpu_monitor", "virtual machine monitor", "CPU", Better.LESS),
    Measure("cpu_host_kernel", "host's kernel for guests (system calls, TAP, bridge)", "CPU", Better.LESS),
    Measure("cpu_switch", "switch or vhost", "CPU", Better.LESS),
    Measure("cpu_host_softirq", "host: softirq (bridge)", "CPU", Better.LESS),
    Measure("cpu_untold", "guests that did not tell: user time", "CPU", Better.LESS),
    Measure("inside_user", "guests' own account: user", "CPU"),
    Measure("inside_system", "guests' own account: system", "CPU"),
    Measure("inside_softirq", "guests' own account: softirq and irq", "CPU"),
    Measure("host_busy", "whole host", "CPU"),
    Measure("cpu_helpers", "helpers: what the network needs beside, and the lab itself", "CPU"),
    OTHERS,
    TAKEN_AGAIN,
    Measure("steal", "stolen: what the machine below gave to others", "CPU"),
    Measure("cpu_sender", "CPU of senders alone, their programs, kernel and monitor", "CPU", Better.LESS),
    Measure("cpu_receiver", "CPU of receivers alone", "CPU", Better.LESS),
    Measure("frames", "frames received by guests", "1/s"),
    Measure("data_frames", "frames that receivers received: data", "1/s"),
    Measure("answer_frames", "frames that senders received: acknowledgements, answers", "1/s"),
    Measure("frame_bytes", "bytes of a frame that receivers received, mean", "B", Better.MORE),
    Measure("overflows", "datagrams that found no room in the receiver's socket", "1/s", Better.LESS),
    Measure("unassembled", "fragments that stayed without the rest of their datagram", "1/s", Better.LESS),
    Measure("discards", "packets that senders' own queues discarded", "1/s", Better.LESS),
    Measure("interrupts", "network interrupts in guests", "1/s", Better.LESS),
    Measure("interrupts_per_frame", "network interrupts in guests, per frame", "", Better.LESS),
    Measure("switches", "context switches of all parties", "1/s", Better.LESS),
    Measure("switches_per_frame", "context switches of all parties, per frame", "", Better.LESS),
    Measure("wakeups", "wake-ups of all parties' tasks", "1/s", Better.LESS),
    Measure("wakeups_per_frame", "wake-ups of all parties' tasks, per frame", "", Better.LESS),
    Measure("between_cpus", "interrupts from one of the host's CPUs to another", "1/s", Better.LESS),
    Measure("between_cpus_per_frame", "interrupts from one of the host's CPUs to another, per frame", "", Better.LESS),
    Measure("kicks", "kicks (guest to network)", "1/s", Better.LESS),
    Measure("kicks_per_frame", "kicks per frame", "", Better.LESS),
    Measure("path_interrupts", "interrupts (network to guest)", "1/s", Better.LESS),
    Measure("path_interrupts_per_frame", "interrupts (network to guest) per frame", "", Better.LESS),
    Measure("delivered", "bytes that the network delivered", "B/s"),
    Measure("path_frames", "frames that the network counted", "1/s"),
    Measure("drops", "frames that the network dropped", "1/s", Better.LESS),
    Measure("worker_busy", "switch's workers in poll iterations that moved frames", "CPU", Better.LESS),
    Measure("cycles_per_frame", "switch's cycles per frame", "", Better.LESS),
    Measure("sleeps", "switch's workers going to sleep", "1/s"),
)
"""The measures of meters, in every experiment."""

MEMORY = (
    Measure("frames_held", "frames in the network's own memory, the most in ten looks", "B", Better.LESS),
    Measure("network_memory", "memory of the network's processes, guests' own left out", "B", Better.LESS),
    Measure("pools", "of that: pools set aside for frames", "B", Better.LESS),
    Measure("packet_buffers", "heads of packets that the host's kernel holds, the most in ten looks", "B", Better.LESS),
    Measure("kernel_grown", "what the host's kernel took for guests and network", "B", Better.LESS),
    Measure("guests_memory", "memory of the guests, the buffers that they post among it", "B"),
)
"""Memory by party: measured only where an experiment asks for one of them."""

CPU_PARTIES = (
    "cpu_programs",
    "cpu_guest_kernel",
    "cpu_guest_softirq",
    "cpu_monitor",
    "cpu_host_kernel",
    "cpu_switch",
    "cpu_host_softirq",
    "cpu_untold",
)
"""The measures that add up to `cpu`, from the guest's programs outwards."""

_SMALL, _LARGE = ("", "m", "µ", "n"), ("", "k", "M", "G", "T")
_PREFIXED = {"bit/s", "s", "B", "B/s", "1/s"}


@dataclass(frozen=True)
class Scale:
    """How the values of one measure are written: divided by `factor`, with `unit` behind."""

    factor: float
    unit: str

    def number(self, value: float) -> str:
        """The value without its unit, to three significant digits."""
        return significant(value / self.factor)

    def text(self, value: float) -> str:
        """The value with its unit."""
        return f"{self.number(value)} {self.unit}".rstrip()


def scale(unit: str, values: Iterable[float]) -> Scale:
    """The scale that suits most of `values`."""
    sizes = sorted(abs(value) for value in values if value and math.isfinite(value))
    if unit not in _PREFIXED or not sizes:
        return Scale(1, unit)
    middle = sizes[len(sizes) // 2]
    if unit == "1/s" and middle < 10_000:
        return Scale(1, unit)
    step = math.floor(math.log10(middle) / 3)
    step = max(min(step, len(_LARGE) - 1), 1 - len(_SMALL) if unit == "s" else 0)
    if unit == "s" and step > 0:
        return Scale(1, unit)
    prefix = _LARGE[step] if step >= 0 else _SMALL[-step]
    return Scale(1000.0**step, f"{prefix} {unit}" if unit == "1/s" and prefix else f"{prefix}{unit}")


def significant(value: float, digits: int = 3) -> str:
    """A number to so many significant digits, never in powers of ten."""
    if math.isinf(value):
        return "∞"
    if math.isnan(value):
        return "-"
    if value == 0:
        return "0"
    places = digits - 1 - math.floor(math.log10(abs(value)))
    rounded = round(value, places)
    return f"{rounded:,.{max(places, 0)}f}".replace(",", "\u202f")
