"""Guests of QEMU with a monitor, which are saved to a file, and copies of them that are restored from it."""

import socket
from pathlib import Path
from typing import ClassVar

from memlane_lab.guests.qemu import PROGRAM, TcgGuest
from tests.end_to_end.monitor import Ask, wait


class Movable(TcgGuest):
    """A guest in a QEMU with a monitor; one that is incoming begins as another's copy."""

    program: ClassVar[str] = PROGRAM
    incoming = False
    channel: socket.socket
    """Our end of the control channel of a copy."""

    @property
    def qmp(self) -> Path:
        return self.session.folder / f"{self.name}.qmp"

    def _command(self, channel: str) -> list[str]:
        arguments = ["-qmp", f"unix:{self.qmp},server=on,wait=off"]
        if self.incoming:
            arguments += ["-incoming", "defer"]
        return [*super()._command(channel), *arguments]

    def await_copy(self) -> None:
        """Starts QEMU, which waits for a guest. Nothing is asked there: the guest's agent does not begin anew."""
        self.incoming = True
        ours, theirs = socket.socketpair()
        self.session.enter_context(ours)
        self.channel = ours
        with theirs:
            self._process = self._start(theirs)
        wait(self.qmp.exists, "the other QEMU's monitor")


def save_guest(old: Ask, path: Path) -> None:
    """Writes the state of a guest to a file."""
    old("migrate", uri=f"exec:cat >{path}")
    wait(lambda: has_ended(old), "the guest to be saved")


def restore_guest(new: Ask, path: Path) -> None:
    """Restores a guest from such a file, and has it run."""
    new("migrate-incoming", uri=f"exec:cat {path}")
    wait(lambda: new("query-status")["status"] in {"running", "paused"}, "the guest to be restored")
    new("cont")


def has_ended(old: Ask) -> bool:
    """Whether a guest has left, or is saved."""
    said = old("query-migrate")
    assert said.get("status") not in {"failed", "cancelled"}, said
    return bool(said.get("status") == "completed")
