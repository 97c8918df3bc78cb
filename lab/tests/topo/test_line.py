"""A line of six real routers, a link that fails, and topologies that end badly."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from scapy.utils import RawPcapNgReader, RawPcapReader

from memlane_lab import topo
from memlane_lab.common.errors import LabError
from memlane_lab.common.wait import until
from memlane_lab.host import procfs
from memlane_lab.topo import net as nets
from memlane_lab.topo import status
from memlane_lab.topo.machines import Machine
from memlane_lab.topo.settings import Settings

pytestmark = pytest.mark.real


@pytest.fixture(autouse=True)
def _apart(own_runs: Path) -> None:
    """Topologies of these tests are not those of the machine's user."""


@pytest.fixture
def quick(tmp_path: Path) -> Path:
    """Two hosts, for tests without routing."""
    file = tmp_path / "quick.toml"
    file.write_text(
        '[defaults]\nrole = "host"\n[[node]]\nname = "a"\n[[node]]\nname = "b"\n[[link]]\nends = ["a", "b"]\n'
    )
    return file


def test_a_line_of_six_routes_end_to_end_and_a_failed_link_is_found_out() -> None:
    with topo.up("line", 6, settings=Settings(routing={"dead": 3})) as net:
        assert net["r1"].run("ping -c 1 -W 5 r6").status == 0
        assert net["r1"].run("ping -6 -c 1 -W 5 r6").status == 0
        assert all(result.stdout.strip() == name for name, result in net.exec("hostname").items())
        _changed_link(net)
        net.link("r3", "r4", up=False)
        until(lambda: "10.0.0.6" not in net["r1"].routes(), timeout=60, what="r1 to hear that r6 is out of reach")
        assert net["r1"].run("ping -c 1 -W 1 r6").status != 0
        net.link("r3", "r4", up=True)
        net.wait_routes()
        assert net["r1"].run("ping -c 1 -W 5 r6").status == 0
        net.kill("r2")
        assert not net["r2"].alive
        with pytest.raises(LabError, match="r2 is not running"):
            net["r2"].run("true")
        net.start("r2")
        net.wait_routes()
        assert net["r1"].run("ping -c 1 -W 5 r6").status == 0


def _changed_link(net: topo.Net) -> None:
    before = min(_round_trip(net) for _ in range(3))
    net.link("r1", "r2", delay="40ms")
    until(lambda: before + 70 < _round_trip(net) < before + 200, timeout=60, what="round trips with the delay")
    net.link("r2", "r1", clear=True)
    until(lambda: _round_trip(net) < before + 60, timeout=60, what="round trips without the delay")


def _round_trip(net: topo.Net) -> float:
    said = net["r1"].run("ping -c 5 -i 0.1 -W 5 r2").check().stdout
    return min(float(time) for time in re.findall(r"time=([\d.]+) ms", said))


@pytest.mark.parametrize("protocol", [pytest.param("isis", marks=pytest.mark.prove), "bgp"])
def test_other_protocols_route_too(protocol: str) -> None:
    with topo.up("ring", 4, settings=Settings(routing={"protocols": [protocol]})) as net:
        assert net["r1"].run("ping -c 1 -W 5 r3").status == 0
        assert net["r1"].run("ping -6 -c 1 -W 5 r3").status == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="bridges and namespaces need root")
@pytest.mark.parametrize(("over", "kind"), [("bridge", "uml"), ("bridge", "netns"), ("veth", "netns")])
def test_links_of_what_linux_has_carry_frames_and_go_up_and_down(over: str, kind: str, tmp_path: Path) -> None:
    with topo.up("line", 3, settings=Settings(node={"kind": kind}, over=over, routing={"protocols": ["ospf"]})) as net:
        with _capturing("r2-r1", "icmp", "-c", "6", file=tmp_path / "captured") as capture:
            assert net["r1"].run("ping -c 3 -i 0.1 -W 5 r3").status == 0
            assert capture.wait(timeout=60) == 0
        assert len(list(RawPcapReader(str(tmp_path / "captured")))) == 6
        link = status.of(net, memory=False)["links"][0]
        assert min(link["frames"]) >= 3
        assert min(link["bytes"]) >= 3 * 98
        net.link("r2", "r3", up=False)
        assert net["r1"].run("ping -c 1 -W 1 r3").status != 0
        net.link("r2", "r3", up=True)
        net.wait_routes()
        assert net["r1"].run("ping -c 1 -W 5 r3").status == 0
        with pytest.raises(LabError, match="only memlane's have"):
            net.link("r1", "r2", delay="5ms")
        assert net.switch.links[0].impairment.delay is None


def test_what_cannot_be_a_link_is_refused() -> None:
    with pytest.raises(LabError, match="unknown kind of links 'string'; there are: memlane, bridge, veth"):
        topo.state("line", 2, settings=Settings(over="string"))
    with (
        pytest.raises(LabError, match="only memlane's have"),
        topo.up("line", 2, settings=Settings(over="bridge", link={"delay": "1ms"})),
    ):
        pass
    with pytest.raises(LabError, match="r1 is a machine"), topo.up("line", 2, settings=Settings(over="veth")):
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root")
def test_namespaces_and_machines_talk_to_each_other_and_to_the_host(tmp_path: Path) -> None:
    file = tmp_path / "mixed.toml"
    file.write_text(
        '[[node]]\nname = "n1"\nkind = "netns"\n[[node]]\nname = "u1"\n'
        '[[link]]\nends = ["n1", "u1"]\n[[link]]\nends = ["u1", "host"]\n'
    )
    with topo.up(file) as net:
        assert net["n1"].run("ping -c 1 -W 5 u1").status == 0
        captured = tmp_path / "captured"
        with _capturing("host-u1", "icmp", "-c", "2", file=captured) as capture:
            assert net["u1"].run("ping -c 1 -W 5 10.64.0.3").status == 0, "the host's end of its link"
            assert "2 frames captured" in capture.communicate(timeout=60)[1]


@pytest.mark.longest
def test_commands_find_a_topology_that_stays_up(quick: Path, tmp_path: Path) -> None:
    assert "2 nodes set up" in _topo("up", str(quick), "--no-wait").stdout
    try:
        assert "is up already" in _topo("up", str(quick), status=2).stderr
        assert "quick" in _topo("list").stdout
        state = json.loads(_topo("show", "--json").stdout)
        assert [node["state"] for node in state["nodes"]] == ["up", "up"]
        told = _topo("exec", "--all", "--", "hostname; exit 3", status=3)
        assert set(told.stdout.split("\n")) >= {"a: a", "b: b"}
        (tmp_path / "sent").write_bytes(bytes(range(256)) * 20)
        _topo("copy", str(tmp_path / "sent"), "a:/tmp/")
        _topo("copy", "a:/tmp/sent", str(tmp_path / "back"))
        assert (tmp_path / "back").read_bytes() == (tmp_path / "sent").read_bytes()
        assert "/dev/pts/0" in _topo("shell", "b", stdin="tty; exit 5\n", status=5).stdout
        _a_terminal_follows_its_window("b")
        assert "down" in _topo("link", "a", "b", "--down").stdout
        assert "there is no link between a and c" in _topo("link", "a", "c", status=2).stderr
        assert "No space left" in _topo("capture", "a-b", "-c", "1", "-w", "/dev/full", status=1).stderr
        assert "there is no link a-c" in _topo("capture", "a-c", status=2).stderr
        _topo("graph", "-w", str(tmp_path / "page.html"))
        assert '"a-b"' in (tmp_path / "page.html").read_text()
        _the_page_is_served("a-b")
    finally:
        assert "quick: down" in _topo("down").stdout
    assert _left() == []


def test_a_captures_times_are_those_of_the_links_delay(quick: Path, tmp_path: Path) -> None:
    quick.write_text(f'{quick.read_text()}delay = "40ms"\n')
    file = tmp_path / "captured"
    _topo("up", str(quick), "--no-wait")
    try:
        _topo("exec", "a", "--", "ping -c 1 -W 20 b")  # addresses are resolved now
        with _capturing("a-b", "icmp", "-c", "4", file=file) as capture:
            said = _topo("exec", "a", "--", "ping -c 2 -i 0.3 -W 20 b").stdout
            assert "4 frames captured" in capture.communicate(timeout=60)[1]
    finally:
        _topo("down")
    reader: Any = RawPcapNgReader(str(file))
    times = [(told.tshigh << 32 | told.tslow) / told.tsresol for _, told in reader]
    rounds = [float(found) / 1000 for found in re.findall(r"time=([\d.]+) ms", said)]
    # A frame's time is read when it is captured, a little after the moment from which the link counts.
    for sent, answered, told in zip(times[::2], times[1::2], rounds, strict=True):
        assert 0.079 <= answered - sent <= told + 0.001, "the link holds a frame for 40 ms in each direction"
    assert 0.25 < times[2] - times[0] < 20


@contextmanager
def _capturing(*arguments: str, file: Path) -> "Iterator[subprocess.Popen[str]]":
    """A capture into `file` that has begun, and ends by itself."""
    command = [sys.executable, "-m", "memlane_lab", "topo", "capture", *arguments, "-w", str(file)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as capture:
        until(lambda: file.exists() and file.stat().st_size > 0, timeout=60, what="the capture to begin")
        yield capture


_CLAB = """name: small
topology:
  groups:
    routers: { kind: frr, image: quay.io/frrouting/frr:10 }
    hosts: { kind: linux, image: any }
  nodes:
    1: { group: routers, startup-config: r1.conf }
    r2: { kind: linux, image: frrouting/frr, binds: ["r2:/etc/frr"] }
    PC1:
      group: hosts
      env: { GATEWAY: 198.51.100.1 }
      binds: ["motd:/etc/motd"]
      exec:
        - ip addr add 198.51.100.2/24 dev eth1
        - bash -c "ip route add default via $$GATEWAY"
        - ls /nowhere
    PC2:
      group: hosts
      cmd: iperf3 --server
      exec: ["ip addr add 203.0.113.2/24 dev eth1", "ip route add default via 203.0.113.1"]
  links:
    - endpoints: ["1:eth1", "r2:eth1"]
    - endpoints: ["PC1:eth1", "1:eth2"]
    - endpoints: ["PC2:eth1", "r2:eth2"]
    - endpoints: ["PC2:eth2", "PC1:eth2"]
"""
_FRR = """frr version 10.5.1
frr defaults traditional
hostname {name}
no ipv6 forwarding
interface eth1
 ip address 192.0.2.{number}/30
 ip ospf hello-interval 1
 ip ospf dead-interval 4
!
interface eth2
 ip address {own}
!
router ospf
 passive-interface eth2
 network 0.0.0.0/0 area 0
!
line vty
!
"""


def test_a_containerlab_file_comes_up_and_does_what_it_says(tmp_path: Path) -> None:
    (tmp_path / "small.clab.yml").write_text(_CLAB)
    (tmp_path / "motd").write_text("hello\n")
    (tmp_path / "r1.conf").write_text(_FRR.format(name="r1", number=1, own="198.51.100.1/24"))
    (tmp_path / "r2").mkdir()
    (tmp_path / "r2" / "frr.conf").write_text(_FRR.format(name="r2", number=2, own="203.0.113.1/24"))
    (tmp_path / "r2" / "daemons").write_text("zebra=yes\nbgpd=no\nospfd=yes\n")
    (tmp_path / "r2" / "vtysh.conf").write_text("service integrated-vtysh-config\n")
    with topo.up(tmp_path / "small.clab.yml") as net:
        far = net["PC1"]
        until(lambda: far.run("ping -c 1 -W 1 203.0.113.2").status == 0, timeout=90, what="OSPF to find the way")
        assert [told.partition(" ended")[0] for told in net.complaints] == [
            "the command `export GATEWAY=198.51.100.1; ls /nowhere` of PC1"
        ]
        assert far.run("cat /etc/motd").stdout == "hello\n"
        shown = net["n1"].run("ip -br -4 address").check().stdout.split()
        assert "198.51.100.1/24" in shown
        assert not [word for word in shown if word.startswith("10.")], "nothing of the lab's own"
        assert "router ospf" in net["r2"].run("vtysh -c 'show running-config'").check().stdout
        assert "eth2" in far.run("ip -br link").stdout
        net["PC2"].guest.wait_listening(5201)


def test_names_reach_the_addresses_that_pages_show(quick: Path) -> None:
    with topo.up(quick) as net:
        assert "PING b (10.64.0.1)" in net["a"].run("ping -c 1 -W 5 b").stdout
        assert "fd6d:1::1" in net["a"].run("ping -6 -c 1 -W 5 b").stdout


def test_nodes_without_links_come_up(tmp_path: Path) -> None:
    assert "1 node set up" in _topo("up", "line", "1").stdout
    try:
        assert "r1" in _topo("show").stdout
    finally:
        _topo("down")
    file = tmp_path / "alone.toml"
    file.write_text('[[node]]\nname = "a"\nrole = "host"\n[[node]]\nname = "b"\n[[node]]\nname = "c"\nrole = "host"\n')
    with topo.up(file) as net:
        net.wait_end_to_end()
        assert net["b"].run("hostname").stdout == "b\n"


def test_a_command_that_does_not_end_is_ended_and_named(quick: Path) -> None:
    text = quick.read_text().replace('name = "b"', 'name = "b"\ncommands = ["sleep 1000"]\ntimeout = 1')
    quick.write_text(text)
    told = _topo("up", str(quick), status=2).stderr
    assert "the command `sleep 1000` of b has not ended within 1 s" in told
    quick.write_text(text.replace("timeout = 1", "timeout = 1\ntolerant = true"))
    assert "`sleep 1000` of b has not ended" in _topo("up", str(quick)).stderr
    try:
        assert '"up"' in _topo("show", "--json").stdout
    finally:
        _topo("down")


@pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root")
def test_a_shell_in_a_namespace_is_the_nodes_whatever_the_users_is(
    quick: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick.write_text(quick.read_text().replace('role = "host"', 'role = "host"\nkind = "netns"'))
    monkeypatch.setenv("SHELL", "/usr/local/bin/fancy-shell")
    monkeypatch.setenv("ENV", "/home/somebody/.shinit")
    _topo("up", str(quick), "--no-wait")
    try:
        assert "/dev/pts/0" in _topo("shell", "b", stdin="tty; exit 5\n", status=5).stdout
        assert "fancy" not in _topo("exec", "b", "--", "env").stdout
        assert "somebody" not in _topo("exec", "b", "--", "env").stdout
    finally:
        _topo("down")


def test_a_keeper_that_is_killed_leaves_nothing_that_down_does_not_find(quick: Path, own_runs: Path) -> None:
    _topo("up", str(quick), "--no-wait")
    os.kill(int((own_runs / "topo-quick.lock").read_text()), signal.SIGKILL)
    until(lambda: "quick" not in _topo("list").stdout, timeout=60, what="the keeper's end")
    _topo("down")
    assert _left() == []


def test_ctrl_c_while_nodes_boot_ends_them(own_runs: Path) -> None:
    command = [sys.executable, "-m", "memlane_lab", "topo", "up", "line", "8"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    until(lambda: bool(_left()), timeout=60, what="the first node")
    child.send_signal(signal.SIGINT)
    said, _ = child.communicate(timeout=60)
    assert child.returncode == 130, said
    until(lambda: not _left() and not list(own_runs.glob("ml*")), timeout=60, what="the end of all nodes")


def test_what_a_node_cannot_do_ends_the_topology_with_its_name(quick: Path) -> None:
    text = quick.read_text()
    quick.write_text(text.replace('name = "b"', 'name = "b"\ncommands = ["true", "ls /nowhere"]'))
    told = _topo("up", str(quick), status=2).stderr
    assert "the command `ls /nowhere` of b ended with status" in told
    quick.write_text(text.replace('name = "b"', 'name = "b"\nfiles = { "/etc/a" = "missing" }'))
    assert "the file missing for /etc/a of b cannot be read" in _topo("up", str(quick), status=2).stderr
    assert _left() == []


def test_a_node_that_never_boots_is_named(quick: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = Machine.begin

    def begin_and_hold(machine: Machine) -> None:
        begin(machine)
        machine.guest.process.signal(signal.SIGSTOP)

    monkeypatch.setattr(Machine, "begin", begin_and_hold)
    monkeypatch.setattr("memlane_lab.topo.machines._BOOT", 0.5)
    with pytest.raises(LabError, match="a does not boot"), topo.up(quick):
        pass
    assert _left() == []


def test_more_nodes_than_the_memory_holds_are_counted_before_any_boots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nets, "_free_memory", lambda: 1000)
    with (
        pytest.raises(LabError, match=r"100 nodes may take 7600 MiB and 1000 MiB are free: 13 fit"),
        topo.up("line", 100),
    ):
        pass


def _the_page_is_served(link: str) -> None:
    command = [sys.executable, "-u", "-m", "memlane_lab", "topo", "graph"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        try:
            found = re.search(r"http://127\.0\.0\.1:\d+/", server.stdout.readline())
            assert found
            with urllib.request.urlopen(f"{found[0]}state", timeout=30) as answer:
                assert link in [each["name"] for each in json.load(answer)["links"]]
        finally:
            server.send_signal(signal.SIGINT)
        assert server.wait(30) == 0


def _a_terminal_follows_its_window(node: str) -> None:
    """A shell in a terminal of 20 rows and 70 columns, which becomes one of 33 and 101."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execl(sys.executable, sys.executable, "-m", "memlane_lab", "topo", "shell", node)
    try:
        _expect(terminal, "# ")
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 101, 0, 0))
        for _ in range(20):  # it is told in the background
            os.write(terminal, b"echo size $(stty size) end\n")
            if "size 33 101 end" in _expect(terminal, r"size \d+ \d+ end"):
                break
        else:
            raise AssertionError("the node's terminal keeps its old size")
        os.write(terminal, b"exit 3\n")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
    finally:
        os.close(terminal)


def _expect(terminal: int, pattern: str) -> str:
    """The terminal's output, up to the pattern."""
    seen = ""
    deadline = time.monotonic() + 60
    while not re.search(pattern, seen):
        assert time.monotonic() < deadline, seen
        if select.select([terminal], [], [], 1)[0]:
            seen += os.read(terminal, 4096).decode(errors="replace")
    return seen


def _topo(*arguments: str, status: int = 0, stdin: str = "") -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "memlane_lab", "topo", *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == status, f"{arguments}: {done.stdout}{done.stderr}"
    assert "Traceback" not in done.stderr
    return done


def _left() -> list[int]:
    """Processes of nodes and switches that this test's topologies have started."""
    mark = f"MEMLANE_LAB_RUNS={os.environ['MEMLANE_LAB_RUNS']}".encode()
    return [process.pid for process in procfs.processes() if process.alive and _is_ours(process, mark)]


def _is_ours(process: procfs.Stat, mark: bytes) -> bool:
    if not process.name.startswith(("linux", "vmlinux", "memlane")) or process.pid == os.getpid():
        return False
    try:
        return mark in Path(f"/proc/{process.pid}/environ").read_bytes()
    except OSError:
        return False
