"""The coordinator: one compare-and-set decides, deadlines are kept, nothing is forgotten that is needed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import (
    InvalidArgumentError,
    TransactionConflictError,
    TransactionNotFoundError,
)
from engine.limits import TRANSACTION_TIMEOUT_S_MAX
from engine.metadata import keys
from engine.metadata.store import ABSENT
from engine.model.transactions import PARTITIONS, parse_id, partition_of
from tests.control.transaction_world import ABORTED, COMMITTED, OPEN, WRITE, World


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    await world.store.close()


async def test_commit_and_abort_are_final_for_every_broker(world: World) -> None:
    one, other = world.coordinator(), world.coordinator()
    for state, opposite in ((COMMITTED, ABORTED), (ABORTED, COMMITTED)):
        begun = await one.begin(60)
        assert begun.header.state is OPEN
        ended = await other.end(begun.number, state)
        assert ended.header.state is state
        assert await one.end(begun.number, state) == ended  # semantics 36
        with pytest.raises(TransactionConflictError):
            await one.end(begun.number, opposite)
        assert (await one.get(begun.number)).header == ended.header


async def test_an_unknown_one_is_not_found(world: World) -> None:
    with pytest.raises(TransactionNotFoundError, match="0000000000000005"):
        await world.coordinator().end(5, COMMITTED)
    with pytest.raises(TransactionNotFoundError):
        await world.coordinator().get(5)


@pytest.mark.parametrize(
    "timeout", [0, -1, TRANSACTION_TIMEOUT_S_MAX + 1, float("nan"), float("inf"), "60", None, True]
)
async def test_timeouts_that_cannot_be(world: World, timeout: object) -> None:
    with pytest.raises(InvalidArgumentError, match="timeout"):
        await world.coordinator().begin(timeout)  # type: ignore[arg-type]


async def test_of_a_commit_and_an_abort_at_once_one_wins(world: World) -> None:
    for seed in range(20):
        world.faulty.delay_s_max = 0.001 * (seed % 2)
        begun = await world.coordinator().begin(60)
        outcomes = await asyncio.gather(
            world.coordinator().end(begun.number, COMMITTED),
            world.coordinator().end(begun.number, ABORTED),
            return_exceptions=True,
        )
        assert sorted(isinstance(o, TransactionConflictError) for o in outcomes) == [False, True]


async def test_an_unknown_outcome_is_resolved_to_one_answer(world: World) -> None:
    """T6, and repeating is safe."""
    begun = [await world.coordinator().begin(60) for _ in range(50)]
    world.faulty.unknown_rate = 0.4
    for view in begun:
        assert (await world.coordinator().end(view.number, COMMITTED)).header.state is COMMITTED
    world.faulty.unknown_rate = 0.0
    for view in begun:
        assert (await world.coordinator().get(view.number)).header.state is COMMITTED


async def test_a_forgotten_one_is_aborted_at_its_deadline(world: World) -> None:
    """T7."""
    short, long = await world.coordinator().begin(5), await world.coordinator().begin(50)
    world.clock.advance(4.9)
    assert (await world.sweep(world.coordinator()))[0] == 0
    world.clock.advance(0.2)
    assert (await world.sweep(world.coordinator()))[0] == 1
    assert (await world.coordinator().get(short.number)).header.state is ABORTED
    assert [view.number for view in await world.coordinator().list_open()] == [long.number]
    with pytest.raises(TransactionConflictError, match=r"ABORTED \(timed out\)"):
        await world.coordinator().end(short.number, COMMITTED)
    await world.coordinator().end(long.number, ABORTED)
    with pytest.raises(TransactionConflictError, match=r"ABORTED \(on request\)"):
        await world.coordinator().end(long.number, COMMITTED)


async def test_two_who_sweep_at_once_abort_once(world: World) -> None:
    view = await world.coordinator().begin(5)
    world.clock.advance(6)
    brokers = [world.coordinator(), world.coordinator()]
    partition = partition_of(view.number)
    assert sum(await asyncio.gather(*(b.abort_expired([partition]) for b in brokers))) == 1
    assert sum(b.counters.timed_out for b in brokers) == 1


@given(st.data())
async def test_a_sweep_of_some_partitions_does_what_each_needs(data: st.DataObject) -> None:
    """Begun, timed out, ended and kept too long, in any partition: what is not this sweeper's stays as it is."""
    world = World()
    begun = [await world.coordinator().begin(seconds) for seconds in data.draw(st.lists(st.sampled_from((5, 900))))]
    for view in begun:
        if data.draw(st.booleans()):
            await world.coordinator().end(view.number, ABORTED)
    ended = {view.number for view in begun} - {view.number for view in await world.coordinator().list_open()}
    mine = sorted(data.draw(st.sets(st.integers(0, PARTITIONS - 1))))
    sweeper = world.coordinator()
    for seconds in (6, 600):
        await sweeper.abort_expired(mine)  # it sees each before it is overdue
        world.clock.advance(seconds)
    short = {view.number for view in begun if view.header.span_ms == 5000} - ended
    assert await sweeper.abort_expired(mine) == 0
    assert sweeper.counters.timed_out == sum(partition_of(number) in mine for number in short)
    gone = {number for number in ended | short if partition_of(number) in mine}  # all ended 600 s ago
    assert await sweeper.collect(mine) == len(gone)
    left = {parse_id(key.rpartition("/")[2]) for key in await world.store.list_keys("/txn/", keys.prefix_end("/txn/"))}
    assert left == {view.number for view in begun} - gone
    await world.store.close()


async def test_a_sweep_reads_once_where_nothing_is_under_way(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """And once for each partition that has some, and once for those behind the last."""
    sweeper, reads, real = world.coordinator(), [], world.store.list_index

    async def counted(*args: Any) -> Any:
        reads.append(args)
        return await real(*args)

    monkeypatch.setattr(world.store, "list_index", counted)
    assert await world.sweep(sweeper) == (0, 0)
    assert len(reads) == 2
    view = await sweeper.begin(600)
    reads.clear()
    assert await sweeper.abort_expired(range(PARTITIONS)) == 0
    assert len(reads) == 3 - (partition_of(view.number) == PARTITIONS - 1)
    assert [one.number for one in sweeper.open._partitions[partition_of(view.number)].views.values()] == [view.number]
    await sweeper.end(view.number, COMMITTED)
    assert await sweeper.abort_expired(range(PARTITIONS)) == 0
    assert not any(partition.views for partition in sweeper.open._partitions.values()), "its header is still kept"


async def test_headers_are_kept_for_their_retention_and_as_long_as_somebody_needs_them(world: World) -> None:
    coordinator = world.coordinator()
    view = await coordinator.begin(600)
    await world.operate(view.number)
    assert await coordinator.operations(view.number) == [WRITE]
    await coordinator.end(view.number, COMMITTED)
    world.clock.advance(59)
    assert (await world.sweep(coordinator))[1] == 0
    world.absent = True
    world.clock.advance(2)
    assert (await world.sweep(coordinator))[1] == 0  # the participant goes by it when it is back
    world.absent = False
    assert (await world.sweep(coordinator))[1] == 1
    with pytest.raises(TransactionNotFoundError):
        await coordinator.get(view.number)
    assert await world.store.list_keys("", "\U0010ffff") == []


async def test_a_name_finds_its_open_transaction_and_gives_it_more_time(world: World) -> None:
    first = await world.coordinator().begin(60, "batch-7")
    world.clock.advance(50)
    again = await world.coordinator().begin(60, "batch-7")
    assert (again.number, again.header.state) == (first.number, OPEN)
    world.clock.advance(50)
    assert (await world.sweep(world.coordinator()))[0] == 0


async def test_a_name_finds_its_committed_transaction_long_after(world: World) -> None:
    first = await world.coordinator().begin(60, "batch-7")
    await world.coordinator().end(first.number, COMMITTED, ["a"])
    world.clock.advance(6 * 24 * 3600)
    assert (await world.sweep(world.coordinator()))[1] == 0
    again = await world.coordinator().begin(60, "batch-7")
    assert (again.number, again.header.state) == (first.number, COMMITTED)
    world.clock.advance(2 * 24 * 3600)
    assert (await world.sweep(world.coordinator()))[1] == 1
    assert (await world.coordinator().begin(60, "batch-7")).number != first.number


async def test_a_name_whose_transaction_was_aborted_begins_anew(world: World) -> None:
    first = await world.coordinator().begin(60, "batch-7")
    await world.coordinator().end(first.number, ABORTED)
    second = await world.coordinator().begin(60, "batch-7")
    assert (second.header.state, second.number != first.number) == (OPEN, True)
    world.clock.advance(61)
    await world.sweep(world.coordinator())  # forgets the first, and not what its name means now
    await world.coordinator().end(second.number, ABORTED)
    assert (await world.coordinator().get(second.number)).header.name == "batch-7"


async def test_a_name_of_a_release_in_which_all_roles_shared_them_is_its_roles(world: World) -> None:
    """As to 0.1.0a6: a job that is run again behind an upgrade finds its commit. In the end nothing of it is left."""
    coordinator = world.coordinator()
    before = await coordinator.begin(60, "nightly", "ann")
    await world.store.delete(keys.transaction_name("nightly", "ann"))
    await world.store.put(keys.transaction_name("nightly", None), before.id.encode(), ABSENT)
    assert (await coordinator.begin(60, "nightly", "ann")).number == before.number
    assert (await coordinator.begin(60, "nightly", "bob")).number != before.number
    await coordinator.end(before.number, COMMITTED)
    assert (await coordinator.begin(60, "nightly", "ann")).header.state is COMMITTED
    world.clock.advance(8 * 24 * 3600)
    await world.sweep(coordinator)  # aborts bob's
    await world.sweep(coordinator)
    assert await world.store.get(keys.transaction_name("nightly", None)) is None
    assert (await coordinator.begin(60, "nightly", "ann")).number != before.number


async def test_many_who_begin_one_name_at_once_get_one_transaction(world: World) -> None:
    world.faulty.delay_s_max = 0.001
    views = await asyncio.gather(*(world.coordinator().begin(60, "batch-7") for _ in range(8)))
    assert len({view.number for view in views}) == 1
    assert [view.number for view in await world.coordinator().list_open()] == [views[0].number]


async def test_begin_when_the_store_does_not_say_whether_it_wrote(world: World) -> None:
    world.faulty.unknown_rate = 0.4
    views = [await world.coordinator().begin(60, f"batch-{n % 10}") for n in range(60)]
    world.faulty.unknown_rate = 0.0
    assert len({(view.header.name, view.number) for view in views}) == 10
