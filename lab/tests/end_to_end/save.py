"""Saves a guest by QEMU's monitor, and lets it go on: a command of `memlane snapshot --run`.

python -m tests.end_to_end.save MONITOR FILE
"""

import sys
from pathlib import Path

from tests.end_to_end.monitor import monitor
from tests.end_to_end.movable import save_guest

if __name__ == "__main__":
    socket, file = map(Path, sys.argv[1:])
    with monitor(socket) as ask:
        save_guest(ask, file)
        ask("cont")
