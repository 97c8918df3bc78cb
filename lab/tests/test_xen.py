"""The bed of Xen: plans of guests and dom0, domains of counted instructions; and the real thing."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from memlane_lab.common.errors import LabError
from memlane_lab.counting import counts, host
from memlane_lab.counting.counts import Party
from memlane_lab.counting.host import Flow, Window
from memlane_lab.paths import memlane
from memlane_lab.workloads.held_memory import State
from memlane_lab.xen import bed, memory
from memlane_lab.xen import counts as domains
from memlane_lab.xen.bed import Plan

_FLOWS = (Flow("tcp", 65536, 8), Flow("udp", 1400, 16, 4))
_XEN, _KERNEL, _PROGRAM = 0xFFFF82D040200000, 0xFFFFFFFF81000000, 0x401000
_FOR_IT = 1 << 31


def test_what_is_told_comes_by_part() -> None:
    assert host.parts(b"== script\r\na\r\nb\r\n== end\r\n") == {"script": "a\nb", "end": ""}


def test_each_path_has_its_own_hotplug_script() -> None:
    netback, memlane = (bed.config(Plan(path=path), "c1", 1) for path in ("netback", "memlane"))
    assert "bridge=xenbr0,script=vif-bridge" in netback
    assert "script=vif-memlane" in memlane
    assert "counted=c1" in netback


def test_a_bare_guest_has_no_interface_until_dom0_attaches_one() -> None:
    assert "vif = []" in bed.config(Plan(bare="look before"), "c1", 1)


def test_what_is_held_is_what_is_less_free_than_before() -> None:
    guest = "held before 1000 0\nheld before 990 0\r\nheld idle 700 40\nheld idle 720 60\nheld after 980 0\n"
    dom0 = memory.looks("held before 5000 100\nheld idle 4500 300\nheld busy 4000 300\nheld after 4900 100\n")
    guests = [memory.looks(f"{guest}held busy 500 80\n"), memory.looks(f"{guest}held busy 690 50\n")]
    found = memory.held(dom0, guests)
    kib = {state: {name: int(value / 1024) for name, value in each.items()} for state, each in found.items()}
    assert kib[State.IDLE] == {
        "holds": 580 + 300 + 300,
        "holds_per_guest": 590,
        "guests_hold": 2 * 290,
        "rings_hold": 120,
        "dom0_holds": 300,
        "switch_holds": 300,
    }, "of the 500 that dom0 has less, 200 are the switch's, which had 100 before"
    assert kib[State.BUSY]["guests_hold"] == 490 + 300
    assert kib[State.AFTER]["holds"] == 20 + 100 + 100


def test_a_state_that_nobody_looked_at_is_an_error() -> None:
    seen = memory.looks("held before 1 0\nheld idle 1 0\nheld after 1 0")
    with pytest.raises(LabError, match="memory was not measured in the state busy"):
        memory.held(seen, [seen])


def test_a_script_that_ends_without_a_word_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bed, "boot", lambda *_: {"status": "1\n", "guest-c1": "held no answer from 2\n"})
    with pytest.raises(LabError, match="held no answer from 2; dom0's script ended with status 1, and said nothing"):
        memory.measure(Plan(), 8, tmp_path)


@pytest.fixture
def told(tmp_path: Path) -> dict[str, str]:
    """Output of dom0: pages 10 and 11 are c1's, page 20 is s1's."""
    (tmp_path / "kallsyms").write_text("ffffffff81000000 T tcp_sendmsg\n")
    return {
        "hypervisor": "ffff82d040200000 T gnttab_copy\nffff82d040201000 T idle_loop\n",
        "modules": "ffffffffc0000000 t br_handle_frame\t[bridge]\n",
        "guest-c1": "[    1.0] words\nffffffffc0000000 t xennet_poll\t[xen_netfront]\n",
        "frames c1": "a\nb",
        "frames s1": "14",
    }


@pytest.mark.parametrize(
    ("whose", "address", "party", "stage"),
    [
        (10, _PROGRAM, Party.SENDER_PROGRAM, "program"),
        (11, _KERNEL, Party.SENDER_GUEST, "socket and TCP/UDP"),
        (10, 0xFFFFFFFFC0000004, Party.SENDER_GUEST, "qdisc and driver"),
        (20, _KERNEL, Party.RECEIVER_GUEST, "socket and TCP/UDP"),
        (30, 0xFFFFFFFFC0000004, Party.SWITCH_HOST, "bridge or switch"),
        (30, _PROGRAM, Party.LAB, "program"),
        (30 | _FOR_IT, _XEN, Party.SWITCH_XEN, "copy guest-guest"),
        (20 | _FOR_IT, _XEN, Party.RECEIVER_XEN, "copy guest-guest"),
        (20 | _FOR_IT, _XEN + 0x1000, Party.RECEIVER_XEN, "idle"),
    ],
)
def test_an_instruction_belongs_to_the_domain_whose_page_it_lies_in(
    told: dict[str, str], tmp_path: Path, whose: int, address: int, party: Party, stage: str
) -> None:
    tables = domains.Tables(told, tmp_path / "kallsyms", None)
    share = next(domains.shares(Window({}, [], [(whose, address, 5, 0, 0, 0)]), tables))
    assert (share.party, share.stage, share.instructions) == (party, stage, 5)


def test_natively_dom0_is_both_machines(told: dict[str, str], tmp_path: Path) -> None:
    tables = domains.Tables(told, tmp_path / "kallsyms", None, native=True)
    window = Window({}, [], [(30, _KERNEL, 5, 0, 0, 0), (30, _PROGRAM, 3, 0, 0, 0), (30 | _FOR_IT, _XEN, 2, 0, 0, 0)])
    assert counts.summary(domains.shares(window, tables)).by_party == {Party.NATIVE: 8, Party.SWITCH_XEN: 2}


def test_dom0_may_be_a_machine_itself(told: dict[str, str], tmp_path: Path) -> None:
    plan = Plan(path="memlane", here="s1")
    assert list(plan.names()) == ["c1"]
    tables = domains.Tables(told, tmp_path / "kallsyms", None, here="s1")
    window = Window({}, [], [(30, _PROGRAM, 3, 0, 0, 0), (30, _KERNEL, 5, 0, 0, 0), (30, 0x7F00_0000_0000, 1, 0, 0, 0)])
    by_party = counts.summary(domains.shares(window, tables)).by_party
    assert by_party == {Party.RECEIVER_PROGRAM: 3, Party.SWITCH_HOST: 5}, "dom0's daemons are left out"


@pytest.mark.xen
@pytest.mark.timeout(1200)
def test_two_boots_of_xen_agree_to_the_instruction(tmp_path: Path) -> None:
    def boot(name: str) -> tuple[list[Window], domains.Tables]:
        (tmp_path / name).mkdir()
        return bed.count(Plan(flows=_FLOWS), tmp_path / name)

    with ThreadPoolExecutor() as both:  # side by side, so that each disturbs the other as much as it can
        (first, tables), (second, _) = both.map(boot, ("one", "two"))
    assert [window.flow for window in first] == [window.flow for window in second]
    assert [sorted(window.counts) for window in first] == [sorted(window.counts) for window in second]
    summary = counts.summary(domains.shares(first[0], tables))
    for party in (Party.SENDER_GUEST, Party.RECEIVER_GUEST, Party.SWITCH_HOST, Party.SENDER_XEN, Party.SWITCH_XEN):
        assert summary.by_party[party] > 0, party
    assert summary.by_stage["copy guest-guest"] > 0
    assert summary.by_stage["the rest"] < 0.15 * summary.instructions


@pytest.mark.real
@pytest.mark.longest
@pytest.mark.timeout(900)
def test_unmodified_guests_talk_over_memlane(tmp_path: Path) -> None:
    switch = memlane.program()
    assert switch, "run make build"
    inside = "[ $counted = s1 ] || ping -c 3 10.0.0.2"
    plan = Plan(
        path="memlane", switch=switch, inside=inside, script="finished c1 60; xl list; lsmod | grep -c xen_netback"
    )
    parts = bed.boot(plan, tmp_path)
    assert "3 packets transmitted, 3 received" in parts["guest-c1"]
    assert parts["script"].splitlines()[-1] == "0", "Linux's own back end is not there"


_MAP_IS_TOLD = """
owners() { # the machines that have 10.0.0.2 and 10.0.0.3
    owners=
    for address in 10.0.0.2 10.0.0.3; do
        owner=none
        while read -r _ machine _ addresses; do
            case " $addresses " in *" $address "*) owner=${machine%:} ;; esac
        done </sys/kernel/debug/xenvmnic/pairs
        owners="$owners $owner"
    done
}
case $counted in
c1)
    while sleep 1; do
        owners
        [ "$owners" = "$before" ] || echo "map$owners"
        before=$owners
        set -- $owners
        [ "$1" = none ] || [ "$1" != "$2" ] || break
    done
    ping -n -c 3 -W 10 10.0.0.2
    sleep 25
    owners
    echo "later$owners"
    ;;
g3)
    read -r word
    ip address add 10.0.0.2/24 dev eth0
    ;;
esac
"""
"""In the guests: c1 tells each change of the owners of two addresses until g3 has both, and asks it for one of them."""
_A_MACHINE_STANDS_STILL = """
told() { # OWNERS: waits until c1 told these last
    local tries=90
    until [ "$(tr -d '\\r' </var/log/xen/console/guest-c1.log | grep '^map' | tail -n 1)" = "map $1" ]; do
        [ $((tries--)) -gt 0 ] || exit 1
        sleep 1
    done
}
s1=$(xl domid s1) g3=$(xl domid g3)
echo "$s1 $g3"
told "$s1 $g3"
xl pause s1
told "none $g3"
xl unpause s1
told "$s1 $g3"
xl pause s1
told "none $g3"
echo word >"$(xenstore-read "/local/domain/$g3/console/tty")"
told "$g3 $g3"
xl unpause s1
finished c1 120
xenstore-read "/xenvmnet/$s1/addresses"
"""
"""In dom0: s1 stands still twice, and g3 takes its address the second time."""


@pytest.mark.xen
@pytest.mark.timeout(900)
def test_the_address_of_a_machine_that_is_gone_is_free_for_another(tmp_path: Path) -> None:
    """The timer of the map alone frees it, for its folder in xenstore stays; the one that has it then keeps it."""
    plan = Plan(
        path="xenvmnic",
        guests=("c1", "s1", "g3"),
        module="address_seconds=20 idle_seconds=3",
        inside=_MAP_IS_TOLD,
        script=_A_MACHINE_STANDS_STILL,
    )
    parts = bed.boot(plan, tmp_path, seconds=840)
    assert parts["status"].strip() == "0", parts["script"] + parts["guest-c1"]
    ids, addresses = parts["script"].splitlines()
    s1, g3 = ids.split()
    assert addresses == "10.0.0.2", "s1 says still that it has it"
    lines = parts["guest-c1"].splitlines()
    told = [line.removeprefix("map ") for line in lines if line.startswith("map ")]
    both, gone = f"{s1} {g3}", f"none {g3}"
    at = told.index(both)
    assert told[at:] == [both, gone, both, gone, f"{g3} {g3}"], told
    assert f"later {g3} {g3}" in lines
    assert "3 packets transmitted, 3 received" in parts["guest-c1"]


@pytest.mark.xen
@pytest.mark.timeout(900)
def test_what_the_network_holds_is_looked_at_in_every_state(tmp_path: Path) -> None:
    found = memory.measure(Plan(path="memlane", switch=memlane.program()), 8, tmp_path)
    for state, held in found.items():
        assert 2 * 1024**2 < held["guests_hold"] < 64 * 1024**2, f"{state}: netfront posts a page for each of 256 slots"
        assert 0 < held["switch_holds"] < 64 * 1024**2
    assert found[State.BUSY]["guests_hold"] > found[State.IDLE]["guests_hold"], "programs and sockets"
