"""The drawn topology: one page that needs nothing else, live while it is served."""

import http.server
import json
import math
from functools import partial
from pathlib import Path
from typing import Any

import networkx as nx

from memlane_lab.common.errors import LabError
from memlane_lab.common.progress import tell
from memlane_lab.topo.service import ask

_PAGE = Path(__file__).parent / "graph.html"
_ROW = 12
"""Nodes in a row, where a long line is folded."""
_NARROW_ROW = 4
"""The same, for a phone."""


def page(state: dict[str, Any], *, live: bool) -> str:
    """The page with the state as it is now; a live one asks for more."""
    found = {"places": places(state), "narrow": places(state, _NARROW_ROW)}
    told = json.dumps({"state": state, **found, "live": live, "wide": len(state["nodes"]) > _ROW})
    return _PAGE.read_text().replace("/*TOLD*/", told.replace("</", "<\\/"))


def places(state: dict[str, Any], row: int = _ROW) -> dict[str, list[float]]:
    """Where each node is drawn, one unit from its neighbours; a line has so many in a row."""
    graph: Any = nx.Graph()
    graph.add_nodes_from(node["name"] for node in state["nodes"])
    graph.add_edges_from(link["ends"] for link in state["links"])
    found = _layout(graph, row)
    return {str(node): [round(float(x), 4), round(float(y), 4)] for node, (x, y) in found.items()}


def _layout(graph: Any, row: int) -> dict[str, tuple[float, float]]:  # noqa: ANN401
    count, degrees = graph.number_of_nodes(), [degree for _, degree in graph.degree]
    connected = count > 0 and nx.is_connected(graph)
    if connected and count > 1 and max(degrees) <= 2 and min(degrees) == 1:
        return _folded(graph, row)
    if connected and set(degrees) == {2}:
        order = list(nx.dfs_preorder_nodes(graph))
        radius = count / (2 * math.pi)
        angles = [2 * math.pi * number / count - math.pi / 2 for number in range(count)]
        return {node: (radius * math.cos(a), radius * math.sin(a)) for node, a in zip(order, angles, strict=True)}
    if connected and nx.is_tree(graph) and max(degrees) < count - 1:
        return _tree(graph)
    spread = 1.1 * math.sqrt(count) / 1.6
    if count <= 300:
        laid = nx.kamada_kawai_layout(graph, scale=max(1.0, spread))
    else:
        laid = nx.spring_layout(graph, seed=1, iterations=80, scale=spread)
    return {node: (float(x), float(y)) for node, (x, y) in laid.items()}


def _folded(graph: Any, length: int) -> dict[str, tuple[float, float]]:  # noqa: ANN401
    """A line in rows, every other of them backwards."""
    start = next(node for node, degree in graph.degree if degree == 1)
    order = list(nx.dfs_preorder_nodes(graph, start))
    found = {}
    for number, node in enumerate(order):
        row, column = divmod(number, length)
        found[node] = (float(column if row % 2 == 0 else length - 1 - column), 1.5 * row)
    return found


def _tree(graph: Any) -> dict[str, tuple[float, float]]:  # noqa: ANN401
    """Leaves beside each other, every other node above the middle of its subtree."""
    root = next(iter(graph.nodes))
    found: dict[str, tuple[float, float]] = {}
    depths = nx.single_source_shortest_path_length(graph, root)
    children = dict(nx.bfs_successors(graph, root))
    leaves = 0
    for node in nx.dfs_postorder_nodes(graph, root):
        below = [found[child][0] for child in children.get(node, ())]
        if not below:
            leaves += 1
        found[node] = (sum(below) / len(below) if below else float(leaves), 1.3 * depths[node])
    return found


class _Handler(http.server.BaseHTTPRequestHandler):
    """Serves the page at /, and the state at /state."""

    def __init__(self, name: str, *arguments: Any) -> None:  # noqa: ANN401
        self._name = name
        super().__init__(*arguments)

    def do_GET(self) -> None:  # noqa: N802: so it is called
        """Answers."""
        try:
            if self.path == "/state":
                self._send("application/json", json.dumps(ask(self._name, "state", memory=False)))
            elif self.path == "/":
                self._send("text/html; charset=utf-8", page(ask(self._name, "state"), live=True))
            else:
                self.send_error(404)
        except LabError as error:
            self.send_error(503, str(error))

    def _send(self, kind: str, text: str) -> None:
        content = text.encode()
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002, ANN401
        """Says nothing."""


def serve(name: str, port: int) -> None:
    """Serves the page to this machine until Ctrl-C."""
    try:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", port), partial(_Handler, name))
    except OSError as error:
        raise LabError(
            f"the page cannot be served at port {port}: {error.strerror}; try another with --port"
        ) from error
    with server:
        tell(f"{name} is drawn at http://127.0.0.1:{server.server_port}/ until Ctrl-C")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return
