"""Messages of `memlane-lab topo` about each kind of mistake of each key: the key, the fault, the remedy."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from typer.testing import CliRunner

from memlane_lab import cli, topo
from memlane_lab.common.errors import LabError
from memlane_lab.topo import measure
from memlane_lab.topo.command import app
from memlane_lab.topo.model import Bursts, Link, Node, Routing, impairment
from memlane_lab.topo.settings import Settings

_LIBRARIES = re.compile(
    r"input should|field required|extra inputs|valid (string|integer|number|boolean|list|tuple|dictionary)|pydantic|"
    r"validation error|value error|could not convert|unhashable|NoneType|Traceback|'>|\b(dict|tuple|str|int)\b",
    re.IGNORECASE,
)
_WRONG: tuple[Any, ...] = (
    "x y",
    "",
    -1,
    0,
    10**30,
    1.5,
    float("nan"),
    True,
    [],
    [1],
    [[1]],
    {"a": 1},
    {"a": [1]},
    "%",
    "1%%",
)


def _places() -> Iterator[tuple[str, str]]:
    """Each table of a file, and each key of it."""
    tables: dict[str, tuple[str, ...]] = {"": ("name", "over", "routing", "defaults", "node", "link")}
    for name, model in (("node", Node), ("defaults", Node), ("link", Link), ("routing", Routing), ("bursts", Bursts)):
        tables[name] = tuple(field.alias or key for key, field in model.model_fields.items())
    yield from ((table, key) for table, keys in tables.items() for key in (*keys, "nonsense"))


def _with(table: str, key: str, value: Any) -> dict[str, Any]:
    """A good file, but for one value."""
    nodes: list[dict[str, Any]] = [{"name": "a"}, {"name": "b"}]
    links: list[dict[str, Any]] = [{"ends": ["a", "b"]}]
    made: dict[str, Any] = {"node": nodes, "link": links}
    match table:
        case "":
            made[key] = value
        case "node":
            nodes[0][key] = value
        case "link":
            links[0][key] = value
        case "bursts":
            links[0]["gilbert-elliott"] = {"p": 0.1, "r": 0.5, key: value}
        case _:
            made[table] = {key: value}
    return made


@pytest.mark.parametrize(("table", "key"), list(_places()))
def test_every_wrong_value_of_every_key_is_told_with_its_key_and_line(tmp_path: Path, table: str, key: str) -> None:
    file = tmp_path / "wrong.toml"
    refused = 0
    for value in _WRONG:
        file.write_text(tomli_w.dumps(_with(table, key, value)))
        if (told := _refusal(file)) is None:
            continue
        refused += 1
        rows = told.splitlines()
        assert not _LIBRARIES.search(told.replace(str(tmp_path), "")), told
        assert len(rows) <= 3, "one mistake is not told again and again"
        for row in rows:
            assert re.match(rf"{file}(:\d+)?: \w", row), row
        inner = "|a" if isinstance(value, dict | list) else ""
        assert any(re.search(rf"\b({re.escape(key)}|ends{inner})\b", row) for row in rows), (value, rows)
    assert refused >= 5, f"{table}.{key} takes nearly everything"


def _refusal(file: Path) -> str | None:
    try:
        topo.state(file)
    except LabError as error:
        return str(error)
    return None


_A = "[[node]]\nname = 'a'\n"
_LISTED = [
    ("[[nodes]]\nname = 'a'", "1: nodes: no such key; did you mean 'node'?"),
    ("[[node]]\nnmae = 'a'", "1: name: must be stated"),
    ("[[node]]\nnmae = 'a'", "2: nmae: no such key; did you mean 'name'?"),
    ("[[node]]\nname = 'a b'", "2: name: 'a b' is not a name: use up to 31 letters, digits, '-' and '_'"),
    (
        "[[node]]\nname = 'host'",
        "2: name: a node cannot be called 'host', which names this machine as the end of a link: choose another name",
    ),
    (
        "[[node]]\nname = '10'",
        "2: name: '10' looks like an address to programs: add a letter, as n10",
    ),
    (
        f"{_A}kind = 'netnss'",
        "3: kind: must be 'uml', 'netns' or 'qemu', not 'netnss'; did you mean 'netns'?",
    ),
    (f"{_A}memory = 1", "3: memory: must be at least 24, not 1"),
    (f"{_A}memory = 'much'", "3: memory: must be a whole number, not 'much'"),
    (f"{_A}routing = 'ospf'", "3: routing: must be a list, not 'ospf'"),
    (f"{_A}commands = 'ls'", "3: commands: must be a list, not 'ls'"),
    (f"{_A}addresses = ['10.0.0']", "3: addresses: '10.0.0' is not an address with a prefix, as 10.0.0.1/31"),
    (f"{_A}files = {{ 'etc' = 'x' }}", "3: files: 'etc' is not an absolute path of a file in the node, as /etc/motd"),
    (
        f"{_A}files = {{ '/a/../b' = 'x' }}",
        "3: files: '/a/../b' is not an absolute path of a file in the node, as /etc/motd",
    ),
    (f"{_A}files = {{ '/dev/x' = 'x' }}", "3: files: '/dev/x' lies in a folder of the kernel: choose another place"),
    (
        f"{_A}files = {{ '/a' = 'x', '/a/b' = 'x' }}",
        "3: files: '/a' is a file, and the folder of '/a/b': rename one",
    ),
    (
        f"{_A}files = {{ '/usr/bin' = 'x' }}",
        "1: files: '/usr/bin' is a folder in nodes: name the file in it, as /usr/bin/a",
    ),
    (
        f"over = 'veth'\n{_A}",
        '2: a is a machine, and only namespaces can take links over veth: kind = "netns"',
    ),
    (
        f"over = 'bridge'\n{_A}[[node]]\nname = 'b'\n[[link]]\nends = ['a', 'b']\ndelay = '1ms'",
        '6: links over bridge have no delay: only memlane\'s have (over = "memlane")',
    ),
    (
        f"{_A}files = {{ '/etc/x' = 'x' }}",
        "3: the file x for /etc/x of a cannot be read: No such file or directory",
    ),
    (f"{_A}daemons = ['ospf']", "3: daemons: nodes have no daemon 'ospf'; did you mean 'ospfd'?"),
    (f"{_A}sysctls = {{ x = 1 }}", "3: sysctls: 'x' is not a sysctl of the kernel, as net.ipv4.ip_forward"),
    (
        f"{_A}kind = 'netns'\nsysctls = {{ 'vm.swappiness' = 1 }}",
        "1: sysctls: 'vm.swappiness' would change this machine: a netns node has only the sysctls net.* of its own",
    ),
    (
        f"{_A}image = 'debian'",
        '1: image: \'debian\' needs kind = "qemu" and role = "host": kernels of uml nodes have no disks, and FRR\'s '
        "daemons lie in the tree that all other nodes share",
    ),
    (
        f"{_A}kind = 'qemu'\nrole = 'host'\nimage = 'x'",
        "5: the disk x of a cannot be read: No such file or directory",
    ),
    ("[node]\nname = 'a'", "1: node: must be a list of tables: [[node]]"),
    (f"defaults = 3\n{_A}", "1: defaults: must be a table, [defaults], not 3"),
    (f"[defaults]\nname = 'x'\n{_A}", "2: name: each node has its own"),
    (f"[defaults]\nmemroy = 64\n{_A}[[node]]\nname = 'b'", "2: memroy: no such key; did you mean 'memory'?"),
    (f"over = 'brigde'\n{_A}", "1: over: unknown kind of links 'brigde'; did you mean 'bridge'?"),
    (
        f"[routing]\nprotocols = ['opsf']\n{_A}",
        "2: protocols.0: must be 'ospf', 'ospf6', 'isis' or 'bgp', not 'opsf'; did you mean 'ospf'?",
    ),
    (f"[routing]\nhelo = 1\n{_A}", "2: helo: no such key; did you mean 'hello'?"),
    ("", "a topology needs a node: [[node]]"),
    ("[[node", "1: no valid TOML: expected ']]' at the end of an array declaration"),
    ("a = 1 2", "1: no valid TOML at column 7: expected newline or end of document after a statement"),
]
_OF_LINKS = [
    ("delay = 'soon'", "delay: 'soon' is not a time: write a number and us, ms or s, as 10ms"),
    ("delay = '61s'", "delay: '61s' is too long: the maximum delay of a link is 60 s"),
    ("delay = 5", "delay: must be text, not 5"),
    ("rate = 'fast'", "rate: 'fast' is not a rate: write a number and bit, Kbit, Mbit or Gbit, as 100Mbit"),
    ("rate = '1bit'", "rate: '1bit' is out of range: 8Kbit to 1000Gbit"),
    ("loss = 'some'", "loss: 'some' is not a share: write 0.01 or 1%"),
    ("loss = 2", "loss: must be at most 1, not 2"),
    ("queue = 0", "queue: must be at least 1, not 0"),
    ("keep-ordr = true", "keep-ordr: no such key; did you mean 'keep-order'?"),
    ("keep-order = 'perhaps'", "keep-order: must be true or false, not 'perhaps'"),
    ("gilbert-elliott = { p = 0.1 }", "gilbert-elliott.r: must be stated"),
    ("gilbert-elliott = { p = 0.1, r = 1, bat = 1 }", "gilbert-elliott.bat: no such key; did you mean 'bad'?"),
    ("mtu = 100", "mtu: must be at least 1280, not 100"),
    ("addresses = []", "addresses.0: must be stated"),
    ("addresses = [['x'], []]", "addresses: 'x' is not an address with a prefix, as 10.0.0.1/31"),
    ("ends = ['a']", 'ends: a link has two ends: ends = ["r1", "r2"]'),
    ("ends = ['a', 'bb']", "there is no node bb; did you mean 'b'?"),
    ("ends = ['a:lo', 'b']", "'lo' is no interface name"),
    ("ends = ['a:1', 'b']", "'1' is no interface name"),
]


@pytest.mark.parametrize(("text", "told"), _LISTED)
def test_messages_of_files_are_these(tmp_path: Path, text: str, told: str) -> None:
    _expect(tmp_path, text, told)


@pytest.mark.parametrize(("text", "told"), _OF_LINKS)
def test_messages_of_links_are_these(tmp_path: Path, text: str, told: str) -> None:
    ends = "" if text.startswith("ends") else "ends = ['a', 'b']\n"
    _expect(tmp_path, f"[[node]]\nname = 'a'\n[[node]]\nname = 'b'\n[[link]]\n{ends}{text}", told)


def _expect(folder: Path, text: str, told: str) -> None:
    file = folder / "f.toml"
    file.write_text(text)
    with pytest.raises(LabError) as caught:
        topo.state(file)
    rows = [row.removeprefix(f"{file}:").strip() for row in str(caught.value).splitlines()]
    assert any(row == told or row.partition(": ")[2] == told for row in rows), rows


@pytest.mark.parametrize(
    ("stated", "same"),
    [
        ({"loss": "1%"}, {"loss": 0.01}),
        ({"loss": "0.01"}, {"loss": 0.01}),
        ({"rate": "2.5Gbit"}, {"rate": "2.5Gbit"}),
        ({"rate": "8kbit"}, {"rate": "8kbit"}),
        ({"jitter": "2ms", "keep-order": False}, {"jitter": "2ms"}),
        ({"gilbert-elliott": {"p": "1%", "r": 0.5}}, {"gilbert-elliott": {"p": 0.01, "r": 0.5}}),
        ({"duplicate": "5%", "reorder": 0.1}, {"duplicate": 0.05, "reorder": 0.1}),
        ({"jitter": "2ms", "distribution": "pareto"}, {"jitter": "2ms", "distribution": "pareto", "keep-order": True}),
    ],
)
def test_links_are_stated_in_the_words_of_memlanes_file(stated: dict[str, Any], same: dict[str, Any]) -> None:
    assert impairment(stated).as_link() == same


def test_a_mistake_of_all_nodes_of_a_shape_is_told_once() -> None:
    with pytest.raises(LabError) as caught:
        topo.state("line", 100, settings=Settings(node={"memory": 1}, link={"delay": "soon"}))
    assert str(caught.value).count("memory") == 1
    assert str(caught.value).count("soon") == 1


def test_a_question_of_whole_networks_is_told_in_the_same_words(tmp_path: Path) -> None:
    file = tmp_path / "q.toml"
    file.write_text('title = "t"\nquestion = "q"\nmeasure = "lin"\nsizes = 3\nrepaet = 1\n')
    with pytest.raises(LabError) as caught:
        measure.load(file)
    assert "measure: must be 'line', 'failure' or 'delay', not 'lin'; did you mean 'line'?" in str(caught.value)
    assert "sizes: must be a list, not 3" in str(caught.value)
    assert "repaet: no such key; did you mean 'repeat'?" in str(caught.value)


def _topo(*arguments: str, status: int) -> str:
    command = [sys.executable, "-m", "memlane_lab", "topo", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def test_check_says_whether_a_file_is_good_and_starts_nothing(tmp_path: Path, own_runs: Path) -> None:
    file = tmp_path / "f.toml"
    file.write_text("[[node]]\nname = 'a'\n[[node]]\nname = 'b'\n[[link]]\nends = ['a', 'b']\n")
    assert f"{file} is good: f; nodes: 2, links: 1" in _topo("check", str(file), status=0)
    file.write_text("[[node]]\nname = 'a'\nfiles = { '/etc/frr/daemons' = 'd' }\n")
    (tmp_path / "d").write_text("babeld=yes\n")
    assert "enables babeld" in _topo("check", str(file), status=2)
    file.write_text("[[node]]\nname = [[1]]\n")
    assert f"{file}:2: name: must be text, not [[1]]" in _topo("check", str(file), status=2), (
        "nothing is taken for markup"
    )
    (tmp_path / "a.clab.yml").write_text("topology: { nodes: { 1: { labels: { a: b } } } }\n")
    assert "labels has no effect here (line 1)" in _topo("check", str(tmp_path / "a.clab.yml"), status=0)
    assert not own_runs.exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("topo", "up", "line", "x"), "sizes: must be a whole number, not 'x'; see"),
        (("topo", "exec", "--timeout", "x", "a", "ls"), "--timeout: must be a number, not 'x'; see"),
        (("topo", "graph", "--port", "99999"), "--port: must be at most 65535, not"),
        (("topo", "lnk", "a", "b"), "Did you mean 'link'?; see"),
        (("topo", "check"), "Missing argument 'file'; see"),
        (("topo", "up", "--dely", "3ms"), "No such option: --dely"),
    ],
)
def test_wrong_arguments_are_one_sentence(
    arguments: tuple[str, ...], told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["memlane-lab", *arguments])
    monkeypatch.setattr(cli, "exit_on_termination", lambda: None)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert said.count("\n") == 1
    assert said.startswith("memlane-lab: ")
    assert told in said
    assert not _LIBRARIES.search(said)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("lien", "3"), "there is no shape 'lien'; did you mean 'line'?"),
        (("line",), "line takes N, each at least 1: topo up line N"),
        (("line", "2", "--delay", "soon"), "delay: 'soon' is not a time"),
        (("line", "2", "--loss", "some"), "loss: 'some' is not a share: write 0.01 or 1%"),
        (("line", "2", "--routing", "opsf"), "did you mean 'ospf'?"),
        (("line", "2", "--over", "brigde"), "did you mean 'bridge'?"),
        (("line", "2", "--kind", "netnss"), "did you mean 'netns'?"),
        (("line", "99999999999"), "line 99999999999 has more than 5000 nodes or 20000 links"),
        (("tree", "100", "100"), "tree 100 100 has more than 5000 nodes"),
        (("full", "5000"), "full 5000 has more than"),
        (("none.toml",), "cannot read the topology none.toml: No such file or directory"),
        ((__file__,), "unknown file type"),
        ((".",), "there is no shape '.'"),
    ],
)
def test_what_the_command_line_gets_wrong_is_told_in_the_same_words(arguments: tuple[str, ...], told: str) -> None:
    done = CliRunner().invoke(app, ["up", *arguments])
    assert isinstance(done.exception, LabError), done.output
    assert told in str(done.exception)
