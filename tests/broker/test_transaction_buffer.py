"""One segment's transactional writes at every point at which a crash may cut a publish, a decision or a recovery."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from transacting import entry, until

from engine.aio.workers import InlineWorkers, call
from engine.broker.operations import Operation, Operations
from engine.broker.transaction_buffer import TransactionBuffer
from engine.broker.transaction_headers import TransactionHeaders
from engine.control.transactions import TransactionCoordinator
from engine.errors import EngineError, StorageError, TransactionConflictError, TransactionNotFoundError
from engine.metadata import keys
from engine.metadata.memory import MemoryMetadataStore
from engine.metadata.store import OutcomeUnknownError, Record
from engine.model.names import SegmentName
from engine.model.transactions import (
    OperationKind,
    TransactionOperation,
    TransactionState,
    attempt_number,
    id_text,
)
from engine.storage.disk import OsDisk
from engine.storage.segment import Segment
from engine.storage.store import SegmentStore
from engine.storage.visibility import Visibility
from engine.testing.clock import FakeClock

SEGMENT = SegmentName.parse("segment://public/default/orders/0000-ffff-0")
COMMITTED, ABORTED = TransactionState.COMMITTED, TransactionState.ABORTED


class CountingStore(MemoryMetadataStore):
    """Notes what is listed; `refusals`: what the next sequential puts raise, after or before they are done."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.lists = 0
        self.refusals: list[tuple[Exception, bool]] = []
        self.after_list: Callable[[], Awaitable[object]] | None = None  # awaited once an index was listed

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

    async def append(self, number: int, operation: TransactionOperation) -> Operation:
        self.asked.set()
        await self.gate.wait()
        if self.before is not None:
            before, self.before = self.before, None
            await before()
        return await super().append(number, operation)


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
        self.operations.before = meanwhile
        await self.open_buffer()

    async def open_buffer(self) -> None:
        end = lambda: self.segment.durable_offset  # noqa: E731
        visibility = await Visibility.open(self.metadata, SEGMENT, end)
        self.buffer = TransactionBuffer(self.segment, self.term, visibility, self.headers, self.operations, self.tell)
        await self.buffer.recover()

    def tell(self) -> None:
        self.told += 1

    async def crash(self) -> None:
        """Everything that is only in memory is gone."""
        self.buffer.abandon()
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
        for partition in range(16):
            await self.coordinator.collect(partition)
        assert not await self.metadata.list("/txn/", keys.prefix_end("/txn/"))
        await self.reopen()
        assert self.readable() == offsets


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    clock = FakeClock()
    metadata = CountingStore(clock)
    world = World(tmp_path, clock, metadata)
    await world.open()
    yield world
    await world.crash()
    await metadata.close()


# -- publishing ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [COMMITTED, ABORTED])
async def test_a_write_counts_as_its_transaction_ends(world: World, state: TransactionState) -> None:
    number = await world.begin()
    (place,) = await world.write(number, 0, 3)
    assert (place.first_offset, world.buffer.limit, world.readable()) == (0, 0, [])
    assert world.buffer.open_transactions == {number: 3}
    assert world.buffer.holding == (number, 0)
    await world.end(number, state)
    await world.settled()
    await world.same_for_ever([0, 1, 2] if state is COMMITTED else [])


async def test_it_is_answered_once_entry_and_record_are_durable(world: World) -> None:
    number = await world.begin()
    await world.buffer.admit(number)
    world.operations.gate.clear()
    sent = world.send(number, 0)
    await world.segment.when_durable(0)
    await world.operations.asked.wait()
    assert not sent.done()
    assert (world.segment.durable_offset, world.buffer.limit) == (1, 0)
    world.operations.gate.set()
    await sent
    assert await world.records() == 1


async def test_the_record_is_written_while_the_log_is(world: World) -> None:
    await world.crash()
    world.workers = HeldWorkers()
    await world.open()
    number = await world.begin()
    await world.buffer.admit(number)
    world.workers.held = []
    sent = world.send(number, 0)
    await world.recorded()
    assert (world.segment.durable_offset, sent.done()) == (0, False)
    await world.end(number)
    assert world.buffer.limit == 0  # it is not durable, so it is not decided
    world.workers.release()
    await sent
    await world.settled()
    await world.same_for_ever([0])


async def test_one_that_was_recorded_too_late_is_refused_and_hidden(world: World) -> None:
    number = await world.begin()
    await world.buffer.admit(number)
    world.operations.before = lambda: world.end(number)
    with pytest.raises(TransactionConflictError, match="too late"):
        await world.send(number, 0)
    with pytest.raises(TransactionConflictError):
        await world.buffer.admit(number)
    await world.same_for_ever([])


async def test_nothing_is_admitted_to_what_has_ended_or_never_was(world: World) -> None:
    with pytest.raises(TransactionNotFoundError):
        await world.buffer.admit(77)
    number = await world.begin()
    assert not world.buffer.admits(number)
    await world.buffer.admit(number)
    assert world.buffer.admits(number)
    await world.end(number, ABORTED)
    await until(lambda: not world.buffer.admits(number))
    with pytest.raises(TransactionConflictError):
        await world.buffer.admit(number)
    assert not len(world.headers)


async def test_only_the_attempts_that_were_accepted_count(world: World) -> None:
    number = await world.begin()
    for sequence, attempt in enumerate(("first", "second", None)):
        await world.write(number, sequence, 1, attempt)
    await world.end(number, COMMITTED, ["second"])
    await world.settled()
    await world.same_for_ever([1])


@pytest.mark.parametrize("done", [True, False])
async def test_a_store_that_is_unsure_or_away_for_a_while_costs_time_only(world: World, done: bool) -> None:
    number = await world.begin()
    world.metadata.refusals = [(OutcomeUnknownError("lost"), done), (StorageError("away"), False)][: 1 if done else 2]
    await world.write(number, 0)
    assert await world.records() == 1
    await world.end(number)
    await world.settled()
    await world.same_for_ever([0])


async def test_what_did_not_get_into_the_log_leaves_no_record(world: World) -> None:
    await world.crash()
    world.workers = HeldWorkers()
    await world.open()
    number = await world.begin()
    await world.buffer.admit(number)
    world.workers.held = []
    failing = world.send(number, 0)
    await until(lambda: world.workers.held)
    held, world.workers.held = world.workers.held, None
    for _, done in held:
        done(None, OSError(28, "full"))
    with pytest.raises(EngineError):
        await failing
    await world.buffer.admit(number)
    assert not await world.records()
    assert world.buffer.limit is None
    await world.write(number, 0)
    await world.end(number)
    await world.settled()
    assert world.readable() == [0]


async def test_without_an_open_transaction_nothing_is_remembered(world: World) -> None:
    for sequence in range(50):
        number = await world.begin()
        await world.write(number, sequence)
        await world.end(number, ABORTED if sequence % 3 == 0 else COMMITTED)
    await world.settled()
    assert not len(world.headers)
    assert not world.buffer.open_transactions
    assert world.readable() == [o for o in range(50) if o % 3]


async def test_ten_thousand_open_transactions(world: World) -> None:
    """Memory follows what is open, and to publish reads no list."""
    numbers = [await world.begin() for _ in range(10_000)]
    lists = world.metadata.lists
    for start in range(0, len(numbers), 500):
        await asyncio.gather(*(world.write(n, start + i) for i, n in enumerate(numbers[start : start + 500])))
    assert world.metadata.lists == lists
    assert len(world.headers) == len(world.buffer.open_transactions) == world.buffer.operation_records == 10_000
    assert world.buffer.limit == 0
    for number in numbers:
        await world.end(number)
    await world.settled()
    assert (len(world.headers), world.buffer.open_transactions, world.buffer.operation_records) == (0, {}, 0)
    assert world.readable() == list(range(10_000))


# -- sending again -------------------------------------------------------------------------------------------------


async def test_what_is_sent_again_is_answered_by_its_original(world: World) -> None:
    number = await world.begin()
    await world.buffer.admit(number)
    world.operations.gate.clear()
    first, again = world.send(number, 0), world.send(number, 0)
    await world.segment.when_durable(0)
    await asyncio.sleep(0)
    assert not again.done()  # its record is not there yet
    world.operations.gate.set()
    (place,), (duplicate,) = await first, await again
    assert (place.first_offset, duplicate.first_offset, duplicate.duplicate) == (0, 0, True)
    assert await world.records() == 1


async def test_what_was_hidden_is_not_taken_again(world: World) -> None:
    aborted, other = await world.begin(), await world.begin()
    await world.write(aborted, 0)
    with pytest.raises(TransactionConflictError, match="not in the transaction"):
        await world.write(other, 0)  # while the first is open
    await world.end(aborted, ABORTED)
    with pytest.raises(TransactionConflictError, match="not in the transaction"):
        await world.write(other, 0)
    await world.end(other)
    await world.same_for_ever([])


async def test_what_is_visible_is_taken_as_sent(world: World) -> None:
    committed, other = await world.begin(), await world.begin()
    await world.write(committed, 0)
    await world.end(committed)
    (place,) = await world.write(other, 0)
    assert (place.duplicate, place.first_offset) == (True, 0)


@pytest.mark.parametrize("mine", [True, False])
async def test_an_original_whose_place_is_forgotten_is_known_by_its_sequence_ids(world: World, mine: bool) -> None:
    number, other = await world.begin(), await world.begin()
    for sequence in range(50):
        await world.write(number, sequence)
    await world.reopen()  # a few places of each producer are remembered
    again = world.write(number if mine else other, 3)
    if mine:
        (place,) = await again
        assert (place.duplicate, place.first_offset) == (True, -1)
    else:
        with pytest.raises(TransactionConflictError, match="not in the transaction"):
            await again


# -- recovery ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [COMMITTED, ABORTED])
async def test_an_open_transaction_goes_on_under_the_next_owner(world: World, state: TransactionState) -> None:
    number = await world.begin()
    await world.write(number, 0, 2)
    await world.reopen()
    assert (world.buffer.limit, world.buffer.open_transactions) == (0, {number: 2})
    await world.write(number, 2)
    await world.end(number, state)
    await world.settled()
    await world.same_for_ever([0, 1, 2] if state is COMMITTED else [])


@pytest.mark.parametrize("state", [COMMITTED, ABORTED])
async def test_what_ended_while_nobody_owned_it(world: World, state: TransactionState) -> None:
    number = await world.begin()
    await world.write(number, 0, 2)
    await world.crash()
    await world.end(number, state)
    await world.open()
    await world.same_for_ever([0, 1] if state is COMMITTED else [])


async def test_an_entry_without_a_record_is_claimed_while_its_transaction_is_open(world: World) -> None:
    number = await world.begin()
    await world.append(number, 0, 2)
    await world.reopen()
    assert await world.records() == 1
    assert world.buffer.limit == 0
    (place,) = await world.write(number, 0, 2)  # its producer was not answered, and sends it again
    assert place.duplicate
    await world.end(number)
    await world.settled()
    await world.same_for_ever([0, 1])


@pytest.mark.parametrize("state", [COMMITTED, ABORTED, None])
async def test_an_entry_without_a_record_is_hidden_when_its_transaction_is_over(
    world: World, state: TransactionState | None
) -> None:
    number = await world.begin() if state is not None else 77
    await world.append(number, 0, 2)
    await world.crash()
    if state is not None:
        await world.end(number, state)
    await world.open()
    await world.same_for_ever([])


async def test_a_record_without_an_entry_is_forgotten(world: World) -> None:
    number = await world.begin()
    await world.record(number, 0, 9)
    await world.reopen()
    await world.end(number)
    await world.settled()
    await world.same_for_ever([])


async def test_the_record_of_another_owner_does_not_stand_for_an_entry(world: World) -> None:
    """What it appended got lost, and somebody else's got the offset."""
    number = await world.begin()
    await world.record(number, 0, 0)
    await world.crash()
    await world.open()
    await world.append(number, 0)
    await world.crash()
    await world.end(number)
    await world.open()
    await world.same_for_ever([])


async def test_the_record_of_another_attempt_does_not_either(world: World) -> None:
    number = await world.begin()
    await world.append(number, 0, 1, "late")
    await world.record(number, 0, 0, attempt=attempt_number("early"))
    await world.crash()
    await world.end(number)
    await world.open()
    await world.same_for_ever([])


async def test_a_record_that_came_after_the_decision_does_not_count(world: World) -> None:
    number = await world.begin()
    await world.append(number, 0)
    await world.end(number)
    await world.record(number, 0, 0)
    await world.reopen()
    await world.same_for_ever([])


async def test_one_record_stands_for_all_entries_of_its_frame(world: World) -> None:
    number = await world.begin()
    for sequence in range(3):
        await world.append(number, sequence)
    await world.record(number, 0, 2)
    await world.reopen()
    assert await world.records() == 1
    await world.end(number)
    await world.settled()
    await world.same_for_ever([0, 1, 2])


async def test_a_claim_that_comes_too_late_hides(world: World) -> None:
    number = await world.begin()
    await world.append(number, 0)
    await world.crash()
    await world.open_with(lambda: world.end(number))
    await world.same_for_ever([])


async def test_a_claim_that_an_earlier_owner_was_faster_with_counts(world: World) -> None:
    """Its record was on its way for long: whoever looks later finds that it came in time."""
    number = await world.begin()
    await world.append(number, 0)
    term = world.term

    async def meanwhile() -> None:
        await world.record(number, 0, 0, term=term)
        await world.end(number)

    await world.crash()
    await world.open_with(meanwhile)
    await world.same_for_ever([0])


async def test_a_record_that_an_earlier_owner_writes_while_recovery_looks_counts(world: World) -> None:
    """It came after all records were listed, and before the transaction was committed."""
    number = await world.begin()
    await world.append(number, 0)
    term = world.term

    async def meanwhile() -> None:
        await world.record(number, 0, 0, term=term)
        await world.end(number)

    await world.crash()
    world.metadata.after_list = meanwhile
    await world.open()
    await world.same_for_ever([0])


async def test_what_was_saved_before_a_crash_stays_and_its_records_go(world: World) -> None:
    number = await world.begin()
    await world.write(number, 0)
    await world.end(number)
    await until(lambda: not world.buffer.open_transactions)
    await world.buffer.visibility.save()
    await world.reopen()
    assert await world.records() == 1
    await world.same_for_ever([0])


async def test_the_end_of_a_transaction_tells_readers_once(world: World) -> None:
    number = await world.begin()
    for sequence in range(20):
        await world.write(number, sequence)
    told = world.told
    await world.end(number)
    await until(lambda: world.told > told)
    await asyncio.sleep(0)
    assert world.told == told + 1


async def test_recovery_looks_no_further_back_than_it_must(world: World) -> None:
    number = await world.begin()
    await world.write(number, 0)
    await world.end(number)
    await world.settled()
    await world.segment.append(entry(1, [b"plain"] * 5), term=world.term)
    await world.buffer.close()
    assert world.buffer.visibility.unsettled_from == 6


@pytest.mark.parametrize("seed", range(8))
async def test_every_owner_comes_to_the_same(world: World, seed: int) -> None:
    """Publishes cut at random points, transactions ended at random times, owners crashing in between."""
    rng = random.Random(seed)
    open_ones: list[int] = [await world.begin() for _ in range(3)]
    told: dict[int, int] = {}
    for sequence in range(60):
        number = rng.choice(open_ones)
        step = rng.choice(("write", "write", "append", "record", "end", "crash", "settle"))
        if step == "write":
            (place,) = await world.write(number, sequence)
            told[place.first_offset] = number
        elif step == "append":
            await world.append(number, sequence)
        elif step == "record":
            await world.record(number, world.segment.durable_offset + 10, world.segment.durable_offset + 10)
        elif step == "end":
            await world.end(number, rng.choice((COMMITTED, ABORTED)))
            open_ones[open_ones.index(number)] = await world.begin()
        elif step == "crash":
            await world.reopen()
        else:
            await world.buffer.settle()
    await world.reopen()
    states = {}
    for number in {*told.values(), *open_ones}:
        states[number] = (await world.coordinator.get(number)).header.state
    for number in open_ones:
        await world.end(number)
        states[number] = COMMITTED
    await world.settled()
    seen = world.readable()
    for offset, number in told.items():
        assert (offset in seen) == (states[number] is COMMITTED), f"seed {seed}"
    await world.same_for_ever(seen)
