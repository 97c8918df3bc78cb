"""A setting: all that is the same in every sample of a variant, from the path to the traffic between machines.

Nouns: **machines** come in pairs: clients c1, c2, ... and servers s1, s2, ... (or one server, s1, for all clients).
**Traffic** is a workload with its source and target: unless stated, each client sends to its own server.
"""

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from memlane_lab import workloads
from memlane_lab.bed.events import Event, What
from memlane_lab.common.strict import Strict
from memlane_lab.paths import PATHS

REPOSITORY = Path(__file__).parents[3]
XEN = "xen"
"""The kind of guests that only counted beds have: Xen's."""


class Ends(StrEnum):
    """Machines that clients and servers run in; the host is a network namespace on the same path."""

    GUEST_GUEST = "guest-guest"
    GUEST_HOST = "guest-host"
    HOST_GUEST = "host-guest"
    HOST_HOST = "host-host"


class Pinning(StrEnum):
    """Which of the host's CPUs machines are kept on."""

    FREE = "free"
    """Any: the host's scheduler decides."""
    APART = "apart"
    """Clients on the first CPU, servers on the second."""
    EACH = "each"
    """Each guest on one CPU, in turn; browsers on any. A guest of User Mode Linux is several tasks of the host, which
    hand over to each other at each of its system calls; on one CPU that costs a tenth of a handover between two."""


class Place(Strict):
    """Which of the host's CPUs the two ends and the network are kept to: 0 is the first that may be used."""

    clients: int = Field(ge=0)
    servers: int = Field(ge=0)
    network: int = Field(ge=0)
    """A network without a process of its own cannot be placed: it works on the clients' CPU, in the senders' calls."""

    @property
    def most(self) -> int:
        """The last CPU that is needed."""
        return max(self.clients, self.servers, self.network)

    def of(self, machine: str) -> int:
        """That of a machine."""
        return self.clients if machine.startswith("c") else self.servers


def listed(stated: Any) -> Any:  # noqa: ANN401
    """One word where several may stand."""
    return [stated] if isinstance(stated, str) else stated


class Traffic(Strict):
    """A workload with its parameters, its sources and its target. In the file, parameters stand beside."""

    workload: str
    sources: Annotated[tuple[str, ...], BeforeValidator(listed, json_schema_input_type=str | tuple[str, ...])] = Field(
        default=(), alias="from"
    )
    """Machines that send or ask; none: all clients."""
    target: str | None = Field(default=None, alias="to")
    """The machine that receives or answers; none: each source's partner."""
    parameters: dict[str, Any] = {}

    @model_validator(mode="before")
    @classmethod
    def _gather_parameters(cls, stated: Any) -> Any:  # noqa: ANN401
        if not isinstance(stated, dict) or "parameters" in stated:
            return stated
        known = {"workload", "sources", "target", "from", "to"}
        own = {key: value for key, value in stated.items() if key in known}
        return own | {"parameters": {key: value for key, value in stated.items() if key not in own}}

    @model_validator(mode="after")
    def _check_parameters(self) -> Self:
        kind = workloads.kind(self.workload)
        object.__setattr__(self, "parameters", kind.Parameters.model_validate(self.parameters).model_dump())
        return self


class Shop(Strict):
    """Shops of three tiers beside the pairs: machines load1, web1, app1, db1, load2 ..."""

    copies: int = Field(default=1, ge=1, le=16)
    together: bool = False
    """Whether the three tiers are in one guest, web1: the case without a network between them."""
    items: int = Field(default=10_000, ge=100, le=1_000_000)
    """Books."""
    customers: int = Field(default=100_000, ge=100, le=10_000_000)

    def machines(self) -> list[str]:
        """The machines of all copies."""
        tiers = ("load", "web") if self.together else ("load", "web", "app", "db")
        return [f"{tier}{number}" for number in range(1, self.copies + 1) for tier in tiers]


class Setting(Strict):
    """Everything that is the same in all samples of a variant."""

    path: str
    """The network between the machines."""
    guest: str | None = None
    """The kind of the guests; none: the kind that is chosen when it is measured. In counted beds: User Mode Linux, or
    "xen"."""
    ends: Ends = Ends.GUEST_GUEST
    """The kinds of machines that clients and servers are; the host is a network namespace on the same path."""
    apart: bool | Literal["vxlan", "vxlan-idle"] = False
    """Whether servers are on another host than clients, each with a path of its own: true has a cable join them,
    "vxlan" the kernel's VXLAN over an underlay, with FRR to announce MAC addresses. With "vxlan-idle" all
    are on one host, and the other is there for nothing."""
    pairs: int = Field(default=1, ge=0, le=64)
    """Clients; each has a server of its own, or all share one. Where there is a shop, none unless stated."""
    shop: Shop | None = None
    """Shops of three tiers beside the pairs."""
    shared_receiver: bool = False
    """Whether the only server is s1."""
    load: int = Field(default=0, ge=0, le=100)
    """Per cent of each machine's processors that a computation takes meanwhile (the papers' softloader)."""
    load_slice: int = Field(default=0, ge=0, le=1000)
    """Milliseconds for which the load computes at a time; 0: as long as stress-ng likes, some dozens."""
    nice: dict[str, Annotated[int, Field(ge=-20, le=19)]] = {}
    """Niceness of a machine among the others, by machine: each step is a share of the CPU 1.25 times smaller."""
    memory: int | None = Field(default=None, ge=8)
    """MiB a guest."""
    processors: int = Field(default=1, ge=1, le=16)
    """CPUs a guest."""
    queues: int = Field(default=1, ge=1, le=16)
    """Queue pairs a guest."""
    ring: int | None = Field(default=None, ge=16, le=1024)
    """Entries of each ring of a guest's NIC; none: as many as its monitor usually has."""
    mtu: int = Field(default=1500, ge=68, le=65535)
    """Bytes."""
    offloads: bool = True
    """Whether guests hand over segments larger than the MTU, and gathered pages; false in counted beds of Xen only."""
    receive_rates: dict[str, Annotated[int, Field(ge=1)]] = {}
    """Bit/s that the path delivers to a machine at most, by machine."""
    pinning: Pinning = Pinning.FREE
    """The host's CPUs that machines are kept on."""
    place: Place | None = None
    """Which CPUs clients, servers and the network are kept to, in place of `pinning`."""
    path_options: dict[str, Any] = {}
    """The path's own, such as memlane's `workers` or `poll`."""
    program: str | None = None
    """The switch's program, where it is not the usual one, as seen from the repository; only memlane's path has one."""
    traffic: tuple[Traffic, ...] = Field(min_length=1)
    """Workloads with their parameters; `from` and `to` name machines, by default each client and its own server."""
    events: tuple[Event, ...] = ()
    """Events in the measured part. Meters are left out then, because machines that they count may end."""

    @field_validator("path")
    @classmethod
    def _known_path(cls, path: str) -> str:
        if path not in PATHS:
            raise ValueError(f"there is no path {path!r}; there are: {', '.join(PATHS)}")
        return path

    @field_validator("traffic", mode="before")
    @classmethod
    def _one_or_several(cls, stated: Any) -> Any:  # noqa: ANN401
        return [stated] if isinstance(stated, dict) else stated

    @model_validator(mode="before")
    @classmethod
    def _a_shop_alone(cls, stated: Any) -> Any:  # noqa: ANN401
        return {"pairs": 0, **stated} if isinstance(stated, dict) and stated.get("shop") is not None else stated

    @model_validator(mode="after")
    def _shops_where_needed(self) -> Self:
        if any(workloads.kind(traffic.workload).in_shops for traffic in self.traffic) and self.shop is None:
            raise ValueError("a shop's browsers need a shop: state shop = {}")
        if not self.pairs and self.shop is None:
            raise ValueError("the setting has no machines: add pairs or a shop")
        return self

    @model_validator(mode="after")
    def _only_memlane_has_builds(self) -> Self:
        if self.program is not None and self.path != "memlane":
            raise ValueError(f"program: path {self.path} has no choice of programs; only memlane has")
        return self

    @model_validator(mode="after")
    def _placed_in_one_way(self) -> Self:
        if self.place and self.pinning is not Pinning.FREE:
            raise ValueError("place and pinning both set the CPUs of machines: remove one of the two")
        if self.place and self.shop:
            raise ValueError("place applies to clients, servers and the network, not to a shop: remove it")
        return self

    @model_validator(mode="after")
    def _check_machines(self) -> Self:
        known = self.machines()
        ends = [name for traffic in self.traffic for name in (*traffic.sources, traffic.target) if name]
        struck = [event.machine for event in self.events if event.what is not What.NETWORK_RESTARTS]
        stated = {"traffic": ends, "receive_rates": self.receive_rates, "events": struck, "nice": self.nice}
        for key, names in stated.items():
            for name in names:
                if name not in known:
                    raise ValueError(f"{key} names the machine {name!r}; there are: {', '.join(known)}")
        return self

    @property
    def build(self) -> Path | None:
        """The switch's program, where it is not the usual one."""
        return REPOSITORY / self.program if self.program else None

    def machines(self) -> list[str]:
        """All machines; partners stand together: c1, s1, c2, s2 ..., or s1, c1, c2 ... where all share a server."""
        numbers = range(1, self.pairs + 1)
        shops = self.shop.machines() if self.shop else []
        if self.shared_receiver:
            return ["s1", *(f"c{number}" for number in numbers), *shops]
        return [name for number in numbers for name in (f"c{number}", f"s{number}")] + shops

    def partner(self, machine: str) -> str:
        """The machine that a machine talks to unless stated; the shared server talks to the first client."""
        if machine.startswith("load"):
            return machine.replace("load", "web")
        role, number = machine[0], machine[1:]
        if role == "c":
            return "s1" if self.shared_receiver else f"s{number}"
        return f"c{number}"

    def flows(self) -> Iterator[tuple[str, str, Traffic]]:
        """Each flow's source, target and traffic."""
        for traffic in self.traffic:
            start = "load" if workloads.kind(traffic.workload).in_shops else "c"
            sources = traffic.sources or [name for name in self.machines() if name.startswith(start)]
            for source in sources:
                yield source, traffic.target or self.partner(source), traffic
