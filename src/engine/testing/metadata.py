"""A metadata store that misbehaves: slow, cut off, and unsure whether a write took place."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypedDict, TypeVar, Unpack
from weakref import WeakSet

from engine.errors import StorageError
from engine.errors import TimeoutError as EngineTimeoutError
from engine.metadata.local import LocalSession
from engine.metadata.store import (
    ANY,
    Append,
    Delete,
    Demands,
    Event,
    Expected,
    IndexedRecords,
    Indexes,
    Keys,
    MetadataStore,
    Outcomes,
    OutcomeUnknownError,
    Put,
    Reads,
    Record,
    Session,
    Stat,
    Watch,
)

T = TypeVar("T")


class _Options(TypedDict, total=False):
    """What a write may say of its record."""

    partition_key: str | None
    indexes: Indexes | None


class _PutOptions(_Options, total=False):
    session: Session | None
    also: Demands | None


class FaultyMetadataStore:
    """Wraps any store. The knobs may be turned at any time."""

    def __init__(self, inner: MetadataStore, rng: random.Random, *, timeout: float = 10.0) -> None:
        """`timeout`: seconds after which a call gives up on a partition."""
        self._inner = inner
        self._rng = rng
        self._timeout = timeout
        self.delay_s_max = 0.0
        self.unknown_rate = 0.0  # of the writes; half of them did take place
        self._connected = asyncio.Event()
        self._watches: WeakSet[_SlowWatch] = WeakSet()
        self._connected.set()

    def partition(self) -> None:
        """Let nothing through, in either direction, until heal()."""
        self._connected.clear()

    def heal(self) -> None:
        self._connected.set()

    async def _reach(self, error: type[Exception]) -> None:
        await asyncio.sleep(self._rng.uniform(0, self.delay_s_max) if self.delay_s_max else 0)
        if not self._connected.is_set():
            try:
                async with asyncio.timeout(self._timeout):
                    await self._connected.wait()
            except TimeoutError as e:
                raise error("the metadata store did not answer") from e

    async def read(self, call: Callable[[], Awaitable[T]]) -> T:
        """Read, once the store was reached. Raises TimeoutError."""
        await self._reach(EngineTimeoutError)
        return await call()

    async def _write(self, call: Callable[[], Awaitable[T]]) -> T:
        await self._reach(OutcomeUnknownError)
        luck = self._rng.random()
        if luck < self.unknown_rate / 2:
            raise OutcomeUnknownError("the write was lost on its way")
        result = await call()
        if luck < self.unknown_rate or not self._connected.is_set():
            raise OutcomeUnknownError("the answer was lost on its way")
        return result

    @property
    def newest(self) -> FaultyMetadataStore:
        return self

    @property
    def mirror(self) -> Reads:
        return _FarReads(self, self._inner.mirror)

    async def get(self, key: str) -> Record | None:
        return await self.read(lambda: self._inner.newest.get(key))

    async def put(
        self,
        key: str,
        value: bytes,
        expected: Expected | int = ANY,
        **options: Unpack[_PutOptions],
    ) -> Stat:
        return await self._write(lambda: self._inner.put(key, value, expected, **options))

    async def delete(self, key: str, expected: Expected | int = ANY) -> bool:
        return await self._write(lambda: self._inner.delete(key, expected))

    async def list(self, start: str, end: str, limit: int | None = None) -> list[Record]:
        return await self.read(lambda: self._inner.newest.list(start, end, limit))

    async def list_keys(self, start: str, end: str, limit: int | None = None) -> Keys:
        return await self.read(lambda: self._inner.newest.list_keys(start, end, limit))

    async def delete_range(self, start: str, end: str) -> int:
        return await self._write(lambda: self._inner.delete_range(start, end))

    async def put_sequence(self, prefix: str, value: bytes, **options: Unpack[_Options]) -> Record:
        return await self._write(lambda: self._inner.put_sequence(prefix, value, **options))

    async def put_with_sequence(self, put: Put, appended: Append) -> tuple[Stat, Record]:
        return await self._write(lambda: self._inner.put_with_sequence(put, appended))

    async def write_all(self, writes: Sequence[Put | Delete]) -> Outcomes:
        return await self._write(lambda: self._inner.write_all(writes))

    async def list_index(self, index: str, start: str, end: str, limit: int | None = None) -> IndexedRecords:
        return await self.read(lambda: self._inner.newest.list_index(index, start, end, limit))

    def watch(self, prefix: str, from_version: int | None = None) -> Watch:
        """See MetadataStore; events come late."""
        return self._watching(self._inner.watch(prefix, from_version))

    def watch_key(self, key: str) -> Watch:
        """See MetadataStore; events come late."""
        return self._watching(self._inner.watch_key(key))

    def watch_index(self, index: str, start: str, end: str) -> Watch:
        """See MetadataStore; events come late."""
        return self._watching(self._inner.watch_index(index, start, end))

    def _watching(self, inner: Watch) -> Watch:
        watch = _SlowWatch(self, inner)
        self._watches.add(watch)
        return watch

    def break_watches(self) -> None:
        """All watches that run raise StorageError; others may begin."""
        watches, self._watches = self._watches, WeakSet()
        for watch in watches:
            watch.break_off()

    async def session(self, timeout: float = 30.0) -> Session:
        asked = asyncio.get_running_loop().time()
        return _FarSession(self, await self.read(lambda: self._inner.session(timeout)), asked)

    @property
    def version(self) -> int:
        return self._inner.version

    async def close(self) -> None:
        await self._inner.close()

    async def reach(self) -> None:
        """Get through to the store. Raises OutcomeUnknownError."""
        await self._reach(OutcomeUnknownError)

    async def settle(self) -> None:
        """Wait as long as an event takes to get through; for ever, in a partition."""
        await self._connected.wait()
        if self.delay_s_max:
            await asyncio.sleep(self._rng.uniform(0, self.delay_s_max))


class _FarReads:
    """One kind of read, over the same line as everything else."""

    def __init__(self, store: FaultyMetadataStore, inner: Reads) -> None:
        self._store = store
        self._inner = inner

    async def get(self, key: str) -> Record | None:
        return await self._store.read(lambda: self._inner.get(key))

    async def list(self, start: str, end: str, limit: int | None = None) -> list[Record]:
        return await self._store.read(lambda: self._inner.list(start, end, limit))

    async def list_keys(self, start: str, end: str, limit: int | None = None) -> Keys:
        return await self._store.read(lambda: self._inner.list_keys(start, end, limit))

    async def list_index(self, index: str, start: str, end: str, limit: int | None = None) -> IndexedRecords:
        return await self._store.read(lambda: self._inner.list_index(index, start, end, limit))


class _FarSession:
    """A session whose holder speaks to the store over the same line as everything else."""

    def __init__(self, store: FaultyMetadataStore, inner: Session, asked: float) -> None:
        self.id = inner.id
        self._store = store
        self._inner = inner
        self._deadline = self._seen_from(asked)

    def _seen_from(self, asked: float) -> float:
        """The store counts from when it was asked, the holder from before the request left, as it does elsewhere."""
        if not isinstance(self._inner, LocalSession):
            return self._inner.deadline
        return self._inner.deadline - (asyncio.get_running_loop().time() - asked)

    @property
    def deadline(self) -> float:
        return self._deadline

    async def refresh(self) -> None:
        asked = asyncio.get_running_loop().time()
        await self._store.reach()
        await self._inner.refresh()
        self._deadline = self._seen_from(asked)

    async def close(self) -> None:
        await self._store.reach()
        await self._inner.close()


class _SlowWatch:
    """A watch whose events pass the same line as everything else."""

    def __init__(self, store: FaultyMetadataStore, inner: Watch) -> None:
        self._store = store
        self._inner = inner
        self._broken = False

    async def __aiter__(self) -> AsyncIterator[Event]:
        """The events, late. Raises StorageError behind break_off()."""
        await self._store.settle()
        async for event in self._inner:
            yield event
            await self._store.settle()
        if self._broken:
            raise StorageError("the watch broke off")

    def break_off(self) -> None:
        self._broken = True
        self.close()

    def close(self) -> None:
        self._inner.close()
