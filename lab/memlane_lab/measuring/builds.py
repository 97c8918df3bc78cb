"""The programs that a run measures, which must stay as they were when it began: a run of two builds says nothing."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from memlane_lab.common.errors import LabError


class Unchanged:
    """Programs, and their builds."""

    def __init__(self, programs: Iterable[Path]) -> None:
        self._seen = {program: (_place(program), _digest(program)) for program in programs if program.is_file()}

    def check(self) -> None:
        """Raises if a program is another one now; its content is read only where the file is a new one."""
        for program, (place, digest) in self._seen.items():
            if (now := _place(program)) == place:
                continue
            if now is None or _digest(program) != digest:
                raise LabError(
                    f"{program} was built anew while it was measured, further samples would be of another build: "
                    "measure again, in another folder (--out), and build nothing meanwhile"
                )
            self._seen[program] = (now, digest)


def _place(program: Path) -> tuple[int, int, int] | None:
    try:
        told = program.stat()
    except OSError:
        return None
    return told.st_ino, told.st_size, told.st_mtime_ns


def _digest(program: Path) -> str:
    with program.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
