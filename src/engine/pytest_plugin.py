"""Fixtures for the tests of applications that use Engine. pytest loads this module by itself; it imports nothing but
pytest until a fixture is used.

`engine_memory`: an engine in memory, blocking. `engine_memory_async`: the same for `async with`. `engine_topic`: the
name of a topic that is not there yet. `engine_clock`: moves the time of these engines.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from engine.embedded import Engine
    from engine.testing.memory_engine import MemoryOpening
    from engine.testing.passing import MovableClock

_NUMBERS = itertools.count()


@pytest.fixture
def engine_config() -> Any:
    """The configuration of the test's engines, as engine.open() takes it. Override it in a module or conftest.py."""
    return None


@pytest.fixture
def engine_clock() -> MovableClock:
    """The clock of the test's engines: `advance(seconds)`, or `await advance_async(seconds)`, lets time pass."""
    from engine.testing.passing import MovableClock

    return MovableClock()


@pytest.fixture
def engine_memory(engine_clock: MovableClock, engine_config: Any) -> Iterator[Engine]:
    """An engine of its own for the test, in memory; all of the blocking API."""
    from engine.testing.memory_engine import MemoryEngine

    with MemoryEngine(engine_clock, engine_config) as found:
        yield found


@pytest.fixture
def engine_memory_async(engine_clock: MovableClock, engine_config: Any) -> MemoryOpening:
    """An engine in memory to enter: `async with engine_memory_async as e`. With any plugin for asynchronous tests."""
    from engine.testing.memory_engine import MemoryOpening

    return MemoryOpening(engine_clock, engine_config)


@pytest.fixture
def engine_topic(request: pytest.FixtureRequest) -> str:
    """The name of a topic that no other test uses, made of the test's name."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")[:60]
    return f"{name}-{next(_NUMBERS)}"
