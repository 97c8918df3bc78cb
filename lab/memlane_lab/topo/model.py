"""A topology as it is stated: nodes, links between them, and how it routes.

`check` takes what a file or a shape states, and either gives a whole **Topology** or tells all its mistakes, each with
its place; files turn places into lines.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Interface, IPv6Interface
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, field_validator

from memlane_lab.errors import LabError
from memlane_lab.strict import Strict

OVER = ("memlane", "bridge", "veth")
"""What links can be made of; the first is what a topology has unless it says otherwise."""
HOST = "host"
"""The end of a link that leads to the host: a TAP in its own namespace."""
Protocol = Literal["ospf", "ospf6", "isis", "bgp"]
Place = tuple[int | str, ...]
"""Where in a file: ("link", 3, "delay")."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,30}")
_INTERFACE = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,14}")
_DELAY = re.compile(r"\d+(\.\d+)?\s*(us|ms|s)")
_RATE = re.compile(r"\d+(\.\d+)?\s*[kMG]?bit")


@dataclass(frozen=True)
class Mistake:
    """One thing that is wrong, and where."""

    place: Place
    text: str


class BadTopology(LabError):
    """What was stated is no topology; the text tells every mistake."""

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        super().__init__("; ".join(f"{'.'.join(map(str, m.place))}: {m.text}" for m in mistakes))
        self.mistakes = list(mistakes)


def _share(stated: Any) -> Any:  # noqa: ANN401
    """A share as people write it: 0.01 or "1%"."""
    if isinstance(stated, str) and stated.endswith("%"):
        return float(stated[:-1]) / 100
    return stated


Share = Annotated[float, BeforeValidator(_share), Field(ge=0, le=1)]


class Impairment(Strict):
    """What frames meet on a link, in each direction; what is left out does not impair."""

    delay: str | None = None
    """One way, as "10ms" or "250us"."""
    jitter: str | None = None
    keep_order: bool = True
    """Whether frames keep their order whatever the jitter."""
    loss: Share = 0.0
    """Share of frames that get lost: 0.01 or "1%"."""
    rate: str | None = None
    """Bits a second of whole Ethernet frames, as "100Mbit"."""
    queue: int | None = Field(default=None, ge=1, le=1_000_000)
    """Frames that may wait for the transmitter."""

    @field_validator("delay", "jitter")
    @classmethod
    def _a_delay(cls, text: str | None) -> str | None:
        if text is not None and not _DELAY.fullmatch(text):
            raise ValueError(f"{text!r} is no time: write a number and us, ms or s, as 10ms")
        return text

    @field_validator("rate")
    @classmethod
    def _a_rate(cls, text: str | None) -> str | None:
        if text is not None and not _RATE.fullmatch(text):
            raise ValueError(f"{text!r} is no rate: write a number and bit, kbit, Mbit or Gbit, as 100Mbit")
        return text

    def as_link(self) -> dict[str, Any]:
        """As memlane's file states it; empty if nothing impairs."""
        named = {"delay": self.delay, "jitter": self.jitter, "rate": self.rate, "queue": self.queue}
        link: dict[str, Any] = {key: value for key, value in named.items() if value is not None}
        if self.loss:
            link["loss"] = self.loss
        if self.jitter is not None and self.keep_order:
            link["keep-order"] = True
        return link

    def __str__(self) -> str:
        parts = [f"{key} {value}" for key in ("delay", "jitter", "rate", "queue") if (value := getattr(self, key))]
        return ", ".join([*parts, *([f"loss {self.loss:.2%}"] if self.loss else [])]) or "unimpaired"


class Node(Strict):
    """A machine."""

    name: str
    kind: Literal["uml", "netns", "qemu"] = "uml"
    role: Literal["router", "host"] = "router"
    """A router forwards and runs FRR; a host has a default route to its first neighbour."""
    memory: int = Field(default=64, ge=24, le=1 << 20)
    """MiB."""
    routing: tuple[Protocol, ...] | None = None
    """Protocols, where they differ from the topology's."""
    asn: int | None = Field(default=None, ge=1, le=(1 << 32) - 1)
    """Its autonomous system, for BGP."""
    addresses: tuple[str, ...] = ()
    """Of its loopback; none: by rule."""
    files: dict[str, str] = {}
    """Files that it finds, by their path there: paths here, beside the topology's file. /etc/frr/ospfd.conf and the
    like replace what would be made."""
    commands: tuple[str, ...] = ()
    """What it runs once it is set up, in this order; all must succeed."""

    @field_validator("name")
    @classmethod
    def _a_name(cls, text: str) -> str:
        if not _NAME.fullmatch(text):
            raise ValueError(f"{text!r} is no name: up to 31 letters, digits, '-' and '_'")
        if text == HOST:
            raise ValueError(f"a node cannot be called {HOST!r}: that end of a link is this machine")
        return text

    @field_validator("addresses")
    @classmethod
    def _addresses(cls, texts: tuple[str, ...]) -> tuple[str, ...]:
        for text in texts:
            interface(text)
        return texts


class Link(Impairment):
    """A cable between two ends."""

    ends: tuple[str, str]
    """Nodes, or "NODE:INTERFACE" where the interface is to have another name than net0, net1 ...; "host" is this
    machine."""
    addresses: tuple[tuple[str, ...], tuple[str, ...]] | None = None
    """Of the two ends, with their prefixes: [["10.0.0.0/31"], ["10.0.0.1/31"]]; none: by rule."""
    mtu: int = Field(default=1500, ge=1280, le=65535)

    @field_validator("addresses")
    @classmethod
    def _addresses(cls, both: tuple[tuple[str, ...], tuple[str, ...]] | None) -> Any:  # noqa: ANN401
        for text in (text for texts in both or () for text in texts):
            interface(text)
        return both

    @property
    def impairment(self) -> Impairment:
        """What frames meet on it."""
        return Impairment(**{key: getattr(self, key) for key in Impairment.model_fields})

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
        raise ValueError(f"{text!r} is no address with a prefix, as 10.0.0.1/31") from None


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
    """What the paths in it start from."""
    over: str = OVER[0]
    """What its links are made of: one of `OVER`."""

    def node(self, name: str) -> Node:
        """The node of that name."""
        return next(node for node in self.nodes if node.name == name)

    def protocols(self, node: Node) -> tuple[Protocol, ...]:
        """What the node routes by."""
        if node.role != "router":
            return ()
        return self.routing.protocols if node.routing is None else node.routing

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


def check(stated: Mapping[str, Any], *, folder: str = ".") -> Topology:
    """The topology that is stated; raises with all mistakes at once."""
    mistakes: list[Mistake] = []
    known = {"name", "over", "routing", "defaults", "node", "link"}
    mistakes += [Mistake((key,), "no such key") for key in stated if key not in known]
    defaults = _mapping(stated, "defaults", mistakes)
    nodes = list(_each(Node, stated, "node", defaults, mistakes))
    links = list(_each(Link, stated, "link", {}, mistakes))
    routing = _one(Routing, _mapping(stated, "routing", mistakes), ("routing",), mistakes) or Routing()
    name = stated.get("name", "net")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        mistakes.append(Mistake(("name",), f"{name!r} is no name: up to 31 letters, digits, '-' and '_'"))
    over = stated.get("over", OVER[0])
    if over not in OVER:
        mistakes.append(Mistake(("over",), f"links cannot be made of {over!r}, only of {', '.join(OVER)}"))
    if not nodes and not mistakes:
        mistakes.append(Mistake(("node",), "a topology needs a node"))
    mistakes += _between(nodes, links, {node.get("name") for node in stated.get("node", ()) if isinstance(node, dict)})
    if mistakes:
        raise BadTopology(mistakes)
    return Topology(name, tuple(node for _, node in nodes), tuple(link for _, link in links), routing, folder, over)


def _mapping(stated: Mapping[str, Any], key: str, mistakes: list[Mistake]) -> dict[str, Any]:
    found = stated.get(key, {})
    if isinstance(found, dict):
        return found
    mistakes.append(Mistake((key,), "must be a table"))
    return {}


def _each(
    model: type[Any], stated: Mapping[str, Any], key: str, defaults: Mapping[str, Any], mistakes: list[Mistake]
) -> Iterator[tuple[int, Any]]:
    """Those of a list that are good, each with its place in it."""
    found = stated.get(key, [])
    if not isinstance(found, list):
        mistakes.append(Mistake((key,), f"must be a list: [[{key}]]"))
        return
    for index, one in enumerate(found):
        if not isinstance(one, dict):
            mistakes.append(Mistake((key, index), "must be a table"))
        elif made := _one(model, {**defaults, **one}, (key, index), mistakes):
            yield index, made


def _one(model: type[Any], stated: Mapping[str, Any], place: Place, mistakes: list[Mistake]) -> Any:  # noqa: ANN401
    """What is stated, without what is wrong with it: that must not hide other mistakes. None if too little is left."""
    try:
        return model.model_validate(stated)
    except ValidationError as error:
        for found in error.errors():
            text = found["msg"].removeprefix("Value error, ")
            mistakes.append(Mistake((*place, *found["loc"]), text[:1].lower() + text[1:]))
        wrong = {found["loc"][0] for found in error.errors() if found["loc"]}
    try:
        return model.model_validate({key: value for key, value in stated.items() if key not in wrong})
    except ValidationError:
        return None


def _between(nodes: list[tuple[int, Node]], links: list[tuple[int, Link]], names: set[Any]) -> Iterator[Mistake]:
    """Mistakes that no part has by itself."""
    seen: set[str] = set()
    for index, node in nodes:
        if node.name in seen:
            yield Mistake(("node", index, "name"), f"there are two nodes {node.name}")
        seen.add(node.name)
    used: dict[tuple[str, str], int] = {}
    for index, link in links:
        for text in _of_ends(index, link, names, used):
            yield Mistake(("link", index, "ends"), text)


def _of_ends(index: int, link: Link, names: set[Any], used: dict[tuple[str, str], int]) -> Iterator[str]:
    first, second = link.nodes
    if first == second:
        yield f"both ends are {first}"
    for name, named in zip(link.nodes, link.interfaces, strict=True):
        if name not in names and name != HOST:
            yield f"there is no node {name}"
        if named is not None and not _INTERFACE.fullmatch(named):
            yield f"{named!r} is no interface name"
        elif named is not None and used.setdefault((name, named), index) != index:
            yield f"{named} of {name} has a link already"
