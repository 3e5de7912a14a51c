"""The stores that the conformance suite runs over."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from engine.metadata.memory import MemoryMetadataStore
from engine.metadata.sqlite import SqliteMetadataStore
from engine.metadata.store import MetadataStore
from engine.storage.disk.metadata_commits import NativeCommits
from tests.metadata.served import Served


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


Opened = Callable[[Path, HandClock], Awaitable[SqliteMetadataStore]]


@pytest.fixture(params=["python", "native"])
def opened(request: pytest.FixtureRequest) -> Opened:
    """Opens a durable store that commits through Python's `sqlite3`, or on a native thread, as a broker's does."""
    native = NativeCommits if request.param == "native" else None
    return lambda path, clock: SqliteMetadataStore.open(path, clock=clock, native=native)


REMOTE = ("unix over memory", "tcp over memory", "memory over sqlite")


@pytest.fixture(params=["memory", "sqlite", "native", *REMOTE])
async def store(request: pytest.FixtureRequest, tmp_path: Path, clock: HandClock) -> AsyncIterator[MetadataStore]:
    transport, _, kind = request.param.rpartition(" over ")
    made = await _open(kind, tmp_path, clock)
    if not transport:
        yield made
        await made.close()
        return
    async with Served(made, transport, tmp_path) as served:
        yield await served.client(clock)


async def _open(kind: str, directory: Path, clock: HandClock) -> MetadataStore:
    if kind == "memory":
        return MemoryMetadataStore(clock)
    native = NativeCommits if kind == "native" else None
    return await SqliteMetadataStore.open(directory / "metadata.db", clock=clock, native=native)
