"""What the machines of a setting's shops are given: an image that holds the shop, memory for what they do."""

from memlane_lab.images import shop as images
from memlane_lab.images.root import RootImage
from memlane_lab.setting import Setting

_UNPACKED = 2
"""A guest's memory file system may hold half of its memory."""
_FOR_PROGRAMS = 256
"""MiB beside the data: kernel, buffers, the database's own cache."""


def image(setting: Setting) -> RootImage | None:
    """The image of all machines; None: the usual one."""
    return images.image(setting.shop.items, setting.shop.customers) if setting.shop else None


def memories(setting: Setting) -> dict[str, int]:
    """MiB by machine, for those that hold the database."""
    if setting.shop is None:
        return {}
    tree = images.image(setting.shop.items, setting.shop.customers).tree
    data = (tree / images.PLACE / "database" / "data.tar").stat().st_size >> 20
    needed = _UNPACKED * (data + _FOR_PROGRAMS)
    keeper = "web" if setting.shop.together else "db"
    return {name: needed for name in setting.shop.machines() if name.startswith(keeper)}
