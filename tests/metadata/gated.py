"""A store whose writes wait at a gate, for tests of its service."""

from __future__ import annotations

import asyncio
from typing import Any

from engine.clock import SystemClock
from engine.metadata.memory import MemoryMetadataStore
from engine.metadata.store import EventKind
from tests.metadata.served import Served

BOUND_S = 20


class Gated(MemoryMetadataStore):
    """Writes wait at the gate; `failure`: what the next ones raise instead."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.gate = asyncio.Event()
        self.gate.set()
        self.waiting = 0
        self.calls = 0
        self.failure: Exception | None = None

    async def _write(self, operation: Any, count: int = 1) -> Any:
        self.calls += 1
        self.waiting += 1
        await self.gate.wait()
        self.waiting -= 1
        if self.failure is not None:
            raise self.failure
        return await super()._write(operation, count)


def gated(served: Served) -> Gated:
    assert isinstance(served.store, Gated)
    return served.store


async def take(watch: Any, count: int) -> list[tuple[EventKind, str]]:
    events = [await asyncio.wait_for(anext(aiter(watch)), BOUND_S) for _ in range(count)]
    return [(event.kind, event.key) for event in events]
