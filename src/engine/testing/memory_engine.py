"""Engines in memory for an application's tests: everything is real but the disk, and time can be moved."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any

from engine.embedded import MEMORY, AsyncEngine, Config, Engine, open_engine
from engine.testing.loop import InlineExecutor
from engine.testing.passing import MovableClock


class MemoryEngine(Engine):
    """engine.open(":memory:") whose time follows a clock. Disk work is done inline: there is nothing to wait for."""

    def __init__(self, clock: MovableClock, config: Config = None) -> None:
        self._begin(lambda: _open(clock, config, threadsafe=True), asyncio.SelectorEventLoop)


class MemoryOpening:
    """The same on the running loop: await it, or enter it with `async with`."""

    def __init__(self, clock: MovableClock, config: Config = None) -> None:
        self._clock = clock
        self._config = config
        self._engine: AsyncEngine | None = None

    def __await__(self) -> Generator[Any, None, AsyncEngine]:
        return _open(self._clock, self._config, threadsafe=False).__await__()

    async def __aenter__(self) -> AsyncEngine:
        self._engine = await self
        return self._engine

    async def __aexit__(self, *exc: object) -> None:
        if self._engine is not None:
            await self._engine.close()


async def _open(clock: MovableClock, config: Config, *, threadsafe: bool) -> AsyncEngine:
    clock.attach(asyncio.get_running_loop())
    executor = InlineExecutor()
    return await open_engine(MEMORY, None, None, config, threadsafe=threadsafe, clock=clock, executor=executor)
