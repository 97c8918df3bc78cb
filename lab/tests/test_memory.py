"""Memory by party: mappings of others are left out, pools are read, an idle network holds no frames."""

import mmap
import os
from pathlib import Path

import pytest

from memlane_lab.experiment import experiment
from memlane_lab.host.ports import GuestKind
from memlane_lab.measuring import run
from memlane_lab.meters import memory
from memlane_lab.paths.ovs_dpdk import pools
from memlane_lab.results.results import read

_POOL = """mempool <ovs8a3f>@0x17f8
  flags=10
  socket_id=0
  size={size}
  populated_size={size}
  header_size=64
  elt_size=3008
  trailer_size=0
  total_obj_size=3072
  internal cache infos:
    cache_size=512
    cache_count[1]=20
    total_cache_count=20
  common_pool_count={spare}
"""


def test_what_others_keep_in_memory_is_left_out() -> None:
    descriptor = os.memfd_create("a guest's memory")
    os.ftruncate(descriptor, 8 << 20)
    with mmap.mmap(descriptor, 8 << 20) as guest:
        guest.write(b"x" * (8 << 20))
        mine, file = os.getpid(), os.fstat(descriptor)
        foreign = memory.shared(mine) & {f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}:{file.st_ino}"}
        assert len(foreign) == 1
        # Without the interpreter's other mappings, which grow with the text that is read here.
        others = _mapped() - foreign
        without, whole = memory.own(mine, foreign | others), memory.own(mine, others)
        assert whole - without == 8 << 20
        assert memory.own(mine, foreign) > 1 << 20
    os.close(descriptor)
    assert memory.own(2**22 + 1, ()) == 0


def _mapped() -> set[str]:
    """Device and inode of all mappings of this process; anonymous ones have zeros."""
    rows = (line.split() for line in Path("/proc/self/maps").read_text().splitlines())
    return {f"{row[3]}:{row[4]}" for row in rows}


def test_pools_tell_what_is_set_aside_and_what_is_in_use() -> None:
    assert pools(_POOL.format(size=1000, spare=970)) == {"frames_held": 10 * 3072, "pools": 1000 * 3072}
    assert pools("") == {"frames_held": 0, "pools": 0}


def test_the_kernel_tells_what_it_holds() -> None:
    assert memory.kernel() > 1 << 20
    buffers = memory.packet_buffers()
    assert buffers is None or buffers >= 0


_IDLE = """
title = "t"
question = "q"
measures = ["frames_held", "network_memory"]
seconds = 1
warm_up = 0
baseline = "memlane"
[setting]
traffic = { workload = "idle" }
[vary]
path = ["memlane"]
"""


@pytest.mark.real
def test_idle_guests_tie_up_no_bytes_of_frames(tmp_path: Path, own_runs: Path) -> None:  # noqa: ARG001
    (tmp_path / "idle.toml").write_text(_IDLE)
    planned = run.prepare([tmp_path / "idle.toml"], GuestKind.UML, 1)
    run.measure(planned, GuestKind.UML, tmp_path / "out", 1)
    (sample,) = read(tmp_path / "out")[1][0].samples
    assert sample.error is None, sample.error
    assert sample.values["frames_held"] == 0
    assert 1 << 20 < sample.values["network_memory"] < 64 << 20
    # Not beside the network's: how much of a program without optimisation is in memory differs with each commit.
    assert sample.values["guests_memory"] > 16 << 20


def test_the_experiment_asks_who_holds_memory() -> None:
    assert experiment.load(experiment.FOLDER / "who_holds_memory.toml").looks_at_memory
    assert not experiment.load(experiment.FOLDER / "how_many_guests.toml").looks_at_memory
