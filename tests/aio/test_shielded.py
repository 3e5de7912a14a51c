"""`shielded`: what a caller that was cancelled leaves behind goes on, and is nothing to log."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from engine.aio.shielded import shielded
from tests.tidy.source_tree import ENGINE, files, relative


async def test_outcomes_are_passed_on():
    loop = asyncio.get_running_loop()
    results: list[asyncio.Future[int]] = [loop.create_future() for _ in range(3)]
    waiting = [asyncio.ensure_future(waited(work)) for work in results]
    await asyncio.sleep(0)
    results[0].set_result(7)
    results[1].set_exception(OSError("gone"))
    results[2].cancel()
    done = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(outcome) for outcome in done] == [int, OSError, asyncio.CancelledError]
    assert await shielded(results[0]) == 7, "it has ended already"


async def waited(work: asyncio.Future[int]) -> int:
    return await shielded(work)


@pytest.mark.parametrize("late", [False, True])
async def test_work_goes_on_without_its_caller_and_its_error_is_not_logged(late: bool):
    loop = asyncio.get_running_loop()
    logged: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: logged.append(context))
    work: asyncio.Future[int] = loop.create_future()
    caller = asyncio.ensure_future(waited(work))
    await asyncio.sleep(0)
    caller.cancel()
    if late:
        with contextlib.suppress(asyncio.CancelledError):
            await caller
    assert not work.cancelled()
    work.set_exception(OSError("gone"))
    await asyncio.gather(caller, return_exceptions=True)
    assert caller.cancelled() or not late
    assert isinstance(work.exception(), OSError)
    assert logged == []


def test_nothing_uses_the_one_that_logs():
    faults = [relative(path) for path in files(".py", under=ENGINE) if "asyncio.shield(" in path.read_text()]
    assert not faults, f"use engine.aio.shielded: {faults}"
