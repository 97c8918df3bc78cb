"""The machine that measures, described by code: the facts that a reader needs to judge the figures."""

import hashlib
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

from memlane_lab.common import unpacked
from memlane_lab.guests import Guest
from memlane_lab.images import provenance, uml_kernel
from memlane_lab.measuring import revisions
from memlane_lab.meters import host, placement
from memlane_lab.paths.memlane import program
from memlane_lab.results.agreement import LAB_COMMIT

_SYSCTLS = (
    "net.core.rmem_max", "net.core.wmem_max", "net.core.rmem_default", "net.core.wmem_default",
    "net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem", "net.ipv4.tcp_congestion_control",
)  # fmt: skip


LAB = "memlane-lab"
"""Name of the lab's own version."""
CHANGED = " with changes"
"""Follows the commit where some changes are not committed."""


def describe() -> dict[str, Any]:
    """CPU, kernel, versions, settings and load of this machine."""
    return {
        "cpu": _field("/proc/cpuinfo", "model name"),
        "cpus": len(os.sched_getaffinity(0)),
        "caches": _caches(),
        "placement": placement.lack() or placement.probe(),
        "memory": _field("/proc/meminfo", "MemTotal"),
        "kernel": f"{platform.system()} {platform.release()} {platform.version()}",
        "softirq counted apart": host.softirq_is_apart(),
        "hypervisor": "hypervisor" in _field("/proc/cpuinfo", "flags").split(),
        "governor": _text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "huge pages": _field("/proc/meminfo", "HugePages_Total"),
        **_commits(),
        "load average": " ".join(_text("/proc/loadavg").split()[:3]),
        "versions": _versions(),
        "guests' images": provenance.told(),
        "sysctls": {name: _text(f"/proc/sys/{name.replace('.', '/')}") for name in _SYSCTLS},
    }


def of_guest(guest: Guest) -> dict[str, Any]:
    """Kernel, offloads and sysctls as the guest tells them."""
    told = guest.run(["ethtool", "-k", "net0"]).stdout
    offloads = dict(line.strip().split(": ", 1) for line in told.splitlines()[1:] if ": " in line)
    wanted = (
        "tcp-segmentation-offload", "tx-checksumming", "rx-checksumming", "scatter-gather", "generic-receive-offload",
        "large-receive-offload",
    )  # fmt: skip
    return {
        "kernel": guest.run(["uname", "-r"]).stdout.strip(),
        "offloads": {name: offloads.get(name, "unknown") for name in wanted},
        "tcp_rmem": " ".join(guest.get("/proc/sys/net/ipv4/tcp_rmem").decode().split()),
        "tcp_wmem": " ".join(guest.get("/proc/sys/net/ipv4/tcp_wmem").decode().split()),
    }


def _versions() -> dict[str, str]:
    kernel = uml_kernel.built()
    return {
        LAB: f"{metadata.version('memlane-lab')} (build {_lab()})",
        "memlane": _switch(),
        "python": platform.python_version(),
        "qemu": _first_line("qemu-system-x86_64", "--version"),
        "open vswitch": _first_line("ovs-vsctl", "--version"),
        "uml kernel": ".".join(map(str, kernel.version)) if kernel else "none built",
    }


def _lab() -> str:
    """A digest of the lab's own code."""
    package = Path(__file__).parents[1]
    files = sorted(path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    digest = hashlib.sha256()
    for path in files:
        digest.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def _commits() -> dict[str, str]:
    """The commit that is measured: that of a kept switch (`revisions.py`) beside the lab's, else this tree's."""
    measured = revisions.of(program())
    return {"commit": measured, LAB_COMMIT: own_commit()} if measured else {"commit": own_commit()}


def own_commit() -> str:
    """The commit of this repository, and whether there are changes beside it; in a kit, of that which made it."""
    if kit := unpacked.here():
        return kit.stated.commit
    git = ("git", "-C", str(Path(__file__).parents[3]))
    changed = _first_line(*git, "status", "--porcelain", "--untracked-files=no") not in {"none", "unknown"}
    return f"{_first_line(*git, 'rev-parse', '--short=12', 'HEAD')}{CHANGED if changed else ''}"


def _switch() -> str:
    return build(binary) if (binary := program()) and binary.exists() else "none"


def build(binary: Path) -> str:
    """A switch's version, and which build of it: versions alone do not tell two builds apart."""
    digest = hashlib.sha256(binary.read_bytes()).hexdigest()[:12]
    return f"{_first_line(str(binary), '--version')} (build {digest})"


def _first_line(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "none"
    return done.stdout.splitlines()[0] if done.stdout else "unknown"


def _caches() -> str:
    folders = sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"))
    return ", ".join(
        f"L{_text(folder / 'level')} {_text(folder / 'type').lower()} {_text(folder / 'size')}" for folder in folders
    )


def _field(path: str, name: str) -> str:
    for line in Path(path).read_text().splitlines():
        if line.split(":")[0].strip() == name:
            return line.split(":", 1)[1].strip()
    return "unknown"


def _text(path: str | Path) -> str:
    try:
        return " ".join(Path(path).read_text().split())
    except OSError:
        return "unknown"
