"""The metadata store on SQLite: single puts, puts that share a commit, opening; beside raw commits of the same run.

And the same puts from another process, over the Unix socket of the process that has the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import sqlite3
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from processes import Child, processor_s
from support import directory, median, median_ratio, run, sized

from engine import clock as clocks  # asv takes a class with a method time_ms for a benchmark
from engine.metadata import keys
from engine.metadata.remote import RemoteMetadataStore
from engine.metadata.sqlite import SqliteMetadataStore
from engine.metadata.store import MetadataStore
from engine.model.layout import SegmentLayout
from engine.model.names import TopicName
from engine.storage.disk.metadata_commits import NativeCommits
from engine.wire.connector import SocketConnector

PUTS = sized(500, 5)
CONCURRENT = 100
BURSTS = sized(50, 1)
TOPICS = sized(10_000, 20)
RECORD = json.dumps(SegmentLayout.create(4, now_ms=1_700_000_000_000).to_metadata()).encode()


def key(number: int) -> str:
    """Where the topic of this number is kept."""
    return keys.topic(TopicName.parse(f"topic-{number}"))


async def open_store(path: str) -> SqliteMetadataStore:
    """A store in a folder."""
    return await SqliteMetadataStore.open(f"{path}/metadata.db", clock=clocks.SystemClock(), native=NativeCommits)


async def single_seconds(path: str) -> float:
    """Seconds for one put, each awaited before the next."""
    store = await open_store(path)
    started = time.perf_counter()
    for number in range(PUTS):
        await store.put(key(number), RECORD)
    seconds = time.perf_counter() - started
    await store.close()
    return seconds / PUTS


async def concurrent_seconds(path: str) -> float:
    """Seconds for one put, of a hundred at a time."""
    store = await open_store(path)
    started = time.perf_counter()
    for burst in range(BURSTS):
        await asyncio.gather(*(store.put(key(burst * CONCURRENT + i), RECORD) for i in range(CONCURRENT)))
    seconds = time.perf_counter() - started
    await store.close()
    return seconds / BURSTS / CONCURRENT


def raw_seconds(path: str) -> float:
    """Seconds for one row in a commit of its own: WAL, synchronous=FULL, the same record."""
    with contextlib.closing(sqlite3.connect(f"{path}/raw.db", isolation_level=None)) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=FULL")
        database.execute("CREATE TABLE records (key TEXT PRIMARY KEY, value BLOB)")
        started = time.perf_counter()
        for number in range(PUTS):
            database.execute("INSERT OR REPLACE INTO records VALUES (?, ?)", (key(number), RECORD))
        return (time.perf_counter() - started) / PUTS


def single() -> float:
    """One put alone, in a new folder."""
    with directory() as path:
        return run(single_seconds(path))


def concurrent() -> float:
    """One put among a hundred, likewise."""
    with directory() as path:
        return run(concurrent_seconds(path))


def raw() -> float:
    with directory() as path:
        return raw_seconds(path)


class Put:
    """A put of a topic's record."""

    def track_single_us(self) -> float:
        """Microseconds, one at a time."""
        return median(single) * 1e6

    def track_single_ratio_to_commit(self) -> float:
        """Over one raw commit: what the store adds to the sync."""
        return median_ratio(single, raw)

    def track_concurrent_us(self) -> float:
        """Microseconds each, a hundred at a time."""
        return median(concurrent) * 1e6

    def track_concurrent_ratio_to_commit(self) -> float:
        """Over one raw commit: far below 1 where commits are shared."""
        return median_ratio(concurrent, raw)

    track_single_us.unit = track_concurrent_us.unit = "us"  # type: ignore[attr-defined]
    track_single_ratio_to_commit.unit = track_concurrent_ratio_to_commit.unit = "ratio"  # type: ignore[attr-defined]


SERVER = str(Path(__file__).with_name("served_metadata.py"))
AT_ONCE = 64


async def put_seconds(store: MetadataStore, at_once: int, clock: Callable[[], float]) -> float:
    """Seconds of a clock for one put, of so many at a time."""
    rounds = PUTS if at_once == 1 else BURSTS
    started = clock()
    for turn in range(rounds):
        await asyncio.gather(*(store.put(key(turn * at_once + i), RECORD) for i in range(at_once)))
    return (clock() - started) / rounds / at_once


async def local_seconds(path: str, at_once: int, clock: Callable[[], float]) -> float:
    store = await open_store(path)
    try:
        return await put_seconds(store, at_once, clock)
    finally:
        await store.close()


async def remote_seconds(url: str, at_once: int, clock: Callable[[], float]) -> float:
    store = await RemoteMetadataStore.connect(SocketConnector(), url, clock=clocks.SystemClock(), rng=random.Random(1))
    try:
        return await put_seconds(store, at_once, clock)
    finally:
        await store.close()


def local(at_once: int, *, worked: bool = False) -> float:
    """Seconds of a put. `worked`: of processor time, in all threads."""
    with directory() as path:
        return run(local_seconds(path, at_once, time.process_time if worked else time.perf_counter))


def remote(at_once: int, *, worked: bool = False) -> float:
    """With the store in a process of its own. `worked`: of processor time, in both processes."""
    with directory() as path, Child([sys.executable, SERVER, path], re.compile(r"serving (\S+)")) as child:
        both = lambda: time.process_time() + processor_s(child.pid)  # noqa: E731
        return run(remote_seconds(child.said, at_once, both if worked else time.perf_counter))


class RemotePut:
    """A put over the Unix socket, over a put by the process that has the store: bar P18, by processor time."""

    unit = "ratio"

    def track_single_ratio_to_local(self) -> float:
        return median_ratio(partial(remote, 1), partial(local, 1))

    def track_64_at_once_ratio_to_local(self) -> float:
        return median_ratio(partial(remote, AT_ONCE), partial(local, AT_ONCE))

    def track_single_processor_ratio_to_local(self) -> float:
        return median_ratio(partial(remote, 1, worked=True), partial(local, 1, worked=True))

    def track_64_at_once_processor_ratio_to_local(self) -> float:
        return median_ratio(partial(remote, AT_ONCE, worked=True), partial(local, AT_ONCE, worked=True))


class Open:
    """A store with 10,000 topics."""

    unit = "ms"

    def setup(self) -> None:
        self.cleanup = contextlib.ExitStack()
        self.path = self.cleanup.enter_context(directory())
        run(self.fill())

    def teardown(self) -> None:
        self.cleanup.close()

    async def fill(self) -> None:
        store = await open_store(self.path)
        await asyncio.gather(*(store.put(key(number), RECORD) for number in range(TOPICS)))
        await store.close()

    async def open_once(self) -> float:
        """Seconds to open and read one record."""
        started = time.perf_counter()
        store = await open_store(self.path)
        assert await store.get(key(TOPICS - 1)) is not None
        seconds = time.perf_counter() - started
        await store.close()
        return seconds

    def track_open_ms(self) -> float:
        return median(lambda: run(self.open_once())) * 1e3
