"""The shop: measures from its output and logs, and the whole of it once on real guests."""

import re
from pathlib import Path
from typing import Any

import pytest

from memlane_lab.common.errors import LabError
from memlane_lab.experiment import plan
from memlane_lab.experiment.experiment import Experiment
from memlane_lab.experiment.plan import Turn
from memlane_lab.experiment.setting import Setting
from memlane_lab.host.ports import GuestKind
from memlane_lab.host.session import Session
from memlane_lab.images import shop as images
from memlane_lab.images.shop import SMALL, SOURCE
from memlane_lab.measuring import sample
from memlane_lab.measuring.calibration import Limits
from memlane_lab.results.results import Sample
from memlane_lab.shop import account, browsers
from memlane_lab.shop.account import Logs
from memlane_lab.shop.interactions import PARTS, TITLES

_SHOP = {"items": SMALL[0], "customers": SMALL[1]}
_LINES = """\
home 10000.0 0.5 20.000 30.000 900 3 0 1-1 -
book 9000.0 1.0 10.000 11.000 800 0 0 2-1 -
cart 11000.0 8000.0 2.000 8002.000 0 0 1 1-2 status-502
"""
_WEB = "1-1 200 0.018 0.015 0.000 900\n2-1 200 0.009 0.008 0.000 800\n1-2 502 0.001 - - 150\n"
_APPLICATION = "1-1 / 200 12000 10 8000 2 900\n2-1 /book/7 200 7000 10 4000 2 800\n"


def test_lines_become_interactions_in_the_order_in_which_they_were_due() -> None:
    first, second, third = browsers.read(_LINES)
    assert (first.name, first.due, first.late, first.page, first.response) == ("book", 9.0, 0.001, 0.01, 0.011)
    assert second.fault is None
    assert (third.fault, third.turn) == ("status-502", 1)
    assert third.end == pytest.approx(19.002)


def test_what_was_due_outside_of_the_measured_part_does_not_count() -> None:
    assert [each.name for each in account.measured(browsers.read(_LINES), 9.5, 1.4)] == ["home"]


def test_failures_are_counted_and_no_answer_time_is_taken_from_them() -> None:
    values = account.responses(browsers.read(_LINES), 2.0)
    assert (values["failed"], values["offered"], values["interactions"]) == (1, 1.5, 1.0)
    assert values["errors"] == pytest.approx(1 / 3)
    assert values["felt_max"] == 0.03
    assert "shop_cart_mean" not in values


def test_only_the_begin_of_a_session_tells_how_late_the_generator_is() -> None:
    """A later page of a session may have waited for an answer: that wait is the shop's."""
    assert account.responses(browsers.read(_LINES), 2.0)["lateness"] == 0.001


def test_a_percentile_needs_enough_observations() -> None:
    assert set(account.spread([0.1] * 99)) == {"mean", "p50", "p90", "max"}
    assert set(account.spread([0.1] * 1000)) == {"mean", "p50", "p90", "p99", "p999", "max"}


def test_the_parts_of_a_response_add_up_to_it() -> None:
    found = browsers.read(_LINES)
    parts = account.parts(found, Logs(_WEB, _APPLICATION, 0.001))
    spent = [parts[name] for name in PARTS]
    assert sum(spent) == pytest.approx(account.responses(found, 1.0)["felt_mean"])
    assert parts["part_database"] == pytest.approx(0.002)
    assert parts["part_network_web"] == pytest.approx((0.002 + 0.001) / 2)
    assert parts["part_network_application"] == pytest.approx((0.003 + 0.001) / 2)
    assert parts["part_network_database"] == pytest.approx(0.006 - 0.002)


def test_a_log_that_lacks_a_page_does_not_make_it_free() -> None:
    parts = account.parts(browsers.read(_LINES), Logs(_WEB, _APPLICATION.splitlines()[0] + "\n", 0.0))
    assert parts["part_application"] == pytest.approx(0.004)


def test_a_fault_shows_as_a_gap_and_a_recovery() -> None:
    found = browsers.read(_LINES)
    assert account.outage(found, 9.5, 18.0, 20.0) == {
        "gap": pytest.approx(20.0 - 10.03),
        "failing": pytest.approx(19.002 - 9.5),
        "failed_after": 1,
    }
    assert account.outage(found, 9.5, 19.5, 20.0)["failed_after"] == 0
    assert account.outage(found[:2], 9.5, 9.6, 12.0) == {"gap": pytest.approx(1.97), "failing": 0.0, "failed_after": 0}


def test_nothing_is_drawn_where_nothing_was_due() -> None:
    lines = account.over_time(browsers.read(_LINES), 9.0, 3.0)
    assert [at for at, _ in lines["response"]] == [0.25, 1.25, 2.25]
    assert sum(value for _, value in lines["failures"]) * account.POINT == 1


def test_a_generator_that_left_sessions_out_fails_the_sample() -> None:
    browsers.check_summary('noise\n{"sessions":12,"dropped":0}\n')
    with pytest.raises(LabError, match="could not keep its rate: it left 3 sessions out"):
        browsers.check_summary('{"sessions":12,"dropped":3}')
    with pytest.raises(LabError, match="without its summary"):
        browsers.check_summary("panic: something")


def test_each_mix_is_whole_and_of_all_interactions() -> None:
    script = (SOURCE / "load" / "browsers.js").read_text()
    mixes = re.findall(r"^  (browsing|shopping|ordering): \[([\d, ]+)\]", script, re.MULTILINE)
    weights = {name: [int(weight) for weight in listed.split(",")] for name, listed in mixes}
    assert {name: (len(each), sum(each)) for name, each in weights.items()} == {
        "browsing": (14, 10_000),
        "shopping": (14, 10_000),
        "ordering": (14, 10_000),
    }
    (listed,) = re.findall(r"^const NAMES = \[(.*?)\]", script, re.MULTILINE)
    assert re.findall(r"'(\w+)'", listed) == list(TITLES)


def test_every_interaction_has_a_page_that_says_its_name() -> None:
    pages = "".join(path.read_text() for path in (SOURCE / "application/src/pages").glob("*.rs"))
    named = set(re.findall(r'\bpage\(\s*"(\w+)"', pages))
    assert named == set(TITLES)


def _setting(**stated: Any) -> Setting:
    return Setting.model_validate(
        {"path": "memlane", "shop": _SHOP, "traffic": {"workload": "shop", "rate": 5}} | stated
    )


def test_a_shop_has_its_machines_and_browsers_ask_its_web_server() -> None:
    setting = _setting(shop=_SHOP | {"copies": 2})
    assert setting.machines() == ["load1", "web1", "app1", "db1", "load2", "web2", "app2", "db2"]
    assert [flow[:2] for flow in setting.flows()] == [("load1", "web1"), ("load2", "web2")]
    kinds = plan.kinds(setting, GuestKind.UML)
    assert kinds == [GuestKind.NETNS, GuestKind.UML, GuestKind.UML, GuestKind.UML] * 2
    together = _setting(shop=_SHOP | {"together": True}, pairs=1)
    assert together.machines() == ["c1", "s1", "load1", "web1"]


def test_browsers_without_a_shop_are_a_mistake() -> None:
    with pytest.raises(ValueError, match="need a shop"):
        Setting.model_validate({"path": "memlane", "traffic": {"workload": "shop", "rate": 5}})
    with pytest.raises(ValueError, match="needs a rate"):
        _setting(traffic={"workload": "shop"})


def test_a_share_becomes_a_rate_of_what_the_bridge_can_do_which_is_found_once(tmp_path: Path) -> None:
    asked: list[Setting] = []

    def measure(setting: Setting) -> float:
        asked.append(setting)
        return 80.0

    halves = _setting(shop=_SHOP | {"copies": 2}, traffic={"workload": "shop", "share": 0.5})
    for _ in range(2):  # the second goes on where the first was
        limits = Limits(measure, tmp_path / "limits.json")
        (traffic,) = limits.applied(halves).traffic
        assert traffic.parameters["rate"] == 20.0
    assert limits.of(halves) == 40.0
    (wanted,) = asked
    assert (wanted.path, wanted.traffic[0].parameters["think"]) == ("bridge", 0.0)
    stated = _setting()
    assert limits.applied(stated) is stated
    assert limits.of(stated) is None


def _sample(tmp_path: Path, *, kind: GuestKind = GuestKind.UML, seconds: int = 10, **traffic: Any) -> Sample:
    """One sample of the shop on memlane."""
    stated = Experiment.model_validate(
        {
            "name": "short",
            "title": "",
            "question": "",
            "seconds": seconds,
            "warm_up": 1,
            "baseline": [],
            "measures": ["felt_mean"],
            "setting": {"path": "memlane", "shop": _SHOP, "traffic": {"workload": "shop", "lateness": 5.0} | traffic},
        }
    )
    (variant,) = plan.variants(stated)
    with sample.Sampler(stated, kind, tmp_path) as sampler:
        return sampler.take(Turn(0, variant))


@pytest.mark.real
@pytest.mark.timed
def test_users_shop_in_three_tiers(tmp_path: Path) -> None:
    """The short form of the experiment three_tier: one mix, ten seconds."""
    taken = _sample(tmp_path, rate=15)
    assert taken.error is None
    values = taken.values
    assert values["failed"] == 0
    assert 8 < values["offered"] < 30
    assert values["felt_p50"] <= values["felt_p90"] <= values["felt_max"]
    assert sum(values[name] for name in PARTS) == pytest.approx(values["felt_mean"], rel=0.2)
    assert values["questions"] > 1
    assert min(values[name] for name in ("cpu_web", "cpu_app", "cpu_db", "frames_app", "kicks_app", "kicks_db")) > 0
    (flow,) = taken.flows
    assert sum(rate for _, rate in flow.lines["answers"]) * account.POINT == pytest.approx(10 * values["interactions"])


@pytest.mark.real
def test_a_switch_that_starts_again_fails_only_who_was_asking(tmp_path: Path) -> None:
    taken = _sample(tmp_path, seconds=9, rate=30, fault="network restarts")
    assert taken.error is None
    assert taken.values["failed_after"] == 0
    assert taken.values["gap"] > 0.05
    # A browser due meanwhile is charged for it; that none was due for so long is next to impossible.
    assert taken.values["felt_max"] > taken.values["gap"] / 4
    assert taken.values["interactions"] > 15


@pytest.mark.real
def test_a_generator_that_cannot_keep_its_rate_says_so(tmp_path: Path) -> None:
    taken = _sample(tmp_path, seconds=2, rate=100, at_once=3)
    assert taken.error is not None
    assert "could not keep its rate" in taken.error


def test_the_image_depends_on_all_that_the_shop_is_made_of() -> None:
    names = {path.name for path in images.sources()}
    assert {"browsers.js", "nginx.conf", "schema.sql", "Cargo.lock", "main.rs", "style.css"} <= names
    assert not any("target" in path.parts for path in images.sources())


def test_the_generator_goes_first(session: Session) -> None:
    generator = session.start("sleep", ["sleep", "60"])
    generator.go_first()
    told = [Path(f"/proc/{generator.pid}/autogroup")]
    told += [generator.group.path / "cpu.weight"] if generator.group else []
    said = {path.read_text().split()[-1] for path in told if path.exists()}
    assert said <= {"-10", "1000"}, "neither among groups nor among sessions has it been put before others"
