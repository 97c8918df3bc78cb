"""Beds that the tests of one file share, the check of the switch after each test, and the report of failures."""

from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest

from memlane_lab.host.session import Session
from tests.end_to_end.lan import BEDS, PAIRS, Lan
from tests.end_to_end.transfer import Library, broken_packets

Builder = Callable[..., Lan]


LANS = pytest.StashKey[list[Lan]]()
"""The networks that a test has built, or shares."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds to the report of a test that failed how its networks were then."""
    report = yield
    if call.when == "call" and report.failed:
        report.sections += [("network", lan.tell()) for lan in item.stash.get(LANS, [])]
    return report


@pytest.fixture
def build(request: pytest.FixtureRequest, session: Session) -> Iterator[Builder]:
    """Builds lans for one test: `build(UML, Plan(TCG, queues=2), workers=2)`; they are looked at after the test."""
    built: list[Lan] = []
    request.node.stash[LANS] = built

    def build_one(*plans: Any, **settings: Any) -> Lan:
        built.append(Lan(session, plans, **settings))
        return built[-1]

    yield build_one
    for lan in built:
        lan.switch.check()


@pytest.fixture(scope="module", params=PAIRS)
def shared_pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lan]:
    """Each bed in turn, booted once for all tests of a file."""
    with Session(tmp_path_factory.mktemp("logs")) as session:
        yield Lan(session, BEDS[request.param])


@pytest.fixture
def pair(request: pytest.FixtureRequest, shared_pair: Lan) -> Iterator[Lan]:
    """Two guests for a test that leaves them as they were; afterwards nothing may have been broken on its way."""
    request.node.stash[LANS] = [shared_pair]
    before = [broken_packets(guest) for guest in shared_pair.guests]
    yield shared_pair
    shared_pair.switch.check()
    assert [broken_packets(guest) for guest in shared_pair.guests] == before


@pytest.fixture(scope="module")
def libraries(shared_pair: Lan) -> list[Library]:
    """A file in each guest of the shared pair for the other to fetch."""
    return [Library(guest) for guest in shared_pair.guests]
