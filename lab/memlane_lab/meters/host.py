"""The host's account: of each guest, of the network's processes, of those that only help, of the whole machine.

Each process that the lab has started is in a control group of its own (`cgroup.py`), which the kernel counts for.
"""

import gzip
import os
import platform
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from memlane_lab.guests import Guest
from memlane_lab.guests.guest import HostUse
from memlane_lab.host import procfs
from memlane_lab.host.process import HostProcess
from memlane_lab.host.procfs import CpuTime
from memlane_lab.paths import NetworkPath

SWITCH, HELPERS, LAB = "switch", "helpers", "lab"
"""Parties beside the guests, which are called by their names."""


def read(guests: Iterable[Guest], path: NetworkPath) -> dict[str, float]:
    """Use so far: PARTY.user and so on, by the names of `Group.counts`; host.busy and so on."""
    counts: dict[str, float] = {}
    for guest in guests:
        own, vhost = _leader(guest), guest.vhost_cpu()
        counts |= _named(guest.name, _of([guest.process]))
        counts |= _named(guest.name, {"leader.user": own.user - vhost.user, "leader.system": own.system - vhost.system})
        counts |= _named(guest.name, {"vhost.user": vhost.user, "vhost.system": vhost.system})
    counts |= _named(SWITCH, _of(path.parties()))
    counts |= _named(HELPERS, _of(path.helpers()))
    used = os.times()
    counts |= _named(LAB, {"user": used.user, "system": used.system})
    cpu = procfs.whole_host()
    counts |= {"host.busy": cpu.busy, "host.softirq": cpu.softirq + cpu.irq, "host.steal": cpu.steal}
    between = procfs.between_cpus()
    return counts if between is None else counts | {"host.between_cpus": float(between)}


def memory(guests: Iterable[Guest], path: NetworkPath) -> dict[str, float]:
    """Bytes that each party has now, by kind: PARTY.anon and so on."""
    parties = {**{guest.name: [guest.process] for guest in guests}, SWITCH: path.parties(), HELPERS: path.helpers()}
    told = {name: [each.group.memory() for each in found if each.group] for name, found in parties.items()}
    return {key: value for name, found in told.items() for key, value in _named(name, _sum(found)).items()}


def use(guest: str, rates: Mapping[str, float]) -> HostUse:
    """A guest's part of the result of `read`, as rates."""
    whole, leader, vhost = (
        CpuTime(rates[f"{guest}.{part}user"], rates[f"{guest}.{part}system"]) for part in ("", "leader.", "vhost.")
    )
    return HostUse(leader, whole - leader - vhost, vhost)


@cache
def softirq_is_apart() -> bool:
    """Whether this kernel leaves softirqs out of the time of the processes they interrupt (IRQ_TIME_ACCOUNTING)."""
    return "CONFIG_IRQ_TIME_ACCOUNTING=y" in _kernel_configuration()


def _kernel_configuration() -> str:
    installed, built_in = Path(f"/boot/config-{platform.release()}"), Path("/proc/config.gz")
    if built_in.exists():
        return gzip.decompress(built_in.read_bytes()).decode()
    return installed.read_text() if installed.exists() else ""


def _leader(guest: Guest) -> CpuTime:
    found = procfs.stat(guest.process.pid)
    return found.cpu if found else CpuTime()


def _of(processes: Iterable[HostProcess]) -> dict[str, float]:
    return _sum([each.group.counts() for each in processes if each.group])


def _sum(told: Iterable[Mapping[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for each in told:
        for name, value in each.items():
            total[name] = total.get(name, 0.0) + value
    return total


def _named(party: str, counts: Mapping[str, float]) -> dict[str, float]:
    return {f"{party}.{name}": value for name, value in counts.items()}
