"""Who waits for all that was sent in a transaction is woken when that is decided, and not for each frame."""

from __future__ import annotations

import asyncio

import pytest

from engine.broker.transactions.sends import TransactionSends

FRAMES = 4


class Held:
    """Counts how often whoever waits looks."""

    def __init__(self) -> None:
        self.looks = 0

    def count(self, sends: object) -> int:
        self.looks += 1
        return FRAMES


async def turns(count: int = 4) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.fixture
async def waiting() -> tuple[TransactionSends, Held, asyncio.Task[bool]]:
    """Whoever waits for frames that have come, none of them in the log."""
    sends, held = TransactionSends(), Held()
    for _ in range(FRAMES):
        sends.begin()
    task = asyncio.ensure_future(sends.complete(FRAMES, held))  # type: ignore[arg-type]
    await turns()
    return sends, held, task


async def test_the_last_frame_in_the_log_wakes_it(waiting: tuple[TransactionSends, Held, asyncio.Task[bool]]) -> None:
    sends, held, task = waiting
    for _ in range(FRAMES - 1):
        sends.logged()
        await turns()
    assert (held.looks, task.done()) == (1, False)
    sends.logged()
    assert await asyncio.wait_for(task, 20)
    assert held.looks == 2


async def test_a_frame_that_is_refused_wakes_it_at_once(
    waiting: tuple[TransactionSends, Held, asyncio.Task[bool]],
) -> None:
    sends, _, task = waiting
    sends.logged()
    refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    refused.set_exception(ValueError("no"))
    sends.answered(refused)
    assert not await asyncio.wait_for(task, 20)


async def test_what_is_recorded_besides_is_waited_for() -> None:
    """One frame more than is held: its own record is on its way."""
    sends, held = TransactionSends(), Held()
    for _ in range(FRAMES + 1):
        sends.begin()
    task = asyncio.ensure_future(sends.complete(FRAMES + 1, held))  # type: ignore[arg-type]
    for _ in range(FRAMES + 1):
        sends.logged()
    await turns()
    assert not task.done()
    answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    answered.set_result(None)
    sends.answered(answered)
    assert await asyncio.wait_for(task, 20)


async def test_a_frame_that_comes_once_more_ends_the_wait(
    waiting: tuple[TransactionSends, Held, asyncio.Task[bool]],
) -> None:
    """It is answered with the record of its original, which is not written as long as a commit waits here."""
    sends, _, task = waiting
    for _ in range(FRAMES - 1):
        sends.logged()
    sends.begin()
    assert not await asyncio.wait_for(task, 20)
