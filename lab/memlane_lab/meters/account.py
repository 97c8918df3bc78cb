"""Readings and the flows' own figures, turned into measures."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from memlane_lab.bed.bed import Bed
from memlane_lab.experiment.experiment import measure
from memlane_lab.guests.guest import GuestCpu
from memlane_lab.guests.inside import InsideCpu
from memlane_lab.host.procfs import CpuTime
from memlane_lab.meters import host, inside, network, reading
from memlane_lab.meters.inside import Asked
from memlane_lab.meters.reading import Reading
from memlane_lab.paths.path import DROPS
from memlane_lab.statistics import stats
from memlane_lab.statistics.measures import CPU_PARTIES, Across
from memlane_lab.workloads import POINT, Flow, FlowResult

Values = dict[str, float]
"""By measure, in base units."""


@dataclass(frozen=True)
class Readings:
    """All meters of a bed, read once."""

    host: Reading
    network: Reading
    inside: Asked
    """Questions to the guests, asked at the same time; they answer when they can."""


@dataclass(frozen=True)
class Account:
    """The figures of a sample, from all meters."""

    values: Values
    parties: dict[str, Values]
    """By party: a guest, the switch, its helpers, the lab itself."""
    drops: Values = field(default_factory=dict)
    """By reason, frames that the network dropped, a second."""


def take(bed: Bed) -> Readings:
    """Reads all meters of the host, and asks the guests; does not wait for their answers."""
    asked = inside.ask(bed.guests)
    outside = reading.take(lambda: host.read(bed.guests, bed.path))
    return Readings(outside, reading.take(lambda: network.read(bed.path)), asked)


def measured(bed: Bed, before: Readings, after: Readings, flows: Sequence[tuple[Flow, FlowResult]]) -> Account:
    """All measures of a sample but those that make no sense for it, and those that a guest told too late."""
    values = of_flows([result for _, result in flows])
    told = inside.rates(before.inside, after.inside, after.host.at - before.host.at)
    outside = reading.rates(before.host, after.host)
    values |= _cpu(bed, outside, told) | _ends(outside, [flow for flow, _ in flows])
    values |= _frames(told, [flow for flow, _ in flows])
    values |= _network(reading.rates(before.network, after.network))
    parties = _by_party(outside | host.memory(bed.guests, bed.path))
    return Account(values | _costs(values), parties, _drops(before.network, after.network))


def _drops(before: Reading, after: Reading) -> Values:
    """Drops a second by reason, where there were any. A reason may be told from its first drop on."""
    elapsed = after.at - before.at
    grown = {
        name.removeprefix(DROPS): (count - before.counts.get(name, 0)) / elapsed
        for name, count in after.counts.items()
        if name.startswith(DROPS)
    }
    return {reason: rate for reason, rate in grown.items() if rate > 0}


def _by_party(rates: Mapping[str, float]) -> dict[str, Values]:
    parties: dict[str, Values] = {}
    for key, value in rates.items():
        party, _, name = key.partition(".")
        parties.setdefault(party, {})[name] = value
    return parties


def _ends(rates: Mapping[str, float], flows: Sequence[Flow]) -> Values:
    """All CPU time of those guests that only send, and of those that are only sent to."""
    sources, targets = {flow.source.name for flow in flows}, {flow.target.name for flow in flows}
    ends = {"cpu_sender": sources - targets, "cpu_receiver": targets - sources}
    return {
        name: sum(rates[f"{guest}.user"] + rates[f"{guest}.system"] for guest in found)
        for name, found in ends.items()
        if found
    }


def of_flows(flows: Sequence[FlowResult]) -> Values:
    """One value of each measure that flows told."""
    told: dict[str, list[float]] = {}
    for flow in flows:
        for name, value in flow.values.items():
            told.setdefault(name, []).append(value)
    values = {name: _across(measure(name).across, each) for name, each in told.items()}
    if lowest := [_lowest(flow.series) for flow in flows if flow.series]:
        values["lowest"] = sum(lowest) / len(lowest)
    if len(rates := told.get("throughput", [])) > 1:
        values["fairness"] = stats.jain(rates)
        values["first_share"] = rates[0] * len(rates) / sum(rates) if sum(rates) else 0.0
        values |= _windowed_fairness([flow.series for flow in flows if "throughput" in flow.values])
    return values


def _lowest(series: Sequence[tuple[float, float]]) -> float:
    """The slowest point of a flow by the mean of all: how deep its deepest dip is."""
    rates = [rate for _, rate in series]
    mean = sum(rates) / len(rates)
    return min(rates) / mean if mean else 0.0


def _windowed_fairness(series: Sequence[Sequence[tuple[float, float]]]) -> Values:
    """Jain's index over windows of a second, in the mean. Windows that not all flows lived through are left out.

    A flow without any point moved nothing.
    """
    bits = [_by_second(each) for each in series if each]
    seconds = min((len(each) for each in bits), default=0)
    if seconds == 0:
        return {}
    bits += [[0.0] * seconds] * (len(series) - len(bits))
    return {"fairness_1s": sum(stats.jain([each[at] for each in bits]) for at in range(seconds)) / seconds}


def _by_second(series: Sequence[tuple[float, float]]) -> list[float]:
    """Bits of each whole second of a flow, counted from the first one measured; a point counts in all it lies in."""
    begin = max(0.0, series[0][0] - POINT)
    seconds = [0.0] * int(series[-1][0] - begin + POINT / 2)
    last = begin
    for end, rate in series:
        for at in range(int(last - begin), min(len(seconds), int(end - begin) + 1)):
            overlap = min(end - begin, at + 1) - max(last - begin, at)
            seconds[at] += rate * max(0.0, overlap)
        last = end
    return seconds


def _across(how: Across, values: Sequence[float]) -> float:
    match how:
        case Across.SUM:
            return sum(values)
        case Across.WORST:
            return max(values)
        case Across.MEAN:
            return sum(values) / len(values)


def _cpu(bed: Bed, rates: Mapping[str, float], told: Mapping[str, Mapping[str, float] | None]) -> Values:
    """CPUs used by each party. The parties add up to `cpu`; with helpers and others, to the host's busy time."""
    accounts = {name: _inside(each) if each else None for name, each in told.items()}
    uses = {guest.name: host.use(guest.name, rates) for guest in bed.guests}
    split = [guest.split(uses[guest.name], accounts[guest.name]) for guest in bed.guests]
    vhost = sum((use.vhost for use in uses.values()), CpuTime()).total
    parties = _parties(split, rates, _total(rates, host.SWITCH) + vhost)
    total = sum(parties.values())
    helpers = _total(rates, host.HELPERS) + _total(rates, host.LAB)
    values = parties | {
        "cpu": total,
        "cpu_helpers": helpers,
        "host_busy": rates["host.busy"],
        "others": rates["host.busy"] - total - helpers,
        "steal": rates["host.steal"],
        "switches": sum(rate for name, rate in rates.items() if name.endswith(".switches")),
        "wakeups": sum(rate for name, rate in rates.items() if name.endswith(".wakeups")),
    }
    if "host.between_cpus" in rates:
        values["between_cpus"] = rates["host.between_cpus"]
    if any(account is None for account in accounts.values()):
        return values
    known = [account for account in accounts.values() if account]
    return values | {
        "inside_user": sum(account.user for account in known),
        "inside_system": sum(account.system for account in known),
        "inside_softirq": sum(account.softirq + account.irq for account in known),
    }


def _total(rates: Mapping[str, float], party: str) -> float:
    return rates.get(f"{party}.user", 0.0) + rates.get(f"{party}.system", 0.0)


def _inside(rates: Mapping[str, float]) -> InsideCpu:
    return InsideCpu(**{name: rates[name] for name in ("user", "system", "softirq", "irq", "idle", "steal")})


def _parties(split: Iterable[GuestCpu], rates: Mapping[str, float], switch: float) -> Values:
    guests = list(split)
    softirq = rates["host.softirq"]
    kernel = sum(guest.host_kernel for guest in guests)
    if not host.softirq_is_apart():  # then it is part of the time of the interrupted tasks
        softirq = min(softirq, kernel)
        kernel -= softirq
    values = (
        sum(guest.programs for guest in guests),
        sum(guest.kernel for guest in guests),
        sum(guest.softirq for guest in guests),
        sum(guest.monitor for guest in guests),
        kernel,
        switch,
        softirq,
        sum(guest.untold for guest in guests),
    )
    return dict(zip(CPU_PARTIES, values, strict=True))


def _frames(told: Mapping[str, Mapping[str, float] | None], flows: Sequence[Flow]) -> Values:
    """Frames that guests received: all, and apart those of receivers and of senders."""
    sources, targets = {flow.source.name for flow in flows}, {flow.target.name for flow in flows}
    to_targets, to_sources = _told_by(told, targets - sources), _told_by(told, sources - targets)
    values: Values = {}
    if to_targets:
        values["data_frames"] = frames = sum(guest["frames"] for guest in to_targets)
        values |= _ratio("frame_bytes", sum(guest["bytes"] for guest in to_targets), frames)
    if to_sources:
        values["answer_frames"] = sum(guest["frames"] for guest in to_sources)
    if not (everybody := _told_by(told, set(told))):
        return values
    values["frames"] = sum(guest["frames"] for guest in everybody)
    values |= {name: sum(guest[name] for guest in everybody) for name in inside.LOSSES}
    counted = [guest["interrupts"] for guest in everybody if "interrupts" in guest]
    return values | ({"interrupts": sum(counted)} if counted else {})


def _told_by(told: Mapping[str, Mapping[str, float] | None], names: set[str]) -> list[Mapping[str, float]]:
    """The figures of these guests, or nothing if not all of them answered."""
    found = [each for name in names if (each := told[name])]
    return found if len(found) == len(names) else []


def _network(rates: Mapping[str, float]) -> Values:
    renamed = {"frames": "path_frames"}
    kept = {renamed.get(name, name): rate for name, rate in rates.items() if not name.startswith(("worker_", DROPS))}
    if "worker_busy" in rates:
        kept["worker_busy"] = rates["worker_busy"]
        kept |= _ratio("cycles_per_frame", rates["worker_cycles"], rates["worker_frames"])
    return kept


def _costs(values: Values) -> Values:
    """CPU time and events, per unit of work."""
    cpu, frames = values["cpu"], values.get("frames", 0.0)
    costs: Values = {}
    if throughput := values.get("throughput"):
        costs |= _ratio("cpu_per_gb", cpu, throughput / 8e9)
        costs |= _ratio("cpu_per_gbit_s", cpu, throughput / 1e9)
    if interactions := values.get("interactions"):
        costs |= _ratio("cpu_per_interaction", cpu, interactions)
    if exchanges := values.get("exchanges"):
        costs |= _ratio("cpu_per_exchange", cpu, exchanges)
    costs |= _ratio("cpu_per_frame", cpu, frames)
    for name in ("interrupts", "switches", "wakeups", "between_cpus", "kicks", "path_interrupts"):
        if name in values:
            costs |= _ratio(f"{name}_per_frame", values[name], frames)
    return costs


def _ratio(name: str, amount: float, by: float) -> Values:
    return {name: amount / by} if by > 0 else {}
