"""A topology as it is stated: nodes, links between them, and how it routes.

`check` takes the tables of a file or a shape, and either gives a whole **Topology** or tells all mistakes, each with
its place; files turn places into lines.
"""

import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Interface, IPv6Interface
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, ValidationError, field_validator, model_validator

from memlane_lab.common.errors import LabError
from memlane_lab.common.strict import Place, Strict, hint, keyed, shown
from memlane_lab.common.strict import mistakes as found_in
from memlane_lab.images.system import NAMED
from memlane_lab.topo.image import FOLDERS, KERNELS, NAMES

OVER = ("memlane", "bridge", "veth")
"""Kinds of links; the first is the usual one."""
HOST = "host"
"""The end of a link that leads to the host: a TAP in its own namespace."""
INTEGRATED = "/etc/frr/frr.conf"
"""FRR's whole configuration in one file, its usual since version 4."""
Protocol = Literal["ospf", "ospf6", "isis", "bgp"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,30}")
_NUMBER = re.compile(r"\d+|0[xX][0-9a-fA-F]*")
"""Names that inet_aton(3) reads as an address."""
_INTERFACE = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,14}")
_TAKEN = {"lo", "all", "default"}
"""Names of interfaces that the kernel gives another meaning."""
_DELAY = re.compile(r"(\d+(?:\.\d+)?)\s*(us|ms|s)")
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*([kKmMgG]?)bit")
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_BITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}
_LONGEST_DELAY = 60.0
"""Seconds that memlane may hold a frame."""
_LOWEST_RATE, _HIGHEST_RATE = 8e3, 1e12
"""Bits a second, of memlane's links."""


@dataclass(frozen=True)
class Mistake:
    """One thing that is wrong, and where."""

    place: Place
    text: str


class BadTopology(LabError):
    """Tables that are no topology; the text tells every mistake."""

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        super().__init__("; ".join(dict.fromkeys(mistake.text for mistake in mistakes)))
        self.mistakes = list(mistakes)


def _share(stated: Any) -> Any:  # noqa: ANN401
    """A share as people write it: 0.01 or "1%"."""
    if not isinstance(stated, str):
        return stated
    number = stated.removesuffix("%").strip()
    try:
        return float(number) / (100 if stated.endswith("%") else 1)
    except ValueError:
        raise ValueError(f"{stated!r} is not a share: write 0.01 or 1%") from None


def seconds(text: str) -> float:
    """A time as it is stated: "10ms"."""
    found = _DELAY.fullmatch(text.strip())
    if not found:
        raise ValueError(f"{text!r} is not a time: write a number and us, ms or s, as 10ms")
    if (value := float(found[1]) * _SECONDS[found[2]]) > _LONGEST_DELAY:
        raise ValueError(f"{text!r} is too long: the maximum delay of a link is {_LONGEST_DELAY:.0f} s")
    return value


def bits(text: str) -> float:
    """A rate as it is stated: "100Mbit"."""
    found = _RATE.fullmatch(text.strip())
    if not found:
        raise ValueError(f"{text!r} is not a rate: write a number and bit, Kbit, Mbit or Gbit, as 100Mbit")
    if not _LOWEST_RATE <= (value := float(found[1]) * _BITS[found[2].lower()]) <= _HIGHEST_RATE:
        raise ValueError(f"{text!r} is out of range: 8Kbit to 1000Gbit")
    return value


Share = Annotated[float, BeforeValidator(_share), Field(ge=0, le=1)]


class Bursts(Strict):
    """Losses in bursts: a good and a bad state (Gilbert 1960, Elliott 1963)."""

    p: Share
    """From good to bad, a frame."""
    r: Share
    """From bad to good, a frame."""
    bad: Share = 1.0
    """Loss in the bad state."""
    good: Share = 0.0
    """Loss in the good state."""


class Impairment(Strict):
    """Link emulation in each direction, in the words of memlane's file; a key that is left out impairs nothing."""

    delay: str | None = None
    """One way, as "10ms" or "250us"."""
    jitter: str | None = None
    distribution: Literal["uniform", "normal", "pareto"] = "uniform"
    """How the delay strays."""
    keep_order: bool = Field(default=True, alias="keep-order")
    """Whether frames keep their order under jitter."""
    loss: Share = 0.0
    """Share of frames that get lost, each segment of a large TCP frame by itself: 0.01 or "1%"."""
    bursts: Bursts | None = Field(default=None, alias="gilbert-elliott")
    duplicate: Share = 0.0
    """Share of frames that come twice."""
    reorder: Share = 0.0
    """Share of frames that are not delayed."""
    rate: str | None = None
    """Bits a second of whole Ethernet frames, as "100Mbit"."""
    queue: int | None = Field(default=None, ge=1, le=1_000_000)
    """Frames that may wait for the transmitter; each segment of a large TCP frame is one."""

    @field_validator("delay", "jitter")
    @classmethod
    def _a_delay(cls, text: str | None) -> str | None:
        if text is not None:
            seconds(text)
        return text

    @field_validator("rate")
    @classmethod
    def _a_rate(cls, text: str | None) -> str | None:
        if text is not None:
            bits(text)
        return text

    def as_link(self) -> dict[str, Any]:
        """As memlane's file states it; empty if nothing impairs."""
        stated = self.model_dump(include=set(Impairment.model_fields), exclude_defaults=True, by_alias=True)
        stated.pop("keep-order", None)
        if self.jitter is not None and self.keep_order:
            stated["keep-order"] = True
        return stated

    def parts(self) -> list[str]:
        """Each impairment in a few words."""
        times = [f"{key} {value}" for key in ("delay", "jitter", "rate", "queue") if (value := getattr(self, key))]
        shares = {"loss": self.loss, "duplicate": self.duplicate, "reorder": self.reorder}
        told = [f"{name} {value:.2%}" for name, value in shares.items() if value]
        return [*times, *told, *(["losses in bursts"] if self.bursts else [])]

    def __str__(self) -> str:
        return ", ".join(self.parts()) or "unimpaired"


def impairment(stated: Mapping[str, Any]) -> Impairment:
    """The impairment that a change asks for; raises with all its mistakes."""
    try:
        return Impairment.model_validate(stated)
    except ValidationError as error:
        raise LabError("; ".join(keyed(place, text) for place, text in found_in(error, Impairment))) from None


def _setting(stated: Any) -> Any:  # noqa: ANN401
    """A value as the kernel takes it."""
    return str(int(stated)) if isinstance(stated, int) else stated


class Node(Strict):
    """A machine."""

    name: str
    kind: Literal["uml", "netns", "qemu"] = "uml"
    role: Literal["router", "host"] = "router"
    """A router forwards and runs FRR; a host has a default route to its first neighbour."""
    image: str | None = None
    """A system of its own, by a disk: "debian", "debian:SUITE", or the path of a disk with an ext4, beside the
    topology's file. None: the tree of programs that all nodes share."""
    memory: int = Field(default=64, ge=24, le=1 << 20)
    """MiB."""
    routing: tuple[Protocol, ...] | None = None
    """Protocols, where they differ from the topology's."""
    asn: int | None = Field(default=None, ge=1, le=(1 << 32) - 1)
    """Its autonomous system, for BGP."""
    addresses: tuple[str, ...] = ()
    """Of its loopback; none: by rule."""
    daemons: tuple[str, ...] | None = None
    """FRR's daemons that it runs beside those of its protocols; none stated: those that its /etc/frr/frr.conf needs."""
    files: dict[str, str] = {}
    """Files that it finds, by their path there: paths here, beside the topology's file. /etc/frr/ospfd.conf and the
    like replace the generated ones; /etc/frr/frr.conf replaces all of it."""
    sysctls: dict[str, Annotated[str, BeforeValidator(_setting)]] = {}
    """Settings of its kernel, as net.ipv4.ip_forward = 1."""
    commands: tuple[str, ...] = ()
    """Commands that it runs once it is set up, in this order."""
    timeout: int = Field(default=60, ge=1, le=86400)
    """Seconds that each of them may take."""
    tolerant: bool = False
    """Whether the node stays up where one of them fails: that is told, and the next runs."""

    @field_validator("name")
    @classmethod
    def _a_name(cls, text: str) -> str:
        if not _NAME.fullmatch(text):
            raise ValueError(f"{text!r} is not a name: use up to 31 letters, digits, '-' and '_'")
        if text == HOST:
            raise ValueError(
                f"a node cannot be called {HOST!r}, which names this machine as the end of a link: choose another name"
            )
        if text.lower() == "localhost":
            raise ValueError("a node cannot be called 'localhost', which names each node itself: choose another name")
        if is_number(text):
            raise ValueError(f"{text!r} looks like an address to programs: add a letter, as n{text}")
        return text

    @field_validator("daemons")
    @classmethod
    def _daemons(cls, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
        for name in names or ():
            if name not in NAMES:
                raise ValueError(f"nodes have no daemon {name!r}{hint(name, NAMES)}")
        return names

    @field_validator("files")
    @classmethod
    def _files(cls, files: dict[str, str]) -> dict[str, str]:
        for path in files:
            if not path.startswith("/") or {"", ".", ".."} & set(path[1:].split("/")):
                raise ValueError(f"{path!r} is not an absolute path of a file in the node, as /etc/motd")
            if "/".join(path.split("/")[:2]) in KERNELS:
                raise ValueError(f"{path!r} lies in a folder of the kernel: choose another place")
            if below := next((other for other in files if other.startswith(f"{path}/")), None):
                raise ValueError(f"{path!r} is a file, and the folder of {below!r}: rename one")
        return files

    @field_validator("sysctls")
    @classmethod
    def _sysctls(cls, settings: dict[str, str]) -> dict[str, str]:
        for key in settings:
            if not re.fullmatch(r"[A-Za-z0-9_*-]+([./][A-Za-z0-9_*@:-]+)+", key) or ".." in key:
                raise ValueError(f"{key!r} is not a sysctl of the kernel, as net.ipv4.ip_forward")
        return settings

    @model_validator(mode="after")
    def _its_own_system(self) -> Self:
        if self.image is not None and (self.kind, self.role) != ("qemu", "host"):
            raise ValueError(
                f'image: {self.image!r} needs kind = "qemu" and role = "host": kernels of uml nodes have no disks, and '
                "FRR's daemons lie in the tree that all other nodes share"
            )
        return self

    @model_validator(mode="after")
    def _no_folder(self) -> Self:
        if self.image is None and (taken := [path for path in self.files if path in FOLDERS]):
            raise ValueError(f"files: {taken[0]!r} is a folder in nodes: name the file in it, as {taken[0]}/a")
        return self

    @model_validator(mode="after")
    def _its_own_settings(self) -> Self:
        if self.kind == "netns" and (others := [key for key in self.sysctls if not key.startswith("net")]):
            raise ValueError(
                f"sysctls: {others[0]!r} would change this machine: a netns node has only the sysctls net.* of its own"
            )
        return self

    @field_validator("addresses")
    @classmethod
    def _addresses(cls, texts: tuple[str, ...]) -> tuple[str, ...]:
        for text in texts:
            interface(text)
        return texts


def is_number(name: str) -> bool:
    """Whether programs would take the name for an address (RFC 1123, 2.1)."""
    return bool(_NUMBER.fullmatch(name))


def _two_ends(stated: Any) -> Any:  # noqa: ANN401
    if not isinstance(stated, list | tuple) or len(stated) != 2 or not all(isinstance(end, str) for end in stated):
        raise ValueError('a link has two ends: ends = ["r1", "r2"]')
    return stated


class Link(Impairment):
    """A cable between two ends."""

    ends: Annotated[tuple[str, str], BeforeValidator(_two_ends)]
    """Nodes, or "NODE:INTERFACE" where the interface is to have another name than net0, net1 ...; "host" is this
    machine."""
    addresses: tuple[tuple[str, ...], tuple[str, ...]] | None = None
    """Of the two ends, with their prefixes: [["10.0.0.0/31"], ["10.0.0.1/31"]]; none: by rule. An empty list: no
    address."""
    mtu: int = Field(default=1500, ge=1280, le=65535)

    @field_validator("addresses")
    @classmethod
    def _addresses(cls, both: tuple[tuple[str, ...], tuple[str, ...]] | None) -> Any:  # noqa: ANN401
        for text in (text for texts in both or () for text in texts):
            interface(text)
        return both

    @property
    def impairment(self) -> Impairment:
        """Its emulation."""
        return Impairment.model_validate({key: getattr(self, key) for key in Impairment.model_fields})

    @property
    def nodes(self) -> tuple[str, str]:
        """The names of its ends, without interfaces."""
        return self.ends[0].partition(":")[0], self.ends[1].partition(":")[0]

    @property
    def interfaces(self) -> tuple[str | None, str | None]:
        """The interfaces that are named."""
        return self.ends[0].partition(":")[2] or None, self.ends[1].partition(":")[2] or None


def interface(text: str) -> IPv4Interface | IPv6Interface:
    """An address with its prefix."""
    try:
        return IPv6Interface(text) if ":" in text else IPv4Interface(text)
    except ValueError:
        raise ValueError(f"{text!r} is not an address with a prefix, as 10.0.0.1/31") from None


class Routing(Strict):
    """How routers find ways."""

    protocols: tuple[Protocol, ...] = ("ospf", "ospf6")
    hello: int = Field(default=1, ge=1, le=600)
    """Seconds between two hellos."""
    dead: int | None = Field(default=None, ge=2, le=3600)
    """Seconds without a hello after which a neighbour counts as gone; none: four hellos."""

    @property
    def dead_interval(self) -> int:
        """Seconds."""
        return self.dead or 4 * self.hello


@dataclass(frozen=True)
class Topology:
    """A whole one: names are unique, and links lead somewhere."""

    name: str
    nodes: tuple[Node, ...]
    links: tuple[Link, ...]
    routing: Routing
    folder: str = "."
    """The folder that relative paths in it start from."""
    over: str = OVER[0]
    """The kind of its links: one of `OVER`."""
    notes: tuple[str, ...] = ()
    """Notes about keys of its file that have no effect here."""

    def node(self, name: str) -> Node:
        """The node of that name."""
        return next(node for node in self.nodes if node.name == name)

    def protocols(self, node: Node) -> tuple[Protocol, ...]:
        """The node's routing protocols, if they are configured here: a node may bring its own configuration instead."""
        if node.role != "router" or INTEGRATED in node.files:
            return ()
        return self.routing.protocols if node.routing is None else node.routing

    def routed_together(self) -> dict[str, set[str]]:
        """By router, those that can hear of it: links between routers lead there."""
        together = {node.name: {node.name} for node in self.nodes if self.protocols(node)}
        for first, second in (link.nodes for link in self.links):
            if first in together and second in together and together[first] is not together[second]:
                together[first] |= together[second]
                together |= dict.fromkeys(together[second], together[first])
        return together

    def stated(self) -> dict[str, Any]:
        """As a file would state it."""
        plain: dict[str, Any] = {"exclude_defaults": True, "mode": "json"}
        return {
            "name": self.name,
            "over": self.over,
            "routing": self.routing.model_dump(**plain),
            "node": [node.model_dump(**plain) for node in self.nodes],
            "link": [link.model_dump(**plain) for link in self.links],
        }


_KEYS = ("name", "over", "routing", "defaults", "node", "link")
"""Of a file."""


def check(stated: Mapping[str, Any], *, folder: str = ".", notes: Sequence[str] = ()) -> Topology:
    """The topology that is stated; raises with all mistakes at once."""
    mistakes = [Mistake((key,), f"{key}: no such key{hint(key, _KEYS)}") for key in stated if key not in _KEYS]
    defaults = _defaults(_mapping(stated, "defaults", mistakes), mistakes)
    nodes = list(_each(Node, stated, "node", defaults, mistakes))
    links = list(_each(Link, stated, "link", {}, mistakes))
    routing = _one(Routing, _mapping(stated, "routing", mistakes), ("routing",), mistakes) or Routing()
    name = stated.get("name", "net")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        mistakes.append(
            Mistake(("name",), f"name: {shown(name)} is not a name: use up to 31 letters, digits, '-' and '_'")
        )
    over = stated.get("over", OVER[0])
    if over not in OVER:
        mistakes.append(Mistake(("over",), f"over: unknown kind of links {shown(over)}{hint(over, OVER)}"))
    if not nodes and not mistakes:
        mistakes.append(Mistake(("node",), "a topology needs a node: [[node]]"))
    mistakes += _between(nodes, links, _names(stated.get("node")))
    mistakes += _over(over, nodes, links)
    mistakes += _files(nodes, Path(folder))
    if mistakes:
        raise BadTopology(mistakes)
    made = tuple(node for _, node in nodes), tuple(link for _, link in links)
    return Topology(name, *made, routing, folder, over, tuple(notes))


def _names(stated: Any) -> set[str]:  # noqa: ANN401
    """The names of all nodes, those with mistakes among them: links to them are none."""
    tables = [node for node in stated if isinstance(node, dict)] if isinstance(stated, list) else []
    return {name for node in tables if isinstance(name := node.get("name"), str)}


def _mapping(stated: Mapping[str, Any], key: str, mistakes: list[Mistake]) -> dict[str, Any]:
    found = stated.get(key, {})
    if isinstance(found, dict):
        return found
    mistakes.append(Mistake((key,), f"{key}: must be a table, [{key}], not {shown(found)}"))
    return {}


def _defaults(stated: dict[str, Any], mistakes: list[Mistake]) -> dict[str, Any]:
    """The defaults of all nodes, without mistakes: these are told once, not for each node."""
    found: list[Mistake] = []
    _one(Node, {"name": "n", **stated}, ("defaults",), found)
    if "name" in stated:
        found.append(Mistake(("defaults", "name"), "name: each node has its own"))
    mistakes += found
    wrong = {mistake.place[1] for mistake in found if len(mistake.place) > 1}
    return {key: value for key, value in stated.items() if key not in wrong}


def _each(
    model: type[Any], stated: Mapping[str, Any], key: str, defaults: Mapping[str, Any], mistakes: list[Mistake]
) -> Iterator[tuple[int, Any]]:
    """Those of a list that are good, each with its place in it."""
    found = stated.get(key, [])
    if not isinstance(found, list):
        mistakes.append(Mistake((key,), f"{key}: must be a list of tables: [[{key}]]"))
        return
    for index, one in enumerate(found):
        if not isinstance(one, dict):
            mistakes.append(Mistake((key, index), f"{key}: must be a table, [[{key}]], not {shown(one)}"))
        elif made := _one(model, {**defaults, **one}, (key, index), mistakes):
            yield index, made


def _one(model: type[Any], stated: Mapping[str, Any], place: Place, mistakes: list[Mistake]) -> Any:  # noqa: ANN401
    """The stated tables without mistakes, so that these do not hide others. None if too little is left."""
    try:
        return model.model_validate(stated)
    except ValidationError as error:
        found = list(found_in(error, model))
        mistakes += [Mistake((*place, *where), keyed(where, text)) for where, text in found]
        wrong = {where[0] for where, _ in found if where}
    try:
        return model.model_validate({key: value for key, value in stated.items() if key not in wrong})
    except ValidationError:
        return None


def _between(nodes: list[tuple[int, Node]], links: list[tuple[int, Link]], names: set[str]) -> Iterator[Mistake]:
    """Mistakes that no part has by itself."""
    seen: dict[str, str] = {}
    for index, node in nodes:
        first = seen.get(node.name.lower())
        seen.setdefault(node.name.lower(), node.name)
        if first == node.name:
            yield Mistake(("node", index, "name"), f"two nodes are called {node.name}: rename one")
        elif first:
            told = f"{node.name} and {first} are one name to programs, which do not tell letters by their case"
            yield Mistake(("node", index, "name"), told)
    used: dict[tuple[str, str], int] = {}
    for index, link in links:
        for text in _of_ends(index, link, names, used):
            yield Mistake(("link", index, "ends"), text)


def _over(over: str, nodes: list[tuple[int, Node]], links: list[tuple[int, Link]]) -> Iterator[Mistake]:
    """Nodes and links that the kind of links cannot serve."""
    for index, link in links if over != OVER[0] else ():
        if parts := link.impairment.parts():
            told = f'links over {over} have no {parts[0].split()[0]}: only memlane\'s have (over = "memlane")'
            yield Mistake(("link", index), told)
    for index, node in nodes if over == "veth" else ():
        if node.kind != "netns":
            told = f'{node.name} is a machine, and only namespaces can take links over veth: kind = "netns"'
            yield Mistake(("node", index), told)


def _of_ends(index: int, link: Link, names: set[str], used: dict[tuple[str, str], int]) -> Iterator[str]:
    first, second = link.nodes
    if first == second:
        yield f"both ends are {first}"
    for name, named in zip(link.nodes, link.interfaces, strict=True):
        if name not in names and name != HOST:
            yield f"there is no node {name}{hint(name, sorted(names))}"
        if named is not None and (named in _TAKEN or not _INTERFACE.fullmatch(named)):
            yield f"{named!r} is no interface name"
        elif named is not None and used.setdefault((name, named), index) != index:
            yield f"{named} of {name} has a link already"


def _files(nodes: list[tuple[int, Node]], folder: Path) -> Iterator[Mistake]:
    """Files and disks of nodes that cannot be read."""
    for index, node in nodes:
        if node.image and not NAMED.fullmatch(node.image) and (reason := _unreadable(folder / node.image)):
            told = f"the disk {node.image} of {node.name} cannot be read: {reason}"
            yield Mistake(("node", index, "image"), told)
        for path, source in node.files.items():
            if reason := _unreadable(folder / source):
                told = f"the file {source} for {path} of {node.name} cannot be read: {reason}"
                yield Mistake(("node", index, "files", path), told)


def _unreadable(file: Path) -> str:
    """Why it is no file that can be read; empty if it is one."""
    try:
        found = file.stat()
        if not stat.S_ISREG(found.st_mode):
            return "it is no file"
        with file.open("rb"):
            return ""
    except (OSError, ValueError) as error:
        return error.strerror or str(error) if isinstance(error, OSError) else "that is no path"
