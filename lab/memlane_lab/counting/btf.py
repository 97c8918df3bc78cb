"""Where the members of a kernel's structures are: its own description of its types (BTF).

The format: Documentation/bpf/btf.rst in the kernel's source.
"""

import struct
from collections.abc import Iterator

from memlane_lab.common.errors import LabError

_MAGIC = struct.pack("<HBBI", 0xEB9F, 1, 0, 24)
_STRUCT = 4
_BEHIND = {1: 4, 3: 12, 14: 4, 17: 4}
"""Bytes behind a type of that kind."""
_BEHIND_EACH = {4: 12, 5: 12, 6: 8, 13: 8, 15: 12, 19: 12}
"""Bytes behind a type of that kind, for each of its members."""


def offsets(kernel: bytes, structure: str) -> dict[str, int]:
    """Of each member of a structure, its offset in bytes; `kernel` is an ELF file's content."""
    start = kernel.find(_MAGIC)
    if start < 0:
        raise LabError("this kernel has no type information: it was built without CONFIG_DEBUG_INFO_BTF")
    _, _, _, length, types, types_length, strings, _ = struct.unpack_from("<HBBIIIII", kernel, start)
    names = start + length + strings

    def name(at: int) -> str:
        return kernel[names + at : kernel.index(b"\0", names + at)].decode()

    first = start + length + types
    for at, stated, kind, members, wide in _types(kernel, first, first + types_length):
        if kind == _STRUCT and members and name(stated) == structure:
            found = (struct.unpack_from("<III", kernel, at + 12 * number) for number in range(members))
            return {name(own): (bits & 0xFFFFFF if wide else bits) // 8 for own, _, bits in found}
    raise LabError(f"this kernel has no structure {structure}")


def _types(kernel: bytes, at: int, end: int) -> Iterator[tuple[int, int, int, int, bool]]:
    """Of each type: where its members stand, its name's place, its kind, how many members, whether bit fields."""
    while at < end:
        stated, info, _ = struct.unpack_from("<III", kernel, at)
        kind, members, at = info >> 24 & 0x1F, info & 0xFFFF, at + 12
        yield at, stated, kind, members, bool(info >> 31)
        at += _BEHIND.get(kind, 0) + _BEHIND_EACH.get(kind, 0) * members
