"""The root tree of guests with an operator's tools: VRRP, the MTU of a path, capture and replay of frames."""

from memlane_lab.images import root
from memlane_lab.images.root import PROGRAMS, Recipe, RootImage

_RECIPE = Recipe(
    "tools",
    {
        **{package: names for package, names in PROGRAMS.items() if package not in {"sockperf", "stress-ng"}},
        "iputils-tracepath": ["tracepath"],
        "keepalived": ["keepalived"],
        "tcpdump": ["tcpdump"],
        "tcpreplay": ["tcpreplay"],
    },
)


def image() -> RootImage:
    """The root tree."""
    return root.image(_RECIPE)
