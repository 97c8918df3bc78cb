"""Checks of this machine: tools, kernels and permissions, with a remedy for each that is missing."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from memlane_lab import guests, paths
from memlane_lab.common import cache, errors
from memlane_lab.common.errors import LabError
from memlane_lab.counting import machine as counting
from memlane_lab.host import cgroup, network
from memlane_lab.images import debian
from memlane_lab.meters import host, placement
from memlane_lab.profiling import perf


@dataclass(frozen=True)
class Finding:
    """One thing looked at."""

    what: str
    lack: str | None
    """The fault and its remedy, or None."""
    note: str = ""
    needed: bool = True
    """Whether the lab is of no use without it."""


def examine() -> Iterator[Finding]:
    """Looks at everything, the quick things first."""
    yield _processors()
    yield _mirror()
    yield Finding("network namespaces", network.may_change(), needed=False)
    yield Finding("control groups", cgroup.lack(), needed=False)
    yield _tun()
    yield _memory()
    yield Finding("cache folder", None, str(cache.folder()))
    yield from _quiet()
    for kind, guest in guests.KINDS.items():
        yield Finding(f"guest {kind}", errors.reason(guest.missing), guest.note(), needed=False)
    yield Finding("counting instructions", counting.missing(), "a host in QEMU, with a plugin", needed=False)
    yield Finding("profiling", perf.missing(), f"perf, by {perf.event().name}", needed=False)
    for name, path in paths.PATHS.items():
        yield Finding(f"path {name}", errors.reason(path.missing), path.title, needed=False)


def table(findings: Iterator[Finding]) -> Table:
    """The findings for people to read."""
    shown = Table("", "what", "", box=None)
    for finding in findings:
        mark = "[green]yes[/]" if finding.lack is None else "[red]NO[/]" if finding.needed else "[yellow]no[/]"
        shown.add_row(mark, finding.what, finding.note if finding.lack is None else finding.lack)
    return shown


def _processors() -> Finding:
    count = len(os.sched_getaffinity(0))
    few = "sender, receiver and switch share one CPU: measure elsewhere" if count < 2 else None
    return Finding("CPUs", few, f"{count} usable", needed=False)


def _mirror() -> Finding:
    try:
        return Finding("Debian mirror", None, ", ".join(dict.fromkeys(source.suite for source in debian.sources())))
    except LabError as error:
        return Finding("Debian mirror", str(error))


def _quiet() -> Iterator[Finding]:
    """Conditions without which figures are of little worth."""
    load, count = os.getloadavg()[0], len(os.sched_getaffinity(0))
    busy = f"the load is {load:.1f}: whatever else runs here is measured too" if load > count / 4 else None
    yield Finding("a quiet machine", busy, f"load {load:.2f}", needed=False)
    lack = placement.lack()
    verdict = "" if lack else f"the first two CPUs are {placement.probe()}"
    yield Finding("placement of CPUs", lack, verdict, needed=False)
    apart = None if host.softirq_is_apart() else "softirqs are counted as part of whom they interrupt: split roughly"
    yield Finding("softirqs counted apart", apart, needed=False)


def _tun() -> Finding:
    usable = os.access("/dev/net/tun", os.R_OK | os.W_OK)
    return Finding(
        "TAP devices", None if usable else "/dev/net/tun cannot be opened: load the module tun", needed=False
    )


def _memory() -> Finding:
    free = os.statvfs("/dev/shm")
    size = free.f_bavail * free.f_frsize >> 20
    lack = None if size >= 1024 else "guests keep their memory in /dev/shm; mount it with at least 1 GiB"
    pages = Path("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")
    huge = int(pages.read_text()) if pages.exists() else 0
    return Finding("memory for guests", lack, f"{size} MiB in /dev/shm, {huge} free huge pages of 2 MiB")
