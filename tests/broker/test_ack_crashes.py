"""Acknowledgements in transactions where the broker dies, or hears nothing, at each of its writes to the metadata.

A subscription is opened on a store, something is done to it, and at one write or another the store answers nobody any
more. Whoever opens the subscription next, on what the store has by then, comes to all or nothing, and to what was told.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from engine.aio.tasks import Supervisor
from engine.broker.delivery.opened import Participation
from engine.broker.delivery.subscription import HostedSubscription
from engine.broker.transactions.headers import TransactionHeaders
from engine.broker.transactions.operations import Operations
from engine.control.transactions.coordinator import TransactionCoordinator
from engine.errors import EngineError, NotOwnerError, StorageError, TransactionNotFoundError
from engine.metadata import keys
from engine.metadata.memory import MemoryMetadataStore
from engine.metadata.store import OutcomeUnknownError
from engine.model.transactions import PARTITIONS, TransactionOperation, TransactionState, id_text
from engine.storage.cursor.store import CursorStore
from engine.testing.clock import FakeClock
from engine.testing.metadata import FaultyMetadataStore
from tests.broker.environments import hosted_segment
from tests.broker.test_queue_model import NAME, FakeSegment

COMMITTED, ABORTED = TransactionState.COMMITTED, TransactionState.ABORTED
COUNT = 20
ACKED = set(range(3, 9))


class Dying:
    """A store that answers nobody any more from its n-th write on. `late`: that write is made, and not answered."""

    def __init__(self, inner: MemoryMetadataStore, writes: int, late: bool) -> None:
        self._inner = inner
        self._writes = writes
        self._late = late
        self.dead = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def _write(self, method: str, *args: Any, **more: Any) -> Any:
        if self.dead:
            raise NotOwnerError("this owner is no more")
        self._writes -= 1
        if self._writes >= 0:
            return await getattr(self._inner, method)(*args, **more)
        self.dead = True
        if self._late:
            await getattr(self._inner, method)(*args, **more)
        raise NotOwnerError("this owner is no more")

    async def put(self, *args: Any, **more: Any) -> Any:
        return await self._write("put", *args, **more)

    async def put_sequence(self, *args: Any, **more: Any) -> Any:
        return await self._write("put_sequence", *args, **more)

    async def delete(self, *args: Any, **more: Any) -> Any:
        return await self._write("delete", *args, **more)


class Life:
    """One owner of the segment, on a store, and a coordinator."""

    def __init__(self, store: Any, clock: FakeClock) -> None:
        self.store = store
        self.clock = clock
        self.coordinator = TransactionCoordinator(store, clock, random.Random(7), self.settle, retention_s=0)
        self.parts = Participation(TransactionHeaders(store), Operations(store), Supervisor("test"))
        self.subscription: HostedSubscription

    async def open(self) -> Life:
        segment = FakeSegment(NAME)
        segment.publish(COUNT)
        spec: Any = SimpleNamespace(name=NAME, bucket_ends=(0xFFFF,))
        hosted = hosted_segment(spec, segment, self.clock)
        cursor = await CursorStore(self.store).create(NAME, "s", 0)
        found = await self.parts.operations.acks(NAME, "s")
        self.subscription = HostedSubscription(hosted, "s", cursor, self.parts)
        self.subscription.pending.restore(found)
        return self

    async def settle(self, operation: TransactionOperation) -> None:
        await self.subscription.pending.settle()

    async def acknowledge(self, number: int, offsets: set[int]) -> None:
        pending = self.subscription.pending
        async with pending.request(number) as claims:
            await pending.record(number, claims, 0, type(pending.offsets)(offsets))

    async def sweep(self) -> None:
        await self.coordinator.abort_expired(range(PARTITIONS))
        await self.coordinator.collect(range(PARTITIONS))

    async def quiet(self) -> None:
        """Until everything that was heard is applied."""
        await asyncio.sleep(0)
        while self.subscription.pending._applying and not getattr(self.store, "dead", False):
            await asyncio.wait(list(self.subscription.pending._applying))

    async def die(self) -> None:
        await self.parts.tasks.close()
        await self.parts.headers.close()

    @property
    def acked(self) -> set[int]:
        return {offset for offset in range(COUNT) if self.subscription.cursor.is_acked(offset)}


class World:
    """What outlives an owner."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store = MemoryMetadataStore(self.clock)
        self.lives: list[Life] = []

    async def life(self, store: Any = None) -> Life:
        life = Life(store or self.store, self.clock)
        self.lives.append(life)
        return await life.open()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    for life in world.lives:
        await life.die()
    await world.store.close()


async def _story(life: Life, clock: FakeClock, ending: str) -> tuple[int, str]:
    """Begin, acknowledge twice, end, collect. The transaction, and how far it came."""
    number, told = (await life.coordinator.begin(60)).number, "begun"
    try:
        await life.acknowledge(number, {3, 4, 5})
        await life.acknowledge(number, {6, 7, 8})
        told = "acknowledged"
        if ending == "sweep":
            clock.advance(61)
            await life.sweep()
        else:
            await life.coordinator.end(number, COMMITTED if ending == "commit" else ABORTED)
        told = "ended"
        await life.quiet()
        clock.advance(1)
        await life.sweep()
    except (EngineError, OutcomeUnknownError):
        return number, told
    return number, "done"


async def _state(life: Life, number: int) -> TransactionState | None:
    try:
        return (await life.coordinator.get(number)).header.state
    except TransactionNotFoundError:
        return None


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("ending", ["commit", "abort", "sweep"])
async def test_a_death_at_any_write_leaves_all_or_nothing(ending, late):
    """Begin, two records, the end, the cursor, two deletions, the header: the death comes at each of them."""
    reached = set()
    for writes in range(2, 12):
        world = World()
        dying = Dying(world.store, writes, late)
        first = await world.life(dying)
        number, told = await _story(first, world.clock, ending)
        await first.die()
        reached.add(told)
        second = await world.life()
        state = await _state(second, number)
        assert told != "ended" or state is not TransactionState.OPEN
        if state is TransactionState.OPEN:
            assert not second.acked
            await second.coordinator.end(number, ABORTED)
            state = ABORTED
        await second.subscription.pending.settle()
        forgotten = None if state is not None else (COMMITTED if ending == "commit" else ABORTED)
        assert second.acked == (ACKED if COMMITTED in (state, forgotten) else set())
        world.clock.advance(120)
        await second.sweep()
        assert await _state(second, number) is None
        prefix = keys.transaction_ops(id_text(number)) + "/"
        assert not await world.store.list(prefix, keys.prefix_end(prefix))
        assert not second.subscription.pending
        third = await world.life()
        assert third.acked == second.acked
        for life in (second, third):
            await life.die()
        await world.store.close()
    assert reached == {"begun", "acknowledged", "ended", "done"}


async def test_a_record_whose_answer_was_lost_is_one_record(world):
    """The store is unsure of every second write, or nearly: records are read back, not written twice."""
    faulty = FaultyMetadataStore(world.store, random.Random(3))
    life = await world.life(faulty)
    number = (await life.coordinator.begin(60)).number
    faulty.unknown_rate = 0.5
    for offset in range(10):
        await life.acknowledge(number, {2 * offset})
    found = await life.parts.operations.acks(NAME, "s")
    assert [operation.facts.ranges for operation in found] == [((2 * n, 2 * n),) for n in range(10)]
    await life.coordinator.end(number, COMMITTED)
    await life.subscription.pending.settle()
    assert life.acked == set(range(0, 20, 2))


async def test_what_ended_between_the_record_and_the_answer_is_told(world):
    life = await world.life()
    number = (await life.coordinator.begin(60)).number
    other = Life(world.store, world.clock)
    append = life.parts.operations.append

    async def overtaken(*args: Any) -> Any:
        await other.coordinator.end(number, COMMITTED)
        return await append(*args)

    life.parts.operations.append = overtaken  # type: ignore[method-assign]
    with pytest.raises(EngineError, match="ended before"):
        await life.acknowledge(number, {1})
    await life.quiet()
    assert not life.subscription.pending
    assert not life.acked
    assert not await life.parts.operations.acks(NAME, "s")


async def test_what_was_decided_behind_the_record_counts(world):
    life = await world.life()
    number = (await life.coordinator.begin(60)).number
    other = Life(world.store, world.clock)
    append = life.parts.operations.append

    async def followed(*args: Any) -> Any:
        found = await append(*args)
        await other.coordinator.end(number, COMMITTED)
        return found

    life.parts.operations.append = followed  # type: ignore[method-assign]
    await life.acknowledge(number, {1})
    await life.subscription.pending.settle()
    assert life.acked == {1}


async def test_messages_of_an_aborted_and_a_later_transaction_are_told_apart_after_a_crash(world):
    """The aborted one's record outlived it: its messages were acknowledged anew in another one."""
    life = await world.life()
    first, second = (await life.coordinator.begin(60)).number, (await life.coordinator.begin(60)).number
    await life.acknowledge(first, {1, 2, 3})
    delete, life.parts.operations.delete = life.parts.operations.delete, _not_now  # type: ignore[method-assign]
    await life.coordinator.end(first, ABORTED)
    await life.subscription.pending.refresh()
    await life.acknowledge(second, {2, 3, 4})
    await life.die()
    later = await world.life()
    await later.coordinator.end(second, COMMITTED)
    await later.subscription.pending.settle()
    assert later.acked == {2, 3, 4}
    assert delete is not None


async def _not_now(key: str) -> bool:
    raise StorageError("not now")


async def test_open_ones_are_followed_only_where_they_take_part(world):
    life = await world.life()
    numbers = [(await life.coordinator.begin(600)).number for _ in range(1_000)]
    for offset, number in enumerate(numbers[:COUNT]):
        await life.acknowledge(number, {offset})
    assert len(life.parts.headers) == COUNT
    assert life.parts.operations.queries_s.statistics().count == 1  # as the subscription was opened


async def test_who_lets_go_while_transactions_are_looked_at_follows_none(world):
    life = await world.life()
    for offset in range(3):
        await life.acknowledge((await life.coordinator.begin(600)).number, {offset})
    await life.die()
    later = await world.life()
    pending, headers = later.subscription.pending, later.parts.headers
    read = headers.read

    async def drop_and_read(number):
        pending.drop()
        return await read(number)

    headers.read = drop_and_read  # type: ignore[method-assign]
    await pending._check_all()
    assert not len(headers)
