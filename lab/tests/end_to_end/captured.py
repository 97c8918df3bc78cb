"""Frames at a port of the switch, as `memlane capture` writes them."""

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scapy.layers.inet import ICMP, IP
from scapy.layers.l2 import ARP, Ether
from scapy.utils import rdpcap

from memlane_lab.paths.memlane import program
from tests.end_to_end.switch import Switch


@contextmanager
def captured(switch: Switch, port: str, file: Path, which: str = "arp or icmp") -> Iterator[None]:
    """Writes the frames at the port that match the filter `which` into the file."""
    binary = program()
    assert binary is not None
    command: list[str | Path] = [binary, "capture", switch.file, port, "-w", file, "-f", which]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as capture:
        assert capture.stderr is not None
        assert "has begun" in capture.stderr.readline()
        try:
            yield
        finally:
            capture.send_signal(signal.SIGINT)


def seconds_to_answer(file: Path, mac: str, address: str) -> float:
    """Seconds from the first announcement of an address by its new owner until the next answer from there."""
    frames = [frame for frame in rdpcap(str(file)) if isinstance(frame, Ether) and frame.src == mac]
    announced = next(float(frame.time) for frame in frames if ARP in frame and frame[ARP].psrc == address)
    answers = (float(frame.time) for frame in frames if ICMP in frame and frame[IP].src == address)
    return next(at for at in answers if at >= announced) - announced
