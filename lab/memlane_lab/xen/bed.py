"""A boot of Xen with dom0 and guests in QEMU: their plan, their actions, their output.

dom0 is given files under /plan:
/plan/path     the path between the guests            /plan/NAME.cfg  a guest, as xl makes it
/plan/script   dom0's actions with the guests made      /plan/memlane   the switch, and /plan/net.toml its network
/plan/vmlinux  the guests' kernel                     /plan/guest.cpio  their initramfs
/plan/NAME.nic its interface, as xl attaches it
and the guests, in that initramfs: their init, the program that sends and receives, and the flows (`counting/host.py`).
"""

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w

from memlane_lab.common.errors import LabError
from memlane_lab.counting import host, kernel, machine
from memlane_lab.counting.host import Flow, Window
from memlane_lab.images import cpio, root
from memlane_lab.xen.counts import Tables
from memlane_lab.xen.images import Images, images

_HERE = Path(__file__).parent
_COUNTING = Path(host.__file__).parent
_SOURCES = Path(__file__).parents[3] / "xen"
_SCRIPT = _SOURCES / "vif-memlane"
_MODULE = Path(__file__).parents[3] / "target" / "xenvmnic" / "xenvmnic.ko"
PATHS = {"none": "native", "bridge": "netback", "memlane": "memlane"}
"""The lab's paths that can be laid under Xen, as `dom0_init` calls them: two namespaces of dom0 that veth joins, and no
guests; Linux's own back end with its bridge; our switch."""
NO_OFFLOADS = "tso off gso off gro off sg off"
"""Frames as interfaces had them in 2010."""
NAMES = ("c1", "s1", "g3", "g4", "g5", "g6", "g7", "g8")
"""Of guests, in the order in which they are made."""
_PROCESSOR = "qemu64,+ssse3,+sse4.1,+sse4.2,+popcnt,+rdtscp,-smap"
_XEN = (
    "console=com1 com1=115200,8n1 dom0_mem={dom0}M,max:{dom0}M dom0_max_vcpus=1 loglvl=warning guest_loglvl=warning "
    "noreboot spec-ctrl=no xpti=no pv-l1tf=off cpuidle=0"
)
_LINUX = "console=hvc0 mitigations=off norandmaps audit=0 loglevel=4 panic=-1"
_DOM0_MEMORY = 640
_GUEST_MEMORY = 128
_XEN_MEMORY = 192
"""MiB."""
_SECONDS = 600.0
"""Of the real time for a boot, on a busy machine."""


@dataclass(frozen=True)
class Plan:
    """The guests and the network of a boot, and the actions in there."""

    path: str = "netback"
    """The path that `dom0_init` lays; "none" for nothing."""
    guests: Sequence[str] = ("c1", "s1")
    """By name; c1 sends, s1 receives."""
    here: str = ""
    """Which of these is no guest but a program of dom0, at the back end itself."""
    flows: Sequence[Flow] = ()
    phases: Sequence[int] = (0,)
    """All flows for each of these, as `counting.host.run` has them."""
    script: str = ""
    """For dom0's shell, when the guests are made."""
    inside: str = ""
    """For each guest's shell; its name is in $counted. In dom0's script, `finished GUEST SECONDS` waits for one."""
    hold: bool = False
    """Whether making the guests is left to dom0's script."""
    bare: str = ""
    """For each guest's shell, in place of its part: it has no interface until dom0's script attaches one."""
    files: Sequence[Path] = ()
    """The files in /extra, of dom0 and of the guests."""
    offloads: str = ""
    """The words for the guests' ethtool -K."""
    switch: Path | None = None
    """memlane's program."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further settings at the top of the network's file."""
    module: str = ""
    """For the path "xenvmnic": its module's parameters."""

    def names(self) -> Sequence[str]:
        """Of the guests; there are none natively."""
        return () if self.path == "native" else [name for name in self.guests if name != self.here]


def boot(plan: Plan, folder: Path, *, plugin: str = "", seconds: float = _SECONDS) -> dict[str, str]:
    """Boots Xen with that plan in the empty folder `folder`; returns dom0's output, by part.

    The parts: `script` (the script's output), `guest-NAME` (a guest's console), `switch` (memlane's output),
    `modules` (dom0's symbols of modules), `status` (the script's).
    """
    known, found = kernel.kernel(), images()
    _lay_out(plan, found, known.program, folder / "tree")
    cpio.write(folder / "tree", folder / "plan.cpio")
    initramfs = machine.joined(folder / "initramfs.cpio", [found.dom0, found.dom0_modules, folder / "plan.cpio"])
    memory = _DOM0_MEMORY + _XEN_MEMORY + _GUEST_MEMORY * len(plan.names())
    wanted = machine.Boot(
        kernel=found.hypervisor,
        arguments=_XEN.format(dom0=_DOM0_MEMORY),
        initrd=f"{known.program} {_LINUX} rdinit=/plan/init,{initramfs}",
        processor=_PROCESSOR,
        memory=memory,
        devices=("-machine", "memory-backend=ram", "-object", f"memory-backend-memfd,id=ram,size={memory}M"),
        channel=machine.Channel.VIRTIO,
        plugin=plugin,
    )
    try:
        text = machine.boot(wanted, folder, timeout=seconds)
    finally:
        shutil.rmtree(folder / "tree")
        for file in (initramfs, folder / "plan.cpio"):
            file.unlink()
    parts = host.parts(text)
    if "end" not in parts:
        raise LabError("dom0 ended before it had reported all results")
    return parts


def count(plan: Plan, folder: Path) -> tuple[list[Window], Tables]:
    """Counts the plan's flows, in each of its phases, in one boot of Xen in the empty folder `folder`."""
    counted = folder / "counts"
    parts = boot(plan, folder, plugin=f"{host.plugin('xen')},out={counted}")
    windows = host.windows(
        parts.get("guest-c1", ""), parts.get("guest-s1", ""), counted, len(plan.flows) * len(plan.phases)
    )
    symbols = kernel.kernel().symbols
    return windows, Tables(parts, symbols, plan.switch, native=plan.path == "native", here=plan.here)


def _lay_out(plan: Plan, found: Images, vmlinux: Path, tree: Path) -> None:
    own = tree / "plan"
    own.mkdir(parents=True)
    root.install(_HERE / "dom0_init", own / "init")
    (own / "path").write_text(f"{plan.path}\n")
    (own / "flows").write_text(_flows(plan))
    if plan.hold:
        (own / "hold").touch()
    (own / "offloads").write_text(plan.offloads)
    (own / "here").write_text(plan.here)
    if plan.path == "native" or plan.here:
        _add_machine(plan, own)
    if plan.script:
        (own / "script").write_text(plan.script)
    _add_files(plan, tree)
    if plan.names():
        shutil.copyfile(vmlinux, own / "vmlinux")
        _make_guest(plan, found, tree.parent / "guest", own / "guest.cpio")
    for number, name in enumerate(plan.guests, start=1):
        if name in plan.names():
            (own / f"{name}.cfg").write_text(config(plan, name, number))
            (own / f"{name}.nic").write_text(_interface(plan, number))
    if plan.path == "memlane":
        _add_switch(plan, tree)
    if plan.path == "xenvmnic":
        root.install(_SOURCES / "xenvmnic" / "xenvmnic-net", own / "xenvmnic-net")


def _add_files(plan: Plan, tree: Path) -> None:
    (tree / "extra").mkdir()
    for file in plan.files:
        shutil.copy(file, tree / "extra" / file.name)


def _flows(plan: Plan) -> str:
    return "".join(flow.line(phase) for phase in plan.phases for flow in plan.flows)


def _add_machine(plan: Plan, own: Path) -> None:
    """The files that a machine needs for its part of the flows."""
    root.install(_COUNTING / "machine_init", own / "machine")
    root.install(host.program(), own / "counted")
    (own / "flows").write_text(_flows(plan))


def _make_guest(plan: Plan, found: Images, tree: Path, archive: Path) -> None:
    own = tree / "plan"
    own.mkdir(parents=True)
    root.install(_HERE / "guest_init", own / "guest")
    _add_machine(plan, own)
    for name, script in (("inside", plan.inside), ("bare", plan.bare)):
        if script:
            (own / name).write_text(script)
    (own / "offloads").write_text(plan.offloads)
    (own / "tells").write_text(plan.names()[0])
    if plan.path == "xenvmnic":
        if not _MODULE.exists():
            raise LabError(f"{_MODULE} is missing: run make xenvmnic")
        shutil.copyfile(_MODULE, own / "xenvmnic.ko")
        shutil.copyfile(_HERE / "xenvmnic_ready", own / "ready")
        (own / "xenvmnic").write_text(plan.module)
    _add_files(plan, tree)
    cpio.write(tree, tree.parent / "guest-plan.cpio")
    machine.joined(archive, [found.guest, found.guest_modules, tree.parent / "guest-plan.cpio"])
    (tree.parent / "guest-plan.cpio").unlink()
    shutil.rmtree(tree)


def config(plan: Plan, name: str, number: int) -> str:
    """The guest as xl makes it."""
    interfaces = "[]" if plan.bare else f'["{_interface(plan, number)}"]'
    return f"""\
name = "{name}"
type = "pv"
kernel = "/plan/vmlinux"
ramdisk = "/plan/guest.cpio"
extra = "{_LINUX} rdinit=/plan/guest counted={name}"
memory = {_GUEST_MEMORY}
vcpus = 1
vif = {interfaces}
on_poweroff = "preserve"
on_crash = "destroy"
tsc_mode = "native"
"""


def _interface(plan: Plan, number: int) -> str:
    return f"mac=00:16:3e:00:00:{number:02x}," + {
        "netback": "bridge=xenbr0,script=vif-bridge",
        "xenvmnic": "bridge=xenbr0,script=vif-bridge",
        "memlane": "script=vif-memlane",
    }.get(plan.path, "script=/bin/true")


def _add_switch(plan: Plan, tree: Path) -> None:
    """The switch, with its hotplug script where xl looks for it, and a network of a port for each guest."""
    if plan.switch is None:
        raise LabError("no memlane found in target/release, on $PATH or named by $MEMLANE: run make build")
    own, scripts = tree / "plan", tree / "etc" / "xen" / "scripts"
    root.install(plan.switch, own / "memlane")
    subprocess.run(["strip", own / "memlane"], check=True)  # it is unpacked by an emulated processor
    scripts.mkdir(parents=True)
    if not _SCRIPT.exists():
        raise LabError(f"this memlane serves no guests of Xen yet: {_SCRIPT} is missing")
    root.install(_SCRIPT, scripts / _SCRIPT.name)
    ports = [{"name": name, "xen": name} for name in plan.names()]
    if plan.here:
        ports.append({"name": plan.here, "tap": plan.here})
    (own / "net.toml").write_text(tomli_w.dumps({**plan.options, "control": "/run/control.sock", "port": ports}))
