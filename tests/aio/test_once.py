"""An end happens once, and whole."""

from __future__ import annotations

import asyncio

import pytest

from engine.aio.once import Once


class Work:
    def __init__(self, error: Exception | None = None) -> None:
        self.begun = self.ended = 0
        self.may_end = asyncio.Event()
        self.error = error

    async def run(self) -> None:
        self.begun += 1
        await self.may_end.wait()
        self.ended += 1
        if self.error is not None:
            raise self.error


async def test_it_is_done_once_and_all_wait_for_it():
    once, work = Once(), Work()
    callers = [asyncio.ensure_future(once.run(work.run)) for _ in range(3)]
    await asyncio.sleep(0)
    assert not any(caller.done() for caller in callers)
    work.may_end.set()
    await asyncio.gather(*callers)
    await once.run(work.run)
    assert (work.begun, work.ended) == (1, 1)


async def test_the_first_is_told_what_went_wrong():
    once, work = Once(), Work(ValueError("x"))
    work.may_end.set()
    with pytest.raises(ValueError, match="x"):
        await once.run(work.run)
    await once.run(work.run)


async def test_who_is_cancelled_does_not_leave_half_an_end():
    once, work = Once(), Work()
    first = asyncio.ensure_future(once.run(work.run))
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    second = asyncio.ensure_future(once.run(work.run))
    work.may_end.set()
    await second
    assert (work.begun, work.ended) == (1, 1)
