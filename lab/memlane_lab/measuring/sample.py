"""One sample: a bed, load, flows; meters read at the beginning and the end of the measured part.

A `Sampler` takes an experiment's samples, each on a bed of its own or, where the experiment says so, on beds that are
booted once and kept.
"""

import itertools
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any

from memlane_lab import paths, workloads
from memlane_lab.bed import bed as beds
from memlane_lab.bed import events, load
from memlane_lab.bed.bed import Bed, BedSettings
from memlane_lab.bed.events import Event, Timeline
from memlane_lab.common import errors
from memlane_lab.common.errors import LabError
from memlane_lab.common.progress import say
from memlane_lab.common.wait import until
from memlane_lab.experiment.experiment import Boot, Experiment
from memlane_lab.experiment.plan import Turn, Variant, guests_kind, kinds
from memlane_lab.experiment.setting import Pinning, Place, Setting, Traffic
from memlane_lab.host.ports import GuestKind
from memlane_lab.host.session import Session
from memlane_lab.measuring import machine, taking
from memlane_lab.measuring import shops as shops
from memlane_lab.measuring.calibration import Limits
from memlane_lab.measuring.taking import Measured
from memlane_lab.meters import account, inside, memory
from memlane_lab.meters.account import Account
from memlane_lab.paths.apart import Apart
from memlane_lab.paths.overlay import Overlay
from memlane_lab.profiling.profiler import Look, Profiler
from memlane_lab.results.results import FlowRecord, Sample
from memlane_lab.workloads import Flow, FlowResult, Run, Timing

_FIRST_PORT = 5201
_TRIES = 3
"""To find a limit."""
_SHORTEST = 0.5
"""Seconds that meters are given at least, when flows took long to begin."""
_PATIENCE = 20.0
"""Seconds until a target must have answered."""


class Sampler(AbstractContextManager["Sampler"]):
    """Takes an experiment's samples."""

    def __init__(
        self, experiment: Experiment, kind: GuestKind, raw: Path, *, first: int = 1, profiler: Profiler | None = None
    ) -> None:
        """`raw` is the folder for the output of the guests' programs; `first` is the first sample's number.

        A `profiler` looks on while flows run.
        """
        self._experiment, self._kind, self._raw, self._profiler = experiment, kind, raw, profiler
        self._raw.mkdir(parents=True, exist_ok=True)
        self._numbers = itertools.count(first)
        self._ports = itertools.count()
        self._kept: dict[str, tuple[ExitStack, Bed]] = {}
        self._kernel = 0
        """Memory of the host's kernel itself when it was last read."""
        self._limits = Limits(self._limit, self._raw / "limits.json")
        self.facts: dict[str, dict[str, Any]] = {}
        """By variant: the description of its machines."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for key in list(self._kept):
            try:
                self._drop(key)
            except Exception as fault:  # of a path's own code: samples and other experiments are none the worse
                say(f"a bed was not taken down as its path should: {errors.told(fault)}")

    def take(self, turn: Turn) -> Sample:
        """Takes a sample; one that fails says why."""
        number = next(self._numbers)
        return taking.take(turn, number, lambda: self._measure(turn.variant, number))

    def _measure(self, variant: Variant, number: int) -> Measured:
        setting = self._limits.applied(variant.setting)
        kernel = memory.kernel()
        with self._bed(setting, number) as bed:
            self._ask_facts(variant, bed)
            inside.ask(bed.guests).wait()  # a guest reads here the files that it reads once only
            with load.applied(bed.guests, setting.load, setting.load_slice):
                flows = [self._flow(bed, setting, *ends) for ends in setting.flows()]
                with self._looking(bed, [flow for flow, _ in flows]) as look:
                    told, results = self._run(bed, flows, number, setting.events, look)
        if "guests_memory" in told.values:
            told.values["kernel_grown"] = float(self._kernel - kernel)
        if limit := self._limits.of(variant.setting):
            told.values["limit"] = limit
        return Measured(told, [_record(*each) for each in zip(flows, results, strict=True)])

    def _looking(self, bed: Bed, flows: Sequence[Flow]) -> AbstractContextManager[Look | None]:
        if self._profiler is None:
            return nullcontext()
        return self._profiler.looking(bed, [flow.source.name for flow in flows])

    def _limit(self, setting: Setting) -> float:
        """The interactions of all the setting's shops: the median of some tries, because all rates follow from it."""
        return median(self._try_limit(setting) for _ in range(_TRIES))

    def _try_limit(self, setting: Setting) -> float:
        with Session() as session:
            bed = lay(session, setting, self._kind)
            told, _ = self._run(bed, [self._flow(bed, setting, *ends) for ends in setting.flows()], 0)
        return told.values["interactions"]

    def _run(
        self,
        bed: Bed,
        flows: Sequence[tuple[Flow, Traffic]],
        number: int,
        happening: Sequence[Event] = (),
        look: Look | None = None,
    ) -> tuple[Account, list[FlowResult]]:
        asked = self._experiment
        slowest = max(workloads.kind(traffic.workload).settling for _, traffic in flows)
        timing = Timing(asked.warm_up + slowest, asked.seconds)
        runs: list[Run] = []
        try:
            for flow, traffic in flows:
                kind = workloads.kind(traffic.workload)
                if kind.talks:
                    _await_answer(flow)
                own = Timing(timing.warm_up - kind.settling, timing.seconds)
                runs.append(kind(traffic.parameters).prepare(flow, own))
            return self._metered(bed, [flow for flow, _ in flows], runs, timing, Timeline(bed, happening), look)
        finally:
            for (flow, _), run in zip(flows, runs, strict=False):  # those that had begun
                self._keep_said(number, flow, run)

    def _metered(
        self,
        bed: Bed,
        flows: Sequence[Flow],
        runs: Sequence[Run],
        timing: Timing,
        timeline: Timeline,
        look: Look | None,
    ) -> tuple[Account, list[FlowResult]]:
        for run in runs:
            run.begin()
        end = _await_warm(runs, timing)
        with look or nullcontext():
            before = account.take(bed)
            holding = self._held(bed)
            _watch(runs, end, end - timing.seconds, timeline)
            struck = timeline.first is not None or any(run.disturbs for run in runs)
            after = None if struck else account.take(bed)
        results = [run.finish() for run in runs]
        if timeline.first is not None:
            told = events.told(timeline.first, [result.series for result in results if result.series])
            return Account(account.of_flows(results) | told, {}), results
        # Flooded guests may not be seen to begin until it is over. The flows' own figures are none the worse.
        if after is None or after.host.at - before.host.at < _SHORTEST:
            return Account(account.of_flows(results), {}), results
        measured = account.measured(bed, before, after, list(zip(flows, results, strict=True)))
        measured.values.update(holding)
        return measured, results

    def _held(self, bed: Bed) -> dict[str, float]:
        """The memory of each party while flows run, if the experiment asks for that."""
        if not self._experiment.looks_at_memory:
            return {}
        self._kernel = memory.kernel()
        return memory.held(bed)

    def _flow(self, bed: Bed, setting: Setting, source: str, target: str, traffic: Traffic) -> tuple[Flow, Traffic]:
        machines = setting.machines()
        port = _FIRST_PORT + next(self._ports) % 20_000
        flow = Flow(
            name=f"{source}-{target}-{traffic.workload}-{port}",
            source=bed.guests[machines.index(source)],
            target=bed.guests[machines.index(target)],
            address=beds.ipv4(machines.index(target)),
            port=port,
            bed=bed,
        )
        return flow, traffic

    @contextmanager
    def _bed(self, setting: Setting, number: int) -> Iterator[Bed]:
        """A bed for one sample. One that a sample has failed on is not used again, and its logs are kept."""
        logs = self._raw / f"{number:04}-logs"
        if self._experiment.boot is Boot.EACH_SAMPLE or paths.PATHS[setting.path].polls:
            with Session(logs) as session:
                yield lay(session, setting, self._kind)
            shutil.rmtree(logs)
            return
        key = setting.model_dump_json(exclude={"traffic", "load", "load_slice"})
        if key not in self._kept:
            stack = ExitStack()
            with ExitStack() as failing:
                failing.push(stack)
                bed = lay(stack.enter_context(Session(logs)), setting, self._kind)
                failing.pop_all()
            self._kept[key] = (stack, bed)
        try:
            yield self._kept[key][1]
        except BaseException:
            self._drop(key)
            raise

    def _drop(self, key: str) -> None:
        self._kept.pop(key)[0].close()

    def _ask_facts(self, variant: Variant, bed: Bed) -> None:
        if variant.name not in self.facts:
            machines = zip(variant.setting.machines(), bed.guests, strict=True)
            self.facts[variant.name] = {name: machine.of_guest(guest) for name, guest in itertools.islice(machines, 2)}

    def _keep_said(self, number: int, flow: Flow, run: Run) -> None:
        for side, text in run.said().items():
            (self._raw / f"{number:04}-{flow.name}-{side}.txt").write_text(text)


def _await_answer(flow: Flow) -> None:
    """Waits until the target answers the source's ping: a network that has just come up may lose the first questions.

    A guest asks for an address three times, a second apart; if none is answered, its packets fail.
    """
    ask = ["ping", "-q", "-c", "1", "-W", "1", flow.address]
    what = f"an answer from {flow.target.name} to {flow.source.name}'s ping"
    until(lambda: flow.source.run(ask).status == 0, timeout=_PATIENCE, what=what)


def lay(session: Session, setting: Setting, kind: GuestKind) -> Bed:
    """Lays the setting's path and boots its machines."""
    build = {"program": str(setting.build)} if setting.build else {}
    options = {**setting.path_options, **build, **_kept(setting)}
    path = paths.make(session, setting.path, **options)
    if setting.apart:
        path = _apart(session, setting, path, options)
    bed = Bed(
        session,
        path,
        BedSettings(
            kinds(setting, kind),
            names=setting.machines(),
            mtu=setting.mtu,
            queues=setting.queues,
            ring=setting.ring,
            receive_rates=setting.receive_rates,
            cpus=_placed(setting.place, setting.machines())
            if setting.place
            else _cpus(setting.pinning, setting.machines()),
            memory=setting.memory,
            memories=shops.memories(setting, guests_kind(setting, kind)),
            image=shops.image(setting),
            processors=setting.processors,
        ),
    )
    for named, niceness in setting.nice.items():
        if not bed.named[named].process.weigh(niceness):
            raise LabError("this kernel gives processes of different sessions no weights: leave out `nice`")
    return bed


def _apart(
    session: Session, setting: Setting, near: paths.NetworkPath, options: Mapping[str, Any]
) -> paths.NetworkPath:
    """The path of clients, joined with one like it on another host, where the servers are."""
    other = session.enter_context(Session(session.logs / "other-host"))
    servers = [machine for machine in setting.machines() if machine.startswith("s")]
    far = other, paths.make(other, setting.path, **options)
    match setting.apart:
        case "vxlan":
            return Overlay(session, near, far, servers)
        case "vxlan-idle":
            return Overlay(session, near, far, [])
        case _:
            return Apart(session, near, far, servers)


def _kept(setting: Setting) -> dict[str, Any]:
    """The options that keep the network to its CPU, if it is to be kept to one and has work of its own."""
    if setting.place is None:
        return {}
    return paths.PATHS[setting.path].kept_to(_usable()[setting.place.network]) or {}


def _placed(place: Place, machines: Sequence[str]) -> list[Sequence[int]]:
    return [(_usable()[place.of(machine)],) for machine in machines]


def _usable() -> list[int]:
    return sorted(os.sched_getaffinity(0))


def _cpus(pinning: Pinning, machines: Sequence[str]) -> list[Sequence[int]]:
    """Which of the host's CPUs each machine is kept on; none stands for any."""
    match pinning:
        case Pinning.FREE:
            return [()] * len(machines)
        case Pinning.APART:
            return [(0,) if machine[0] == "c" else (1,) for machine in machines]
        case Pinning.EACH:
            cpus = itertools.cycle(sorted(os.sched_getaffinity(0)))
            return [() if machine.startswith("load") else (next(cpus),) for machine in machines]


def _await_warm(runs: Sequence[Run], timing: Timing) -> float:
    """Waits until all flows are warm; returns when the first of them will be over."""
    first: list[float] = []

    def warm() -> bool:
        ready = [run.measuring() for run in runs]
        if any(ready) and not first:
            first.append(time.monotonic())
        return all(ready)

    until(warm, timeout=timing.patience, what="all flows to be warm")
    return first[0] + timing.seconds


def _watch(runs: Sequence[Run], end: float, begin: float, timeline: Timeline) -> None:
    """Lets the measured part pass with its events: until its end, or that of the first flow.

    Raises as soon as a flow has failed.
    """
    end = max(end, time.monotonic() + _SHORTEST)

    def passed() -> bool:
        timeline.pass_time(time.monotonic() - begin)
        for run in runs:
            run.measuring()
        return time.monotonic() >= end or any(run.over() for run in runs)

    until(passed, timeout=end - time.monotonic() + 10, what="the measured part to pass")


def _record(stated: tuple[Flow, Traffic], result: FlowResult) -> FlowRecord:
    flow, traffic = stated
    return FlowRecord(
        name=f"{flow.source.name} to {flow.target.name}, {traffic.workload}",
        source=flow.source.name,
        target=flow.target.name,
        workload=traffic.workload,
        values=result.values,
        series=result.series,
        latencies=result.latencies.encoded() if result.latencies else None,
        lines=result.lines,
    )
