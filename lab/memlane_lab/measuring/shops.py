"""The image and the memory of the machines of a setting's shops."""

from memlane_lab.experiment.setting import Setting
from memlane_lab.guests import KINDS
from memlane_lab.host.ports import GuestKind
from memlane_lab.images import shop as images
from memlane_lab.images.root import RootImage

_UNPACKED = 2
"""A guest's memory file system may hold half of its memory."""
_FOR_PROGRAMS = 256
"""MiB beside the data: kernel, buffers, the database's own cache."""


def image(setting: Setting) -> RootImage | None:
    """The image of all machines; None: the usual one."""
    return images.image(setting.shop.items, setting.shop.customers) if setting.shop else None


def memories(setting: Setting, kind: GuestKind) -> dict[str, int]:
    """MiB by machine, for those that need more than guests of the `kind` usually get."""
    found = image(setting)
    if setting.shop is None or found is None:
        return {}
    data = (found.tree / images.PLACE / "database" / "data.tar").stat().st_size >> 20
    keeper = "web" if setting.shop.together else "db"
    packed = found.initramfs.stat().st_size >> 20
    # Some guests unpack their whole tree into their memory, from a copy that is there too; files fill whole pages.
    tree = packed + _UNPACKED * (packed + packed // 8) if KINDS[kind].unpacks_its_tree else 0
    needed = {name: _UNPACKED * (data + _FOR_PROGRAMS) for name in setting.shop.machines() if name.startswith(keeper)}
    others = setting.machines() if tree else []
    return dict.fromkeys(others, _FOR_PROGRAMS + tree) | {name: mib + tree for name, mib in needed.items()}
