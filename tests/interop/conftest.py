"""A broker with a port, and a Java process with Apache Pulsar's client connected to it."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

import engine
from tests.interop.agent import PULSAR, Agent

_numbers = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith("tests/interop/") and item.path.name != "test_recorded.py":
            item.add_marker(pytest.mark.interop)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served() -> AsyncIterator[engine.AsyncEngine]:
    async with engine.open_async(":memory:", listen="127.0.0.1:0") as opened:
        yield opened


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def agent(served: engine.AsyncEngine, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Agent]:
    """Connected as `client`."""
    assert (PULSAR / "java").exists(), "make interop brings what these tests need"
    started = await Agent.start(tmp_path_factory.mktemp("agent") / "agent.log")
    try:
        await started.ask("client", name="client", url=service_url(served))
        yield started
    finally:
        await started.close()


def service_url(served: engine.AsyncEngine) -> str:
    assert served.service_url is not None
    return f"pulsar://{served.service_url.partition('://')[2]}"


@pytest.fixture
def topic() -> str:
    return f"topic://public/default/t{next(_numbers)}"
