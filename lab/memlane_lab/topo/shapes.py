"""Topologies that have a name: line, ring, star, tree, grid, full."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import networkx as nx

from memlane_lab.common.errors import LabError
from memlane_lab.topo.model import Topology, check
from memlane_lab.topo.settings import Settings

Graph = Any
"""An undirected graph of networkx."""


@dataclass(frozen=True)
class Shape:
    """How a shape is made."""

    words: str
    """The sizes that it takes."""
    make: Callable[..., Graph]
    count: Callable[..., tuple[int, int]]
    """Its nodes and links, known before it is made."""


def _of_tree(depth: int, children: int) -> tuple[int, int]:
    nodes = 1
    for level in range(1, depth + 1):
        if nodes > _MOST:
            break
        nodes += children**level
    return nodes, nodes - 1


SHAPES: Mapping[str, Shape] = {
    "line": Shape("N", nx.path_graph, lambda n: (n, n - 1)),
    "ring": Shape("N", nx.cycle_graph, lambda n: (n, n)),
    "star": Shape("N", lambda n: nx.star_graph(n - 1), lambda n: (n, n - 1)),
    "tree": Shape("DEPTH CHILDREN", lambda depth, children: nx.balanced_tree(children, depth), _of_tree),
    "grid": Shape(
        "WIDTH HEIGHT", lambda width, height: nx.grid_2d_graph(height, width), lambda w, h: (w * h, 2 * w * h - w - h)
    ),
    "full": Shape("N", nx.complete_graph, lambda n: (n, n * (n - 1) // 2)),
}
"""By name."""
_MOST, _MOST_LINKS = 5000, 20_000


def shape(
    name: str,
    sizes: Sequence[int],
    settings: Settings,
) -> Topology:
    """The topology of that shape with nodes r1, r2 ..."""
    chosen = SHAPES[name]
    if len(sizes) != len(chosen.words.split()) or any(size < 1 for size in sizes):
        raise LabError(f"{name} takes {chosen.words}, each at least 1: topo up {name} {chosen.words}")
    nodes, links = chosen.count(*sizes)
    if nodes > _MOST or links > _MOST_LINKS:
        raise LabError(f"{name} {' '.join(map(str, sizes))} has more than {_MOST} nodes or {_MOST_LINKS} links")
    graph = nx.convert_node_labels_to_integers(chosen.make(*sizes), first_label=1)
    return check(
        {
            "name": settings.name or name,
            **({"over": settings.over} if settings.over else {}),
            "routing": dict(settings.routing),
            "node": [{"name": f"r{number}", **settings.node} for number in graph.nodes],
            "link": [{"ends": [f"r{a}", f"r{b}"], **settings.link} for a, b in graph.edges if a != b],
        }
    )
