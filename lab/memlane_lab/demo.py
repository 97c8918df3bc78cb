"""The demo: two guests on a path, ping and TCP between them."""

import json
import re

from rich.table import Table

from memlane_lab import bed, paths
from memlane_lab.bed import Bed
from memlane_lab.guests import Guest
from memlane_lab.images.prepare import prepare
from memlane_lab.ports import GuestKind
from memlane_lab.progress import results, say
from memlane_lab.session import Session

_IPERF_PORT = 5201


def show(path: str, kind: GuestKind, seconds: int = 3) -> None:
    """Boots two guests of `kind` on `path`, pings and measures for `seconds` a way, and prints what came out."""
    prepare()
    with Session() as session:
        say(f"booting two {kind} guests on {paths.PATHS[path].title}")
        pair = Bed(session, paths.make(session, path), [kind, kind])
        table = Table("what", "result", title=f"{kind} guests, {path}")
        for title, result in _measure(pair, seconds):
            table.add_row(title, result)
    results.print(table)


def _measure(pair: Bed, seconds: int) -> list[tuple[str, str]]:
    first, second = pair.guests
    return [
        ("ping, IPv4", _ping(first, bed.ipv4(1))),
        ("ping, IPv6", _ping(first, bed.ipv6(1))),
        ("TCP, a to b", _tcp(first, second, bed.ipv4(1), seconds)),
        ("TCP, b to a", _tcp(second, first, bed.ipv4(0), seconds)),
    ]


def _ping(source: Guest, target: str) -> str:
    say(f"ping {target}")
    said = source.run(["ping", "-c", "10", "-i", "0.1", target]).check().stdout
    found = re.search(r"= ([\d.]+)/([\d.]+)/", said)
    return f"{float(found[2]):.2f} ms (best {float(found[1]):.2f})" if found else said


def _tcp(source: Guest, target: Guest, address: str, seconds: int) -> str:
    say(f"iperf3 to {address}, {seconds} s")
    server = target.spawn(["iperf3", "--server", "--one-off"])
    target.wait_listening(_IPERF_PORT)
    client = ["iperf3", "--client", address, "--time", str(seconds), "--length", "1M", "--json"]
    report = json.loads(source.run(client, timeout=seconds + 30).check().stdout)
    server.wait(timeout=10)
    return f"{report['end']['sum_received']['bits_per_second'] / 1e9:.2f} Gbit/s"
