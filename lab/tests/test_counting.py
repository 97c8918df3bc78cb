"""The counted host: the party of an instruction, a kernel's description of itself, refusals; and one real count."""

import struct
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from memlane_lab.common.errors import LabError
from memlane_lab.counting import btf, counts, host, kernel, machine
from memlane_lab.counting.counts import Party, Tables
from memlane_lab.counting.host import Flow, Told, Window
from memlane_lab.counting.stages import Place, Symbols
from memlane_lab.experiment import experiment, plan
from memlane_lab.experiment.setting import Setting
from memlane_lab.measuring import counted as sampler
from memlane_lab.measuring.counted import Values
from memlane_lab.paths import memlane

_IN_KERNEL, _IN_PROGRAM = 0xFFFFFFFF81000000, 0x401000
_COUNTED = """
title = "t"
question = "q"
bed = "counted"
baseline = "native"
[setting]
traffic = { workload = "path-length" }
[vary.path]
native = { path = "none" }
"""


@pytest.mark.parametrize(
    ("task", "address", "virtual", "whose"),
    [
        (("program-c1", "program-c1", "machine"), _IN_PROGRAM, False, (Party.SENDER_PROGRAM, Place.PROGRAM)),
        (("program-c1", "program-c1", "machine"), _IN_KERNEL, False, (Party.SENDER_HOST, Place.NATIVE_KERNEL)),
        (("linux-s1", "linux-s1", "init"), 0x60001000, True, (Party.RECEIVER_GUEST, Place.GUEST_KERNEL)),
        (("linux-s1", "linux-s1", "init"), _IN_KERNEL, True, (Party.RECEIVER_HOST, Place.HOST_KERNEL)),
        (("uml-userspace", "uml-userspace", "linux-c1"), _IN_PROGRAM, True, (Party.SENDER_PROGRAM, Place.PROGRAM)),
        (("worker-0", "memlane", "init"), 0x555555554000, True, (Party.SWITCH, Place.SWITCH)),
        (("worker-0", "memlane", "init"), _IN_KERNEL, True, (Party.SWITCH_HOST, Place.SWITCH_KERNEL)),
        (("kworker/0:1", "kworker/0:1", "kthreadd"), _IN_KERNEL, True, (Party.HOST, Place.HOST_KERNEL)),
        (("swapper/0", "swapper/0", "swapper/0"), _IN_KERNEL, False, (Party.HOST, Place.NATIVE_KERNEL)),
        (("sh", "sh", "init"), _IN_KERNEL, True, (Party.LAB, Place.PROGRAM)),
    ],
)
def test_an_instruction_belongs_to_the_task_that_it_ran_for(
    task: tuple[str, str, str], address: int, virtual: bool, whose: tuple[Party, Place]
) -> None:
    assert counts.whose(task, address, virtual=virtual) == whose


def test_a_summary_leaves_out_the_lab_and_idle_time(tmp_path: Path) -> None:
    symbols = "ffffffff81000000 T tcp_sendmsg\nffffffff81000100 T default_idle\nffffffff81000200 T ip_rcv\n"
    (tmp_path / "kallsyms").write_text(symbols)
    tasks = [("program-c1", "program-c1", "machine"), ("swapper/0", "swapper/0", "swapper/0"), ("sh", "sh", "init")]
    counted: list[tuple[int, ...]] = [
        (0, _IN_KERNEL, 100, 20, 10, 3),
        (0, _IN_KERNEL + 0x204, 50, 5, 5, 0),
        (1, _IN_KERNEL + 0x100, 7, 0, 0, 0),
    ]
    counted += [(2, _IN_KERNEL, 1000, 0, 0, 0), (0, _IN_PROGRAM, 8, 1, 1, 0, 6, 2, 0)]
    tables = Tables(Told([], {}), tmp_path / "kallsyms", None)
    flow = {"sent": 2, "came": 2, "size": 1024, "frames_out": 4, "frames_in": 1}
    window = Window(flow, tasks, counted)
    summary = counts.summary(counts.shares(window, tables))
    assert summary.by_stage == {"socket and TCP/UDP": 100, "IP": 50, "program": 8}
    assert summary.by_party == {Party.SENDER_HOST: 150, Party.SENDER_PROGRAM: 8}
    values, parties = sampler.told_values(window, summary)
    assert values["instructions_per_kb"] == 158 / 2
    assert values["instructions_per_packet"] == 158 / 4
    assert values["stage_IP"] == 25
    assert parties["loads per KB"]["IP"] == 2.5
    assert (values["l1_misses_per_kb"], values["l2_misses_per_kb"], values["tlb_misses_per_kb"]) == (3, 1, 0)
    assert parties["L1 misses per KB, by party"] == {Party.SENDER_PROGRAM: 3}


def test_a_guest_kernel_without_symbols_is_told(tmp_path: Path) -> None:
    (tmp_path / "kallsyms").write_text("ffffffff81000000 T tcp_sendmsg\n")
    with pytest.raises(LabError, match="CONFIG_KALLSYMS"):
        Tables(Told([], {"maps linux-s1": ""}), tmp_path / "kallsyms", None)


def test_members_of_a_structure_are_found_in_the_kernels_own_description() -> None:
    names = b"\0task_struct\0comm\0tgid\0"
    members = struct.pack("<III", names.index(b"comm"), 0, 2976 * 8) + struct.pack("<III", names.index(b"tgid"), 0, 320)
    integer = struct.pack("<III", 0, 1 << 24, 4) + bytes(4)
    types = integer + struct.pack("<III", 1, 4 << 24 | 2, 0) + members
    header = struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(types), len(types), len(names))
    kernel_file = b"\x7fELF some code" + header + types + names
    assert btf.offsets(kernel_file, "task_struct") == {"comm": 2976, "tgid": 40}
    with pytest.raises(LabError, match="has no structure nobody"):
        btf.offsets(kernel_file, "nobody")
    with pytest.raises(LabError, match="CONFIG_DEBUG_INFO_BTF"):
        btf.offsets(b"\x7fELF", "task_struct")


def test_a_kernel_that_is_packed_otherwise_is_told() -> None:
    with pytest.raises(LabError, match="packed with zstd, not with xz"):
        kernel._uncompressed(b"MZ" + b"\x28\xb5\x2f\xfd")


@pytest.mark.parametrize(
    ("said", "refused"),
    [
        ("qemu-system-x86_64: -plugin: invalid option", True),
        ("qemu-system-x86_64: plugin interface not enabled in this build", True),
        ("qemu-system-x86_64: Could not load plugin help: help.so: cannot open shared object file", False),
    ],
)
def test_a_qemu_without_plugins_is_told(said: str, refused: bool) -> None:
    assert bool(machine.refused(said)) is refused


def test_a_qemu_that_has_outgrown_our_plugin_is_told() -> None:
    assert machine.outgrown((7, 2)) is None
    assert "QEMU 10.0 loads no plugins" in (machine.outgrown((10, 0)) or "")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ('path = "none"', None),
        ('path = "ovs-dpdk"', "path ovs-dpdk cannot be laid in the counted host"),
        ('path = "none", pairs = 2', "holds one pair"),
        ('path = "none", mtu = 9000', "an MTU of 1500"),
        ('path = "none", traffic = { workload = "ping" }', "one flow of the workload path-length"),
        ('path = "bridge", ends = "guest-host"', "guests at both ends, or dom0 at one of them"),
        ('path = "bridge", guest = "xen", ends = "guest-host"', None),
        ('path = "none", guest = "xen", ends = "host-guest"', "at an end of back ends only"),
        ('path = "bridge", guest = "xen", pairs = 4, traffic = { workload = "held-memory" }', None),
        ('path = "bridge", traffic = { workload = "held-memory" }', 'state guest = "xen"'),
        ('path = "bridge", guest = "xen", pairs = 5, traffic = { workload = "held-memory" }', "8 guests at most"),
        ('path = "bridge", guest = "xen", mtu = 9000, traffic = { workload = "held-memory" }', "an MTU of 1500"),
        ('path = "none", guest = "xen", traffic = { workload = "held-memory" }', "on the paths bridge and memlane"),
    ],
)
def test_what_cannot_be_counted_is_refused(tmp_path: Path, changed: str, said: str | None) -> None:
    file = tmp_path / "own.toml"
    file.write_text(_COUNTED.replace('path = "none"', changed))
    setting = plan.variants(experiment.load(file))[0].setting
    reason = sampler.refuses(setting)
    assert (reason is None) if said is None else (reason is not None and said in reason)


class _Boots:
    """Boots of Xen that tell their phase."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.phases: list[tuple[str, list[int]]] = []
        self.fails = ""
        monkeypatch.setattr(sampler, "_in_xen", self._boot)

    def _boot(self, setting: Setting, flows: Sequence[Flow], _folder: Path, phases: Sequence[int]) -> list[Values]:
        self.phases.append((setting.path, list(phases)))
        if setting.path == self.fails:
            raise LabError("it burnt down")
        return [({"phase": phase}, {}) for phase in phases for _ in flows]


def _xen_variants(folder: Path) -> list[plan.Variant]:
    """Two that need a boot each."""
    file = folder / "own.toml"
    stated = 'native = { path = "none", guest = "xen" }\nnetback = { path = "bridge", guest = "xen" }'
    file.write_text(_COUNTED.replace('native = { path = "none" }', stated))
    return plan.variants(experiment.load(file))


@pytest.mark.parametrize(
    ("rounds", "boots"), [(1, [[0]]), (6, [[0, 1, 2, 3, 4, 5]]), (8, [[0, 1, 2, 3, 4, 5], [6, 7]])]
)
def test_a_boot_of_xen_holds_the_rounds_that_are_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rounds: int, boots: list[list[int]]
) -> None:
    booted, variants = _Boots(monkeypatch), _xen_variants(tmp_path)
    turns = [plan.Turn(number, variant) for number in range(rounds) for variant in variants]
    with sampler.CountingSampler(variants, tmp_path / "raw", rounds=rounds) as taker:
        samples = [taker.take(turn) for turn in turns]
    assert [sample.values["phase"] for sample in samples] == [turn.round for turn in turns]
    for path in ("none", "bridge"):
        assert [phases for booted_path, phases in booted.phases if booted_path == path] == boots


def test_what_was_counted_before_is_not_booted_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    booted, variants = _Boots(monkeypatch), _xen_variants(tmp_path)
    with sampler.CountingSampler(variants[:1], tmp_path / "raw", rounds=1) as taker:
        taken = [taker.take(plan.Turn(0, variants[0]))]
    booted.phases.clear()
    with sampler.CountingSampler(variants, tmp_path / "raw", rounds=1, taken=taken) as taker:
        sample = taker.take(plan.Turn(0, variants[1]))
    assert (sample.number, booted.phases) == (2, [("bridge", [0])])


def test_a_boot_that_fails_costs_its_own_samples_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    booted, variants = _Boots(monkeypatch), _xen_variants(tmp_path)
    booted.fails = "none"
    with sampler.CountingSampler(variants, tmp_path / "raw", rounds=2) as taker:
        samples = [taker.take(plan.Turn(number, variant)) for number in range(2) for variant in variants]
    assert [sample.error for sample in samples] == ["LabError: it burnt down", None] * 2
    assert sorted(path for path, _ in booted.phases) == ["bridge", "none"], "not booted for each sample again"


def test_machines_end_with_their_sampler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def boot(*_: object) -> list[Values]:
        machine._run(["sleep", "600"], timeout=600)
        raise LabError("it was ended")

    monkeypatch.setattr(sampler, "_in_xen", boot)
    variants, begin = _xen_variants(tmp_path), time.monotonic()
    with sampler.CountingSampler(variants, tmp_path / "raw", rounds=1) as taker:
        taker._begin(0, "")
    assert time.monotonic() - begin < 60
    assert not machine._running


@pytest.mark.real
@pytest.mark.prove
def test_two_boots_agree_to_the_instruction(tmp_path: Path) -> None:
    flows = [Flow("tcp", 65536, 4), Flow("udp", 1400, 8, 4)]

    def boot(name: str) -> Told:
        (tmp_path / name).mkdir()
        return host.run("none", {}, flows, None, tmp_path / name)

    with ThreadPoolExecutor() as both:
        told = list(both.map(boot, ("one", "two")))
    assert [each.flow for each in told[0].windows] == [each.flow for each in told[1].windows]
    assert [sorted(each.counts) for each in told[0].windows] == [sorted(each.counts) for each in told[1].windows]
    tables = Tables(told[0], kernel.kernel().symbols, None)
    bulk = counts.summary(counts.shares(told[0].windows[0], tables))
    assert bulk.by_stage["copy user-kernel"] > 0
    assert bulk.stores["copy user-kernel"] > 2 * 4 * 65536 / 8 * 0.9, "copied in and out, eight bytes a store"
    assert bulk.by_stage["the rest"] < 0.15 * bulk.instructions
    assert bulk.by_party[Party.RECEIVER_HOST] > 0
    assert isinstance(tables.host, Symbols)


@pytest.mark.real
@pytest.mark.prove  # of the programs as users have them: compiled for tests, the copy loads each word several times
def test_memlane_copies_once_from_guest_to_guest(tmp_path: Path) -> None:
    switch = memlane.program()
    assert switch, "run make build"
    told = host.run("memlane", {}, [Flow("tcp", 65536, 8)], switch, tmp_path)
    summary = counts.summary(counts.shares(told.windows[0], Tables(told, kernel.kernel().symbols, switch)))
    words = 8 * 65536 / 8
    assert words * 0.5 < summary.loads["copy guest-guest"] < words * 1.5, "one copy by words, not two"
    assert words * 0.5 < summary.stores["copy guest-guest"] < words * 1.5
    for party in (Party.SENDER_GUEST, Party.RECEIVER_GUEST, Party.SWITCH, Party.SWITCH_HOST):
        assert summary.by_party[party] > 0, party
    assert summary.by_stage["the rest"] < 0.15 * summary.instructions
