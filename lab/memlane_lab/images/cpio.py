"""An initramfs from a folder, in the "newc" cpio format.

The format: Documentation/driver-api/early-userspace/buffer-format.rst in the kernel's source.

Own code, because the output must not depend on who builds it: everything belongs to root and times are zero.
"""

import os
import stat
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import BinaryIO

_MAGIC = b"070701"
_TRAILER = "TRAILER!!!"


def write(folder: Path, archive: Path, leave_out: Collection[str] = ()) -> None:
    """Writes all of `folder` to the file `archive`, uncompressed: a guest under emulation unpacks slowly.

    `leave_out` are names of files under `folder` that the archive does not get.
    """
    with archive.open("wb") as out:
        for number, (name, path) in enumerate(_entries(folder), start=1):
            if name in leave_out:
                continue
            status = path.lstat()
            _write_entry(out, name, number, status.st_mode, _content(path, status.st_mode))
        _write_entry(out, _TRAILER, 0, 0, b"")


def _entries(folder: Path) -> Iterator[tuple[str, Path]]:
    """Every file under `folder`, a directory before what it holds, in an order that does not change."""
    for path in sorted(folder.rglob("*")):
        yield str(path.relative_to(folder)), path


def _content(path: Path, mode: int) -> bytes:
    if stat.S_ISLNK(mode):
        return os.fsencode(path.readlink())
    return path.read_bytes() if stat.S_ISREG(mode) else b""


def _write_entry(out: BinaryIO, name: str, inode: int, mode: int, content: bytes) -> None:
    encoded = os.fsencode(name) + b"\0"
    # inode, mode, uid, gid, links, time, size, device (2), special device (2), name length, checksum
    fields = (inode, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(encoded), 0)
    out.write(_MAGIC + b"".join(b"%08X" % field for field in fields))
    out.write(_padded(encoded, header=110))
    out.write(_padded(content))


def _padded(data: bytes, header: int = 0) -> bytes:
    """`data` with zeros up to a multiple of four bytes, counted from `header` bytes before it."""
    return data + bytes(-(header + len(data)) % 4)
