"""Readings and what flows told, turned into measures."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from memlane_lab import stats
from memlane_lab.bed import Bed
from memlane_lab.experiment import measure
from memlane_lab.guests.guest import GuestCpu, InsideCpu
from memlane_lab.measures import CPU_PARTIES, Across
from memlane_lab.meters import host, inside, network, reading
from memlane_lab.meters.reading import Reading
from memlane_lab.procfs import CpuTime
from memlane_lab.workloads import POINT, FlowResult

Values = dict[str, float]
"""By measure, in base units."""


@dataclass(frozen=True)
class Readings:
    """All meters of a bed, read once."""

    host: Reading
    inside: list[Reading]
    network: Reading


def take(bed: Bed) -> Readings:
    """Reads all meters, those of the host first: a guest that is hard at work may take its time to answer."""
    outside = reading.take(lambda: host.read(bed.guests, bed.path))
    between = reading.take(lambda: network.read(bed.path))
    return Readings(outside, inside.read(bed.guests), between)


def measured(bed: Bed, before: Readings, after: Readings, flows: Sequence[FlowResult]) -> Values:
    """All measures of a sample; those that make no sense for it are left out."""
    values = of_flows(flows)
    guests = [reading.rates(*pair) for pair in zip(before.inside, after.inside, strict=True)]
    values |= _cpu(bed, reading.rates(before.host, after.host), guests)
    values |= _frames(guests)
    values |= _network(reading.rates(before.network, after.network))
    return values | _costs(values)


def of_flows(flows: Sequence[FlowResult]) -> Values:
    """One value of each measure that flows told."""
    told: dict[str, list[float]] = {}
    for flow in flows:
        for name, value in flow.values.items():
            told.setdefault(name, []).append(value)
    values = {name: _across(measure(name).across, each) for name, each in told.items()}
    if len(rates := told.get("throughput", [])) > 1:
        values["fairness"] = stats.jain(rates)
        values["first_share"] = rates[0] * len(rates) / sum(rates) if sum(rates) else 0.0
        values |= _windowed_fairness([flow.series for flow in flows if "throughput" in flow.values])
    return values


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


def _cpu(bed: Bed, rates: Mapping[str, float], guests: Sequence[Mapping[str, float]]) -> Values:
    """Who used how many CPUs. The parties add up to `cpu`."""
    accounts = [_inside(guest) for guest in guests]
    uses = [host.use(index, dict(rates)) for index in range(len(bed.guests))]
    split = [guest.split(use, account) for guest, use, account in zip(bed.guests, uses, accounts, strict=True)]
    vhost = sum((use.vhost for use in uses), CpuTime()).total
    parties = _parties(split, rates, rates["network.user"] + rates["network.system"] + vhost)
    total = sum(parties.values())
    return parties | {
        "cpu": total,
        "inside_user": sum(account.user for account in accounts),
        "inside_system": sum(account.system for account in accounts),
        "inside_softirq": sum(account.softirq + account.irq for account in accounts),
        "host_busy": rates["host.busy"],
        "others": max(0.0, rates["host.busy"] - total),
        "switches": rates["switches"],
    }


def _inside(rates: Mapping[str, float]) -> InsideCpu:
    return InsideCpu(**{name: rates[name] for name in ("user", "system", "softirq", "irq", "idle", "steal")})


def _parties(split: Iterable[GuestCpu], rates: Mapping[str, float], switch: float) -> Values:
    guests = list(split)
    softirq = rates["host.softirq"]
    kernel = sum(guest.host_kernel for guest in guests)
    if not host.softirq_is_apart():  # then it is part of the time of those whom it interrupted
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
    )
    return dict(zip(CPU_PARTIES, values, strict=True))


def _frames(guests: Sequence[Mapping[str, float]]) -> Values:
    frames = sum(guest["frames"] for guest in guests)
    values = {"frames": frames}
    values |= {name: sum(guest[name] for guest in guests) for name in inside.LOSSES}
    if frames > 0:
        values["frame_bytes"] = sum(guest["bytes"] for guest in guests) / frames
    counted = [guest["interrupts"] for guest in guests if "interrupts" in guest]
    return values | ({"interrupts": sum(counted)} if counted else {})


def _network(rates: Mapping[str, float]) -> Values:
    renamed = {"frames": "path_frames"}
    kept = {renamed.get(name, name): rate for name, rate in rates.items() if not name.startswith("worker_")}
    if "worker_busy" in rates:
        kept["worker_busy"] = rates["worker_busy"]
        kept |= _ratio("cycles_per_frame", rates["worker_cycles"], rates["worker_frames"])
    return kept


def _costs(values: Values) -> Values:
    """CPU time and events, by what was done with them."""
    cpu, frames = values["cpu"], values["frames"]
    costs: Values = {}
    if throughput := values.get("throughput"):
        costs |= _ratio("cpu_per_gb", cpu, throughput / 8e9)
        costs |= _ratio("cpu_per_gbit_s", cpu, throughput / 1e9)
    if interactions := values.get("interactions"):
        costs |= _ratio("cpu_per_interaction", cpu, interactions)
    if exchanges := values.get("exchanges"):
        costs |= _ratio("cpu_per_exchange", cpu, exchanges)
    costs |= _ratio("cpu_per_frame", cpu, frames)
    for name in ("interrupts", "switches", "kicks", "calls"):
        if name in values:
            costs |= _ratio(f"{name}_per_frame", values[name], frames)
    return costs


def _ratio(name: str, amount: float, by: float) -> Values:
    return {name: amount / by} if by > 0 else {}
