"""An interactive shell in a guest, over the control channel."""

import sys
import threading

from memlane_lab.guests import Guest
from memlane_lab.guests.control import Running


def converse(guest: Guest) -> int:
    """Passes standard input to a shell in the guest, and its answers back, until either ends; returns its status."""
    shell = guest.spawn(["sh", "-i"], stdin=None)
    threading.Thread(target=_feed, args=(shell,), daemon=True).start()
    for text in shell.follow():
        sys.stdout.write(text)
        sys.stdout.flush()
    return shell.wait().status


def _feed(shell: Running) -> None:
    for line in sys.stdin:
        shell.write(line.encode())
    shell.close_input()
