"""A GraphML of the Topology Zoo: routers with their places on earth, links with the delay of light in between."""

import io
import math
import re
from pathlib import Path
from typing import Any

import networkx as nx

from memlane_lab.common.strict import Place
from memlane_lab.topo.model import HOST, is_number
from memlane_lab.topo.stated import NotRead, Stated

_EARTH = 6371.0
"""Kilometres."""
_LIGHT = 200.0
"""Kilometres a millisecond in a fibre: two thirds of the speed of light in vacuum."""


def read(text: str, _folder: Path) -> Stated:
    """The file's tables, and the lines of its places."""
    try:
        graph = nx.read_graphml(io.BytesIO(text.encode()), force_multigraph=True)
    except Exception as error:  # the library raises all that its parser raises
        at = getattr(error, "position", (0, 0))[0]
        raise NotRead([(at, f"no valid GraphML: {error}")]) from error
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
    tables = {**({"name": named} if named else {}), "node": nodes, "link": links}
    return Stated(tables, line, _notes(graph, names))


def _notes(graph: Any, names: dict[Any, str]) -> tuple[str, ...]:  # noqa: ANN401
    changed = [f"{node} is {names[node]}" for node in graph.nodes if names[node] == f"n{_label(graph, node)}"]
    if not changed:
        return ()
    more = ", ..." if len(changed) > 1 else ""
    return (f"names that are numbers get a letter, for programs take them for addresses: {changed[0]}{more}",)


def _label(graph: Any, node: Any) -> str:  # noqa: ANN401
    return str(graph.nodes[node].get("label", node))


def _names(graph: Any) -> dict[Any, str]:  # noqa: ANN401
    """Each node's label as a name; its number behind it where others have the same."""
    names: dict[Any, str] = {}
    taken = {HOST, "localhost"}
    for number, node in enumerate(graph.nodes):
        plain = re.sub(r"[^A-Za-z0-9_-]+", "-", _label(graph, node)).strip("-_")[:24] or f"n{number}"
        plain = f"n{plain}" if is_number(plain) else plain
        while plain.lower() in taken:
            plain = f"{plain[:24]}-{number}"
        taken.add(plain.lower())
        names[node] = plain
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
