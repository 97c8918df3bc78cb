"""Packet capture on a link, by a program of this machine: memlane's own capture, or tcpdump at the kernel's devices."""

import os
import sys
from pathlib import Path
from typing import NoReturn

from memlane_lab.common.errors import LabError
from memlane_lab.topo.service import ask


def capture(name: str, where: str, what: str, write: Path | None, count: int | None) -> NoReturn:
    """Becomes the program that writes frames until it is interrupted, or until there are `count`."""
    if write is None and sys.stdout.isatty():
        raise LabError("a capture is binary: write it to a file with -w FILE, or pipe it: | tcpdump -r -")
    told = ask(name, "capture", where=where, write="-" if write is None else str(write), what=what, count=count)
    command = told["command"]
    try:
        os.execvp(command[0], command)
    except OSError as error:
        raise LabError(f"cannot run {command[0]}: {error.strerror}; run lab/install-packages") from error
