"""The counted host: an image that holds both machines, the path and a plan; a boot of it; its output.

/plan/init     lays the path, starts the machines, reports the end             /plan/path     which
/plan/machine  the program of each machine: its part of each flow of           /plan/flows
/plan/counted  the program that sends and receives                            /plan/linux    the guests' kernel
/plan/memlane  the switch                                                     /plan/net.toml its network
"""

import hashlib
import json
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from memlane_lab.common import cache
from memlane_lab.common import counted as numbers
from memlane_lab.common.errors import LabError
from memlane_lab.counting import kernel, machine
from memlane_lab.counting.kernel import CountedKernel
from memlane_lab.images import cpio, root, uml_kernel

_HERE = Path(__file__).parent
_PLUGIN = Path(__file__).parents[2] / "plugin"
_FLAGS = ("-O2", "-Wall", "-Wextra", "-Werror")
PATHS = {"none": "veth", "bridge": "bridge", "memlane": "memlane", "e1000": "e1000"}
"""The lab's paths that can be laid in the counted host, as `init` calls them."""
_PAUSE = 1700
"""Microseconds before each flow, for each step of the phase: no multiple of a timer's period."""
_SECONDS_A_FLOW = 240.0
"""Of the real time, on a busy machine."""


@dataclass(frozen=True)
class Flow:
    """Messages that are counted."""

    protocol: str
    """tcp or udp."""
    size: int
    """Bytes a message."""
    messages: int
    """Between the marks; as many go before them, and one more for each step of the phase."""
    burst: int = 1
    """Datagrams until the sender waits for a word."""
    send_buffer: int = 0
    receive_buffer: int = 0
    """Bytes of the sockets' buffers; 0: the kernel's own choice."""

    def line(self, phase: int) -> str:
        """As /plan/flows states it; the last word is how long the sender pauses before it, in microseconds."""
        buffers = (self.send_buffer, self.receive_buffer)
        numbers = (self.size, self.messages + phase, self.messages, self.burst, *buffers, phase * _PAUSE)
        return " ".join((self.protocol, *map(str, numbers))) + "\n"


@dataclass(frozen=True)
class Window:
    """The counts of a flow."""

    flow: dict[str, int]
    """Counters of the sender: sent, came (messages), size (bytes), frames_out, frames_in."""
    tasks: list[tuple[str, str, str]]
    """Names of each task, its process and its parent process."""
    counts: Sequence[tuple[int, ...]]
    """Task (its process name, without tasks), address of a block, then as `counts.Share` has them from instructions
    on."""


@dataclass(frozen=True)
class Told:
    """All that a boot wrote."""

    windows: list[Window]
    parts: dict[str, str]
    """The output of `init`, by part."""


def prepare() -> None:
    """Builds or downloads all that a counted host needs, but the guests' kernel."""
    plugin()
    program()
    kernel.kernel()


def plugin(name: str = "path") -> Path:
    """The plugin that counts, `path` by task of Linux, `xen` by domain of Xen; compiled now if it never was."""
    sources = [_PLUGIN / file for file in (f"{name}.c", "cache.h", "cells.h", "qemu_plugin.h", "marks.h")]
    return _compiled(f"{name}.so", sources, "-shared", "-fPIC", "-fvisibility=hidden")


def program() -> Path:
    """The program that sends and receives."""
    return _compiled("counted", [_PLUGIN / "counted.c", _PLUGIN / "marks.h"], "-static")


def _compiled(name: str, sources: Sequence[Path], *flags: str) -> Path:
    def make(folder: Path) -> None:
        command: list[str | Path] = ["gcc", *_FLAGS, *flags, "-o", folder / name, sources[0]]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError as error:
            raise LabError("gcc is not installed: run make deps") from error
        if done.returncode:
            raise LabError(f"{sources[0].name} cannot be compiled:\n{done.stderr}")

    digest = hashlib.sha256(b"".join(file.read_bytes() for file in sources)).hexdigest()[:12]
    return cache.product(f"counting-{name}-{digest}", make) / name


def run(
    path: str, options: dict[str, Any], flows: Sequence[Flow], switch: Path | None, folder: Path, *, phase: int = 0
) -> Told:
    """Boots the host with that path and counts the flows, one after the other, into the empty folder `folder`.

    Everything is the same each time; but where timers strike between two messages is chance all the same, one of many
    that could be. Another `phase` begins each flow a little later, and so asks for another one.

    `options` go to the top of the network's file if the path is memlane; `switch` is memlane's program.
    """
    known = kernel.kernel()
    tree = folder / "tree"
    _lay_out(tree / "plan", path, options, switch)
    (tree / "plan" / "flows").write_text("".join(flow.line(phase) for flow in flows))
    cpio.write(tree, folder / "plan.cpio")
    archives = [root.image().initramfs, known.modules, folder / "plan.cpio"]
    initramfs = machine.joined(folder / "initramfs.cpio", archives)
    counts = folder / "counts"
    wanted = machine.linux(known.program, initramfs, "/plan/init", _plugin_words(known, counts), _devices(path))
    try:
        text = machine.boot(wanted, folder, timeout=120 + _SECONDS_A_FLOW * len(flows))
    finally:
        shutil.rmtree(tree)
        for file in (initramfs, folder / "plan.cpio"):
            file.unlink()
    return _read(parts(text), counts, flows)


def _lay_out(plan: Path, path: str, options: dict[str, Any], switch: Path | None) -> None:
    plan.mkdir(parents=True)
    root.install(_HERE / "init", plan / "init")
    root.install(_HERE / "machine_init", plan / "machine")
    root.install(program(), plan / "counted")
    (plan / "path").write_text(f"{PATHS[path]}\n")
    if path in {"bridge", "memlane"}:
        guest = uml_kernel.kernel()
        root.install(guest.program, plan / "linux")
        (plan / "uml-arguments").write_text("seccomp=on\n" if guest.has_seccomp else "\n")
    if path == "memlane":
        if switch is None:
            raise LabError("no memlane found in target/release, on $PATH or named by $MEMLANE: run make build")
        root.install(switch, plan / "memlane")
        ports = [{"name": name, "vhost-user": f"/run/{name}.sock"} for name in ("c1", "s1")]
        (plan / "net.toml").write_text(tomli_w.dumps({**options, "control": "/run/control.sock", "port": ports}))
        _take_libraries(plan.parent)


def _take_libraries(tree: Path) -> None:
    """Libraries of the switch that the usual image lacks: this machine's."""
    (tree / "lib").mkdir()
    library = Path("/lib/x86_64-linux-gnu/libgcc_s.so.1")
    if not library.exists():
        raise LabError(f"{library} is missing: install Debian's libgcc-s1")
    root.install(library, tree / "lib" / library.name)


def _plugin_words(known: CountedKernel, counts: Path) -> str:
    arguments = {
        "out": counts, "switch": known.switch, "switch_size": known.switch_size, "current": known.current,
        **known.offsets,
    }  # fmt: skip
    return ",".join([str(plugin()), *(f"{name}={value}" for name, value in arguments.items())])


def _devices(path: str) -> list[str]:
    """Two NICs of the host that a cable joins, where the path is such a pair."""
    if path != "e1000":
        return []
    words = []
    for number in (0, 1):
        words += ["-netdev", f"hubport,id=net{number},hubid=0"]
        words += ["-device", f"e1000,netdev=net{number},mac=02:00:00:00:00:0{number + 1}"]
    return words


def parts(text: bytes) -> dict[str, str]:
    """A machine's output, by part: each stands after a line "== NAME"."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.decode(errors="replace").replace("\r", "").splitlines():
        if line.startswith("== "):
            lines = found.setdefault(line[3:], [])
        else:
            lines.append(line)
    return {name: "\n".join(own) for name, own in found.items()}


def _read(told: dict[str, str], counts: Path, flows: Sequence[Flow]) -> Told:
    if "end" not in told:
        raise LabError("the counted host ended before it had reported all results")
    found = windows(told.get("c1", ""), told.get("s1", ""), counts, len(flows))
    if not any(name for each in found for task in each.tasks for name in task):
        raise LabError(
            "the plugin saw no task of the counted host's kernel: this kernel stores current_task in a way that "
            "lab/plugin/path.c does not know"
        )
    return Told(found, told)


def windows(sender: str, receiver: str, counts: Path, flows: int) -> list[Window]:
    """The counts of each flow: the plugin's file with the machines' output. Raises unless all ended."""
    said = [json.loads(line) for line in sender.splitlines() if line.startswith("{")]
    counted = [json.loads(line) for line in counts.read_text().splitlines()]
    if len(said) != flows or len(counted) != flows:
        words = "; ".join([*sender.splitlines()[-3:], *receiver.splitlines()[-3:]])
        raise LabError(f"only {len(said)} of {numbers.counted(flows, 'flow')} finished in the counted host: {words}")
    return [
        Window(flow, [tuple(task) for task in each.get("tasks", [])], [tuple(count) for count in each["counts"]])
        for flow, each in zip(said, counted, strict=True)
    ]
