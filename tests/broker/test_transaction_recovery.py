"""What the next owner of a segment makes of what a crash left of publishes, at every point where it may cut one."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.broker.hosting.transactions import SegmentTransactions
from engine.errors import NotOwnerError
from engine.model.transactions import TransactionState, attempt_number
from tests.broker.transacted_segment import ABORTED, COMMITTED, SEGMENT, World, transacted_segment
from tests.broker.transacting import entry
from tests.kit.peer import until


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with transacted_segment(tmp_path) as world:
        yield world


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


async def test_to_forget_a_record_without_an_entry_takes_no_other_record_along(world: World) -> None:
    """Its transaction is open, and goes on to be written to while the record is being deleted."""
    number = await world.begin()
    await world.record(number, 7, 9)
    world.metadata.before_deletion = lambda: world.write(number, 0)
    await world.reopen()
    await world.buffer.settle()
    assert world.metadata.before_deletion is None
    assert await world.records() == 1
    await world.crash()
    await world.end(number)
    await world.open()
    await world.same_for_ever([0])


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
    await world.crash()
    assert await world.records() == 1
    await world.open()
    assert await world.records() == 0
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


class EndingLease:
    """It is over once the segment's record was claimed under it."""

    term = 9

    def __init__(self, metadata: Any) -> None:
        self.held = True
        put = metadata.put

        async def last_put(*args: Any, **more: Any) -> Any:
            try:
                return await put(*args, **more)
            finally:
                self.held, metadata.put = False, put

        metadata.put = last_put

    def check(self) -> None:
        if not self.held:
            raise NotOwnerError("it is over")


async def test_who_has_lost_the_segment_while_it_was_opened_serves_nobody(world: World) -> None:
    """Else it would go on as if there were no transactions, and readers got what is undecided."""
    number = await world.begin()
    await world.write(number, 0)
    await world.reopen()
    segment = SimpleNamespace(lease=EndingLease(world.metadata), durable_offset=1)
    hosted: Any = SimpleNamespace(segment=segment, name=SEGMENT, transactions=None)
    with pytest.raises(NotOwnerError):
        await SegmentTransactions(world.metadata).recover(hosted)
    assert hosted.transactions is None
