"""The kit that this lab runs from, unpacked: the commit of its switch, and images that guests boot."""

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from memlane_lab.common import strict
from memlane_lab.common.strict import Strict

FOLDER = "MEMLANE_LAB_KIT"
"""Names, in the environment, the folder of an unpacked kit."""
STATED, VERSION = "kit.json", 1
"""File of the facts, and its format's version."""
IMAGES = "images"
"""Folder of kernel, modules and root archive."""


class Stated(Strict):
    """Facts that were known when the kit was made."""

    format_version: int = VERSION
    commit: str
    """Of the switch and the lab, in 12 digits; followed by ` with changes` if some were not committed."""
    images: dict[str, str]
    """Versions of the guests' programs, and digests of all that guests boot."""


@dataclass(frozen=True)
class Unpacked:
    """A kit at hand."""

    folder: Path
    stated: Stated

    @property
    def images(self) -> Path:
        """The folder of the images."""
        return self.folder / IMAGES


@cache
def here() -> Unpacked | None:
    """The kit that this lab runs from; None for a lab of its own."""
    if not (named := os.environ.get(FOLDER)):
        return None
    folder = Path(named)
    return Unpacked(folder, strict.read(folder / STATED, Stated, VERSION))
