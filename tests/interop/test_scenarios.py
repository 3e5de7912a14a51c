"""The scenarios against Apache Pulsar 5.0.0-M1 itself, which does what is recorded, and those of its clients of Java
against a broker of ours. Those of its client of Python are in test_recorded.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from tests.interop.agent import Agent
from tests.interop.scenes.running import (
    SCENARIOS,
    expected,
    recorded,
    run,
    run_java,
    run_java_killed,
    run_java_killed_again,
    run_killed,
    start_agent,
)
from tests.interop.scenes.servers import JARS, Ours, Standalone
from tests.interop.scenes.world import Scenario

pytestmark = pytest.mark.timeout(900)
OF_PYTHON = [one for one in SCENARIOS.values() if not one.java and not one.killed]
OF_JAVA = [one for one in SCENARIOS.values() if one.java and not one.killed]
PYTHON_KILLED = [one for one in SCENARIOS.values() if not one.java and one.killed]
JAVA_KILLED = [one for one in SCENARIOS.values() if one.java and one.killed]

in_module = pytest.mark.asyncio(loop_scope="module")


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
async def their_agent(standalone: Standalone) -> AsyncIterator[Agent]:
    agent = await start_agent(standalone, standalone.data / "agent.log")
    yield agent
    await agent.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def our_agent(ours: Ours) -> AsyncIterator[Agent]:
    agent = await start_agent(ours, ours.data / "agent.log")
    yield agent
    await agent.close()


@pytest.mark.parametrize("one", OF_PYTHON, ids=lambda one: one.name)
def test_apache_pulsar_does_what_is_recorded(standalone: Standalone, one: Scenario):
    hoped = recorded()[one.name]
    assert run(standalone, one, hoped) == hoped


def test_apache_pulsar_is_killed_and_does_what_is_recorded(standalone: Standalone):
    hoped = recorded()
    found = run_killed(standalone, PYTHON_KILLED, hoped)
    assert found == {name: hoped[name] for name in found}


@in_module
@pytest.mark.parametrize("one", OF_JAVA, ids=lambda one: one.name)
async def test_apache_pulsar_does_for_java_what_is_recorded(standalone: Standalone, their_agent: Agent, one: Scenario):
    assert one.certain(await run_java(standalone, one, their_agent)) == one.certain(recorded()[one.name])


@in_module
@pytest.mark.parametrize("one", OF_JAVA, ids=lambda one: one.name)
async def test_java_finds_here_what_it_finds_at_apache_pulsar(ours: Ours, our_agent: Agent, one: Scenario):
    assert await run_java(ours, one, our_agent) == expected()[one.name]


@in_module
async def test_apache_pulsar_is_killed_and_does_for_java_what_is_recorded(standalone: Standalone, their_agent: Agent):
    hoped = recorded()
    found = await run_java_killed_again(standalone, JAVA_KILLED, their_agent)
    assert found == {name: hoped[name] for name in found}


@in_module
async def test_java_finds_here_what_it_finds_at_apache_pulsar_after_a_kill(ours: Ours, our_agent: Agent):
    hoped = expected()
    found = await run_java_killed(ours, JAVA_KILLED, our_agent)
    assert found == {name: hoped[name] for name in found}
