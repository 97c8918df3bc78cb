"""Frames on the control channel: 16 bytes of header in little-endian order, then the payload.

`agent/src/frame.rs` is the other end and holds the same table of kinds. Nothing is ever parsed out of free text, so a
program's output cannot be mistaken for an answer.
"""

import struct
from collections.abc import Iterator
from enum import IntEnum

_HEADER = struct.Struct("<4sIII")  # magic, kind, handle, payload length
_MAGIC = b"MLAB"
_LONGEST = 32 * 1024
"""Longest payload either side sends."""


class Kind(IntEnum):
    """Kinds of frames: requests of the lab (below 16) and messages of the guest."""

    SPAWN = 1
    STDIN = 2
    SIGNAL = 3
    READ = 4
    WRITE = 5
    HELLO = 16
    STDOUT = 17
    STDERR = 18
    EXIT = 19
    DATA = 20
    DONE = 21
    FAILED = 22
    TAKEN = 23


_HELLO = _HEADER.pack(_MAGIC, Kind.HELLO, 0, 0)[:-4]
"""How a greeting begins."""


class NotFrames(Exception):
    """The channel carries something else: its text holds the first bytes of it."""


def pack(kind: Kind, handle: int, payload: bytes) -> bytes:
    """A frame as it travels."""
    return _HEADER.pack(_MAGIC, kind, handle, len(payload)) + payload


class FrameReader:
    """Puts frames together from a stream that arrives in pieces."""

    def __init__(self) -> None:
        self._arrived = bytearray()
        self._skipping = False

    def expect_hello(self) -> None:
        """From now on drops everything before the next greeting: its sender may end in the middle of a frame."""
        self._skipping = True

    def feed(self, piece: bytes) -> Iterator[tuple[Kind, int, bytes]]:
        """Takes received bytes and yields the frames that are complete by now: kind, handle, payload."""
        self._arrived += piece
        while self._found_hello() and len(self._arrived) >= _HEADER.size:
            magic, kind, handle, length = _HEADER.unpack_from(self._arrived)
            if magic != _MAGIC or kind not in set(Kind) or length > _LONGEST:
                raise NotFrames(bytes(self._arrived[: _HEADER.size]))
            end = _HEADER.size + length
            if len(self._arrived) < end:
                return
            payload = bytes(self._arrived[_HEADER.size : end])
            del self._arrived[:end]
            yield Kind(kind), handle, payload

    def _found_hello(self) -> bool:
        if self._skipping:
            at = self._arrived.find(_HELLO)
            kept = len(self._arrived) - len(_HELLO) + 1  # the start of a greeting may be there already
            del self._arrived[: at if at >= 0 else max(0, kept)]
            self._skipping = at < 0
        return not self._skipping
