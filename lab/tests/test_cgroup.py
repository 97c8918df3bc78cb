"""Control groups: the use of a process with all its children is counted, and no group stays."""

from memlane_lab.common.wait import until
from memlane_lab.host import cgroup, procfs
from memlane_lab.host.session import Session

BURN = "i=0; while [ $i -lt 200000 ]; do i=$((i + 1)); done"


def test_this_machine_can_tell_parties_apart() -> None:
    assert cgroup.lack() is None


def test_what_children_used_counts_although_they_are_gone_and_left_the_session(session: Session) -> None:
    process = session.start("burner", ["sh", "-c", f"setsid --wait sh -c '{BURN}'; echo done; exec sleep 1000"])
    until(lambda: "done" in process.tail(), timeout=60, what="the child's end")
    assert process.cpu().total > 0.05
    assert process.group is not None
    assert process.group.counts()["switches"] > 0


def test_what_threads_counted_that_have_ended_stays(session: Session) -> None:
    process = session.start("parent", ["sh", "-c", "for i in 1 2 3 4 5 6 7 8; do sleep 0.02; done; exec sleep 1000"])
    group = process.group
    assert group is not None
    seen: list[float] = []

    def counted_to_the_end() -> bool:
        told = procfs.stat(process.pid)
        seen.extend(group.counts()["wakeups"] for _ in range(20))
        return told is not None and told.name == "sleep"

    until(counted_to_the_end, timeout=60, what="the end of the children")
    assert seen == sorted(seen)
    assert seen[-1] > 0


def test_processes_of_one_name_have_groups_of_their_own(session: Session) -> None:
    one, other = (session.start("same", ["sleep", "1000"]) for _ in range(2))
    assert one.group is not None
    assert other.group is not None
    assert one.group.path != other.group.path


def test_groups_end_with_their_session_and_whatever_is_in_them() -> None:
    with Session() as session:
        process = session.start("parent", ["sh", "-c", "setsid env -i sleep 1000 & echo started; wait"])
        until(lambda: "started" in process.tail(), timeout=30, what="a child that hides")
        assert process.group is not None
        place = process.group.path
        child = next(found for found in process.group.processes() if found.pid != process.pid)
    assert not place.exists()
    assert not place.parent.exists()
    assert child.pid not in {each.pid for each in cgroup.Group(place).processes()}
