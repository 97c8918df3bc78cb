"""The table of stages, and symbol tables."""

from pathlib import Path

import pytest

from memlane_lab.common.errors import LabError
from memlane_lab.counting import stages
from memlane_lab.counting.stages import Place, Symbols


@pytest.mark.parametrize(
    ("place", "symbol", "stage"),
    [
        (Place.NATIVE_KERNEL, "copy_user_generic_string", "copy user-kernel"),
        (Place.HOST_KERNEL, "copy_user_generic_string", "copy guest-guest"),
        (Place.HOST_KERNEL, "br_handle_frame", "bridge or switch"),
        (Place.HOST_KERNEL, "tun_get_user.constprop.0", "guest-host crossing"),
        (Place.NATIVE_KERNEL, "tcp_sendmsg_locked", "socket and TCP/UDP"),
        (Place.GUEST_KERNEL, "ip_rcv.isra.0", "IP"),
        (Place.GUEST_KERNEL, "virtqueue_add_split", "qdisc and driver"),
        (Place.SWITCH, "memlane_virtq::copy::x86::copy_avx2", "copy guest-guest"),
        (Place.SWITCH, "memlane_dataplane::worker::Worker::iterate", "bridge or switch"),
        (Place.SWITCH_KERNEL, "eventfd_write", "notification and wake-up"),
        (Place.HOST_KERNEL, "__schedule", "scheduling"),
        (Place.NATIVE_KERNEL, "default_idle_call", "idle"),
        (Place.NATIVE_KERNEL, "nobody_knows_this", stages.REST),
        (Place.NATIVE_KERNEL, None, stages.REST),
    ],
)
def test_a_function_belongs_to_a_stage_by_where_it_ran(place: Place, symbol: str | None, stage: str) -> None:
    assert stages.usual().of(place, symbol) == stage


def test_a_table_with_a_mistake_is_refused_with_the_mistake(tmp_path: Path) -> None:
    table = tmp_path / "stages.toml"
    table.write_text(
        'stages = ["the rest", "idle"]\n[[rule]]\nstage = "bridge"\nplaces = ["host kernel"]\nsymbols = []\n'
    )
    with pytest.raises(LabError, match="rules name stages that the list `stages` lacks: bridge"):
        stages.load(table)


def test_kallsyms_name_functions_of_the_kernel_and_of_its_modules() -> None:
    text = "ffffffff81000000 T one\nffffffff81000100 t two\nffffffff81000180 D data\nffffffffc0000000 t three\t[tun]\n"
    symbols = Symbols.of_kallsyms(text)
    assert [symbols.name(address) for address in (0xFFFFFFFF81000010, 0xFFFFFFFF81000100, 0xFFFFFFFFC0000004)] == [
        "one", "two", "three",
    ]  # fmt: skip
    assert symbols.name(0x1000) is None


def test_hidden_addresses_are_told_with_the_remedy() -> None:
    with pytest.raises(LabError, match=r"kernel\.kptr_restrict=0"):
        Symbols.of_kallsyms("0000000000000000 T one\n0000000000000000 t two\n")


def test_a_stripped_program_is_told(tmp_path: Path) -> None:
    program = tmp_path / "stripped"
    program.write_bytes(Path("/bin/true").read_bytes())
    with pytest.raises(LabError, match="is stripped, so"):
        Symbols.of_program(program)
