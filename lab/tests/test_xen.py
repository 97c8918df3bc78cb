"""The bed of Xen: what guests and dom0 are given; the real thing is booted by `make test-xen`."""

from memlane_lab.counting import host
from memlane_lab.xen import bed
from memlane_lab.xen.bed import Plan


def test_what_is_told_comes_by_part() -> None:
    assert host.parts(b"== script\r\na\r\nb\r\n== end\r\n") == {"script": "a\nb", "end": ""}


def test_each_path_has_its_own_hotplug_script() -> None:
    netback, memlane = (bed.config(Plan(path=path), "c1", 1) for path in ("netback", "memlane"))
    assert "bridge=xenbr0,script=vif-bridge" in netback
    assert "script=vif-memlane" in memlane
    assert "counted=c1" in netback
