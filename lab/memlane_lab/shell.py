"""A person at a guest: a shell whose lines go over the control channel."""

import sys
import threading
import time

from memlane_lab.control import Running
from memlane_lab.guests import Guest

_LOOK_EVERY = 0.05
"""Seconds between looks for new output, for a person's eyes."""


def converse(guest: Guest) -> int:
    """Passes standard input to a shell in the guest, and its answers back, until either ends; returns its status."""
    shell = guest.spawn(["sh", "-i"], stdin=None)
    threading.Thread(target=_feed, args=(shell,), daemon=True).start()
    shown = 0
    while not shell.ended:
        shown = _show(shell, shown)
        time.sleep(_LOOK_EVERY)
    _show(shell, shown)
    return shell.wait().status


def _feed(shell: Running) -> None:
    for line in sys.stdin:
        shell.write(line.encode())
    shell.close_input()


def _show(shell: Running, shown: int) -> int:
    """Prints what is new; both outputs come in one stream, because people read them so."""
    text = shell.merged
    sys.stdout.write(text[shown:])
    sys.stdout.flush()
    return len(text)
