"""QEMU's monitor (QMP), by which a test migrates and saves guests."""

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from memlane_lab.common.wait import until

Ask = Callable[..., Any]
"""Asks QEMU something: `ask(command, **arguments)` returns the answer."""


@contextmanager
def monitor(path: Path) -> Iterator[Ask]:
    """A conversation with QEMU at the socket of its monitor."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(30)
        # The socket is there before QEMU listens at it.
        until(lambda: connection.connect_ex(str(path)) == 0, timeout=30, what="QEMU's monitor")
        lines = connection.makefile("rw")

        def ask(command: str, **arguments: Any) -> Any:
            lines.write(json.dumps({"execute": command, "arguments": arguments}) + "\n")
            lines.flush()
            while True:
                said = json.loads(lines.readline())
                assert "error" not in said, said
                if "return" in said:
                    return said["return"]

        lines.readline()  # its greeting
        ask("qmp_capabilities")
        yield ask


def wait(condition: Callable[[], bool], what: str) -> None:
    """Waits until QEMU has done something."""
    until(condition, timeout=120, what=what)
