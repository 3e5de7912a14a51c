"""The stores that the conformance suite runs over."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from engine.clock import SystemClock
from engine.limits import METADATA_CHANGES_MAX
from engine.metadata.etcd.store import EtcdMetadataStore
from engine.metadata.memory import MemoryMetadataStore
from engine.metadata.sqlite import SqliteMetadataStore
from engine.metadata.store import MetadataStore
from engine.storage.disk.metadata_commits import NativeCommits
from tests.kit.etcd import Etcd, new_prefix
from tests.metadata.served import Served


class HandClock:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now_ms = 1_000

    def time_ms(self) -> int:
        return self.now_ms

    def monotonic(self) -> float:
        return self.now_ms / 1000


class DatedClock(SystemClock):
    """The machine's clock, by the date of another one: the timeouts of a server in another process are real."""

    def __init__(self, date: HandClock) -> None:
        self._date = date

    def time_ms(self) -> int:
        return self._date.time_ms()


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


@pytest.fixture(scope="package")
def etcd_of_three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """Three members of etcd; each test has a prefix of its own there."""
    server = Etcd(tmp_path_factory.mktemp("etcd-of-three"), 3)
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture(params=["memory", "sqlite", "native", "etcd", "etcd_of_three", *REMOTE])
async def store(request: pytest.FixtureRequest, tmp_path: Path, clock: HandClock) -> AsyncIterator[MetadataStore]:
    transport, _, kind = request.param.rpartition(" over ")
    if kind in ("etcd", "etcd_of_three"):
        server: Etcd = request.getfixturevalue(kind)
        opened = await EtcdMetadataStore.open(server.url(new_prefix()), clock=DatedClock(clock), rng=random.Random(1))
        yield opened
        await opened.close()
        return
    made = await _open(kind, tmp_path, clock)
    if not transport:
        yield made
        await made.close()
        return
    async with Served(made, transport, tmp_path) as served:
        yield await served.client(clock)


async def forget_history(store: MetadataStore) -> None:
    """Have a store forget which changes there were so far."""
    if isinstance(store, EtcdMetadataStore):
        await store.put("/x/0", b"")
        await store.compact(await store.revision())
        return
    await asyncio.gather(*(store.put(f"/x/{i % 50}", b"") for i in range(METADATA_CHANGES_MAX + 1)))


async def _open(kind: str, directory: Path, clock: HandClock) -> MetadataStore:
    if kind == "memory":
        return MemoryMetadataStore(clock)
    native = NativeCommits if kind == "native" else None
    return await SqliteMetadataStore.open(directory / "metadata.db", clock=clock, native=native)
