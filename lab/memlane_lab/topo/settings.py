"""Settings of a topology beside its shape or file."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Settings:
    """The topology's name, and keys that all its nodes and links have, for shapes and files that cannot state them."""

    name: str | None = None
    """None: that of the shape or of the file."""
    node: Mapping[str, Any] = field(default_factory=dict)
    """Keys of `Node`."""
    link: Mapping[str, Any] = field(default_factory=dict)
    """Keys of `Link`."""
    routing: Mapping[str, Any] = field(default_factory=dict)
    """Keys of `Routing`."""
    over: str | None = None
    """Kind of the links: "memlane"; "bridge" or "veth", to compare."""

    def stated(self) -> dict[str, Any]:
        """Those of `node`, `link`, `routing` and `over` that state something."""
        every = {"node": self.node, "link": self.link, "routing": self.routing, "over": self.over}
        return {key: value for key, value in every.items() if value}


NONE = Settings()
"""Nothing beside the shape or file."""
