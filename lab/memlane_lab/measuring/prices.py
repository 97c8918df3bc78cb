"""Prices of the primitives that a virtual network is made of, on this machine: the fastest of several short tries.

A hypervisor decides most of it: waking a sleeping CPU takes 40 us on one machine, and 2 us on another, and every figure
of a path that wakes follows. Measured before a run, within half a second; Python's own call, some 0.1 us, is included.
"""

import mmap
import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from memlane_lab.host import procfs

OTHERS = "other work"
"""The only entry that is no time, but CPUs."""
_TRIES = 5
_CALLS, _PINGS, _PAGES = 20_000, 1_000, 2_000


def measure() -> dict[str, float]:
    """Seconds of each primitive, by name, and the CPUs that other work took meanwhile.

    A primitive that needs a second CPU is left out where there is one only.
    """
    began, busy, own = time.perf_counter(), procfs.whole_host().busy, _own()
    told = _primitives()
    taken = procfs.whole_host().busy - busy - (_own() - own)
    return told | {OTHERS: max(0.0, taken) / (time.perf_counter() - began)}


def _own() -> float:
    """CPU seconds of this process and of its children that have ended."""
    return sum(os.times()[:4])


def _primitives() -> dict[str, float]:
    cpus = sorted(os.sched_getaffinity(0))
    told = {
        "system call": _best(_system_calls),
        "page fault": _best(_page_faults),
        "eventfd there and back, one CPU": _best(lambda: _ping_pong((cpus[0], cpus[0]))),
    }
    if len(cpus) > 1:
        told["eventfd there and back, two CPUs"] = _best(lambda: _ping_pong((cpus[0], cpus[1])))
    return told


def _best(measured: Callable[[], float]) -> float:
    return min(measured() for _ in range(_TRIES))


def _system_calls() -> float:
    call, began = os.getppid, time.perf_counter()
    for _ in range(_CALLS):
        call()
    return (time.perf_counter() - began) / _CALLS


def _page_faults() -> float:
    """Of a page that nothing has touched yet; huge pages are refused, which would spare the faults."""
    with mmap.mmap(-1, _PAGES * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        with suppress(OSError):
            memory.madvise(mmap.MADV_NOHUGEPAGE)
        began = time.perf_counter()
        for at in range(0, len(memory), mmap.PAGESIZE):
            memory[at] = 1
        return (time.perf_counter() - began) / _PAGES


def _ping_pong(cpus: tuple[int, int]) -> float:
    """There and back between two processes that sleep in between, one on each of `cpus`."""
    there, back = os.eventfd(0), os.eventfd(0)
    kept = os.sched_getaffinity(0)
    child = os.fork()
    if child == 0:
        _answer(there, back, cpus[1])
    try:
        os.sched_setaffinity(0, {cpus[0]})
        _exchange(there, back)  # the other process is awake, and on its CPU
        began = time.perf_counter()
        for _ in range(_PINGS):
            _exchange(there, back)
        return (time.perf_counter() - began) / _PINGS
    finally:
        os.sched_setaffinity(0, kept)
        os.close(there)
        os.close(back)
        os.waitpid(child, 0)


def _exchange(there: int, back: int) -> None:
    os.eventfd_write(there, 1)
    os.eventfd_read(back)


def _answer(there: int, back: int, cpu: int) -> NoReturn:
    """The other process: answers so often as it is asked, then ends without any of Python's clean-up."""
    try:
        with suppress(OSError):  # unanswered, the first process would wait for ever
            os.sched_setaffinity(0, {cpu})
        for _ in range(_PINGS + 1):
            os.eventfd_read(there)
            os.eventfd_write(back, 1)
    finally:
        os._exit(0)
