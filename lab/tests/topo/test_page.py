"""The drawn topology in a real browser: it says all that its links do to frames, and can be read on a phone."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from memlane_lab import topo
from memlane_lab.topo import addresses, graph
from memlane_lab.topo.model import Topology
from memlane_lab.topo.settings import Settings

pytestmark = pytest.mark.real

_PROBE = """<script>
window.faults = [];
window.addEventListener("error", event => window.faults.push(event.message), true);
window.addEventListener("load", () => setTimeout(() => {
  const box = element => { const b = element.getBoundingClientRect(); return [b.left, b.top, b.right, b.bottom]; };
  const seen = document.createElement("pre");
  seen.id = "seen";
  seen.textContent = JSON.stringify({
    faults: window.faults, width: innerWidth, map: box(document.getElementById("map")),
    across: document.documentElement.scrollWidth,
    nodes: [...document.querySelectorAll(".node")].map(node => ({name: node.textContent,
      box: box(node.querySelector("rect")), text: box(node.querySelector("text"))})),
    links: [...document.querySelectorAll(".rate")].map(text => ({rows: [...text.children].map(row => row.textContent),
      box: box(text)})),
  });
  document.body.append(seen);
}, 300));
</script>"""


def _state(topology: Topology) -> dict[str, Any]:
    """The state of a running topology, as far as the page needs it."""
    plan = addresses.plan(topology)
    common = {"state": "up", "neighbours": [], "routes": 3, "cpu": 1.0, "memory": 32_000_000}
    nodes = [
        {"name": node.name, "kind": node.kind, "role": node.role, "addresses": [], "interfaces": {}, **common}
        for node in topology.nodes
    ]
    quiet = {"up": True, "alive": True, "drops": 0, "frames": [0, 0], "bytes": [0, 0]}
    links = [
        {
            "name": f"{a.node}-{b.node}",
            "ends": [a.node, b.node],
            "interfaces": [a.name, b.name],
            "impairment": str(link.impairment),
            **quiet,
        }
        for (a, b), link in zip(plan.ends, topology.links, strict=True)
    ]
    return {"name": topology.name, "nodes": nodes, "links": links, "switch": {"own": 0, "memory": 0}}


def _seen(folder: Path, topology: Topology, width: int) -> dict[str, Any]:
    """A browser's picture of the page in a window of so many pixels; it has no narrow ones itself."""
    browser = shutil.which("chromium")
    assert browser, "chromium is missing: run `lab/install-packages test`"
    page = graph.page(_state(topology), live=False).replace("<head>", f"<head>{_PROBE}", 1)
    (folder / "page.html").write_text(page)
    frame = (
        f"<body><iframe id=f src=page.html width={width} height=780></iframe><script>addEventListener('load', () => "
    )
    frame += "setTimeout(() => document.body.append(f.contentDocument.getElementById('seen')), 1500));</script></body>"
    (folder / "frame.html").write_text(frame)
    command = [
        browser, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000", "--dump-dom",
        "--window-size=1300,900", "--allow-file-access-from-files", f"--user-data-dir={folder / 'profile'}",
        f"file://{folder / 'frame.html'}",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    found = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout)
    assert found, done.stdout[-2000:] + done.stderr
    seen: dict[str, Any] = json.loads(found[1].replace("&amp;", "&"))
    assert seen["faults"] == []
    return seen


_LINK = {"delay": "10ms", "jitter": "2ms", "loss": "1%", "rate": "100Mbit"}


@pytest.mark.parametrize("width", [390, 1200])
@pytest.mark.parametrize(("shape", "sizes"), [("line", (30,)), ("ring", (12,)), ("tree", (2, 3))])
def test_names_and_figures_can_be_read(tmp_path: Path, shape: str, sizes: tuple[int, ...], width: int) -> None:
    seen = _seen(tmp_path, topo.state(shape, *sizes, settings=Settings(link=_LINK)), width)
    assert seen["across"] <= width
    boxes = [node["box"] for node in seen["nodes"]]
    assert len(boxes) == len(topo.state(shape, *sizes).nodes)
    for node in seen["nodes"]:
        assert node["text"][3] - node["text"][1] >= 12, "letters of 12 pixels or more"
    assert not [(a, b) for number, a in enumerate(boxes) for b in boxes[:number] if _overlap(a, b)]
    left, top, right, bottom = seen["map"]
    shown = [box for box in boxes if left <= box[0] and box[2] <= right and top <= box[1] and box[3] <= bottom]
    assert len(shown) >= min(5, len(boxes)), "what the window has room for is in it"
    for link in seen["links"]:
        assert link["rows"] == ["10ms ±2ms", "100Mbit", "1% loss"]
        assert link["box"][3] - link["box"][1] >= 30


def _overlap(one: list[float], other: list[float]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def test_a_link_that_does_nothing_to_frames_says_nothing(tmp_path: Path) -> None:
    assert [link["rows"] for link in _seen(tmp_path, topo.state("line", 2), 390)["links"]] == [[]]
