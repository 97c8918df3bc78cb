"""Files of random bytes on their way between guests, checked by their hash; flows that go on until they are ended."""

import itertools
import json
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from memlane_lab.bed import bed
from memlane_lab.common.wait import until
from memlane_lab.guests import Guest
from memlane_lab.guests.control import Running
from memlane_lab.host.ports import GuestKind

_FOLDER = "/tmp/served"
_ports = itertools.count(6201)


class Library(AbstractContextManager["Library"]):
    """A file of random bytes in a guest, which others fetch over HTTP: one system call sends it, in large segments.

    As a context manager it ends its server; else that ends with the guest.
    """

    def __init__(self, guest: Guest, megabytes: int | None = None) -> None:
        """Makes the file, by default 8 MB or 4 in a guest with each instruction translated, and serves it.

        Random bytes take a guest long: each MB is the same ones after its number.
        """
        megabytes = megabytes or (4 if guest.kind is GuestKind.TCG else 8)
        self.guest = guest
        self.port = next(_ports)
        random = f"mkdir -p {_FOLDER}; head -c {1 << 20} /dev/urandom >/tmp/random"
        joined = f"for i in $(seq {megabytes}); do echo $i; cat /tmp/random; done >{_FOLDER}/file; rm /tmp/random"
        told = f"wc -c <{_FOLDER}/file; md5sum <{_FOLDER}/file"
        made = guest.run(f"set -e; {random}; {joined}; {told}", timeout=120).check().stdout.split()
        self.size, self.hash = int(made[0]), made[1]
        self._server = guest.spawn(["httpd", "-f", "-p", f"[::]:{self.port}", "-h", _FOLDER])
        guest.wait_listening(self.port)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.kill()
        self._server.wait(10)

    def fetch(self, reader: Guest, address: str) -> "Fetch":
        """Has `reader` begin to fetch the file from `address`, one of the guest's own."""
        place = f"[{address}]" if ":" in address else address
        return Fetch(self, reader, f"wget -q -O - http://{place}:{self.port}/file | md5sum")


class Fetch:
    """A transfer that has begun."""

    def __init__(self, library: Library, reader: Guest, command: str) -> None:
        self.library = library
        self.reader = reader
        self._before = received(reader)
        self._running = reader.spawn(command)

    def wait_under_way(self, share: float = 0.03) -> None:
        """Waits until `share` of the file has arrived; the transfer must not be over by then."""
        wanted = share * self.library.size
        until(lambda: received(self.reader) - self._before > wanted, timeout=30, what="a transfer to get under way")
        self.check_unfinished()

    def check_unfinished(self) -> None:
        """Insists that the transfer is not over: the test's event must happen in its middle."""
        assert not self._running.ended, "the transfer was over too soon to be disturbed"

    def abandon(self) -> None:
        """Ends it unfinished."""
        self._running.kill()
        self._running.wait(10)

    def finish(self, timeout: float = 60.0) -> None:
        """Waits for its end; the received file must be the sent one."""
        result = self._running.wait(timeout)
        assert result.stdout.split()[:1] == [self.library.hash], f"a file arrived damaged: {result}"


STEADY = ("--bitrate", "50M")
"""Options of a flow of 50 Mbit/s."""


class Flow(AbstractContextManager["Flow"]):
    """A flow of iperf3 from guest `source` to guest `target` that goes on until it is ended, or its block is."""

    def __init__(self, source: Guest, target: Guest, address: str, *options: str) -> None:
        self._target = target
        self._server, port = iperf_server(target)
        client = ["iperf3", "--client", address, "--port", port, "--time", "600", *options]
        self._client = source.spawn(client)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def wait_progress(self, megabytes: int = 2, timeout: float = 30.0) -> None:
        """Waits until so much more has arrived."""
        goal = received(self._target) + (megabytes << 20)
        until(lambda: received(self._target) > goal, timeout=timeout, what=f"{megabytes} MB more of a flow")

    def end(self) -> None:
        """Ends it at both ends."""
        self._end(self._client)
        self._end(self._server)

    @staticmethod
    def _end(running: Running) -> None:
        running.kill()
        running.wait(10)


def slow_down(guest: Guest) -> None:
    """Has the guest send at most 10 Mbit/s, so that no transfer is over before something has happened to it.

    This ends with `speed_up`, and when the guest's NIC is plugged anew, or the guest has rebooted.
    """
    guest.run("tc qdisc replace dev net0 root netem rate 10mbit limit 10000").check()


def speed_up(guest: Guest) -> None:
    """Has the guest send as fast as it can again."""
    guest.run("tc qdisc del dev net0 root")


def received(guest: Guest) -> int:
    """Bytes that the guest's net0 has received since it appeared."""
    return int(guest.get("/sys/class/net/net0/statistics/rx_bytes"))


def iperf_server(target: Guest) -> tuple[Running, str]:
    """An iperf3 server for one flow, and its port."""
    port = str(next(_ports))
    server = target.spawn(["iperf3", "--server", "--one-off", "--port", port])
    target.wait_listening(int(port))
    return server, port


def iperf(source: Guest, target: Guest, address: str, *options: str) -> dict[str, Any]:
    """Measures one second of iperf3 from `source` to `target` at `address`; returns the end of its report."""
    server, port = iperf_server(target)
    command = ["iperf3", "--client", address, "--port", port, "--time", "1", "--json", *options]
    done = source.run(command, timeout=60)
    report = json.loads(done.stdout)
    assert "error" not in report, report["error"]
    server.wait(timeout=30)
    end: dict[str, Any] = report["end"]
    return end


def exchange(guests: list[Guest], libraries: list[Library]) -> None:
    """Each of two guests fetches the other's file, over IPv4 and over IPv6."""
    for reader, server in ((1, 0), (0, 1)):
        for address in (bed.ipv4(server), bed.ipv6(server)):
            libraries[server].fetch(guests[reader], address).finish()


def broken_packets(guest: Guest) -> dict[str, int]:
    """Packets that the guest's kernel counts as damaged: checksums, headers, cut off (RFC 4293, RFC 4022)."""
    wrong = ("CsumErrors", "InHdrErrors", "InTruncatedPkts", "Tcp.InErrs")
    counters = _network_counters(guest)
    # Linux counts a SYN that was sent again and came late as an error, too: the connection stood by then.
    counters["Tcp.InErrs"] -= counters["TcpExt.TCPSYNChallenge"]
    return {name: count for name, count in counters.items() if name.endswith(wrong) and count}


def segments_received(guest: Guest) -> int:
    """TCP segments that its kernel has received."""
    return _network_counters(guest)["Tcp.InSegs"]


def counter(guest: Guest, name: str) -> int:
    """One of the kernel's counters, such as "IpExt.InCEPkts"."""
    return _network_counters(guest)[name]


def _network_counters(guest: Guest) -> dict[str, int]:
    counters: dict[str, int] = {}
    for file in ("snmp", "netstat"):
        rows = guest.get(f"/proc/net/{file}").decode().splitlines()
        for names, values in zip(rows[::2], rows[1::2], strict=True):
            group = names.split(":")[0]
            named = zip(names.split()[1:], values.split()[1:], strict=True)
            counters |= {f"{group}.{name}": int(value) for name, value in named}
    for row in guest.get("/proc/net/snmp6").decode().splitlines():
        name, value = row.split()
        counters[name] = int(value)
    return counters
