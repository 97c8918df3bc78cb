"""Packet capture on a link, as pcapng with times to the nanosecond.

It is taken inside the node at one end, by tcpdump on its interface: that sees sent frames before the
link delays or drops them, and received frames after. A tap in the switch would see frames in the middle of the
link, but every frame of every port would have to ask whether it is captured; here only the captured node pays.
"""

import base64
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from memlane_lab.common.errors import LabError
from memlane_lab.topo.pcapng import Pcap, PcapNg
from memlane_lab.topo.service import Caller, ask


def capture(name: str, where: str, what: str, write: Path | None, count: int | None) -> int:
    """Writes frames until interrupted, or until there are `count`; returns how many."""
    node, interface = place(ask(name, "state", memory=False), where)
    if write is None and sys.stdout.isatty():
        raise LabError("a capture is binary: write it to a file with -w FILE, or pipe it: | tcpdump -r -")
    caller = Caller(name, "capture", node=node, interface=interface, what=what)
    frames = 0
    try:
        with _opened(write) as file:
            pcap = Pcap(_Stream(caller).read)
            out = PcapNg(file, pcap.link_type)
            for frame in pcap:
                out.write(frame)
                frames += 1
                if frames == count:
                    break
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:
        sys.stdout = None  # the reader has enough
    except OSError as error:
        raise LabError(
            f"the capture ends after {frames} frames: {error.strerror}: {write or 'standard output'}"
        ) from error
    finally:
        with suppress(OSError):
            caller.hang_up()
    return frames


@contextmanager
def _opened(file: Path | None) -> Iterator[IO[bytes]]:
    if file is None:
        yield sys.stdout.buffer
        return
    with file.open("wb") as opened:
        yield opened


def place(state: dict[str, Any], where: str) -> tuple[str, str]:
    """The node and its interface at which a link, or one end of it, is looked at."""
    for link in state["links"]:
        ends = list(zip(link["ends"], link["interfaces"], strict=True))
        if where in (f"{node}:{interface}" for node, interface in ends):
            return next((node, interface) for node, interface in ends if where == f"{node}:{interface}")
        (first, second) = ends
        if where == link["name"] or where == f"{first[0]}-{second[0]}":
            return second if first[0] == "host" else first
        if where == f"{second[0]}-{first[0]}":
            return first if second[0] == "host" else second
    raise LabError(f"there is no link {where}; name one as r3-r4, or an end of it as r3:net1")


class _Stream:
    """The output of tcpdump in the node, as a file to read."""

    def __init__(self, caller: Caller) -> None:
        self._pieces = self._data(caller)
        self._left = b""

    def _data(self, caller: Caller) -> Iterator[bytes]:
        for answer in caller.answers():
            if "data" in answer:
                yield base64.b64decode(answer["data"])
            elif answer["status"] and "packets captured" not in answer["stderr"]:
                raise LabError(f"tcpdump in the node: {answer['stderr'].strip()}")

    def read(self, size: int) -> bytes:
        """So many bytes, or fewer at its end."""
        while len(self._left) < size:
            piece = next(self._pieces, b"")
            if not piece:
                break
            self._left += piece
        taken, self._left = self._left[:size], self._left[size:]
        return taken
