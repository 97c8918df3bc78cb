"""A GraphML of the Topology Zoo: routers with their places on earth, links with the delay of light in between."""

import io
import math
import re
from typing import Any

import networkx as nx

from memlane_lab.topo.model import Place

_EARTH = 6371.0
"""Kilometres."""
_LIGHT = 200.0
"""Kilometres a millisecond in a fibre: two thirds of what light does in nothing."""


def read(text: str) -> tuple[dict[str, Any], Any]:
    """What the file states, and the lines of its places."""
    try:
        graph = nx.read_graphml(io.BytesIO(text.encode()), force_multigraph=True)
    except Exception as error:  # the library raises whatever its parser does
        raise ValueError(f"no GraphML: {error}") from error
    names = _names(graph)
    nodes = [{"name": names[node]} for node in graph.nodes]
    links = [_link(graph, names, a, b) for a, b in graph.edges() if a != b]
    rows = text.splitlines()
    node_lines = [number for number, row in enumerate(rows, start=1) if "<node" in row]
    link_lines = [number for number, row in enumerate(rows, start=1) if "<edge" in row]

    def line(place: Place) -> int:
        found = {"node": node_lines, "link": link_lines}.get(str(place[0]), [])
        at = place[1] if len(place) > 1 else 0
        return found[at] if isinstance(at, int) and at < len(found) else 0

    named = re.sub(r"[^A-Za-z0-9_-]", "-", str(graph.graph.get("Network", "")))[:31].strip("-_")
    return {**({"name": named} if named else {}), "node": nodes, "link": links}, line


def _names(graph: Any) -> dict[Any, str]:  # noqa: ANN401
    """Each node's label as a name; its number behind it where others have the same."""
    names: dict[Any, str] = {}
    for number, (node, told) in enumerate(graph.nodes(data=True)):
        plain = re.sub(r"[^A-Za-z0-9_-]+", "-", str(told.get("label", node))).strip("-_")[:24] or f"n{number}"
        taken = plain in names.values() or plain == "host"
        names[node] = f"{plain}-{number}" if taken else plain
    return names


def _link(graph: Any, names: dict[Any, str], first: Any, second: Any) -> dict[str, Any]:  # noqa: ANN401
    kilometres = _distance(graph.nodes[first], graph.nodes[second])
    delay = {"delay": f"{max(1, round(1000 * kilometres / _LIGHT))}us"} if kilometres is not None else {}
    return {"ends": [names[first], names[second]], **delay}


def _distance(first: dict[str, Any], second: dict[str, Any]) -> float | None:
    """Kilometres along the earth, where both places are known."""
    try:
        places = [
            (math.radians(float(end["Latitude"])), math.radians(float(end["Longitude"]))) for end in (first, second)
        ]
    except (KeyError, ValueError):
        return None
    (north, east), (north2, east2) = places
    half = math.sin((north2 - north) / 2) ** 2 + math.cos(north) * math.cos(north2) * math.sin((east2 - east) / 2) ** 2
    return 2 * _EARTH * math.asin(min(1.0, math.sqrt(half)))
