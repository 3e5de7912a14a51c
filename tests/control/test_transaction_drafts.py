"""What is to be written about a transaction is made ahead of time; what somebody else does meanwhile counts."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from engine.control.transactions.coordinator import TransactionCoordinator
from engine.control.transactions.operations import Recording
from engine.errors import EngineError, TransactionConflictError, TransactionNotFoundError
from engine.metadata.memory import MemoryMetadataStore
from engine.metadata.store import OutcomeUnknownError
from engine.model.names import SegmentName
from engine.model.transactions import BEGUN_MAX, OperationKind, TransactionOperation, TransactionState
from engine.testing.clock import FakeClock

COMMITTED, ABORTED = TransactionState.COMMITTED, TransactionState.ABORTED
SEGMENT = SegmentName.parse("segment://public/default/orders/0000-ffff-0")
WRITE = TransactionOperation(OperationKind.WRITE, SEGMENT, ((0, 4),))


class Few(random.Random):
    """Ids that come again."""

    def __init__(self, *numbers: int) -> None:
        super().__init__()
        self.numbers = list(numbers)

    def getrandbits(self, k: int) -> int:
        return self.numbers.pop(0)


class World:
    """A store, and a broker that coordinates."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store: Any = MemoryMetadataStore(self.clock)
        self.one = self.coordinator(random.Random(1))

    def coordinator(self, rng: random.Random) -> TransactionCoordinator:
        return TransactionCoordinator(self.store, self.clock, rng, self.settle)

    async def settle(self, operation: TransactionOperation) -> None:
        raise AssertionError("nothing is left to settle")


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    await world.store.close()


async def test_what_was_drafted_is_written_without_another_look(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = await world.one.begin(60)
    draft = await world.one.draft_commit(begun.number, None, 7)
    monkeypatch.setattr(world.store, "get", None)
    view, record = await world.one.commit_with(begun.number, None, Recording([WRITE]), 7, draft)
    monkeypatch.undo()
    assert (view.header.state, view.header.mark) == (COMMITTED, 7)
    assert record is not None
    assert record.stat.version < view.version
    assert await world.one.get(begun.number) == view
    assert world.one.counters.cas_ok == world.one.counters.committed == 1


async def test_more_time_that_it_gets_meanwhile_stays(world: World) -> None:
    begun = await world.one.begin(60, "job")
    draft = await world.one.draft_commit(begun.number, None, 7)
    longer = await world.one.begin(600, "job")
    view, record = await world.one.commit_with(begun.number, None, Recording([WRITE]), 7, draft)
    assert view.header.timeout_ms == longer.header.timeout_ms > begun.header.timeout_ms
    assert (view.header.state, view.header.mark) == (COMMITTED, 7)
    assert record is not None
    assert len(await world.one.operations(begun.number)) == 1
    assert (world.one.counters.cas_conflict, world.one.counters.cas_ok) == (1, 1)


async def test_a_draft_of_what_is_not_the_newest_any_more_is_made_anew(world: World) -> None:
    begun = await world.one.begin(60, "job")
    longer = await world.one.begin(600, "job")
    draft = world.one.draft_commit_of(begun, None, 7)
    assert draft is not None
    view, record = await world.one.commit_with(begun.number, None, Recording([WRITE]), 7, draft)
    assert view.header.timeout_ms == longer.header.timeout_ms > begun.header.timeout_ms
    assert (view.header.state, view.header.mark) == (COMMITTED, 7)
    assert record is not None
    assert world.one.draft_commit_of(view, None, 7) is None


async def test_an_abort_meanwhile_is_a_conflict_and_nothing_is_recorded(world: World) -> None:
    begun = await world.one.begin(60)
    draft = await world.one.draft_commit(begun.number, None)
    aborted = await world.one.end(begun.number, ABORTED)
    with pytest.raises(TransactionConflictError):
        await world.one.commit_with(begun.number, None, Recording([WRITE]), None, draft)
    assert await world.one.get(begun.number) == aborted
    assert await world.one.operations(begun.number) == []
    assert world.one.counters.cas_reject == 1


async def test_a_commit_meanwhile_is_it_and_nothing_more_is_recorded(world: World) -> None:
    begun = await world.one.begin(60)
    draft = await world.one.draft_commit(begun.number, None, 7)
    committed = await world.one.end(begun.number, COMMITTED)
    assert await world.one.commit_with(begun.number, None, Recording([WRITE]), 7, draft) == (committed, None)
    assert await world.one.operations(begun.number) == []


async def test_nothing_is_drafted_of_what_has_ended_or_is_unknown(world: World) -> None:
    begun = await world.one.begin(60)
    await world.one.end(begun.number, ABORTED)
    for number, error in ((begun.number, TransactionConflictError), (5, TransactionNotFoundError)):
        draft = await world.one.draft_commit(number, None)
        assert draft is None
        with pytest.raises(error):
            await world.one.commit_with(number, None, None, None, draft)


@pytest.mark.parametrize("passed_s", [0.5, 90.0])
async def test_it_is_kept_from_when_it_was_committed_however_long_ago_that_was_drafted(
    world: World, passed_s: float
) -> None:
    """The log took so long."""
    begun = await world.one.begin(600)
    draft = await world.one.draft_commit(begun.number, None)
    world.clock.advance(passed_s)
    view, _ = await world.one.commit_with(begun.number, None, None, None, draft)
    assert abs(world.clock.time_ms() - (view.header.finalized_ms or 0)) <= 1_000
    assert sum([await world.one.collect(partition) for partition in range(16)]) == 0
    world.clock.advance(61.0)
    assert sum([await world.one.collect(partition) for partition in range(16)]) == 1


async def test_an_unknown_outcome_of_a_draft_is_resolved(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    put_with_sequence = world.store.put_with_sequence
    for done in (True, False):
        begun = await world.one.begin(60)
        draft, lost = await world.one.draft_commit(begun.number, None, 7), [OutcomeUnknownError("lost")]

        async def unsure(*arguments: Any, done: bool = done, lost: list[Any] = lost, **named: Any) -> Any:
            result = await put_with_sequence(*arguments, **named) if done or not lost else None
            if lost:
                raise lost.pop()
            return result

        monkeypatch.setattr(world.store, "put_with_sequence", unsure)
        view, record = await world.one.commit_with(begun.number, None, Recording([WRITE]), 7, draft)
        assert view == await world.one.get(begun.number)
        assert record is not None
        assert len(await world.one.operations(begun.number)) == 1


async def test_an_id_that_somebody_has_is_given_to_nobody_else(world: World) -> None:
    one = world.coordinator(Few(7, 6, 40))
    first = await one.begin(60)
    begun = await one.begin_some(90, 3)
    assert (first.number, [view.number for view in begun]) == (7, [6, 4, 40])
    assert await one.get(7) == first
    assert [await one.get(view.number) for view in begun] == begun
    assert {view.header.timeout_ms - first.header.timeout_ms for view in begun} == {30_000}
    assert one.counters.begun == 4


@pytest.mark.parametrize("taken", [1, 3])
async def test_those_that_the_store_takes_are_begun(world: World, monkeypatch: pytest.MonkeyPatch, taken: int) -> None:
    """Others have these ids, and then it fails."""

    async def failing(*arguments: Any, **named: Any) -> Any:
        raise EngineError("no")

    one = world.coordinator(Few(8, 9, 10, 8, 40, 41, 42))
    for _ in range(taken):
        await one.begin(60)
    one._rng.numbers = [8, 40, 41, 42]  # type: ignore[attr-defined]
    monkeypatch.setattr(world.store, "put", failing)
    if taken == 3:
        with pytest.raises(EngineError, match="no"):
            await one.begin_some(60, 3)
    else:
        assert [view.number for view in await one.begin_some(60, 3)] == [9, 10]
    assert len(await one.list_open()) == one.counters.begun == 3


async def test_none_is_begun_by_a_store_that_fails(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def failing(writes: Any) -> Any:
        raise EngineError("no")

    monkeypatch.setattr(world.store, "write_all", failing)
    with pytest.raises(EngineError, match="no"):
        await world.one.begin_some(60, 3)
    assert (await world.one.list_open(), world.one.counters.begun) == ([], 0)


@pytest.mark.parametrize("done", [True, False])
async def test_those_whose_outcome_was_left_open_are_found_or_drafted_anew(
    world: World, monkeypatch: pytest.MonkeyPatch, done: bool
) -> None:
    one, write_all = world.coordinator(Few(9, 8, 40, 41, 42)), world.store.write_all
    await one.begin(60)

    async def unsure(writes: Any) -> Any:
        if done:
            await write_all(writes)
        raise OutcomeUnknownError("lost")

    monkeypatch.setattr(world.store, "write_all", unsure)
    begun = await one.begin_some(90, 3)
    assert [view.number for view in begun] == ([8, 10, 40] if done else [40, 41, 42])
    assert [await one.get(view.number) for view in begun] == begun
    assert len(await one.list_open()) == one.counters.begun == 4


async def test_many_are_begun_with_one_write(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world.store, "put", None)
    begun = await world.one.begin_some(60, BEGUN_MAX)
    assert sorted(view.number for view in begun) == sorted({view.number for view in await world.one.list_open()})
    assert len({view.number // BEGUN_MAX for view in begun}) == 1
    assert [await world.one.get(view.number) for view in begun] == begun
