"""The stores that the conformance suite runs over."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine.metadata.memory import MemoryMetadataStore
from engine.metadata.sqlite import SqliteMetadataStore
from engine.metadata.store import MetadataStore


class HandClock:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now_ms = 1_000

    def time_ms(self) -> int:
        return self.now_ms

    def monotonic(self) -> float:
        return self.now_ms / 1000


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path, clock: HandClock) -> AsyncIterator[MetadataStore]:
    made: MetadataStore
    if request.param == "memory":
        made = MemoryMetadataStore(clock)
    else:
        made = await SqliteMetadataStore.open(tmp_path / "metadata.db", clock=clock)
    yield made
    await made.close()
