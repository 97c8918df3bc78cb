"""Three guests of QEMU and their network are cut at random instants; they go on, and copies of them beside each other.

Each guest pings the others without a pause: every datagram has a number, and its sender waits for none. Each fetches a
file of the next over TCP again and again. No number may be missing or come twice, no byte differ.
"""

import itertools
import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

import pytest

from memlane_lab.bed import bed
from memlane_lab.guests.control import Control
from memlane_lab.host import ports
from memlane_lab.host.ports import Nic, Port, VhostUser
from memlane_lab.host.session import Session
from memlane_lab.paths.bridge import Bridge
from memlane_lab.paths.memlane import program
from tests.end_to_end.conftest import Builder
from tests.end_to_end.lan import TCG
from tests.end_to_end.monitor import monitor, wait
from tests.end_to_end.movable import Movable, restore_guest
from tests.end_to_end.save import save
from tests.end_to_end.transfer import Library

pytestmark = pytest.mark.real

_CUTS = int(os.environ.get("MEMLANE_FORKS", "1"))
"""Random instants."""
_COPIES = int(os.environ.get("MEMLANE_COPIES", "2"))
"""Copies of each."""
_NAMES = "abc"
_INTERVAL = 0.02
"""Seconds between two datagrams of a guest to another."""
_SECONDS = 3.0
"""For how long a copy is watched."""
_LINK = {"link": {"delay": "8ms", "jitter": "2ms", "keep-order": True}}


class _Guest(Movable):
    """A guest that is asked after its restore, too: its agent goes on where it was."""

    _copies: ClassVar["itertools.count[int]"] = itertools.count(1)

    def await_copy(self) -> None:
        super().await_copy()
        # Numbers of requests that no request of the first guest has.
        self._control = Control(self.name, self.channel, first_handle=next(self._copies) << 20, greeted=True)

    def numbers(self, to: str) -> list[int]:
        """Numbers of the answers of another guest so far; one that came twice stands twice."""
        said = self.get(f"/tmp/ping-{to}").decode()
        return [int(number) for number in re.findall(r"icmp_seq=(\d+)", said)]

    def sums(self) -> list[str]:
        """Hashes of the files so far."""
        return self.get("/tmp/sums").decode().split()[::2]


class _Net:
    """The guests of one network, and what they were to see."""

    def __init__(self, guests: dict[str, _Guest], hashes: set[str]) -> None:
        self.guests = guests
        self.hashes = hashes
        self._pairs = list(itertools.permutations(guests, 2))

    @classmethod
    def boot(cls, guests: dict[str, _Guest]) -> "_Net":
        """Boots the guests, and has each ping the others, and fetch a file of the next again and again."""
        for each in guests.values():
            each.start()
        for index, each in enumerate(guests.values()):
            each.wait_ready()
            each.address(0, f"{bed.ipv4(index)}/16")
        for each in guests.values():
            each.wait_for_ping()
        libraries = [Library(each, 1) for each in guests.values()]
        for index, each in enumerate(guests.values()):
            following = (index + 1) % len(libraries)
            url = f"http://{bed.ipv4(following)}:{libraries[following].port}/file"
            each.spawn(f"while :; do wget -q -O - {url} | md5sum >>/tmp/sums; done")
            for other, to in enumerate(guests):
                if other != index:
                    each.spawn(f"ping -n -i {_INTERVAL} {bed.ipv4(other)} >/tmp/ping-{to}")
        net = cls(guests, {library.hash for library in libraries})
        wait(lambda: all((each.run("test -s /tmp/sums").status == 0) for each in guests.values()), "the first files")
        return net

    def faults(self) -> int:
        """Numbers that are missing, or came twice."""
        found = 0
        for guest, to in self._pairs:
            numbers = self.guests[guest].numbers(to)
            found += max(numbers) - len(set(numbers)) + len(numbers) - len(set(numbers))
        return found

    def seen(self) -> dict[str, int]:
        """The last number of each guest from each other one. All before it must have come, once and in order."""
        last = {}
        for guest, to in self._pairs:
            numbers = self.guests[guest].numbers(to)
            assert numbers == list(range(1, len(numbers) + 1)), f"{guest} from {to}: {_gaps(numbers)}"
            last[guest + to] = len(numbers)
        return last

    def goes_on(self) -> None:
        """Watches it for a while: each guest hears of each other one, and what it fetches is whole."""
        before, files = self.seen(), {name: len(guest.sums()) for name, guest in self.guests.items()}
        wanted = _SECONDS / _INTERVAL / 4

        def on() -> bool:
            numbers = all(now > before[pair] + wanted for pair, now in self.seen().items())
            return numbers and all(len(guest.sums()) > files[name] for name, guest in self.guests.items())

        wait(on, "all guests to hear of each other")
        for guest in self.guests.values():
            assert set(guest.sums()) <= self.hashes, guest.sums()

    def save(self, folder: Path) -> None:
        """Saves all guests at once, and lets them go on."""
        self._each(lambda name, each: save(each.qmp, folder / name))

    def saver(self, folder: Path) -> str:
        """The same as a command for the guest of a {port}."""
        for name, each in self.guests.items():
            (folder / f"{name}.qmp").symlink_to(each.qmp)
        return f"{sys.executable} -m tests.end_to_end.save {folder}/{{port}}.qmp {folder}/{{port}}"

    def restore(self, folder: Path, place: Callable[[str], _Guest]) -> "_Net":
        """A copy of its guests, each where `place` says."""
        copy = _Net({name: place(name) for name in self.guests}, self.hashes)

        def restore(name: str, each: _Guest) -> None:
            each.await_copy()
            with monitor(each.qmp) as ask:
                restore_guest(ask, folder / name)

        copy._each(restore)
        return copy

    def kill(self) -> None:
        """Ends the guests."""
        for each in self.guests.values():
            each.kill()

    def _each(self, act: Callable[[str, _Guest], None]) -> None:
        with ThreadPoolExecutor(len(self.guests)) as pool:
            list(pool.map(lambda item: act(*item), self.guests.items()))


def _gaps(numbers: list[int]) -> str:
    expected = set(range(1, max(numbers, default=0) + 1))
    twice = {number for number in numbers if numbers.count(number) > 1}
    return f"missing {sorted(expected - set(numbers))}, twice {sorted(twice)}, of {len(numbers)}"


def _memlane(*words: str | Path) -> str:
    binary = program()
    assert binary is not None
    done = subprocess.run([binary, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _port(name: str) -> Port:
    return Port(name, TCG, ports.mac(1 + _NAMES.index(name)))


@pytest.mark.timeout(3600)
def test_a_network_of_guests_is_forked(
    build: Builder, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    # A busy machine may leave a guest without the CPU for longer than frames wait for it by default.
    lan = build(others=dict.fromkeys(_NAMES, _LINK), **{"stall-timeout-ms": 10_000})
    switch, session = lan.switch, lan.switch.session
    guests = {name: _Guest(session, f"first-{name}", [Nic(_port(name), switch.socket(name))]) for name in _NAMES}
    net = _Net.boot(guests)
    net.goes_on()
    pauses, frames = [], []
    for cut in range(_CUTS):
        time.sleep(random.uniform(0, 1))
        folder, states = tmp_path / f"cut{cut}", tmp_path / f"states{cut}"
        states.mkdir()
        told = _memlane("snapshot", switch.file, folder, "--for", "10min", "--run", net.saver(states))
        frames.append(int(re.findall(r"(\d+) frames? in flight", told)[0]))
        pauses.append(json.loads(_memlane("thaw", switch.file, "--json"))["milliseconds"] / 1000)
        net.goes_on()
        for number in range(_COPIES):
            _watch_copy(session, f"fork{os.getpid()}-{cut}-{number}", (folder, states), net)
            net.goes_on()
        shutil.rmtree(states)
    record_property("frames in flight, of each cut", frames)
    record_property("seconds that the network was frozen", pauses)
    print(f"frames in flight {frames}, frozen for {pauses} s")


def _watch_copy(session: Session, copied: str, saved: tuple[Path, Path], first: _Net) -> None:
    """Runs a copy of the network and its guests for a while, beside the first network."""
    (folder, states), binary = saved, program()
    assert binary is not None
    daemon = session.start(copied, [binary, "up", "--from", folder, "--as", copied])
    wait(lambda: "is up" in daemon.log.read_text(errors="replace"), "the copy of the network")
    places = {port["name"]: Path(port["place"]) for port in json.loads(_memlane("ls", copied, "--json"))}

    def place(name: str) -> _Guest:
        return _Guest(session, f"{copied}-{name}", [Nic(_port(name), VhostUser(places[name]))])

    copy = first.restore(states, place)
    wait(lambda: "frozen" not in json.loads(_memlane("status", copied, "--json")), "the copy to go on")
    copy.goes_on()
    copy.kill()
    daemon.check()
    _memlane("down", copied)


def _bridge(session: Session, number: int) -> Bridge:
    """A bridge beside others, in a namespace with a name of its own."""

    class _Numbered(Bridge):
        name: ClassVar[str] = f"bridge{number}"

    return _Numbered(session)


@pytest.mark.prove
@pytest.mark.timeout(3600)
def test_the_same_cuts_over_a_bridge_lose_some(
    session: Session, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Nothing stops a bridge at an instant: what one guest has sent and another has not got is lost, or comes twice."""
    numbers = itertools.count()

    def lay(prefix: str) -> Callable[[str], _Guest]:
        nics = {nic.port.name: nic for nic in _bridge(session, next(numbers)).lay([_port(name) for name in _NAMES])}
        return lambda name: _Guest(session, f"{prefix}-{name}", [nics[name]])

    place = lay("bridged")
    net = _Net.boot({name: place(name) for name in _NAMES})
    net.goes_on()
    faults = []
    for cut in range(_CUTS):
        time.sleep(random.uniform(0, 1))
        folder = tmp_path / f"cut{cut}"
        folder.mkdir()
        net.save(folder)
        for number in range(_COPIES):
            copy = net.restore(folder, lay(f"copy{cut}-{number}"))
            time.sleep(_SECONDS)
            faults.append(copy.faults())
            copy.kill()
    record_property("numbers that are missing or came twice, of each copy", faults)
    print(f"faults {faults}")
    assert any(faults)
