"""A containerlab file: its nodes and links, for networks of Linux machines and FRR routers.

A node is merged of **levels**, from the least specific to the most: `defaults`, its kind's, its group's, its own, as
containerlab does: single values are the last level's, lists and tables add up. Each key is served, has no effect here
(then it is a **note**), or is a mistake, so that the network is not taken for another.
"""

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from memlane_lab.common.strict import Place, hint, shown
from memlane_lab.topo.image import NAMES
from memlane_lab.topo.model import HOST, Mistake, is_number
from memlane_lab.topo.stated import Line, NotRead, Stated

_KINDS = ("linux", "frr", "frrouting")
_SERVED = ("kind", "group", "image", "exec", "binds", "memory", "env", "sysctls", "cmd", "entrypoint", "startup-config")
_IDLE = (
    *("labels", "type", "position", "config", "image-pull-policy", "restart-policy", "auto-remove", "runtime", "user"),
    *("license", "enforce-startup-config", "suppress-startup-config", "startup-delay", "wait-for", "ports", "publish"),
    *("mgmt-ipv4", "mgmt-ipv6", "mgmt_ipv4", "mgmt_ipv6", "dns", "aliases", "cpu", "cpu-set", "shm-size", "cap-add"),
    *("healthcheck", "certificate", "SANs", "credentials"),
)
"""Keys that are about containers, their management network, or the order of their start."""
_REFUSED = ("stages", "env-files", "devices", "components", "extras", "network-mode", "sandbox", "kernel")
"""Keys of containerlab without which a node would be another."""
_FORWARDS = {"net.ipv4.ip_forward": "1", "net.ipv6.conf.all.forwarding": "1"}
"""The keys that containers have unless a file says otherwise."""
_UNITS = {"": 1 / (1 << 20), "b": 1 / (1 << 20), "k": 1 / 1024, "m": 1.0, "g": 1024.0}
_VARIABLE = re.compile(r"\$(?:(\$)|(\w+)|\{(\w+)(?::?[-=]([^}]*))?\})")
_FRR = "/etc/frr/frr.conf"


class _Texts(yaml.SafeLoader):
    """Reads each value as the text that stands there: a command `true` is no truth, and a node 1 is no number."""

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in found if tag.endswith((":null", ":merge"))]
        for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def read(text: str, folder: Path) -> Stated:
    """The file's tables, and the lines of its places."""
    text = _VARIABLE.sub(_variable, text)
    try:
        document = yaml.load(text, Loader=_Texts)
        composed = yaml.compose(text, Loader=_Texts)
    except yaml.YAMLError as error:
        raise NotRead([_no_yaml(error)]) from error
    lines = _Lines(composed)
    reader = _Reader(document, folder)
    stated = reader.stated()
    mistakes = [(lines.of(mistake.place), mistake.text) for mistake in reader.mistakes] + lines.twice
    if mistakes:
        raise NotRead(mistakes)

    def line(place: Place) -> int:
        origin = reader.origin.get(place[:2])
        return lines.of(place if origin is None else origin + place[2:])

    return Stated(stated, line, tuple(reader.notes(lines.of)))


def _variable(found: re.Match[str]) -> str:
    """The text with containerlab's variables of the environment replaced; two $ are one."""
    if found[1]:
        return "$"
    return os.environ.get(found[2] or found[3]) or found[4] or ""


def _no_yaml(error: yaml.YAMLError) -> tuple[int, str]:
    mark = getattr(error, "problem_mark", None)
    where = f" at column {mark.column + 1}" if mark else ""
    return (mark.line + 1 if mark else 0), f"no valid YAML{where}: {getattr(error, 'problem', None) or error}"


class _Lines:
    """Where each place of a file begins, and which keys stand twice."""

    def __init__(self, composed: Any) -> None:  # noqa: ANN401
        self._lines: dict[Place, int] = {}
        self.twice: list[tuple[int, str]] = []
        self._seen: set[int] = set()
        self._read(composed, ())

    def of(self, place: Place) -> int:
        """The line of the place, or of the nearest that holds it."""
        return next((self._lines[place[:n]] for n in range(len(place), 0, -1) if place[:n] in self._lines), 0)

    def _read(self, node: Any, place: Place) -> None:  # noqa: ANN401
        if id(node) in self._seen:  # the value of an alias is read once
            return
        self._seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                at = (*place, str(key.value))
                if at in self._lines:
                    self.twice.append((key.start_mark.line + 1, f"{key.value}: stands twice"))
                self._lines[at] = key.start_mark.line + 1
                self._read(value, at)
        elif isinstance(node, yaml.SequenceNode):
            for index, value in enumerate(node.value):
                self._lines[*place, index] = value.start_mark.line + 1
                self._read(value, (*place, index))


Level = tuple[Place, dict[str, Any]]
"""One of those that a node is merged of, and where it stands."""


class _Reader:
    """Goes through a file once."""

    def __init__(self, document: Any, folder: Path) -> None:  # noqa: ANN401
        self._document = document if isinstance(document, dict) else {}
        self._folder = folder
        self._names: dict[str, str] = {}
        """By the file's name of a node, ours."""
        self._idle: dict[str, list[Place]] = {}
        self.mistakes: list[Mistake] = []
        self.origin: dict[Place, Place] = {}
        """Where in the file our places come from."""

    def stated(self) -> dict[str, Any]:
        """As our own files state it."""
        self._known(self._document, (), ("name", "topology"), ("prefix", "mgmt", "settings", "debug"))
        topology = self._table(self._document, "topology", ())
        place: Place = ("topology",)
        self._known(topology, place, ("defaults", "kinds", "groups", "nodes", "links"))
        self._defaults = self._level((*place, "defaults"), self._table(topology, "defaults", place))
        self._kinds = self._levels(topology, "kinds")
        self._groups = self._levels(topology, "groups")
        nodes = self._levels(topology, "nodes")
        self._names = {name: f"n{name}" if is_number(name) else name for name in nodes}
        made = [self._node(number, name, own) for number, (name, own) in enumerate(nodes.items())]
        links = topology.get("links") or []
        if not isinstance(links, list):
            self._wrong((*place, "links"), "links: must be a list")
            links = []
        cables = [link for number, found in enumerate(links) if (link := self._link(number, found))]
        name = re.sub(r"[^A-Za-z0-9_-]", "-", str(self._document.get("name", "clab")))[:31].strip("-_") or "clab"
        return {"name": name, "node": made, "link": cables}

    def notes(self, line: Line) -> Iterator[str]:
        """Keys that have no effect here, each once."""
        for key, places in self._idle.items():
            lines = sorted({line(place) for place in places})
            yield f"{key} has no effect here (line{'s'[: len(lines) > 1]} {', '.join(map(str, lines))})"
        if renamed := [f"{name} is {ours}" for name, ours in self._names.items() if name != ours]:
            more = ", ..." if len(renamed) > 1 else ""
            yield f"names that are numbers get a letter, for programs take them for addresses: {renamed[0]}{more}"

    def _wrong(self, place: Place, text: str) -> None:
        if (mistake := Mistake(place, text)) not in self.mistakes:  # a level serves many nodes
            self.mistakes.append(mistake)

    def _levels(self, topology: dict[str, Any], key: str) -> dict[str, Level]:
        place: Place = ("topology", key)
        found = self._table(topology, key, ("topology",))
        levels = {}
        for name, own in found.items():
            at = (*place, str(name))
            if own is not None and not isinstance(own, dict):
                self._wrong(at, f"{name}: must be a table, not {shown(own)}")
            if key != "kinds" or name in _KINDS:  # another kind's keys are its own
                levels[str(name)] = self._level(at, own if isinstance(own, dict) else {})
        return levels

    def _level(self, place: Place, table: dict[str, Any]) -> Level:
        table = {key: value for key, value in table.items() if value is not None}
        self._known(table, place, (*_SERVED, *_REFUSED), _IDLE)
        for key in _REFUSED:
            if key in table and not _is_served(key, table[key]):
                self._wrong((*place, key), f"{key}: is not served here, and the network would be another without it")
        for key, kind, words in _TYPES:
            if key in table and not isinstance(table[key], kind):
                self._wrong((*place, key), f"{key}: must be {words}, not {shown(table.pop(key))}")
        return place, table

    def _of(self, own: dict[str, Any]) -> tuple[str, list[Level]]:
        """A node's kind, and its levels."""
        of_group = (self._groups.get(str(each.get("group")), ((), {}))[1] for each in (own, self._defaults[1]))
        stated = (each.get("kind") for each in (own, *of_group, self._defaults[1]))
        kind = str(next((kind for kind in stated if kind), "linux"))
        empty: Level = ((), {})
        of_kind = self._kinds.get(kind, empty)
        group = own.get("group") or of_kind[1].get("group") or self._defaults[1].get("group")
        return kind, [self._defaults, of_kind, self._groups.get(str(group), empty)]

    def _node(self, number: int, name: str, level: Level) -> dict[str, Any]:
        place, own = level
        self.origin["node", number] = place
        kind, levels = self._of(own)
        if kind not in _KINDS:
            self._wrong((*place, "kind"), f"kind: {kind} is not served: nodes are linux machines or frr routers")
        levels = [*levels, level]
        merged: dict[str, Any] = {}
        for _, table in levels:
            merged.update(table)
        files = self._files(levels, name)
        if "startup-config" in merged:
            files |= self._startup(kind, merged["startup-config"], levels)
        frr = kind != "linux" or "frr" in str(merged.get("image", "")) or any("/etc/frr/" in path for path in files)
        return {
            "name": self._names[name],
            "role": "router" if frr else "host",
            "routing": [],
            **({"daemons": daemons} if frr and (daemons := self._daemons(merged, levels, files)) is not None else {}),
            "files": files,
            "sysctls": _FORWARDS | self._settings(levels),
            "commands": [*self._bare(levels, name), *_commands(levels, merged)],
            "tolerant": True,
            **({"memory": self._memory(merged["memory"], levels)} if "memory" in merged else {}),
        }

    def _settings(self, levels: Sequence[Level]) -> dict[str, str]:
        return {str(key): str(value) for _, table in levels for key, value in table.get("sysctls", {}).items()}

    def _files(self, levels: Sequence[Level], name: str) -> dict[str, str]:
        """By path in the node, the file here; of two binds to one path the more specific counts."""
        found: dict[str, str] = {}
        for place, table in levels:
            for number, bind in enumerate(table.get("binds", ())):
                at = (*place, "binds", number)
                source, _, rest = str(bind).partition(":")
                target = rest.partition(":")[0].rstrip("/")
                if not target.startswith("/") or ".." in target:
                    self._wrong(at, f"binds: {shown(bind)} is no HOST:PATH, with the path in the node")
                else:
                    found |= self._laid(self._here(source, name), target, at)
        return found

    def _bare(self, levels: Sequence[Level], name: str) -> Iterator[str]:
        """Makes the folders of binds that hold nothing yet."""
        binds = (str(bind).split(":") for _, table in levels for bind in table.get("binds", ()))
        pairs = ((self._folder / self._here(bind[0], name), bind[1]) for bind in binds if len(bind) > 1)
        bare = sorted(
            {target for here, target in pairs if here.is_dir() and not any(each.is_file() for each in here.rglob("*"))}
        )
        if bare:
            yield f"mkdir -p {shlex.join(bare)}"

    def _here(self, source: str, name: str) -> str:
        lab = f"clab-{self._document.get('name', 'clab')}"
        source = source.replace("__clabNodeDir__", f"{lab}/{name}").replace("__clabDir__", lab)
        return str(Path(source).expanduser())

    def _laid(self, source: str, target: str, place: Place) -> dict[str, str]:
        """A file, or the files of a folder."""
        here = self._folder / source
        if not here.exists():
            self._wrong(place, f"binds: there is no {source} beside the file")
        if not here.is_dir():
            return {target: source}
        inside = [path for path in sorted(here.rglob("*")) if path.is_file()]
        if len(inside) > _MOST_FILES:
            self._wrong(
                place, f"binds: {source} holds {len(inside)} files; {_MOST_FILES} at most can be laid in a node"
            )
            return {}
        return {f"{target}/{path.relative_to(here)}": f"{source}/{path.relative_to(here)}" for path in inside}

    def _startup(self, kind: str, stated: Any, levels: Sequence[Level]) -> dict[str, str]:  # noqa: ANN401
        place = _place(levels, "startup-config")
        if kind == "linux":
            self._idle.setdefault("startup-config of kind linux", []).append(place)
            return {}
        if "\n" in str(stated) or "://" in str(stated):
            self._wrong(place, "startup-config: must be a file beside this one, and not its text or an address")
        elif not (self._folder / str(stated)).is_file():
            self._wrong(place, f"startup-config: there is no {stated} beside the file")
        return {_FRR: str(stated)}

    def _daemons(self, merged: dict[str, Any], levels: Sequence[Level], files: Mapping[str, str]) -> list[str] | None:
        """FRR's daemons that are asked for; None: those that its configuration needs."""
        extras = merged.get("extras", {})
        asked = extras.get("frr", {}).get("daemons", []) if _is_served("extras", extras) else []
        for daemon in asked:
            if daemon not in NAMES and daemon not in _ALWAYS:
                told = f"extras: nodes have no daemon {shown(daemon)}{hint(daemon, NAMES)}"
                self._wrong(_place(levels, "extras"), told)
        configured = any(path.startswith("/etc/frr/") for path in files)
        return [str(daemon) for daemon in asked if daemon in NAMES] or (None if configured else [])

    def _memory(self, stated: Any, levels: Sequence[Level]) -> int:  # noqa: ANN401
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([bkmg]?)(i?b)?", str(stated).strip().lower())
        if not found:
            self._wrong(_place(levels, "memory"), f"memory: {shown(stated)} is no amount of memory, as 512mb")
            return 64
        return max(24, round(float(found[1]) * _UNITS[found[2]]))

    def _link(self, number: int, found: Any) -> dict[str, Any] | None:  # noqa: ANN401
        place: Place = ("topology", "links", number)
        ends = found.get("endpoints") if isinstance(found, dict) else None
        if not isinstance(ends, list) or len(ends) != 2:
            self._wrong(place, 'a link needs two endpoints: endpoints: ["r1:eth1", "r2:eth1"]')
            return None
        self._known(found, place, ("endpoints", "mtu", "type", "ipv4", "ipv6"), ("labels", "vars"))
        if found.get("type", "veth") != "veth":
            self._wrong((*place, "type"), f"type: links of type {found['type']} are not served here, only veth")
        made = [self._end(end, (*place, "endpoints", side)) for side, end in enumerate(ends)]
        for side, (_, addresses) in enumerate(made):
            addresses += [str(each[side]) for key in ("ipv4", "ipv6") if (each := _pair(found.get(key))) and each[side]]
        self.origin["link", sum(key[0] == "link" for key in self.origin)] = place
        stated = {"ends": [end for end, _ in made], "addresses": [addresses for _, addresses in made]}
        return stated | ({"mtu": found["mtu"]} if "mtu" in found else {})

    def _end(self, end: Any, place: Place) -> tuple[str, list[str]]:  # noqa: ANN401
        """An end as ours, and the addresses that are stated for it."""
        addresses: list[str] = []
        if isinstance(end, dict):
            self._known(end, place, ("node", "interface", "ipv4", "ipv6"), ("labels", "vars"))
            addresses = [str(end[key]) for key in ("ipv4", "ipv6") if end.get(key)]
            end = f"{end.get('node', HOST)}:{end.get('interface', '')}"
        node, _, interface = str(end).partition(":")
        if not interface:
            self._wrong(place, f"endpoints: {shown(end)} is no NODE:INTERFACE")
        return f"{self._names.get(node, node)}:{interface}", addresses

    def _table(self, holder: dict[str, Any], key: str, place: Place) -> dict[str, Any]:
        found = holder.get(key) or {}
        if isinstance(found, dict):
            return found
        self._wrong((*place, key), f"{key}: must be a table, not {shown(found)}")
        return {}

    def _known(self, table: Mapping[Any, Any], place: Place, served: Sequence[str], idle: Sequence[str] = ()) -> None:
        for key in table:
            if key in idle:
                self._idle.setdefault(str(key), []).append((*place, str(key)))
            elif key not in served:
                self._wrong((*place, str(key)), f"{key}: no such key{_meant(key, (*served, *idle))}")


_ALWAYS = ("zebra", "mgmtd", "watchfrr")
"""FRR's daemons that run unasked, or that nodes do without."""
_MOST_FILES = 200
_TYPES: Sequence[tuple[str, type | tuple[type, ...], str]] = (
    ("exec", list, "a list of commands"),
    ("binds", list, "a list of HOST:PATH"),
    ("env", dict, "a table"),
    ("sysctls", dict, "a table"),
    ("cmd", str, "a command"),
    ("entrypoint", str, "a command"),
    ("kind", str, "a word"),
    ("extras", dict, "a table"),
)


def _meant(key: object, known: Sequence[str]) -> str:
    """The known key that an unknown one is close to; not all that there are, which are many."""
    told = hint(key, known)
    return told if "did you mean" in told else ""


def _is_served(key: str, value: Any) -> bool:  # noqa: ANN401
    """Of the refused keys, those without an effect here, and FRR's daemons."""
    if key == "network-mode":
        return value in ("bridge", "none")
    if key == "extras" and isinstance(value, dict):
        frr = value.get("frr", {})
        return set(value) <= {"frr"} and isinstance(frr, dict) and set(frr) <= {"daemons"} and _is_list(frr)
    return False


def _is_list(frr: dict[str, Any]) -> bool:
    return isinstance(frr.get("daemons", []), list)


def _pair(stated: Any) -> list[Any] | None:  # noqa: ANN401
    return stated if isinstance(stated, list) and len(stated) == 2 else None


def _place(levels: Sequence[Level], key: str) -> Place:
    """Where the value of a key comes from: the most specific level that states it."""
    return next(((*place, key) for place, table in reversed(levels) if key in table), ())


def _commands(levels: Sequence[Level], merged: dict[str, Any]) -> Iterator[str]:
    """The node's own program, which runs beside all else, then each level's commands; no shell reads their words."""
    env = {str(key): str(value) for _, table in levels for key, value in table.get("env", {}).items()}
    exported = "".join(f"export {key}={shlex.quote(value)}; " for key, value in env.items() if key.isidentifier())
    program = [str(merged[key]) for key in ("entrypoint", "cmd") if merged.get(key)]
    if program:
        words = shlex.join(_words(" ".join(program)))
        first = words.split(" ", 1)[0]
        lack = f"echo nodes have no {first} >&2; exit 127"
        yield f"{exported}command -v {first} >/dev/null || {{ {lack}; }}; setsid {words} >/run/cmd.log 2>&1 &"
    for _, table in levels:
        yield from (f"{exported}{shlex.join(_words(str(command)))}" for command in table.get("exec", ()))


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:  # a quote that does not end: the node says so
        return ["sh", "-c", command]
