"""Topologies that have a name: line, ring, star, tree, grid, full."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import networkx as nx

from memlane_lab.errors import LabError
from memlane_lab.topo.model import Topology, check

Graph = Any
"""An undirected graph of networkx."""

SHAPES: Mapping[str, tuple[str, Callable[..., Graph]]] = {
    "line": ("N", lambda n: nx.path_graph(n)),
    "ring": ("N", lambda n: nx.cycle_graph(n)),
    "star": ("N", lambda n: nx.star_graph(n - 1)),
    "tree": ("DEPTH CHILDREN", lambda depth, children: nx.balanced_tree(children, depth)),
    "grid": ("WIDTH HEIGHT", lambda width, height: nx.grid_2d_graph(height, width)),
    "full": ("N", lambda n: nx.complete_graph(n)),
}
"""By name: what sizes it takes, and how it is made."""
_MOST = 5000


def shape(
    name: str,
    sizes: Sequence[int],
    *,
    called: str | None = None,
    node: Mapping[str, Any] | None = None,
    link: Mapping[str, Any] | None = None,
    routing: Mapping[str, Any] | None = None,
    over: str | None = None,
) -> Topology:
    """The topology of that shape with nodes r1, r2 ...

    `node` and `link` are what all of them have, `over` is what the links are made of (`model.OVER`).
    """
    words, make = SHAPES[name]
    if len(sizes) != len(words.split()) or any(size < 1 for size in sizes):
        raise LabError(f"{name} takes {words.lower()}, each at least 1: topo up {name} {words}")
    graph = nx.convert_node_labels_to_integers(make(*sizes), first_label=1)
    if graph.number_of_nodes() > _MOST:
        raise LabError(f"{graph.number_of_nodes()} nodes are more than {_MOST}")
    return check(
        {
            "name": called or name,
            **({"over": over} if over else {}),
            "routing": dict(routing or {}),
            "node": [{"name": f"r{number}", **(node or {})} for number in graph.nodes],
            "link": [{"ends": [f"r{a}", f"r{b}"], **(link or {})} for a, b in graph.edges if a != b],
        }
    )
