"""A containerlab file: its nodes and links, for networks of Linux machines and FRR routers.

Served: `name`; of `topology`: `defaults`, `kinds`, `nodes` with kind, image, exec, binds, memory, startup-config,
and `links` with endpoints. What is not served is a mistake, so that nobody takes the network for another.
"""

import re
from collections.abc import Iterator
from typing import Any

import yaml

from memlane_lab.topo.model import BadTopology, Mistake, Place

_NODE = {"kind", "image", "exec", "binds", "memory", "startup-config", "group", "labels"}
_KINDS = {"linux", "frr", "host"}
_UNITS = {"": 1 / (1 << 20), "b": 1 / (1 << 20), "k": 1 / 1024, "m": 1.0, "g": 1024.0}


def read(text: str) -> tuple[dict[str, Any], Any]:
    """What the file states, and the lines of its places."""
    try:
        document = yaml.safe_load(text)
        lines = dict(_lines(yaml.compose(text, Loader=yaml.SafeLoader), ()))
    except yaml.YAMLError as error:
        raise ValueError(f"no YAML: {error}") from error
    reader = _Reader(document if isinstance(document, dict) else {})
    stated = reader.stated()

    def line(place: Place) -> int:
        place = reader.origin.get(place[:2], ()) + place[2:] if place[:2] in reader.origin else place
        return next((lines[place[:length]] for length in range(len(place), 0, -1) if place[:length] in lines), 0)

    if reader.mistakes:
        where = sorted((line(mistake.place), mistake.text) for mistake in reader.mistakes)
        raise ValueError("\n".join(f"line {number}: {text}" for number, text in where))
    return stated, line


def _lines(node: Any, place: Place) -> Iterator[tuple[Place, int]]:  # noqa: ANN401
    """By place, the line at which it begins."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield (*place, key.value), key.start_mark.line + 1
            yield from _lines(value, (*place, key.value))
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield (*place, index), value.start_mark.line + 1
            yield from _lines(value, (*place, index))


class _Reader:
    """Goes through a file once."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document
        self.mistakes: list[Mistake] = []
        self.origin: dict[Place, Place] = {}
        """Where in the file our places come from."""

    def stated(self) -> dict[str, Any]:
        """As our own files state it."""
        self._refuse(self._document, {"name", "prefix", "mgmt", "topology"}, ())
        topology = self._table(self._document, "topology", ())
        place: Place = ("topology",)
        self._refuse(topology, {"defaults", "kinds", "groups", "nodes", "links"}, place)
        nodes = self._table(topology, "nodes", place)
        usual = self._table(topology, "defaults", place)
        kinds = self._table(topology, "kinds", place)
        made = [self._node(number, name, own, usual, kinds) for number, (name, own) in enumerate(nodes.items())]
        links = topology.get("links") or []
        cables = [link for number, found in enumerate(links) if (link := self._link(number, found))]
        name = re.sub(r"[^A-Za-z0-9_-]", "-", str(self._document.get("name", "clab")))
        return {"name": name, "node": [node for node in made if node], "link": cables}

    def _node(self, number: int, name: str, own: Any, usual: dict[str, Any], kinds: dict[str, Any]) -> dict[str, Any]:  # noqa: ANN401
        place: Place = ("topology", "nodes", name)
        self.origin["node", number] = place
        if own is not None and not isinstance(own, dict):
            self.mistakes.append(Mistake(place, f"node {name} must be a table"))
            return {}
        own = own or {}
        self._refuse(own, _NODE, place)
        kind = own.get("kind", usual.get("kind", "linux"))
        merged = {**usual, **(kinds.get(kind) or {}), **own}
        if kind not in _KINDS:
            self.mistakes.append(Mistake((*place, "kind"), f"kind {kind} is not served: nodes are linux machines"))
        image = str(merged.get("image", ""))
        node: dict[str, Any] = {"name": name, "role": "router" if "frr" in image or kind == "frr" else "host"}
        node["commands"] = tuple(merged.get("exec") or ())
        node["files"] = dict(self._binds(merged.get("binds") or (), place))
        if any(path.startswith("/etc/frr/") for path in node["files"]):
            node["role"] = "router"
        if "memory" in merged:
            node["memory"] = self._memory(str(merged["memory"]), place)
        return node

    def _binds(self, binds: Any, place: Place) -> Iterator[tuple[str, str]]:  # noqa: ANN401
        for number, bind in enumerate(binds):
            source, _, rest = str(bind).partition(":")
            target = rest.partition(":")[0]
            if target == "/etc/frr/daemons":
                continue  # which daemons run is told by what there is to configure
            if not target.startswith("/"):
                self.mistakes.append(Mistake((*place, "binds", number), f"{bind!r} is no HOST:PATH"))
            yield target, source

    def _memory(self, text: str, place: Place) -> int:
        found = re.fullmatch(r"(\d+)\s*([bkmg]?)(i?b)?", text.strip().lower())
        if not found:
            self.mistakes.append(Mistake((*place, "memory"), f"{text!r} is no amount of memory"))
            return 64
        return max(24, round(int(found[1]) * _UNITS[found[2]]))

    def _link(self, number: int, found: Any) -> dict[str, Any] | None:  # noqa: ANN401
        place: Place = ("topology", "links", number)
        ends = found.get("endpoints") if isinstance(found, dict) else None
        if not isinstance(ends, list) or len(ends) != 2:
            self.mistakes.append(Mistake(place, 'a link needs two endpoints: endpoints: ["r1:eth1", "r2:eth1"]'))
            return None
        self._refuse(found, {"endpoints", "mtu", "labels", "vars"}, place)
        self.origin["link", sum(key[0] == "link" for key in self.origin)] = place
        return {"ends": [str(end) for end in ends], **({"mtu": found["mtu"]} if "mtu" in found else {})}

    def _table(self, holder: dict[str, Any], key: str, place: Place) -> dict[str, Any]:
        found = holder.get(key) or {}
        if isinstance(found, dict):
            return found
        self.mistakes.append(Mistake((*place, key), f"{key} must be a table"))
        return {}

    def _refuse(self, table: dict[str, Any], served: set[str], place: Place) -> None:
        for key in table:
            if key not in served:
                self.mistakes.append(Mistake((*place, key), f"{key} is not served here; remove it"))


__all__ = ["BadTopology", "read"]
