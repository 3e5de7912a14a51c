"""The scenarios against Apache Pulsar 5.0.0-M1 itself: it does what is recorded, and the rest as a broker of ours."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from tests.interop.agent import Agent
from tests.interop.scenes.running import SCENARIOS, recorded, run, run_killed, run_scalable
from tests.interop.scenes.scalable import SCALABLE
from tests.interop.scenes.servers import JARS, Ours, Side, Standalone
from tests.interop.scenes.world import Scenario

pytestmark = pytest.mark.timeout(900)
PLAIN = [one for one in SCENARIOS.values() if not one.killed]
KILLED = [one for one in SCENARIOS.values() if one.killed]


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    assert JARS.exists(), "make interop brings what these tests need"
    side = Standalone(tmp_path_factory.mktemp("standalone"))
    side.start()
    yield side
    side.close()


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ours]:
    side = Ours(tmp_path_factory.mktemp("ours"))
    side.start()
    yield side
    side.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def agents(
    standalone: Standalone, ours: Ours, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[dict[Side, Agent]]:
    """One for each side."""
    started: dict[Side, Agent] = {}
    try:
        for side in (standalone, ours):
            agent = started[side] = await Agent.start(tmp_path_factory.mktemp("agent") / "agent.log")
            await agent.ask("client", name="plain", url=side.url)
            await agent.ask("client", name="tc", url=side.url, transactions=True)
        yield started
    finally:
        for agent in started.values():
            await agent.close()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", SCALABLE)
async def test_a_scenario_of_scalable_topics_is_the_same_on_both_sides(agents: dict[Side, Agent], name: str):
    theirs, here = [await run_scalable(side, agent, name) for side, agent in agents.items()]
    assert here == theirs


@pytest.mark.parametrize("one", PLAIN, ids=lambda one: one.name)
def test_apache_pulsar_does_what_is_recorded(standalone: Standalone, ours: Ours, one: Scenario):
    """What is not recorded is compared with a broker of ours."""
    hoped = recorded().get(one.name)
    found = run(standalone, one, hoped)
    assert found == (hoped or run(ours, one, found))


def test_scenarios_that_kill_the_server_leave_the_same_traces(standalone: Standalone, ours: Ours):
    theirs = run_killed(standalone, KILLED)
    assert run_killed(ours, KILLED, theirs) == theirs
