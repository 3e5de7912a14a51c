"""Operation records: what one transaction writes in one turn is one of them, and each segment forgets its own part."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from engine.broker.transactions.operations import PARTS_MAX, Operations
from engine.control.transactions.operations import RecordedOperation, operations_in
from engine.errors import StorageError
from engine.limits import METADATA_WRITE_ALL_MAX
from engine.metadata.memory import MemoryMetadataStore
from engine.metadata.store import OutcomeUnknownError, Record
from engine.model.hashrange import HashRange
from engine.model.names import SegmentName, TopicName
from engine.model.transactions import OperationKind, TransactionOperation
from engine.testing.clock import FakeClock
from engine.testing.metadata import FaultyMetadataStore

SEGMENTS = [TopicName.parse("t").segment(range_, at) for at, range_ in enumerate(HashRange.divide(4))]


def write(segment: SegmentName, first: int = 0) -> TransactionOperation:
    return TransactionOperation(OperationKind.WRITE, segment, ((first, first + 4),), term=1)


class Unsure(MemoryMetadataStore):
    """`errors`: what sequential puts raise, one each, after or before they are done."""

    def __init__(self) -> None:
        super().__init__(FakeClock())
        self.errors: list[tuple[Exception, bool]] = []

    async def put_sequence(self, *args: Any, **named: Any) -> Record:
        if not self.errors:
            return await super().put_sequence(*args, **named)
        error, done = self.errors.pop(0)
        if done:
            await super().put_sequence(*args, **named)
        raise error


@pytest.fixture
async def store() -> AsyncIterator[Unsure]:
    made = Unsure()
    yield made
    await made.close()


@pytest.fixture
def operations(store: Unsure) -> Operations:
    return Operations(store)


async def written(operations: Operations, number: int = 1, first: int = 0) -> list[RecordedOperation]:
    """To all segments at once."""
    found = await asyncio.gather(*(operations.append(number, write(segment, first)) for segment in SEGMENTS))
    return [msgspec.structs.replace(one, late=False) for one in found]  # nobody has begun these transactions


async def records(store: Unsure) -> list[Record]:
    return await store.list("/txn-op/", "/txn-op0")


async def test_what_comes_together_is_one_record(store: Unsure, operations: Operations):
    found = await written(operations)
    (record,) = await records(store)
    assert operations_in(record) == found == await operations.of(1)
    assert operations.written == 1
    for one, segment in zip(found, SEGMENTS, strict=True):
        assert await operations.writes(segment) == [one]


async def test_transactions_and_turns_have_records_of_their_own(store: Unsure, operations: Operations):
    await asyncio.gather(written(operations, 1), written(operations, 2))
    await written(operations, 1, 5)
    assert [record.key.split("/")[2] for record in await records(store)] == [f"{1:016x}", f"{1:016x}", f"{2:016x}"]
    assert len(await operations.writes(SEGMENTS[0])) == 3


async def test_acknowledgements_are_alone(store: Unsure, operations: Operations):
    ack = TransactionOperation(OperationKind.ACK, SEGMENTS[0], ((1, 1),), subscription="s")
    await asyncio.gather(written(operations), operations.append(1, ack), operations.append(1, ack))
    assert len(await records(store)) == 3


async def test_a_record_says_only_so_much(store: Unsure, operations: Operations):
    await asyncio.gather(*(operations.append(1, write(SEGMENTS[0], 5 * at)) for at in range(PARTS_MAX + 1)))
    assert [len(operations_in(record)) for record in await records(store)] == [PARTS_MAX, 1]
    assert len({one.part for one in await operations.writes(SEGMENTS[0])}) == PARTS_MAX + 1


async def test_what_is_left_counts_as_written_when_all_of_it_was(store: Unsure, operations: Operations):
    found = await written(operations)
    await operations.forget([found[0].part])
    await operations.forget([found[2].part])
    (record,) = await records(store)
    assert record.stat.version > found[1].version
    left = await operations.of(1)
    assert [(one.facts, one.version) for one in left] == [(one.facts, one.version) for one in (found[1], found[3])]
    assert [len(await operations.writes(segment)) for segment in SEGMENTS] == [0, 1, 0, 1]


async def test_parts_are_forgotten_by_several_owners_at_once(store: Unsure, operations: Operations):
    found = await written(operations)
    others = Operations(store)
    read = await others.of(1)
    await asyncio.gather(
        operations.forget([found[0].part]),
        others.forget([read[1].part, read[2].part]),
        operations.forget([found[3].part]),
    )
    assert await records(store) == []
    await operations.forget(one.part for one in found)  # nothing is there to be forgotten


async def test_all_of_an_ended_transaction_goes_in_one_write(store: Unsure, operations: Operations):
    found = [*await written(operations), *await written(operations, 1, 5)]
    before = store.version
    await operations.forget_settled(one.part for one in found[:6])
    assert len(await operations.of(1)) == 2
    await operations.forget_settled(one.part for one in found)
    assert await records(store) == []
    assert store.version - before == 3  # one record, a part of the other, the rest


async def test_records_of_many_ended_transactions_go_in_one_write(
    store: Unsure, operations: Operations, monkeypatch: pytest.MonkeyPatch
):
    parts = [one.part for number in range(1, 6) for one in await written(operations, number)]
    write_all, bulks = store.write_all, []

    async def noted(writes: Any) -> Any:
        bulks.append(len(writes))
        return await write_all(writes)

    monkeypatch.setattr(store, "write_all", noted)
    await operations.forget_settled(parts[:-1])
    assert bulks == [4]
    (left,) = await records(store)
    assert [one.facts.segment for one in operations_in(left)] == [SEGMENTS[3]]
    assert left.key.split("/")[2] == f"{5:016x}"


async def test_so_many_records_as_one_call_may_not_delete_go_in_several(store: Unsure, operations: Operations):
    wanted = METADATA_WRITE_ALL_MAX + 1
    found = await asyncio.gather(*(operations.append(number, write(SEGMENTS[0])) for number in range(wanted)))
    await operations.forget_settled(one.part for one in found)
    assert await records(store) == []


async def test_what_is_not_surely_deleted_is_deleted_again(store: Unsure, operations: Operations):
    faulty = FaultyMetadataStore(store, random.Random(1))
    parts = [one.part for one in await written(operations)]
    faulty.unknown_rate = 1.0
    with pytest.raises(OutcomeUnknownError):
        await Operations(faulty).forget_settled(parts)
    faulty.unknown_rate = 0.0
    for _ in range(2):  # it may be gone by then
        await Operations(faulty).forget_settled(parts)
        assert await records(store) == []


async def test_a_segment_that_is_gone_takes_its_own_part_along(store: Unsure, operations: Operations):
    found = await written(operations)
    await operations.forget_segment(SEGMENTS[1])
    assert [one.facts for one in await operations.of(1)] == [
        one.facts for one in found if one.facts.segment != SEGMENTS[1]
    ]


@pytest.mark.parametrize("done", [True, False])
async def test_an_outcome_that_was_left_open_is_found_out_for_all(store: Unsure, operations: Operations, done: bool):
    store.errors = [(OutcomeUnknownError("?"), done)]
    found = await written(operations)
    (record,) = await records(store)
    assert operations_in(record) == found


async def test_all_hear_of_a_failure(store: Unsure, operations: Operations):
    store.errors = [(StorageError("full"), False)]
    asked = [operations.append(1, write(segment)) for segment in SEGMENTS]
    assert [type(e) for e in await asyncio.gather(*asked, return_exceptions=True)] == [StorageError] * len(SEGMENTS)
    assert len(await written(operations)) == len(SEGMENTS)


async def test_who_stops_waiting_leaves_it_to_the_others(store: Unsure, operations: Operations):
    asked = [asyncio.ensure_future(operations.append(1, write(segment))) for segment in SEGMENTS]
    await asyncio.sleep(0)
    asked[0].cancel()
    assert [isinstance(r, RecordedOperation) for r in await asyncio.gather(*asked, return_exceptions=True)] == [
        False,
        True,
        True,
        True,
    ]
    (record,) = await records(store)
    assert len(operations_in(record)) == len(SEGMENTS)  # the entry is there, or its owner finds that it is not
