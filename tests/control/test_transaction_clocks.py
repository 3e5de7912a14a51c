"""Deadlines and retention of transactions while the wall clock is set, in a process and across its restarts."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from engine.control.transactions.coordinator import TransactionCoordinator
from engine.control.transactions.operations import NOTHING, Recording
from engine.errors import TransactionConflictError, TransactionNotFoundError
from tests.control.transaction_world import ABORTED, COMMITTED, World

DAY_S = 86_400
DAY_MS = DAY_S * 1000
STEP_S = 0.5


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    await world.store.close()


async def looks(world: World, coordinator: TransactionCoordinator, seconds: float) -> int:
    """The broker runs for so long; how many it has aborted."""
    aborted = 0
    for _ in range(round(seconds / STEP_S)):
        world.clock.advance(STEP_S)
        aborted += (await world.sweep(coordinator))[0]
    return aborted


@pytest.mark.parametrize("step_ms", [-DAY_MS, DAY_MS, -3_000, 3_000])
async def test_a_step_changes_no_deadline_in_a_running_process(world: World, step_ms: int) -> None:
    coordinator = world.coordinator()
    await world.sweep(coordinator)
    view = await coordinator.begin(5)
    assert await looks(world, coordinator, 2.0) == 0
    world.clock.jump(step_ms)
    assert await looks(world, coordinator, 2.5) == 0
    assert await looks(world, coordinator, 1.0) == 1
    ended = await coordinator.get(view.number)
    assert ended.header.standing == "ABORTED (timed out)"


@pytest.mark.parametrize("step_ms", [-DAY_MS, DAY_MS])
async def test_a_step_between_the_beginning_and_the_first_look_at_it(world: World, step_ms: int) -> None:
    coordinator = world.coordinator()
    await looks(world, coordinator, 60.0)  # and none was open at the last
    view = await coordinator.begin(5)
    world.clock.jump(step_ms)
    assert await looks(world, coordinator, 4.0) == 0
    assert await looks(world, coordinator, 2.0) == 1
    assert (await coordinator.get(view.number)).header.state is ABORTED


async def test_set_back_while_no_process_runs_it_is_open_for_its_timeout_at_most(world: World) -> None:
    view = await world.coordinator().begin(5)
    world.clock.jump(-DAY_MS)
    restarted = world.coordinator()
    assert restarted.open.left_s(view) is None
    assert (await world.sweep(restarted))[0] == 0
    assert restarted.open.left_s(view) == 5.0
    assert await looks(world, restarted, 5.0) == 1
    assert (await restarted.get(view.number)).header.state is ABORTED


async def test_set_forward_while_no_process_runs_it_is_over(world: World) -> None:
    """A process that was not there cannot tell a step from time that has passed."""
    view = await world.coordinator().begin(5)
    world.clock.jump(DAY_MS)
    assert (await world.sweep(world.coordinator()))[0] == 1
    assert (await world.coordinator().get(view.number)).header.state is ABORTED


async def test_a_broker_whose_clock_is_behind_keeps_the_deadlines_of_one_that_is_right(world: World) -> None:
    """And one whose clock is ahead does not abort at once what the other begins."""
    right, sweeping = world.coordinator(), world.coordinator()
    await world.sweep(sweeping)
    for skew_ms in (DAY_MS, -DAY_MS):
        view = await right.begin(5)
        world.clock.jump(skew_ms)  # the sweeping broker's clock
        assert await looks(world, sweeping, 4.0) == 0
        assert await looks(world, sweeping, 1.5) == 1
        world.clock.jump(-skew_ms)
        assert (await right.get(view.number)).header.state is ABORTED


@pytest.mark.parametrize("step_ms", [-DAY_MS, -30_000, 0, DAY_MS])
@pytest.mark.parametrize("restart", [False, True])
async def test_asking_for_the_name_gives_the_whole_timeout_again(world: World, step_ms: int, restart: bool) -> None:
    coordinator = world.coordinator()
    await world.sweep(coordinator)
    first = await coordinator.begin(60, "batch-7")
    assert await looks(world, coordinator, 50.0) == 0
    world.clock.jump(step_ms)
    coordinator = world.coordinator() if restart else coordinator
    again = await coordinator.begin(60, "batch-7")
    assert (again.number, again.header.created_ms) == (first.number, first.header.created_ms)
    assert await looks(world, coordinator, 59.0) == 0
    assert await looks(world, coordinator, 2.0) == 1


async def test_a_shorter_timeout_takes_nothing_away(world: World) -> None:
    coordinator = world.coordinator()
    await world.sweep(coordinator)
    await coordinator.begin(60, "batch-7")
    assert await looks(world, coordinator, 10.0) == 0
    await coordinator.begin(20, "batch-7")
    assert await looks(world, coordinator, 49.0) == 0
    world.clock.jump(-DAY_MS)
    await world.coordinator().begin(5, "batch-7")  # another broker, which knows only that it begins in the future
    assert await looks(world, coordinator, 59.0) == 0
    assert await looks(world, coordinator, 2.0) == 1


async def test_how_long_it_is_open_does_not_go_by_the_wall_clock(world: World) -> None:
    coordinator = world.coordinator()
    await world.sweep(coordinator)
    view = await coordinator.begin(60, "batch-7")
    await looks(world, coordinator, 20.0)
    for step_ms in (-DAY_MS, 2 * DAY_MS):
        world.clock.jump(step_ms)
        assert (coordinator.open.open_s(view), coordinator.open.left_s(view)) == (20.0, 40.0)
        assert abs(coordinator.open.born_ms(view) - (world.clock.time_ms() - 20_000)) < 1_000
    renewed = await coordinator.begin(60, "batch-7")
    assert coordinator.open.open_s(renewed) >= 20.0
    world.clock.jump(-7 * DAY_MS)
    unseen = world.coordinator()
    assert (unseen.open.open_s(view), unseen.open.left_s(view)) == (0.0, None)


@pytest.mark.parametrize("named", [False, True])
async def test_set_forward_ends_no_retention(world: World, named: bool) -> None:
    """What a client asks for after its commit was not answered, and what a job goes by that is run again."""
    coordinator, kept_s = world.coordinator(), 7 * DAY_S if named else 60
    before = await coordinator.begin(60, "before" if named else None)
    await coordinator.end(before.number, COMMITTED)
    await looks(world, coordinator, 10.0)
    world.clock.jump(30 * DAY_MS)
    await looks(world, coordinator, 10.0)
    after = await coordinator.begin(60, "after" if named else None)
    await coordinator.end(after.number, COMMITTED)
    assert (await world.sweep(coordinator))[1] == 0
    world.clock.advance(kept_s - 30)
    assert (await world.sweep(coordinator))[1] == 0
    assert (await coordinator.get(before.number)).header.state is COMMITTED
    world.clock.advance(20)
    assert (await world.sweep(coordinator))[1] == 1
    with pytest.raises(TransactionNotFoundError):
        await coordinator.get(before.number)
    world.clock.advance(20)
    assert (await world.sweep(coordinator))[1] == 1  # not a month later


class SetBack:
    """The last messages of a commit: none. The clock is set back while they are on their way."""

    known = None

    def __init__(self, world: World) -> None:
        self._world = world

    def prepare(self) -> None:
        pass

    async def stored(self) -> Recording:
        self._world.clock.jump(-DAY_MS)
        return NOTHING


async def test_set_back_the_header_of_a_commit_is_made_anew(world: World) -> None:
    coordinator = world.coordinator()
    view = await coordinator.begin(60)
    ended = await coordinator.commit_behind(view.number, None, None, SetBack(world))
    assert ended is not None
    assert ended.view.header.finalized_ms == world.clock.time_ms()


async def test_an_abort_by_hand_is_told_from_a_timeout(world: World) -> None:
    coordinator = world.coordinator()
    view = await coordinator.begin(60)
    world.clock.jump(DAY_MS)
    await coordinator.end(view.number, ABORTED)
    with pytest.raises(TransactionConflictError, match="on request"):
        await coordinator.end(view.number, COMMITTED)


async def test_many_open_ones_are_looked_at_page_by_page(world: World) -> None:
    coordinator = world.coordinator()
    await world.sweep(coordinator)
    views = [await coordinator.begin(5 + n % 2) for n in range(600)]
    assert await looks(world, coordinator, 5.0) == 300
    world.clock.jump(-DAY_MS)
    assert await looks(world, coordinator, 1.0) == 300
    assert await coordinator.list_open() == []
    states = [(await coordinator.get(view.number)).header.state for view in views]
    assert states == [ABORTED] * 600
