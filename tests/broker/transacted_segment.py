"""A segment with its transactions, whose owners crash, in front of metadata that do not."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from engine.aio.tasks import Supervisor
from engine.aio.workers import InlineWorkers, call
from engine.broker.transactions.buffer import TransactionBuffer
from engine.broker.transactions.headers import TransactionHeaders
from engine.broker.transactions.operations import Operations, Writer
from engine.broker.transactions.settling import SettlingRounds
from engine.control.transactions.coordinator import TransactionCoordinator
from engine.metadata import keys
from engine.metadata.memory import MemoryMetadataStore
from engine.metadata.store import Record
from engine.model.names import SegmentName
from engine.model.transactions import (
    OperationKind,
    TransactionOperation,
    TransactionState,
    attempt_number,
    id_text,
)
from engine.storage.cursor.visibility import Visibility
from engine.storage.disk.disk import OsDisk
from engine.storage.segment import Segment
from engine.storage.store import SegmentStore
from engine.testing.clock import FakeClock
from tests.broker.transacting import entry

SEGMENT = SegmentName.parse("segment://public/default/orders/0000-ffff-0")
COMMITTED, ABORTED = TransactionState.COMMITTED, TransactionState.ABORTED


class CountingStore(MemoryMetadataStore):
    """Notes what is listed; `refusals`: what the next sequential puts raise, after or before they are done."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.lists = 0
        self.refusals: list[tuple[Exception, bool]] = []
        self.after_list: Callable[[], Awaitable[object]] | None = None  # awaited once an index was listed
        self.before_deletion: Callable[[], Awaitable[object]] | None = None  # likewise, of operation records

    async def list(self, *args: Any) -> Any:
        self.lists += 1
        return await super().list(*args)

    async def list_index(self, *args: Any) -> Any:
        self.lists += 1
        found = await super().list_index(*args)
        if self.after_list is not None:
            after, self.after_list = self.after_list, None
            await after()
        return found

    async def delete(self, key: str, *more: Any) -> Any:
        await self._deletes(key)
        return await super().delete(key, *more)

    async def delete_range(self, start: str, end: str) -> Any:
        await self._deletes(start)
        return await super().delete_range(start, end)

    async def write_all(self, writes: Any) -> Any:
        for write in writes:
            await self._deletes(write.key)
        return await super().write_all(writes)

    async def _deletes(self, key: str) -> None:
        if self.before_deletion is not None and key.startswith(keys.transaction_ops("")):
            before, self.before_deletion = self.before_deletion, None
            await before()

    async def put_sequence(self, *args: Any, **more: Any) -> Record:
        if not self.refusals:
            return await super().put_sequence(*args, **more)
        error, done = self.refusals.pop(0)
        if done:
            await super().put_sequence(*args, **more)
        raise error


class HeldOperations(Operations):
    """Records are written when `gate` lets them; `before` is awaited first."""

    def __init__(self, metadata: Any) -> None:
        super().__init__(metadata)
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked = asyncio.Event()
        self.before: Callable[[], Awaitable[object]] | None = None
        self.later = Supervisor("held records")

    def gather(self, number: int, writer: Writer) -> None:
        self.asked.set()
        if self.gate.is_set() and self.before is None:
            super().gather(number, writer)
        else:
            self.later.spawn(self._gather_later(number, writer), "a record that is held")

    async def _gather_later(self, number: int, writer: Writer) -> None:
        await self.gate.wait()
        if self.before is not None:
            before, self.before = self.before, None
            await before()
        super().gather(number, writer)


class HeldWorkers:
    """Does its work once it is let; `error`: instead."""

    def __init__(self) -> None:
        self.held: list[Any] | None = None
        self.error: Exception | None = None

    def post(self, work: Any, done: Any) -> None:
        if self.held is not None:
            self.held.append((work, done))
        else:
            done(*((None, self.error) if self.error is not None else call(work)))

    def release(self) -> None:
        held, self.held = self.held or [], None
        for work, done in held:
            self.post(work, done)

    def close(self) -> None:
        pass


class World:
    """A segment whose owners crash, in front of metadata that do not."""

    def __init__(self, root: Path, clock: FakeClock, metadata: CountingStore) -> None:
        self.clock = clock
        self.metadata = metadata
        self.workers: Any = InlineWorkers()
        self.coordinator = TransactionCoordinator(metadata, clock, random.Random(3), self.settle)
        self.term = 0
        self.told = 0
        self._root = root
        self.segment: Segment
        self.buffer: TransactionBuffer
        self.headers: TransactionHeaders
        self.rounds: SettlingRounds
        self.operations: HeldOperations

    async def open_with(self, meanwhile: Callable[[], Awaitable[object]]) -> None:
        """The next owner; before it writes its first record, something else happens."""
        await self.open(meanwhile)

    async def open(self, meanwhile: Callable[[], Awaitable[object]] | None = None) -> None:
        """The next owner."""
        self.term += 1
        self.store = SegmentStore(
            OsDisk(), str(self._root), clock=self.clock, metadata=self.metadata, executor=self.workers,
            rng=random.Random(self.term),
        )  # fmt: skip
        self.segment = await self.store.create(SEGMENT, term=self.term)
        self.headers, self.operations = TransactionHeaders(self.metadata), HeldOperations(self.metadata)
        self.rounds = SettlingRounds(self.operations)
        self.operations.before = meanwhile
        await self.open_buffer()

    async def open_buffer(self) -> None:
        end = lambda: self.segment.durable_offset  # noqa: E731
        visibility = await Visibility.open(self.metadata, SEGMENT, end)
        self.buffer = TransactionBuffer(
            self.segment, self.term, visibility, self.headers, self.operations, self.rounds, self.tell
        )
        await self.buffer.recover()

    def tell(self) -> None:
        self.told += 1

    async def crash(self) -> None:
        """Everything that is only in memory is gone."""
        self.buffer.abandon()
        await self.operations.later.close()
        await self.rounds.close()
        await self.headers.close()
        await self.store.abandon(SEGMENT)

    async def reopen(self) -> None:
        await self.crash()
        await self.open()

    async def settle(self, operation: TransactionOperation) -> None:
        await self.buffer.settle()

    # -- doing -----------------------------------------------------------------------------------------------------

    async def begin(self) -> int:
        return (await self.coordinator.begin(60)).number

    async def end(self, number: int, state: TransactionState = COMMITTED, accepted: list[str] | None = None) -> None:
        await self.coordinator.end(number, state, accepted)

    def send(self, number: int, sequence: int, count: int = 1, attempt: str | None = None) -> asyncio.Future[Any]:
        image = entry(sequence, [b"v"] * count, id_text(number), attempt)
        return self.buffer.append(memoryview(image), number, attempt_number(attempt))

    async def write(self, number: int, sequence: int, count: int = 1, attempt: str | None = None) -> Any:
        await self.buffer.admit(number)
        return await self.send(number, sequence, count, attempt)

    async def append(self, number: int, sequence: int, count: int = 1, attempt: str | None = None) -> int:
        """As a publish that a crash cut short before its record was written: the entry alone. Its offset."""
        await self.buffer.visibility.mark()
        image = entry(sequence, [b"v"] * count, id_text(number), attempt)
        membership = (number, attempt_number(attempt))
        (place,) = await self.segment.append(image, term=self.term, transaction=membership)
        return place.first_offset

    async def record(self, number: int, first: int, last: int, *, term: int | None = None, attempt: int = 0) -> int:
        """The record alone; its version."""
        await self.buffer.visibility.mark()
        operation = TransactionOperation(
            OperationKind.WRITE, SEGMENT, ((first, last),), attempt=attempt, term=self.term if term is None else term
        )
        return (await self.operations.append(number, operation)).version

    # -- seeing ----------------------------------------------------------------------------------------------------

    def readable(self) -> list[int]:
        """The offsets that readers get."""
        limit, hidden = self.buffer.limit, self.buffer.visibility.hidden
        return [o for o in range(self.segment.durable_offset if limit is None else limit) if o not in hidden]

    async def recorded(self) -> None:
        async with asyncio.timeout(20):
            while not await self.records():  # noqa: ASYNC110
                await asyncio.sleep(0)

    async def records(self) -> int:
        return len(await self.operations.writes(SEGMENT))

    async def settled(self) -> None:
        """Whatever was decided is saved, and its records are gone; later owners see the same, headers or not."""
        await self.buffer.settle()
        assert not self.buffer.busy
        assert not await self.records()

    async def same_for_ever(self, offsets: list[int]) -> None:
        """Readers get these, now, after a crash, when all is settled, and when nobody knows the transactions."""
        assert self.readable() == offsets
        await self.reopen()
        assert self.readable() == offsets
        await self.settled()
        await self.reopen()
        assert self.readable() == offsets
        self.clock.advance(3600)
        await self.coordinator.collect(range(16))
        assert not await self.metadata.list("/txn/", keys.prefix_end("/txn/"))
        await self.reopen()
        assert self.readable() == offsets


@contextlib.asynccontextmanager
async def transacted_segment(root: Path) -> AsyncIterator[World]:
    """One in a directory, open."""
    clock = FakeClock()
    metadata = CountingStore(clock)
    world = World(root, clock, metadata)
    await world.open()
    yield world
    await world.crash()
    await metadata.close()
