"""How far the host's two CPUs are apart: where a virtual machine's processors wander, this decides much.

Two CPUs under one cache pass a line to and fro in some 80 ns, two under different caches in more than 300; samples of
one kind and the other are not alike, and are not compared.
"""

import json
import os
import subprocess
from functools import cache

from memlane_lab.host import rust

UNKNOWN = "unknown"
"""Not probed, or nothing to probe: all samples count as alike."""
MOVED = "moved"
"""Not the same before the sample and after it."""


@cache
def lack() -> str | None:
    """Why the placement cannot be probed, or None."""
    if len(os.sched_getaffinity(0)) < 2:
        return "there is one CPU only"
    return None if rust.program("memlane-rig", named_by="MEMLANE_RIG") else "no memlane-rig found: run make build"


def probe() -> str:
    """The placement now: near, between, far, or unknown. Takes a few milliseconds."""
    if lack():
        return UNKNOWN
    first, second = sorted(os.sched_getaffinity(0))[:2]
    program = rust.program("memlane-rig", named_by="MEMLANE_RIG")
    command = [str(program), "placement", "--json", "--cpus", f"{first},{second}"]
    told = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return told["distance"]["verdict"] if told["distance"] else UNKNOWN


def of_sample(before: str, after: str) -> str:
    """The placement of a sample that began and ended so."""
    return before if before == after and before != "between" else MOVED
