"""Networks of real systems: `topo up line 100`, then show, exec, shell, copy, kill, link, capture, graph, down.

A topology stays up in a process of its own until `topo down`. Where several are up, --name says which.
"""

import base64
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from memlane_lab.common.counted import counted
from memlane_lab.common.errors import LabError
from memlane_lab.common.options import options
from memlane_lab.common.progress import console, results, say, tell
from memlane_lab.topo import capture as capturing
from memlane_lab.topo import files, net, running, setup, shapes, terminal
from memlane_lab.topo import graph as drawing
from memlane_lab.topo import measure as measuring
from memlane_lab.topo.model import OVER, Topology
from memlane_lab.topo.net import prepare
from memlane_lab.topo.service import Caller, ask
from memlane_lab.topo.settings import Settings

_MIB = 1 << 20
app = typer.Typer(no_args_is_help=True, help=__doc__)

NameOption = Annotated[str | None, typer.Option("--name", help="name of the topology, if several run")]
DelayOption = Annotated[str | None, typer.Option("--delay", help="one-way delay, as 10ms")]
JitterOption = Annotated[str | None, typer.Option("--jitter", help="jitter of the delay, as 2ms")]
LossOption = Annotated[str | None, typer.Option("--loss", help="frame loss, as 1%")]
RateOption = Annotated[str | None, typer.Option("--rate", help="rate of the link, as 100Mbit")]


@dataclass(frozen=True)
class UpOptions:
    """Arguments and options of `memlane-lab topo up`."""

    what: Annotated[
        str, typer.Argument(help=f"a shape ({', '.join(shapes.SHAPES)}) or a file (.toml, .clab.yml, .graphml)")
    ]
    sizes: Annotated[list[int] | None, typer.Argument(help="sizes of the shape: line 100, tree 3 2, grid 4 5")] = None
    name: Annotated[str | None, typer.Option("--name", help="name of the topology")] = None
    kind: Annotated[str | None, typer.Option("--kind", help="kind of all nodes: uml, netns or qemu")] = None
    memory: Annotated[int | None, typer.Option("--memory", help="memory of each node, in MiB")] = None
    routing: Annotated[
        str | None, typer.Option("--routing", help="routing daemons: ospf,ospf6 or isis, bgp; or none")
    ] = None
    hello: Annotated[
        int | None, typer.Option("--hello", help="hello interval of the routing protocols, in seconds")
    ] = None
    delay: DelayOption = None
    jitter: JitterOption = None
    loss: LossOption = None
    rate: RateOption = None
    over: Annotated[
        str | None, typer.Option("--over", help="kind of links: memlane; bridge or veth for comparison")
    ] = None
    wait: Annotated[bool, typer.Option(help="wait until all routing tables are full")] = True

    def settings(self) -> Settings:
        """The settings of the topology beside its shape or file."""
        protocols = None if self.routing is None else [] if self.routing == "none" else self.routing.split(",")
        return Settings(
            name=self.name,
            node=_given(kind=self.kind, memory=self.memory),
            link=_given(delay=self.delay, jitter=self.jitter, loss=self.loss, rate=self.rate),
            routing=_given(protocols=protocols, hello=self.hello),
            over=self.over,
        )


@app.command()
@options(UpOptions)
def up(asked: UpOptions) -> None:
    """Bring a topology up: boot its nodes, lay its links, start its routing.

    Options of nodes, links and routing are for shapes, and for files that cannot state them (containerlab's, GraphML).
    """
    topology = net.state(asked.what, *(asked.sizes or ()), settings=asked.settings())
    _say_notes(topology)
    told = _bring_up(topology, wait=asked.wait)
    seconds = told["seconds"]
    parts = [f"{counted(len(topology.nodes), 'node')} set up in {seconds['booted']:.1f} s"]
    for key, words in (("neighbours", "neighbours answer"), ("routes", "routing tables full"), ("ping", "end to end")):
        if seconds[key]:
            parts.append(f"{words} after {seconds[key]:.1f} s")
    tell(f"{topology.name}: {', '.join(parts)}")
    for complaint in told["complaints"]:
        say(complaint)
    if told["warning"]:
        raise LabError(f"{topology.name} is up, but {told['warning']}")


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="a file (.toml, .clab.yml, .graphml)", show_default=False)],
) -> None:
    """Say whether a file is a topology that can be brought up, and which line is wrong; nothing is started."""
    topology = files.load(file)
    setup.verify(topology)
    _say_notes(topology)
    tell(f"{file} is good: {topology.name}; nodes: {len(topology.nodes)}, links: {len(topology.links)}")


def _say_notes(topology: Topology) -> None:
    for note in topology.notes:
        say(note)


def _given(**options: Any) -> dict[str, Any]:  # noqa: ANN401
    return {key: value for key, value in options.items() if value is not None}


def _bring_up(topology: Topology, *, wait: bool) -> dict[str, Any]:
    """Starts a keeper and shows how far it is; hangs up, which ends it, when interrupted."""
    prepare(topology)
    caller = running.keep(topology, wait=wait)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        bars: dict[str, Any] = {}
        for news in caller.answers():
            if "up" in news:
                return news
            what = news["what"]
            if what not in bars:
                bars[what] = progress.add_task(what, total=news["of"])
            progress.update(bars[what], completed=news["done"])
    raise LabError(f"{topology.name} ended while it came up; its log: {running.log(topology.name)}")


@app.command("list")
def list_all() -> None:
    """List the topologies that are up."""
    table = Table("name", "nodes", "up", "links", box=None)
    for name in running.names():
        state = ask(name, "state", memory=False)
        alive = sum(node["state"] == "up" for node in state["nodes"])
        table.add_row(name, str(len(state["nodes"])), str(alive), str(len(state["links"])))
    results.print(table)


@app.command()
def show(
    name: NameOption = None,
    links: Annotated[bool, typer.Option("--links", help="links instead of nodes")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="everything, as JSON")] = False,
) -> None:
    """Show nodes, or links: states, addresses, neighbours, memory, CPU."""
    state = ask(running.which(name), "state")
    if as_json:
        sys.stdout.write(json.dumps(state, indent=2) + "\n")
        return
    results.print(_links(state) if links else _nodes(state))
    if not links:
        switch = state["switch"]
        # Memory of its guests that memlane maps is theirs.
        total = sum(node["memory"] or 0 for node in state["nodes"]) + switch["memory"] - switch["own"]
        count = max(1, len(state["nodes"]))
        results.print(
            f"{counted(count, 'node')}: {total / _MIB:.0f} MiB, {total / count / _MIB:.1f} MiB each{_switch(switch)}",
            highlight=False,
        )


def _switch(told: dict[str, Any]) -> str:
    """CPU time and memory of the switch; links of the kernel have no process."""
    if told["over"] != OVER[0]:
        return f"; links over {told['over']}"
    return f"; memlane: {told['own'] / _MIB:.0f} MiB, {told['cpu']:.1f} s of CPU"


def _nodes(state: dict[str, Any]) -> Table:
    table = Table("node", "kind", "state", "address", "neighbours", "routes", box=None)
    for column in ("memory", "CPU"):
        table.add_column(column, justify="right")
    for node in state["nodes"]:
        colour = "green" if node["state"] == "up" else "red"
        neighbours = " ".join(n["node"] if n["reached"] else f"[red]{n['node']}![/]" for n in node["neighbours"])
        called = " ".join(node["addresses"])
        told = "" if node["routes"] is None else str(node["routes"])
        use = (f"{(node['memory'] or 0) / _MIB:.0f} MiB", f"{node['cpu']:.1f} s")
        table.add_row(node["name"], node["kind"], f"[{colour}]{node['state']}[/]", called, neighbours, told, *use)
    return table


def _links(state: dict[str, Any]) -> Table:
    table = Table("link", "ends", "state", "what frames meet", box=None)
    for column in ("frames", "lost"):
        table.add_column(column, justify="right")
    for link in state["links"]:
        ends = " ".join(f"{node}:{port}" for node, port in zip(link["ends"], link["interfaces"], strict=True))
        mark = "[green]up[/]" if link["up"] and link["alive"] else "[red]down[/]"
        table.add_row(link["name"], ends, mark, link["impairment"], str(sum(link["frames"])), str(link["drops"]))
    return table


@app.command("exec", context_settings={"ignore_unknown_options": True})
def execute(
    words: Annotated[
        list[str], typer.Argument(help="NODE (or several: r1,r2), then the command; with --all only that")
    ],
    everywhere: Annotated[bool, typer.Option("--all", help="run it in all running nodes")] = False,
    timeout: Annotated[float, typer.Option(help="timeout of the command, in seconds")] = 60.0,
    name: NameOption = None,
) -> None:
    """Run a command in nodes, at once; the exit code is the highest of theirs."""
    nodes, command = (None, words) if everywhere else (words[0].split(","), words[1:])
    if not command:
        raise LabError("the command is missing: topo exec NODE -- COMMAND")
    line = command if len(command) > 1 else ["sh", "-c", command[0]]
    worst = 0
    alone = nodes is not None and len(nodes) == 1
    for told in Caller(running.which(name), "exec", nodes=nodes, command=line, timeout=timeout).answers():
        status = told["status"] if told["status"] >= 0 else 128 - told["status"]
        worst = max(worst, status)
        head = "" if alone else f"{told['node']}: "
        _by_node(sys.stdout, head, told["stdout"])
        _by_node(sys.stderr, head, told["stderr"])
        if told["status"] and not alone:
            sys.stderr.write(f"{head}ended with status {told['status']}\n")
    raise typer.Exit(worst)


def _by_node(stream: Any, head: str, text: str) -> None:  # noqa: ANN401
    for row in text.splitlines(keepends=True):
        stream.write(f"{head}{row}")


@app.command()
def shell(node: str, name: NameOption = None) -> None:
    """An interactive terminal in a node."""
    raise typer.Exit(terminal.converse(running.which(name), node))


@app.command()
def copy(
    source: Annotated[str, typer.Argument(help="FILE, or NODE:FILE")],
    target: Annotated[str, typer.Argument(help="NODE:FILE, or FILE")],
    name: NameOption = None,
) -> None:
    """Copy a file into a node, or out of it."""
    called = running.which(name)
    (giver, here), (taker, there) = _place(source), _place(target)
    if (giver is None) == (taker is None):
        raise LabError("one of the two must be NODE:FILE: topo copy a.conf r1:/tmp/a.conf")
    try:
        if taker is not None:
            path = f"{there.rstrip('/')}/{Path(here).name}" if there.endswith("/") else there
            content = base64.b64encode(Path(here).read_bytes()).decode()
            ask(called, "put", node=taker, path=path, content=content)
        else:
            found = base64.b64decode(ask(called, "get", node=giver, path=here)["content"])
            (Path(there) / Path(here).name if Path(there).is_dir() else Path(there)).write_bytes(found)
    except OSError as error:
        raise LabError(f"cannot copy: {error.strerror}: {error.filename}") from error


def _place(text: str) -> tuple[str | None, str]:
    node, colon, path = text.partition(":")
    return (node, path) if colon and "/" not in node else (None, text)


@app.command()
def kill(nodes: list[str], name: NameOption = None) -> None:
    """End nodes like a power cut."""
    ask(running.which(name), "nodes", act="kill", names=nodes)


@app.command()
def stop(nodes: list[str], name: NameOption = None) -> None:
    """Let nodes power off."""
    ask(running.which(name), "nodes", act="stop", names=nodes)


@app.command()
def start(nodes: list[str], name: NameOption = None) -> None:
    """Boot nodes again that were killed or stopped."""
    ask(running.which(name), "nodes", act="start", names=nodes)


@app.command()
def link(
    first: Annotated[str, typer.Argument(help="a node, or NODE:INTERFACE where several links join the two")],
    second: str,
    delay: DelayOption = None,
    jitter: JitterOption = None,
    loss: LossOption = None,
    rate: RateOption = None,
    clear: Annotated[bool, typer.Option("--clear", help="remove the earlier impairments of the link first")] = False,
    up_or_down: Annotated[bool | None, typer.Option("--up/--down", help="whether the link passes frames")] = None,
    name: NameOption = None,
) -> None:
    """Change a link while it runs, in both directions; without options, show it."""
    changes = _given(delay=delay, jitter=jitter, loss=loss, rate=rate)
    told = ask(running.which(name), "link", first=first, second=second, up=up_or_down, clear=clear, changes=changes)
    tell(f"{told['name']}: {'up' if told['up'] else 'down'}, {told['impairment']}")


@app.command()
def capture(
    where: Annotated[str, typer.Argument(help="a link (r3-r4: at r3's end), or NODE:INTERFACE")],
    what: Annotated[list[str] | None, typer.Argument(help="capture filter of tcpdump, as icmp")] = None,
    write: Annotated[
        Path | None, typer.Option("-w", help="file to write; by default standard output, for a pipe")
    ] = None,
    count: Annotated[int | None, typer.Option("-c", min=1, help="end after so many frames")] = None,
    name: NameOption = None,
) -> None:
    """Capture the packets of a link until Ctrl-C, by this machine: topo capture r3-r4 | tcpdump -r -.

    Links of memlane are captured by `memlane capture` (pcapng, dropped frames with their reasons), others by tcpdump.
    """
    capturing.capture(running.which(name), where, " ".join(what or ()), write, count)


@app.command()
def graph(
    write: Annotated[Path | None, typer.Option("-w", help="write the page as it is now to a file")] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="TCP port on 127.0.0.1; 0 chooses a free one")] = 0,
    name: NameOption = None,
) -> None:
    """Draw the topology on a page with live rates and states, served until Ctrl-C; or write it to a file."""
    called = running.which(name)
    if write is None:
        drawing.serve(called, port)
        return
    try:
        write.write_text(drawing.page(ask(called, "state"), live=False))
    except OSError as error:
        raise LabError(f"cannot write {write}: {error.strerror}") from error
    tell(f"the page: {write}")


@app.command()
def measure(
    file: Annotated[Path, typer.Argument(help="a question: see lab/experiments/topologies")],
    size: Annotated[list[int] | None, typer.Option("--size", help="only networks with this number of nodes")] = None,
    over: Annotated[list[str] | None, typer.Option("--over", help="only links over memlane, bridge or veth")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="write the figures to this file too, as JSON")] = None,
) -> None:
    """Measure whole networks: time to come up, CPU and memory, effects of failures and delays."""
    question = measuring.load(file)
    rows = measuring.answer(question, tuple(size or ()), tuple(over or ()), out)
    table = Table("nodes", "over", "what", box=None, title=question.question)
    for column in ("figure", "theory says"):
        table.add_column(column, justify="right")
    for row in rows:
        expected = "" if row.expected is None else _figure(row.expected, row.unit)
        value = row.why if row.value is None else _figure(row.value, row.unit)
        table.add_row(str(row.size), row.over, row.what, value, expected)
    results.print(table)
    if any(row.value is None for row in rows):
        raise typer.Exit(2)


def _figure(value: float, unit: str) -> str:
    """As people read it: 3.2 ms, 9.4 Mbit/s."""
    for factor, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1, ""), (1e-3, "m")):
        if abs(value) >= factor and (unit != "s" or factor <= 1):
            return f"{value / factor:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}" if unit != "s" else f"{value * 1e6:.3g} us"


@app.command()
def down(
    name: Annotated[str | None, typer.Argument(help="name of the topology, if several run")] = None,
    everything: Annotated[bool, typer.Option("--all", help="all running topologies")] = False,
    named: Annotated[str | None, typer.Option("--name", help="the same as the argument")] = None,
) -> None:
    """End a topology, and remove the leftovers of crashed ones."""
    chosen = (
        running.names() if everything else [running.which(name or named)] if (name or named or running.names()) else []
    )
    for one in chosen:
        running.end(one)
        tell(f"{one}: down")
    if not chosen and not running.sweep():
        results.print("no topology is running")
