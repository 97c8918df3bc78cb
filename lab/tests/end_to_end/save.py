"""Saves a guest by QEMU's monitor, and lets it go on: a command of `memlane snapshot --run`.

python -m tests.end_to_end.save MONITOR FILE
"""

import sys
from pathlib import Path

from tests.end_to_end.monitor import monitor
from tests.end_to_end.movable import save_guest


def save(socket: Path, file: Path) -> None:
    """Saves the guest whose monitor listens at `socket` to `file`, and lets it go on."""
    with monitor(socket) as ask:
        save_guest(ask, file)
        ask("cont")


if __name__ == "__main__":
    save(*map(Path, sys.argv[1:]))
