"""A terminal in a node: this one is made raw, and its bytes go there and back."""

import base64
import os
import shutil
import signal
import sys
import termios
import threading
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from memlane_lab.topo.service import Caller


def converse(name: str, node: str) -> int:
    """Passes this terminal to a shell in the node until it ends; returns its status."""
    size = _size()
    caller = Caller(name, "shell", node=node, rows=size.lines, columns=size.columns)
    threading.Thread(target=_feed, args=(caller,), daemon=True).start()

    def resized(_number: int, _frame: FrameType | None) -> None:
        now = _size()
        caller.send(rows=now.lines, columns=now.columns)

    signal.signal(signal.SIGWINCH, resized)
    status = 1
    with _raw():
        for answer in caller.answers():
            if "status" in answer:
                status = answer["status"]
            else:
                os.write(sys.stdout.fileno(), answer["text"].encode())
    return status if status >= 0 else 128 - status


def _size() -> os.terminal_size:
    """Of this terminal's window now, which $COLUMNS need not be; without a window, from the environment."""
    with suppress(OSError):
        size = os.get_terminal_size(sys.stdout.fileno())
        if size.lines and size.columns:
            return size
    return shutil.get_terminal_size()


def _feed(caller: Caller) -> None:
    with suppress(OSError):
        while keys := os.read(sys.stdin.fileno(), 4096):
            caller.send(keys=base64.b64encode(keys).decode())
        caller.send(ended=True)


@contextmanager
def _raw() -> Iterator[None]:
    """Has the terminal, if it is one, pass every key."""
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setraw(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
