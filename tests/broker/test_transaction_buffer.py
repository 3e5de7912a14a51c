"""One segment's transactional writes: when they are answered, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from engine.errors import EngineError, StorageError, TransactionConflictError, TransactionNotFoundError
from engine.metadata.store import OutcomeUnknownError
from engine.model.transactions import TransactionState
from tests.broker.transacted_segment import ABORTED, COMMITTED, HeldWorkers, World, transacted_segment
from tests.kit.peer import until


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with transacted_segment(tmp_path) as world:
        yield world


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


async def admitted_before_a_held_disk(world: World) -> int:
    """A transaction; what it writes waits in `world.workers.held`."""
    await world.crash()
    world.workers = HeldWorkers()
    await world.open()
    number = await world.begin()
    await world.buffer.admit(number)
    world.workers.held = []
    return number


def fill_the_disk(world: World) -> None:
    """What waits fails; nothing waits any more."""
    held, world.workers.held = world.workers.held, None
    for _, done in held or ():
        done(None, OSError(28, "full"))


async def test_the_record_is_written_while_the_log_is(world: World) -> None:
    number = await admitted_before_a_held_disk(world)
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
    number = await admitted_before_a_held_disk(world)
    failing = world.send(number, 0)
    await until(lambda: world.workers.held)
    fill_the_disk(world)
    with pytest.raises(EngineError):
        await failing
    await world.buffer.admit(number)
    assert not await world.records()
    assert world.buffer.limit is None
    await world.write(number, 0)
    await world.end(number)
    await world.settled()
    assert world.readable() == [0]


async def test_nobody_is_let_in_where_something_is_being_taken_back(world: World) -> None:
    """Its record would stand for others that got its offsets, also where that begins while a header is read."""
    number = await admitted_before_a_held_disk(world)
    other = await world.begin()
    failing = world.send(number, 0)
    await until(lambda: world.workers.held and world.buffer.operation_records)
    gone, delete, read = asyncio.Event(), world.operations.delete, world.headers.read

    async def delete_late(key: str) -> bool:
        await gone.wait()
        return await delete(key)

    async def fail_and_read(asked: int) -> Any:
        fill_the_disk(world)
        await until(lambda: world.buffer._withdrawing)
        return await read(asked)

    world.operations.delete = delete_late  # type: ignore[method-assign]
    world.headers.read = fail_and_read  # type: ignore[method-assign]
    admitted = asyncio.ensure_future(world.buffer.admit(other))
    await until(lambda: world.buffer._withdrawing)
    for _ in range(20):
        await asyncio.sleep(0)
    assert not admitted.done()
    gone.set()
    await admitted
    assert not await world.records()
    with pytest.raises(EngineError):
        await failing


async def test_nobody_is_let_in_while_the_record_of_what_failed_is_being_written(world: World) -> None:
    """And readers do not wait for it: whatever gets its offsets is another message."""
    number = await admitted_before_a_held_disk(world)
    world.operations.gate.clear()
    failing = world.send(number, 0)
    await until(lambda: world.workers.held)
    assert (world.buffer.limit, world.buffer.admits(number)) == (0, True)
    fill_the_disk(world)
    await until(lambda: world.buffer.limit is None)
    assert not world.buffer.admits(number)
    admitted = asyncio.ensure_future(world.buffer.admit(number))
    for _ in range(20):
        await asyncio.sleep(0)
    assert (admitted.done(), failing.done()) == (False, False)
    world.operations.gate.set()
    await admitted
    assert not await world.records()
    with pytest.raises(EngineError):
        await failing


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
