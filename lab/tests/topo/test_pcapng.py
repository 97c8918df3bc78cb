"""Captures keep their times to the nanosecond, in a file that others read."""

import io
import struct
from pathlib import Path
from typing import Any

import pytest
from scapy.utils import RawPcapNgReader

from memlane_lab.topo.pcapng import Pcap, PcapNg

_FIRST = 1_764_136_800
_TIMES = (0, 1, 1000, 999_999_999)
"""Nanoseconds within a second each, the seconds counted from the first."""


def _pcap(order: str, magic: int, unit: int) -> bytes:
    head = struct.pack(f"{order}IHHiIII", magic, 2, 4, 0, 0, 262144, 1)
    frames = (
        struct.pack(f"{order}IIII", _FIRST + number, time // unit, 60 + number, 1514) + bytes([number]) * (60 + number)
        for number, time in enumerate(_TIMES)
    )
    return head + b"".join(frames)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(("magic", "unit"), [(0xA1B23C4D, 1), (0xA1B2C3D4, 1000)])
def test_times_are_kept_to_the_nanosecond(tmp_path: Path, order: str, magic: int, unit: int) -> None:
    pcap = Pcap(io.BytesIO(_pcap(order, magic, unit)).read)
    with (tmp_path / "out").open("wb") as file:
        out = PcapNg(file, pcap.link_type)
        for frame in pcap:
            out.write(frame)
    reader: Any = RawPcapNgReader(str(tmp_path / "out"))
    found = [(data, told.tshigh << 32 | told.tslow, told.tsresol, told.wirelen) for data, told in reader]
    assert found == [
        (bytes([number]) * (60 + number), (_FIRST + number) * 10**9 + time // unit * unit, 10**9, 1514)
        for number, time in enumerate(_TIMES)
    ]


@pytest.mark.parametrize("length", [0, 10, 24, 30, 50])
def test_a_capture_that_ends_early_has_the_frames_before_that(length: int) -> None:
    assert list(Pcap(io.BytesIO(_pcap("<", 0xA1B23C4D, 1)[:length]).read)) == []
