"""Headers are prepared ahead of the write that decides; what another request writes in between counts."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import msgspec
import pytest

from engine.control.transactions.coordinator import TransactionCoordinator
from engine.control.transactions.headers import TransactionView
from engine.control.transactions.operations import Recording, operations_in, recording_of
from engine.errors import (
    CorruptionError,
    EngineError,
    InvalidArgumentError,
    TransactionConflictError,
    TransactionNotFoundError,
    UnknownOutcomeError,
)
from engine.limits import METADATA_VALUE_SIZE_MAX
from engine.metadata.memory import MemoryMetadataStore
from engine.metadata.store import ConflictError, OutcomeUnknownError, Record
from engine.model.names import SegmentName
from engine.model.transactions import (
    ACCEPTED_LISTED_MAX,
    ATTEMPTS_MAX,
    BEGUN_MAX,
    OperationKind,
    TransactionHeader,
    TransactionOperation,
    TransactionState,
    operation_counts,
)
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


class Last:
    """The last messages of a commit; `meanwhile` happens while they are on their way to the log."""

    def __init__(
        self,
        *operations: TransactionOperation,
        meanwhile: Callable[[], Awaitable[Any]] | None = None,
        known: TransactionView | None = None,
    ) -> None:
        self.known = known
        self.waited = False
        self._operations: list[TransactionOperation] | None = list(operations)
        self._meanwhile = meanwhile

    def refuse(self) -> Last:
        self._operations = None
        return self

    def prepare(self) -> None:
        pass

    async def stored(self) -> Recording | None:
        if self._meanwhile is not None:
            await self._meanwhile()
        self.waited = True
        return None if self._operations is None else recording_of(self._operations)


async def test_what_was_prepared_is_written_without_another_look(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def blind() -> None:
        monkeypatch.setattr(world.store, "get", None)

    begun = await world.one.begin(60)
    ended = await world.one.commit_behind(begun.number, None, 7, Last(WRITE, meanwhile=blind))
    monkeypatch.undo()
    assert ended is not None
    assert (ended.view.header.state, ended.view.header.mark) == (COMMITTED, 7)
    assert ended.record is not None
    assert [operation.facts for operation in operations_in(ended.record)] == [WRITE]
    assert ended.record.stat.version < ended.view.version
    assert await world.one.get(begun.number) == ended.view
    assert world.one.counters.cas_ok == world.one.counters.committed == 1


async def test_more_time_that_it_gets_meanwhile_stays(world: World) -> None:
    begun = await world.one.begin(60, "job")
    last = Last(WRITE, meanwhile=partial(world.one.begin, 600, "job"))
    ended = await world.one.commit_behind(begun.number, None, 7, last)
    assert ended is not None
    assert ended.view.header.span_ms == 600_000
    assert ended.view.header.timeout_ms > begun.header.timeout_ms
    assert (ended.view.header.state, ended.view.header.mark) == (COMMITTED, 7)
    assert ended.record is not None
    assert await world.one.operations(begun.number) == [WRITE]
    assert (world.one.counters.cas_conflict, world.one.counters.cas_ok) == (1, 1)


async def test_what_is_known_may_be_old(world: World) -> None:
    begun = await world.one.begin(60, "job")
    longer = await world.one.begin(600, "job")
    ended = await world.one.commit_behind(begun.number, None, 7, Last(WRITE, known=begun))
    assert ended is not None
    assert ended.view.header.timeout_ms == longer.header.timeout_ms > begun.header.timeout_ms
    assert (ended.view.header.state, ended.view.header.mark) == (COMMITTED, 7)
    assert ended.record is not None
    again = await world.one.commit_behind(begun.number, None, 7, Last(known=ended.view))
    assert again is not None
    assert (again.view, again.record) == (ended.view, None)


async def test_an_abort_meanwhile_is_a_conflict_and_nothing_is_recorded(world: World) -> None:
    begun = await world.one.begin(60)
    last = Last(WRITE, meanwhile=partial(world.one.end, begun.number, ABORTED))
    with pytest.raises(TransactionConflictError):
        await world.one.commit_behind(begun.number, None, None, last)
    assert (await world.one.get(begun.number)).header.state is ABORTED
    assert await world.one.operations(begun.number) == []
    assert world.one.counters.cas_reject == 1


@pytest.mark.parametrize("mark", [None, 7])
async def test_a_commit_meanwhile_is_it_and_nothing_more_is_recorded(world: World, mark: int | None) -> None:
    begun = await world.one.begin(60)
    last = Last(WRITE, meanwhile=partial(world.one.end, begun.number, COMMITTED))
    with pytest.raises(TransactionConflictError, match="before all its messages came"):
        await world.one.commit_behind(begun.number, None, mark, last)
    view = await world.one.get(begun.number)
    assert (view.header.state, view.header.mark) == (COMMITTED, None)
    assert await world.one.operations(begun.number) == []
    assert world.one.counters.committed == 1


async def test_a_commit_by_the_same_mark_may_have_recorded_them(world: World) -> None:
    """A store that was unsure wrote it: with the operations, or by an earlier request without them."""
    begun = await world.one.begin(60)
    assert await world.one.commit_behind(begun.number, None, 7, Last()) is not None
    with pytest.raises(UnknownOutcomeError, match="unknown whether with all messages"):
        await world.one.commit_behind(begun.number, None, 7, Last(WRITE))


async def test_messages_that_are_not_stored_as_sent_leave_it_open(world: World) -> None:
    begun = await world.one.begin(60)
    for last in (Last().refuse(), Last(WRITE).refuse()):
        assert await world.one.commit_behind(begun.number, None, 7, last) is None
    assert await world.one.get(begun.number) == begun
    assert world.one.counters.committed == 0


async def test_what_is_stored_is_recorded_whatever_was_there_before(world: World) -> None:
    begun, other = await world.one.begin(60), msgspec.structs.replace(WRITE, ranges=((5, 9),))
    last = Last(WRITE)

    async def more() -> None:
        last._operations = [WRITE, other]

    last._meanwhile = more
    ended = await world.one.commit_behind(begun.number, None, None, last)
    assert ended is not None
    assert ended.record is not None
    assert [operation.facts for operation in operations_in(ended.record)] == [WRITE, other]
    assert await world.one.operations(begun.number) == [WRITE, other]


async def test_nothing_is_prepared_of_what_has_ended_or_is_unknown(world: World) -> None:
    """The messages are waited for all the same: the error is that of the decision."""
    begun = await world.one.begin(60)
    await world.one.end(begun.number, ABORTED)
    for number, error in ((begun.number, TransactionConflictError), (5, TransactionNotFoundError)):
        last = Last()
        with pytest.raises(error):
            await world.one.commit_behind(number, None, None, last)
        assert last.waited


@pytest.mark.parametrize("accepted", [["a/b"], [1], [""], "a"])
async def test_attempts_that_cannot_be_are_refused_before_anything_is_read(world: World, accepted: Any) -> None:
    begun, last = await world.one.begin(60), Last(WRITE)
    with pytest.raises(InvalidArgumentError):
        await world.one.commit_behind(begun.number, accepted, None, last)
    assert not last.waited
    assert await world.one.get(begun.number) == begun


@pytest.mark.parametrize("passed_s", [0.5, 90.0])
async def test_it_is_kept_from_when_it_was_committed_however_long_ago_that_was_prepared(
    world: World, passed_s: float
) -> None:
    """The log took so long."""

    async def passes() -> None:
        world.clock.advance(passed_s)

    begun = await world.one.begin(600)
    ended = await world.one.commit_behind(begun.number, None, None, Last(meanwhile=passes))
    assert ended is not None
    assert abs(world.clock.time_ms() - (ended.view.header.finalized_ms or 0)) <= 1_000
    assert await world.one.collect(range(16)) == 0
    world.clock.advance(61.0)
    assert await world.one.collect(range(16)) == 1


async def test_an_unknown_outcome_of_what_was_prepared_is_resolved(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_with_sequence = world.store.put_with_sequence
    for done in (True, False):
        begun, lost = await world.one.begin(60), [OutcomeUnknownError("lost")]

        async def unsure(*arguments: Any, done: bool = done, lost: list[Any] = lost, **named: Any) -> Any:
            result = await put_with_sequence(*arguments, **named) if done or not lost else None
            if lost:
                raise lost.pop()
            return result

        monkeypatch.setattr(world.store, "put_with_sequence", unsure)
        ended = await world.one.commit_behind(begun.number, None, 7, Last(WRITE))
        assert ended is not None
        assert ended.view == await world.one.get(begun.number)
        assert ended.record is not None
        assert await world.one.operations(begun.number) == [WRITE]


async def test_record_and_header_of_one_write_may_bear_one_version(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a store whose transactions have one revision: both where the outcome was known, and where it was not."""
    put_with_sequence, listed = world.store.put_with_sequence, world.store.list
    versions: dict[str, int] = {}

    def equal(record: Record) -> Record:
        stat = msgspec.structs.replace(record.stat, version=versions.get(record.key, record.stat.version))
        return Record(record.key, record.value, stat)

    for lost in (False, True):

        async def together(put: Any, appended: Any, *, lost: bool = lost) -> Any:
            stat, record = await put_with_sequence(put, appended)
            versions[record.key] = stat.version
            if lost:
                raise OutcomeUnknownError("lost")
            return stat, equal(record)

        async def list_equal(*arguments: Any) -> list[Record]:
            return [equal(record) for record in await listed(*arguments)]

        monkeypatch.setattr(world.store, "put_with_sequence", together)
        monkeypatch.setattr(world.store, "list", list_equal)
        begun = await world.one.begin(60)
        ended = await world.one.commit_behind(begun.number, None, 7, Last(WRITE))
        assert ended is not None
        assert ended.record is not None
        (recorded,) = operations_in(ended.record)
        assert recorded.version == ended.view.version
        assert operation_counts(ended.view.header, ended.view.version, recorded.facts.attempt, recorded.version)


@pytest.mark.parametrize("count", [1, ACCEPTED_LISTED_MAX, ACCEPTED_LISTED_MAX + 1, ATTEMPTS_MAX])
def test_a_header_fits_a_record_however_many_attempts_it_accepts(count: int) -> None:
    accepted = tuple(sorted((1 << 64) - 1 - i for i in range(count)))
    header = TransactionHeader(COMMITTED, 1, 1, 2, None, accepted, 1 << 62)
    value = header.to_json()
    assert len(value) < METADATA_VALUE_SIZE_MAX
    assert isinstance(msgspec.json.decode(value)["accepted"], list) == (count <= ACCEPTED_LISTED_MAX)
    assert TransactionHeader._parse(value) == header


def test_a_header_whose_packed_attempts_are_damaged_is_refused() -> None:
    value = TransactionHeader(COMMITTED, 1, 1, 2, None, tuple(range(ACCEPTED_LISTED_MAX + 1))).to_json()
    for damaged in (value.replace(b"0000", b"000", 1), value.replace(b"0000", b"00 0", 1)):
        with pytest.raises(CorruptionError):
            TransactionHeader.from_json(damaged)


async def test_of_many_that_end_it_at_once_one_decides(world: World) -> None:
    begun = await world.one.begin(60)
    requests = [world.one.end(begun.number, state) for state in (COMMITTED, ABORTED) * 5]
    results = await asyncio.gather(*requests, return_exceptions=True)
    view = await world.one.get(begun.number)
    assert sum(result == view for result in results) == 5
    assert sum(isinstance(result, TransactionConflictError) for result in results) == 5
    assert world.one.counters.cas_ok == 1


async def test_races_without_end_leave_the_outcome_unknown(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = await world.one.begin(60)

    async def raced(*arguments: Any, **named: Any) -> Any:
        raise ConflictError("another writer was faster")

    monkeypatch.setattr(world.store, "put", raced)
    with pytest.raises(UnknownOutcomeError, match="ask for its state"):
        await world.one.end(begun.number, COMMITTED)
    assert world.one.counters.cas_conflict == 16


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
