"""Stated topologies: shapes, files, addresses, FRR's configuration. Nothing boots here."""

import re
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from memlane_lab import topo
from memlane_lab.common.errors import LabError
from memlane_lab.topo import addresses, frr, graph, measure, setup, shapes
from memlane_lab.topo import net as nets
from memlane_lab.topo.machines import Machine
from memlane_lab.topo.model import Topology
from memlane_lab.topo.settings import Settings


@pytest.mark.parametrize(
    ("shape", "sizes", "nodes", "links"),
    [
        ("line", (100,), 100, 99),
        ("ring", (20,), 20, 20),
        ("star", (5,), 5, 4),
        ("tree", (2, 3), 13, 12),
        ("grid", (4, 3), 12, 17),
        ("full", (5,), 5, 10),
        ("line", (1,), 1, 0),
    ],
)
def test_shapes_have_the_nodes_and_links_that_they_should(
    shape: str, sizes: tuple[int, ...], nodes: int, links: int
) -> None:
    made = topo.state(shape, *sizes)
    assert (len(made.nodes), len(made.links)) == (nodes, links)
    plan = addresses.plan(made)
    given = [text for both in plan.ends for end in both for text in end.addresses]
    given += [text for texts in plan.loopbacks.values() for text in texts]
    assert len(set(given)) == len(given)
    places = graph.places(
        {"nodes": [{"name": n.name} for n in made.nodes], "links": [{"ends": n.nodes} for n in made.links]}
    )
    assert len(set(map(tuple, places.values()))) == nodes


@pytest.mark.parametrize("sizes", [(), (1, 2), (0,), (6000,)])
def test_sizes_that_make_no_sense_are_refused(sizes: tuple[int, ...]) -> None:
    with pytest.raises(LabError):
        shapes.shape("line", sizes, Settings())


def test_addresses_go_by_rule_unless_they_are_stated(tmp_path: Path) -> None:
    made = _load(
        tmp_path / "a.toml",
        """
        [[node]]
        name = "a"
        [[node]]
        name = "b"
        addresses = ["192.0.2.7/32"]
        [[link]]
        ends = ["a", "b:wan"]
        [[link]]
        ends = ["a", "b"]
        addresses = [["198.51.100.1/30"], ["198.51.100.2/30"]]
        """,
    )
    plan = addresses.plan(made)
    assert plan.loopbacks == {"a": ("10.0.0.1/32", "fd6d::1/128"), "b": ("192.0.2.7/32", "fd6d::2/128")}
    assert [(end.name, end.addresses) for end in plan.interfaces["b"]] == [
        ("wan", ("10.64.0.1/31", "fd6d:1::1/127")),
        ("net0", ("198.51.100.2/30",)),
    ]
    assert plan.peer(plan.interfaces["b"][0]).node == "a"


_WRONG = """name = "x"
speed = 3
[[node]]
name = "a"
memory = "much"
[[node]]
name = "b"
[[node]]
name = "b"
[[link]]
ends = ["b", "nowhere"]
delay = "soon"
loss = "130%"
[[link]]
ends = ["b", "b"]
[[link]]
ends = ["b", "elsewhere"]
"""


def test_all_mistakes_of_a_file_are_told_at_once_each_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text(_WRONG)
    with pytest.raises(LabError) as caught:
        topo.state(file)
    lines = [row.removeprefix(f"{file}:").partition(":") for row in str(caught.value).splitlines()]
    told = {(int(number), text.strip()) for number, _, text in lines}
    assert {number for number, _ in told} == {2, 5, 9, 11, 12, 13, 15, 17}
    assert (9, "two nodes are called b: rename one") in told
    assert (15, "both ends are b") in told
    assert (17, "there is no node elsewhere; there are: a, b") in told
    assert (2, "speed: no such key; there are: name, over, routing, defaults, node, link") in told
    assert (5, "memory: must be a whole number, not 'much'") in told
    assert (13, "loss: must be at most 1, not '130%'") in told


def test_a_mistake_hides_no_other_of_the_same_table(tmp_path: Path) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text(
        '[[node]]\nname = "r1"\n[[node]]\nname = "r1"\nmemory = 1\n[[link]]\nends = ["r1", "nowhere"]\ndelay = "soon"\n'
    )
    with pytest.raises(LabError) as caught:
        topo.state(file)
    lines = [row.removeprefix(f"{file}:").partition(":")[0] for row in str(caught.value).splitlines()]
    assert lines == ["4", "5", "7", "8"]


def test_a_file_that_is_nothing_is_one_sentence(tmp_path: Path) -> None:
    for name, content in {
        "a.toml": "[[node",
        "a.yml": "a: [",
        "a.graphml": "<graph",
        "a.txt": "",
        "b.toml": "",
    }.items():
        (tmp_path / name).write_text(content)
        with pytest.raises(LabError, match=name):
            topo.state(tmp_path / name)
    with pytest.raises(LabError, match="No such file"):
        topo.state(tmp_path / "none.toml")
    with pytest.raises(LabError, match="there is no shape"):
        topo.state("sphere", 3)


_ZOO = """<?xml version="1.0" encoding="utf-8"?>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns">
<key attr.name="Latitude" attr.type="double" for="node" id="d1"/>
<key attr.name="Longitude" attr.type="double" for="node" id="d2"/>
<key attr.name="label" attr.type="string" for="node" id="d3"/>
<key attr.name="Network" attr.type="string" for="graph" id="d4"/>
<graph edgedefault="undirected">
<data key="d4">Small Net</data>
<node id="0"><data key="d1">50.11</data><data key="d2">8.68</data><data key="d3">Frankfurt</data></node>
<node id="1"><data key="d1">52.52</data><data key="d2">13.41</data><data key="d3">Berlin</data></node>
<node id="2"><data key="d3">Berlin</data></node>
<edge source="0" target="1"/>
<edge source="1" target="2"/>
</graph></graphml>
"""


def test_a_graphml_gets_its_delays_from_where_its_nodes_are(tmp_path: Path) -> None:
    made = _load(tmp_path / "zoo.graphml", _ZOO)
    assert (made.name, [node.name for node in made.nodes]) == ("Small-Net", ["Frankfurt", "Berlin", "Berlin-2"])
    delay = made.links[0].delay
    assert delay is not None
    # 424 kilometres.
    assert 2100 <= int(delay.removesuffix("us")) <= 2140
    assert made.links[1].delay is None


_TOP = Path(__file__).parents[3]


def test_topologies_in_examples_and_on_pages_are_good(tmp_path: Path) -> None:
    (tmp_path / "motd.txt").write_text("hello\n")
    page = (_TOP / "docs" / "reference" / "lab-topologies.md").read_text()
    blocks = [block.removeprefix("toml\n") for block in page.split("```")[1::2] if block.startswith("toml\n")]
    assert len(blocks) == 1
    # The page's stands for more nodes than it names.
    assert len(_load(tmp_path / "page.toml", blocks[0]).nodes) == 2
    assert len(topo.state(_TOP / "examples" / "line-of-routers" / "square.toml").nodes) == 6
    systems = topo.state(_TOP / "examples" / "line-of-routers" / "own-systems.toml")
    assert [node.image for node in systems.nodes] == ["debian", "debian:trixie", None]
    for file in (_TOP / "lab" / "experiments" / "topologies").glob("*.toml"):
        assert measure.load(file).title


@pytest.mark.parametrize("protocol", ["ospf", "ospf6", "isis", "bgp"])
def test_every_router_is_configured_for_its_neighbours(protocol: str) -> None:
    made = topo.state("line", 3, settings=Settings(routing={"protocols": [protocol], "hello": 2}))
    plan = addresses.plan(made)
    files = frr.configuration(made, plan, made.nodes[1])
    (path,) = set(files) - {"/etc/frr/zebra.conf"}
    text = files[path]
    assert "2" in text
    if protocol == "bgp":
        assert "neighbor 10.64.0.0 remote-as 4200000001" in text
    else:
        assert text.count("point-to-point") == 2


def test_a_hosts_router_tells_it_nothing(tmp_path: Path) -> None:
    made = _load(
        tmp_path / "a.toml",
        '[[node]]\nname = "r"\n[[node]]\nname = "pc"\nrole = "host"\n[[link]]\nends = ["r", "pc"]\nmtu = 9000\n',
    )
    plan = addresses.plan(made)
    assert "passive" in frr.configuration(made, plan, made.nodes[0])["/etc/frr/ospfd.conf"]
    text = setup.script(made, plan, made.nodes[1], {"net0": "d=net0"})
    assert "route add default via 10.64.0.0" in text
    assert "mtu 9000" in text
    assert "zebra" not in text


def test_names_that_programs_take_for_addresses_get_a_letter(tmp_path: Path) -> None:
    ids = ["1", "2", "0x10", "n2", "10-1"]
    nodes = "".join(f'<node id="{each}"/>' for each in ids)
    made = _load(
        tmp_path / "numbers.graphml",
        '<graphml xmlns="http://graphml.graphdrawing.org/xmlns"><graph edgedefault="undirected">'
        f'{nodes}<edge source="1" target="2"/></graph></graphml>',
    )
    assert [node.name for node in made.nodes] == ["n1", "n2", "n0x10", "n2-3", "10-1"]
    for node in made.nodes:
        with pytest.raises(OSError, match="illegal IP address"):
            socket.inet_aton(node.name)
    assert made.links[0].ends == ("n1", "n2")
    assert len(made.notes) == 1
    with pytest.raises(LabError, match=r"own\.toml:2: name: '2' looks like an address to programs"):
        _load(tmp_path / "own.toml", '[[node]]\nname = "2"\n')


def test_names_that_differ_in_case_only_are_one_name(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="a and A are one name"):
        _load(tmp_path / "case.toml", '[[node]]\nname = "A"\n[[node]]\nname = "a"\n')


def test_interfaces_are_renamed_by_way_of_names_that_none_has(tmp_path: Path) -> None:
    made = _load(
        tmp_path / "two.toml",
        """
        [[node]]
        name = "a"
        [[node]]
        name = "b"
        [[link]]
        ends = ["a:eth1", "b:eth1"]
        [[link]]
        ends = ["a:eth2", "b:eth2"]
        """,
    )
    # The kernel calls the two eth0 and eth1.
    devices = {"eth1": "d=eth0", "eth2": "d=eth1"}
    rows = setup.script(made, addresses.plan(made), made.nodes[0], devices).splitlines()
    renamed = [row.split()[-3::2] for row in rows if row.startswith("link set dev ") and " name " in row]
    called = {"$d0": "eth0", "$d1": "eth1"}
    for old, new in renamed:
        now = called.pop(old) if old in called else old
        kept = set(called.values())
        assert new not in kept, f"{now} cannot become {new}: {kept} is there"
        called[new] = new
    assert set(called) == {"eth1", "eth2"}


def test_a_link_may_have_no_addresses(tmp_path: Path) -> None:
    made = _load(
        tmp_path / "none.toml",
        """
        [[node]]
        name = "a"
        role = "host"
        [[node]]
        name = "b"
        role = "host"
        [[link]]
        ends = ["a", "b"]
        addresses = [[], []]
        """,
    )
    plan = addresses.plan(made)
    assert [end.addresses for end in plan.ends[0]] == [(), ()]
    assert plan.called("a") is None
    with pytest.raises(LabError, match="a has no address of IPv4"):
        plan.loopback("a")


def test_frr_is_told_what_the_topology_brings(tmp_path: Path) -> None:
    (tmp_path / "frr.conf").write_text("interface net0\n ip address 192.0.2.1/30\nrouter ospf\n")
    (tmp_path / "bgpd.conf").write_text("router bgp 1\n")
    (tmp_path / "raw").write_bytes(b"\x00\xff")
    made = _load(
        tmp_path / "own.toml",
        """
        [[node]]
        name = "whole"
        files = { "/etc/frr/frr.conf" = "frr.conf", "/root/raw" = "raw" }
        [[node]]
        name = "part"
        files = { "/etc/frr/bgpd.conf" = "bgpd.conf" }
        [[node]]
        name = "own"
        daemons = ["bfdd"]
        [[link]]
        ends = ["whole", "part"]
        """,
    )
    plan = addresses.plan(made)
    devices = {"net0": "d=net0"}
    whole, part, own = (setup.script(made, plan, n, devices) + setup.routing(made, plan, n) for n in made.nodes)
    assert "zebra.conf" not in whole, "nothing of memlane-lab's own beside it"
    assert _daemons(whole) == ["zebra", "staticd", "ospfd"]
    assert whole.index("ospfd -d") < whole.index("vtysh -b")
    assert "base64 -d >/root/raw" in whole
    assert _daemons(part) == ["zebra", "ospfd", "ospf6d", "bgpd"]
    assert "bgpd -d -u root -g root -f /etc/frr/bgpd.conf" in part
    assert "bfdd" in _daemons(own)
    (tmp_path / "daemons").write_text("zebra=yes\nbgpd=yes\nospfd=no\n")
    text = '[[node]]\nname = "a"\nfiles = { "/etc/frr/frr.conf" = "frr.conf", "/etc/frr/daemons" = "daemons" }\n'
    listed = _load(tmp_path / "listed.toml", text)
    assert _daemons(setup.routing(listed, addresses.plan(listed), listed.nodes[0])) == ["zebra", "staticd", "bgpd"]
    (tmp_path / "daemons").write_text("babeld=yes\n")
    with pytest.raises(LabError, match="/etc/frr/daemons of a enables babeld, but nodes have only ospfd"):
        setup.verify(listed)


def _daemons(script: str) -> list[str]:
    return re.findall(r"whole_waits\.so (\w+) -d", script)


def test_routers_that_no_link_joins_wait_for_no_routes_to_each_other(tmp_path: Path) -> None:
    rows = "".join(f'[[node]]\nname = "{name}"\n' for name in "abcd") + '[[node]]\nname = "h"\nrole = "host"\n'
    links = "".join(f"[[link]]\nends = {ends}\n" for ends in ('["a", "b"]', '["b", "h"]', '["h", "c"]'))
    together = _load(tmp_path / "apart.toml", rows + links).routed_together()
    assert together == {"a": {"a", "b"}, "b": {"a", "b"}, "c": {"c"}, "d": {"d"}}


def test_files_that_cannot_state_it_take_kinds_and_impairments_from_outside(tmp_path: Path) -> None:
    (tmp_path / "zoo.graphml").write_text(_ZOO)
    more: dict[str, Any] = {
        "node": {"kind": "netns"},
        "link": {"delay": "1ms", "loss": "1%"},
        "routing": {"hello": 2},
    }
    zoo = topo.state(tmp_path / "zoo.graphml", settings=Settings(**more))
    assert {node.kind for node in zoo.nodes} == {"netns"}
    assert zoo.routing.hello == 2
    assert [link.loss for link in zoo.links] == [0.01, 0.01]
    assert zoo.links[1].delay == "1ms"
    assert zoo.links[0].delay != "1ms", "what the file states counts"
    clab = tmp_path / "a.clab.yml"
    clab.write_text("topology: { nodes: { a: {}, b: {} }, links: [{ endpoints: ['a:eth1', 'b:eth1'] }] }\n")
    light = topo.state(clab, settings=Settings(node={"kind": "netns"}, over="veth"))
    assert ({node.kind for node in light.nodes}, light.over) == ({"netns"}, "veth")
    with pytest.raises(LabError, match="links over veth have no delay"):
        topo.state(tmp_path / "zoo.graphml", settings=Settings(**more, over="veth"))
    with pytest.raises(LabError, match="write the options of routing into this file"):
        topo.state(clab, settings=Settings(routing={"hello": 2}))
    own = tmp_path / "own.toml"
    own.write_text('[[node]]\nname = "a"\n')
    with pytest.raises(LabError, match="write the options of link and node into this file"):
        topo.state(own, settings=Settings(node={"kind": "netns"}, link={"delay": "1ms"}))


def test_what_is_stated_survives_being_written_down() -> None:
    made = topo.state(
        "ring", 4, settings=Settings(link={"delay": "5ms", "loss": "1%"}, node={"memory": 48}, routing={"hello": 3})
    )
    again = topo.model.check(made.stated())
    assert again == made
    assert again.links[0].as_link() == {"delay": "5ms", "loss": 0.01}


def _load(file: Path, text: str) -> Topology:
    rows = text.splitlines()
    margin = min((len(row) - len(row.lstrip()) for row in rows if row.strip()), default=0)
    file.write_text("\n".join(row[margin:] for row in rows) + "\n")
    return topo.state(file)


def test_daemons_start_when_all_nodes_are_set_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that starts earlier has those that route already compute their ways anew for each node that comes."""
    taken: list[tuple[str, str]] = []

    class _Recorded:
        guest = SimpleNamespace(process=SimpleNamespace(pid=0))

        def __init__(self, name: str) -> None:
            self.name = name

        def __getattr__(self, step: str) -> Callable[[], None]:
            return lambda: taken.append((step, self.name))

    monkeypatch.setattr("memlane_lab.topo.spread.over_cpus", lambda _: None)
    net = nets.Net(topo.state("line", 3))
    net.machines = {name: cast("Machine", _Recorded(name)) for name in ("r1", "r2", "r3")}
    net._boot()
    steps = ["begin", "set_up", "wait_set_up", "route", "wait_route"]
    assert taken == [(step, name) for step in steps for name in ("r1", "r2", "r3")]


def test_the_first_script_of_a_router_starts_no_daemon_and_the_second_all() -> None:
    line = topo.state("line", 2)
    plan = addresses.plan(line)
    first = setup.script(line, plan, line.nodes[0], {"net0": "d=net0"})
    second = setup.routing(line, plan, line.nodes[0])
    for daemon in ("zebra", "ospfd", "ospf6d"):
        assert f"{daemon} -d" not in first
        assert f"{daemon} -d" in second
    host = topo.state("line", 2, settings=Settings(node={"role": "host"}))
    assert setup.routing(host, addresses.plan(host), host.nodes[0]) == ""
