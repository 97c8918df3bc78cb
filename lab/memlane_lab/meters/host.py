"""The host's account: CPU time of each guest, of the network's processes, of the whole machine."""

import gzip
import platform
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from memlane_lab import procfs
from memlane_lab.guests import Guest
from memlane_lab.guests.guest import HostUse
from memlane_lab.paths import NetworkPath
from memlane_lab.procfs import CpuTime, Stat

_VHOST = "vhost-"
"""How the kernel names the threads that serve /dev/vhost-net: in the monitor's process, or (before 6.4) its own."""


def read(guests: Iterable[Guest], path: NetworkPath) -> dict[str, float]:
    """CPU seconds and context switches so far; those of guest i are called `i.leader.user` and so on."""
    processes = list(procfs.processes())
    counts: dict[str, float] = {}
    switches = 0
    for index, guest in enumerate(guests):
        use = _use(guest, processes)
        for part, time in (("leader", use.leader), ("children", use.children), ("vhost", use.vhost)):
            counts[f"{index}.{part}.user"], counts[f"{index}.{part}.system"] = time.user, time.system
        switches += _switches(guest.process.pid, processes)
    network = [party.pid for party in path.parties()]
    used = sum((_total(pid, processes) for pid in network), CpuTime())
    counts |= {"network.user": used.user, "network.system": used.system}
    counts["switches"] = switches + sum(_switches(pid, processes) for pid in network)
    return counts | _whole()


def use(index: int, rates: dict[str, float]) -> HostUse:
    """Guest number `index`'s part of what `read` gave, as rates."""
    leader, children, vhost = (
        CpuTime(rates[f"{index}.{part}.user"], rates[f"{index}.{part}.system"])
        for part in ("leader", "children", "vhost")
    )
    return HostUse(leader, children, vhost)


@cache
def softirq_is_apart() -> bool:
    """Whether this kernel leaves softirqs out of the time of the processes they interrupt (IRQ_TIME_ACCOUNTING)."""
    return "CONFIG_IRQ_TIME_ACCOUNTING=y" in _kernel_configuration()


def _kernel_configuration() -> str:
    installed, built_in = Path(f"/boot/config-{platform.release()}"), Path("/proc/config.gz")
    if built_in.exists():
        return gzip.decompress(built_in.read_bytes()).decode()
    return installed.read_text() if installed.exists() else ""


def _use(guest: Guest, processes: list[Stat]) -> HostUse:
    pid = guest.process.pid
    total = _total(pid, processes)
    leader = next((process.cpu for process in processes if process.pid == pid), CpuTime())
    inner = sum((thread.cpu for thread in _vhost_threads(guest)), CpuTime())
    outer = sum((process.cpu for process in processes if process.name == f"{_VHOST}{pid}"), CpuTime())
    return HostUse(leader - inner, total - leader, inner + outer)


def _vhost_threads(guest: Guest) -> list[Stat]:
    threads = procfs.threads(guest.process.pid) if guest.kind.is_qemu else []
    return [thread for thread in threads if thread.name.startswith(_VHOST)]


def _total(session: int, processes: list[Stat]) -> CpuTime:
    members = (process for process in processes if process.session == session)
    return sum((member.cpu + member.cpu_reaped for member in members), CpuTime())


def _switches(session: int, processes: list[Stat]) -> int:
    return sum(procfs.context_switches(process.pid) for process in processes if process.session == session)


def _whole() -> dict[str, float]:
    cpu = procfs.whole_host()
    return {"host.busy": cpu.busy, "host.softirq": cpu.softirq + cpu.irq}
