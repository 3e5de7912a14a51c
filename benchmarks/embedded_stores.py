"""What a Python program could embed instead: LMDB and SQLite, as a log with a position, on the same work.

Both commit a thousand records at a time, and sync every commit. `lmdb` is optional: without it `Lmdb` raises
NotImplementedError, asv's word for a benchmark that cannot run here.
"""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import struct
import time
from typing import Any, Protocol

from support import Rows, directory
from workloads import PUBLISHERS

BATCH = 1000
SEQUENCE = struct.Struct(">Q")
MAP_SIZE = 4 << 30


class Store(Protocol):
    """A log of (key, value) and the position that its one consumer has committed."""

    def append(self, batch: Rows) -> None:
        """Commit records, synced."""

    def read(self, limit: int) -> list[bytes]:
        """The next values."""

    def acknowledge(self) -> None:
        """Commit the position, synced."""

    def close(self) -> None:
        """Release the files."""


class Lmdb:
    """One put per record. Raises NotImplementedError where lmdb is not installed."""

    def __init__(self, path: str) -> None:
        try:
            import lmdb
        except ImportError as e:
            raise NotImplementedError("lmdb is not installed; the extra `bench` has it") from e
        self._env = lmdb.open(path, map_size=MAP_SIZE, max_dbs=2)
        self._records, self._offsets = self._env.open_db(b"records"), self._env.open_db(b"offsets")
        self._next = self._position = 0

    def append(self, batch: Rows) -> None:
        pack, number = SEQUENCE.pack, self._next
        with self._env.begin(write=True, db=self._records) as transaction:
            for key, value in batch:
                transaction.put(pack(number), key + value, append=True)
                number += 1
        self._next = number

    def read(self, limit: int) -> list[bytes]:
        found: list[bytes] = []
        with self._env.begin(db=self._records) as transaction, transaction.cursor() as cursor:
            if cursor.set_range(SEQUENCE.pack(self._position)):
                found = [row[8:] for row in itertools.islice(cursor.iternext(keys=False), limit)]
        self._position += len(found)
        return found

    def acknowledge(self) -> None:
        with self._env.begin(write=True, db=self._offsets) as transaction:
            transaction.put(b"position", SEQUENCE.pack(self._position))

    def close(self) -> None:
        self._env.close()


class Sqlite:
    """WAL, synchronous=FULL."""

    def __init__(self, path: str) -> None:
        self._db = sqlite3.connect(f"{path}/log.db", isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.execute("CREATE TABLE records (sequence INTEGER PRIMARY KEY, k BLOB, v BLOB)")
        self._db.execute("CREATE TABLE offsets (name TEXT PRIMARY KEY, position INTEGER)")
        self._position = 0

    def append(self, batch: Rows) -> None:
        self._db.execute("BEGIN")
        self._db.executemany("INSERT INTO records (k, v) VALUES (?, ?)", batch)
        self._db.execute("COMMIT")

    def read(self, limit: int) -> list[bytes]:
        found = self._db.execute(
            "SELECT sequence, v FROM records WHERE sequence > ? ORDER BY sequence LIMIT ?", (self._position, limit)
        ).fetchall()
        if found:
            self._position = found[-1][0]
        return [value for _, value in found]

    def acknowledge(self) -> None:
        self._db.execute("INSERT OR REPLACE INTO offsets VALUES ('position', ?)", (self._position,))

    def close(self) -> None:
        self._db.close()


STORES: dict[str, Any] = {"lmdb": Lmdb, "sqlite": Sqlite}


def publish_and_consume_rates(kind: str, sample: Rows) -> tuple[float, float]:
    """Messages per second in, then out."""
    with directory() as path:
        store: Store = STORES[kind](path)
        started = time.perf_counter()
        for start in range(0, len(sample), BATCH):
            store.append(sample[start : start + BATCH])
        published = time.perf_counter() - started
        started = time.perf_counter()
        count = 0
        while values := store.read(BATCH):
            count += len(values)
            store.acknowledge()
        consumed = time.perf_counter() - started
        store.close()
    assert count == len(sample)
    return count / published, count / consumed


class Group:
    """Publishers that come in one turn of the loop share a commit."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: list[tuple[tuple[bytes, bytes], asyncio.Future[None]]] = []

    async def send(self, key: bytes, value: bytes) -> None:
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._commit)
        self._waiting.append(((key, value), future))
        await future

    def _commit(self) -> None:
        batch, self._waiting = self._waiting, []
        self._store.append([record for record, _ in batch])
        for _, future in batch:
            future.set_result(None)


async def publishers_rate(kind: str, sample: Rows, seconds: float) -> float:
    """Messages per second of 64 publishers that each wait for one commit before the next message."""
    with directory() as path:
        store: Store = STORES[kind](path)
        group, endless, done = Group(store), itertools.cycle(sample), 0
        started = time.perf_counter()

        async def one() -> None:
            nonlocal done
            for key, value in endless:
                if time.perf_counter() > started + seconds:
                    return
                await group.send(key, value)
                done += 1

        await asyncio.gather(*(one() for _ in range(PUBLISHERS)))
        rate = done / (time.perf_counter() - started)
        store.close()
    return rate
