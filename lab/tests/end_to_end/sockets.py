"""Packet sockets at the devices of guests that are namespaces."""

import ctypes
import socket
import threading
from collections.abc import Sequence
from pathlib import Path

from memlane_lab.host import network
from memlane_lab.host.ports import Device

ALL = 0x0003
"""Frames of every EtherType."""
_BUFFER = 16 << 20
_SO_RCVBUFFORCE = 33


def open_at(devices: Sequence[Device], protocol: int = ALL) -> list[socket.socket]:
    """Sockets for frames of `protocol`; the kernel answers nothing there. A thread of its own enters the namespaces."""
    opened: list[socket.socket] = []

    def enter_and_open() -> None:
        for device in devices:
            with Path(f"/run/netns/{device.namespace}").open("rb") as place:
                assert ctypes.CDLL(None, use_errno=True).setns(place.fileno(), 0) == 0
            connection = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(protocol))
            connection.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER)
            connection.bind((device.device, protocol))
            connection.setblocking(False)
            opened.append(connection)

    for device in devices:
        network.change(device.namespace, f"link set dev {device.device} arp off up")
    thread = threading.Thread(target=enter_and_open)
    thread.start()
    thread.join()
    return opened
