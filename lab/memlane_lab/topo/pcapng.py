"""The output of tcpdump, read frame by frame, and written as pcapng with its times to the nanosecond.

Read is pcap (draft-ietf-opsawg-pcap), in either order of bytes and with either resolution; written are a section, one
interface, and an enhanced packet block for each frame (draft-ietf-opsawg-pcapng, sections 4.1 to 4.3).
"""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO

_SECTION, _INTERFACE, _PACKET = 0x0A0D0D0A, 1, 6
_TSRESOL = 9
"""The option of an interface that tells the unit of its times: 10^-9 s where it is 9."""
_PER_FRACTION = {0xA1B2C3D4: 1000, 0xA1B23C4D: 1}
"""By the file's first number, nanoseconds in a unit of its fractions of seconds."""


@dataclass(frozen=True)
class Frame:
    """One frame that was captured."""

    time: int
    """Nanoseconds since 1970."""
    data: bytes
    length: int
    """On the wire; more than there is of it where it was cut."""


class Pcap:
    """A pcap file that is being written by another."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        """`read` gives so many bytes, or fewer at the file's end."""
        self._read = read
        head = read(24)
        self._order = next((order for order in "<>" if _magic(head, order) in _PER_FRACTION), "<")
        self._unit = _PER_FRACTION.get(_magic(head, self._order), 0)
        self.link_type = struct.unpack(f"{self._order}I", head[20:24])[0] & 0xFFFF if self._unit else 1

    def __iter__(self) -> Iterator[Frame]:
        while self._unit and len(head := self._read(16)) == 16:
            seconds, fraction, held, length = struct.unpack(f"{self._order}IIII", head)
            data = self._read(held)
            if len(data) < held:
                return  # its writer was ended in the middle
            yield Frame(seconds * 1_000_000_000 + fraction * self._unit, data, length)


def _magic(head: bytes, order: str) -> int:
    return int(struct.unpack(f"{order}I", head[:4])[0]) if len(head) == 24 else 0


class PcapNg:
    """A pcapng file; each frame is there as soon as it is written."""

    def __init__(self, file: IO[bytes], link_type: int) -> None:
        self._file = file
        self._write(_SECTION, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1))
        options = struct.pack("<HHB3xHH", _TSRESOL, 1, 9, 0, 0)
        self._write(_INTERFACE, struct.pack("<HHI", link_type, 0, 0) + options)

    def write(self, frame: Frame) -> None:
        """Adds a frame."""
        head = struct.pack("<IIIII", 0, frame.time >> 32, frame.time & 0xFFFFFFFF, len(frame.data), frame.length)
        self._write(_PACKET, head + frame.data + bytes(-len(frame.data) % 4))

    def _write(self, kind: int, body: bytes) -> None:
        length = struct.pack("<I", len(body) + 12)
        self._file.write(struct.pack("<I", kind) + length + body + length)
        self._file.flush()
