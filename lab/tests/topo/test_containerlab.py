"""containerlab's files: each key has its effect, or none and a note, or is a mistake with its line."""

import os
from pathlib import Path

import pytest

from memlane_lab import topo
from memlane_lab.common.errors import LabError
from memlane_lab.topo import addresses, image
from memlane_lab.topo.model import Topology
from memlane_lab.topo.settings import Settings


def _load(folder: Path, text: str, **files: str) -> Topology:
    for name, content in files.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    (folder / "lab.clab.yml").write_text(text)
    return topo.state(folder / "lab.clab.yml")


def _mistakes(folder: Path, text: str) -> list[str]:
    with pytest.raises(LabError) as caught:
        _load(folder, text)
    return [row.removeprefix(f"{folder}/lab.clab.yml:") for row in str(caught.value).splitlines()]


_LEVELS = """name: levels
topology:
  defaults:
    exec: [echo of-all]
    binds: ["all:/etc/all", "all:/etc/both"]
    sysctls: { net.ipv4.ip_forward: 0 }
    memory: 96mb
  kinds:
    linux:
      exec: [echo of-the-kind]
      env: { A: kind, B: kind }
  groups:
    hosts:
      memory: 0.25gb
      exec: ["sh -c 'echo of-the-group > /tmp/$$A'"]
      binds: ["group:/etc/both"]
      env: { A: group }
    routers:
      kind: frr
      startup-config: r.conf
      extras: { frr: { daemons: [ospfd, bfdd] } }
  nodes:
    h: { group: hosts, exec: [echo own] }
    r: { group: routers }
    plain: { kind: linux, group: not-stated }
  links:
    - endpoints: ["h:eth1", "r:eth1"]
    - type: veth
      mtu: 9000
      endpoints:
        - { node: r, interface: eth2, ipv4: 192.0.2.1/30 }
        - { node: plain, interface: eth1, ipv4: 192.0.2.2/30, ipv6: "2001:db8::2/64" }
"""


def test_a_node_is_merged_of_defaults_kind_group_and_its_own(tmp_path: Path) -> None:
    made = _load(tmp_path, _LEVELS, all="a", group="g", r_conf="router ospf\n")
    h, r, plain = made.nodes
    assert h.commands == (
        "export A=group; export B=kind; echo of-all",
        "export A=group; export B=kind; echo of-the-kind",
        "export A=group; export B=kind; sh -c 'echo of-the-group > /tmp/$A'",
        "export A=group; export B=kind; echo own",
    )
    assert h.files == {"/etc/all": "all", "/etc/both": "group"}
    assert (h.memory, plain.memory) == (256, 96)
    assert h.sysctls == {"net.ipv4.ip_forward": "0", "net.ipv6.conf.all.forwarding": "1"}
    assert (h.role, r.role, plain.role) == ("host", "router", "host")
    assert (r.daemons, r.files["/etc/frr/frr.conf"]) == (("ospfd", "bfdd"), "r.conf")
    assert plain.commands == (
        "export A=kind; export B=kind; echo of-all",
        "export A=kind; export B=kind; echo of-the-kind",
    )
    assert made.notes == ()


def test_nothing_is_given_that_the_file_does_not_state(tmp_path: Path) -> None:
    made = _load(tmp_path, _LEVELS, all="a", group="g", r_conf="router ospf\n")
    plan = addresses.plan(made)
    assert [end.addresses for end in plan.ends[0]] == [(), ()]
    assert [end.addresses for end in plan.ends[1]] == [("192.0.2.1/30",), ("192.0.2.2/30", "2001:db8::2/64")]
    assert made.links[1].mtu == 9000
    assert all(made.protocols(node) == () for node in made.nodes)
    assert set(plan.loopbacks.values()) == {()}


def test_what_has_no_effect_is_told_and_what_is_not_known_is_a_mistake(tmp_path: Path) -> None:
    text = """name: x
mgmt: { network: m }
topology:
  nodes:
    a: { kind: linux, labels: { x: y }, mgmt-ipv4: 172.20.20.2 }
    b: { kind: linux, labels: { x: y }, startup-config: s.cfg }
"""
    assert [note.partition(".yml: ")[2] for note in _load(tmp_path, text).notes] == [
        "mgmt has no effect here (line 2)",
        "labels has no effect here (lines 5, 6)",
        "mgmt-ipv4 has no effect here (line 5)",
        "startup-config of kind linux has no effect here (line 6)",
    ]
    wrong = """name: x
topologie: {}
topology:
  defaults: { nonsense: 3, stages: {} }
  kinds:
    linux: { exce: [a] }
    nokia_srlinux: { type: ixrd3, what: ever }
  groups:
    g: { kind: nokia_srlinux, binds: "a:/b" }
  nodes:
    a: { group: g }
    b: { kind: linux, kind: linux, network-mode: "container:a", memory: lots, binds: ["/a", "none:/etc/none"] }
    c: { kind: linux, extras: { frr: { daemons: [ospf] } }, env: [a] }
    d: { kind: frr, extras: { frr: { daemons: [ospf] } }, startup-config: "http://x/y" }
    e: 3
  links:
    - endpoints: ["b:eth1", "cc:eth1"]
    - endpoints: ["b:eth2"]
    - { endpoints: ["b", "c:eth1"], type: macvlan, speed: 3 }
"""
    assert _mistakes(tmp_path, wrong) == [
        "2: topologie: no such key; did you mean 'topology'?",
        "4: nonsense: no such key",
        "4: stages: is not served here, and the network would be another without it",
        "6: exce: no such key; did you mean 'exec'?",
        "9: binds: must be a list of HOST:PATH, not 'a:/b'",
        "11: kind: nokia_srlinux is not served: nodes are linux machines or frr routers",
        "12: binds: '/a' is no HOST:PATH, with the path in the node",
        "12: binds: there is no none beside the file",
        "12: kind: stands twice",
        "12: memory: 'lots' is no amount of memory, as 512mb",
        "12: network-mode: is not served here, and the network would be another without it",
        "13: env: must be a table, not ['a']",
        "14: extras: nodes have no daemon 'ospf'; did you mean 'ospfd'?",
        "14: startup-config: must be a file beside this one, and not its text or an address",
        "15: e: must be a table, not '3'",
        '18: a link needs two endpoints: endpoints: ["r1:eth1", "r2:eth1"]',
        "19: endpoints: 'b' is no NODE:INTERFACE",
        "19: speed: no such key",
        "19: type: links of type macvlan are not served here, only veth",
    ]
    lost = "topology:\n  nodes: { a: {}, b: {} }\n  links:\n    - endpoints: ['a:eth1', 'bb:eth1']\n"
    assert _mistakes(tmp_path, lost) == ["4: there is no node bb; did you mean 'b'?"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: [", "no valid YAML at column"),
        ("a: &a [*a]\ntopology: *a\n", "topology: must be a table"),
        ("topology: { nodes: { 1: *none } }", "no valid YAML at column"),
        ("topology: {}", "a topology needs a node"),
        ("3", "a topology needs a node"),
        ("[" * 3000, "are nested too deeply"),
    ],
)
def test_what_is_no_containerlab_file_is_one_sentence(tmp_path: Path, text: str, told: str) -> None:
    assert any(told in row for row in _mistakes(tmp_path, text))


def test_names_that_are_numbers_get_a_letter_at_links_too(tmp_path: Path) -> None:
    made = _load(tmp_path, "topology:\n  nodes: { 1: {}, 2: {} }\n  links:\n    - endpoints: ['1:eth1', '2:eth1']\n")
    assert [node.name for node in made.nodes] == ["n1", "n2"]
    assert made.links[0].ends == ("n1:eth1", "n2:eth1")
    assert "1 is n1" in made.notes[0]


def test_variables_are_those_of_the_environment_and_two_dollars_are_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAB_A", "from-outside")
    monkeypatch.delenv("LAB_B", raising=False)
    text = 'topology:\n  nodes:\n    a: { exec: ["echo ${LAB_A} $LAB_A ${LAB_B:=else} ${LAB_B} $$HOME"] }\n'
    assert _load(tmp_path, text).nodes[0].commands == ("echo from-outside from-outside else '$HOME'",)


def test_a_folder_is_laid_file_by_file(tmp_path: Path) -> None:
    text = 'name: x\ntopology:\n  nodes:\n    a: { binds: ["conf:/etc/frr:ro", "__clabNodeDir__/own:/own"] }\n'
    files = {"conf__frr_conf": "router bgp 1\n", "conf__sub__more": "m", "clab-x__a__own": "o"}
    (node,) = _load(tmp_path, text, **files).nodes
    assert node.files == {
        "/etc/frr/frr.conf": "conf/frr.conf",
        "/etc/frr/sub/more": "conf/sub/more",
        "/own": "clab-x/a/own",
    }
    assert (node.role, node.daemons) == ("router", None)


def test_a_program_of_a_container_runs_beside_the_rest(tmp_path: Path) -> None:
    text = "topology:\n  nodes:\n    a: { cmd: sleep infinity, exec: [true, on] }\n"
    (node,) = _load(tmp_path, text).nodes
    program, *commands = node.commands
    assert "setsid sleep infinity >/run/cmd.log 2>&1 &" in program
    assert commands == ["true", "on"]


@pytest.mark.parametrize(
    ("binds", "told"),
    [
        ("s:/dev/s", "'/dev/s' lies in a folder of the kernel"),
        ("s:/lib", "'/lib' is a folder in nodes"),
        ("s:/opt, s:/opt/s", "'/opt' is a file, and the folder of '/opt/s'"),
        ("/dev/null:/etc/null", "the file /dev/null for /etc/null of a cannot be read: it is no file"),
    ],
)
def test_a_bind_that_no_node_can_have_is_a_mistake(tmp_path: Path, binds: str, told: str) -> None:
    (tmp_path / "s").touch()
    text = f"topology:\n  nodes:\n    a: {{ binds: [{binds}] }}\n"
    (mistake,) = _mistakes(tmp_path, text)
    assert mistake.startswith("3: ")
    assert told in mistake


def test_a_folder_that_holds_nothing_is_there_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "shared" / "inside").mkdir(parents=True)
    text = 'topology:\n  nodes:\n    a: { binds: ["shared:/shared"], exec: ["ls /shared"] }\n'
    assert _load(tmp_path, text).nodes[0].commands == ("mkdir -p /shared", "ls /shared")


_AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root")
_PLACES = (
    "/etc/s.sh", "/setup.sh", "/opt/s.sh", "/home/user/s.sh", "/config/a/b/s.sh", "/usr/local/bin/s.sh",
    "/usr/bin/s.sh", "/bin/ping", "/lib/own/s.sh", "/var/lib/s.sh", "/var/run/s.sh", "/tmp/s.sh", "/root/.s.sh",
)  # fmt: skip
_VLANS = (
    "ip link add br0 type bridge vlan_filtering 1", "ip link set eth1 master br0", "ip link set br0 up",
    "bridge vlan add dev eth1 vid 7 pvid untagged", "bridge vlan add dev br0 vid 7 self",
    "ip link add link br0 name br0.7 type vlan id 7", "ip link set br0.7 up", "ip addr add 192.0.2.1/24 dev br0.7",
)  # fmt: skip


@pytest.mark.real
@pytest.mark.usefixtures("own_runs")
@pytest.mark.parametrize("kind", ["uml", pytest.param("netns", marks=_AS_ROOT)])
def test_files_are_bound_to_any_folder_and_leave_the_image_as_it_is(tmp_path: Path, kind: str) -> None:
    binds = ", ".join(f'"s.sh:{place}"' for place in _PLACES)
    commands = ", ".join(f'"sh {place}"' for place in _PLACES)
    lines = _VLANS if kind == "uml" else ("ip addr add 192.0.2.1/24 dev eth1",)  # kernels of hosts may have no bridge
    vlans = ", ".join(f'"{line}"' for line in lines)
    text = f"""name: binds
topology:
  nodes:
    a:
      binds: [{binds}]
      sysctls: {{ net.ipv4.no_such_setting: 1 }}
      exec: [{commands}, "/usr/bin/s.sh", "bridge -V", {vlans}]
    b: {{ exec: ["ip addr add 192.0.2.2/24 dev eth1"] }}
  links:
    - endpoints: ["a:eth1", "b:eth1"]
"""
    (tmp_path / "s.sh").write_text("#!/bin/sh\necho $0 >>/tmp/ran\n")
    (tmp_path / "s.sh").chmod(0o755)
    (tmp_path / "net.clab.yml").write_text(text)
    tree = image.image().tree
    before = sorted(path.relative_to(tree) for path in tree.rglob("*"))
    with topo.up(tmp_path / "net.clab.yml", settings=Settings(node={"kind": kind})) as net:
        (told,) = net.complaints or [""]
        assert told.startswith("the sysctl net.ipv4.no_such_setting of a cannot be set to 1")
        assert net["a"].get("/tmp/ran").decode().split() == [*_PLACES, "/usr/bin/s.sh"]
        assert net["b"].run("ping -c 1 -W 5 192.0.2.1").status == 0, "a bridge carries VLAN 7"
        assert "whole" in net["a"].run("touch /whole /usr/own /bin/../home/user/x && ls /").stdout
        assert net["a"].run("touch /.image/bin/mine").status != 0
    assert sorted(path.relative_to(tree) for path in tree.rglob("*")) == before
    assert os.access(tree / "bin" / "ping", os.X_OK)
