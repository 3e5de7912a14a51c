"""Processes inside one loop: stopped, they do nothing; continued, they go on as if no time had passed."""

from __future__ import annotations

import asyncio
import random

from engine.testing.loop import run_virtual
from engine.testing.process import Process
from engine.testing.workers import SimWorkers


def test_a_stopped_process_does_nothing_until_it_goes_on() -> None:
    async def body() -> None:
        process, ticks = Process("p"), []
        loop = asyncio.get_running_loop()

        async def tick() -> None:
            while True:
                await asyncio.sleep(1)
                ticks.append(loop.time())

        task = process.run(loop.create_task, tick())
        await asyncio.sleep(2.5)
        process.suspend()
        await asyncio.sleep(5)
        assert ticks == [1, 2]
        process.resume()
        await asyncio.sleep(1.1)
        assert ticks == [1, 2, 7.5, 8.5]
        assert await process.kill() == []
        assert task.cancelled()

    run_virtual(body())


def test_what_was_due_meanwhile_runs_in_its_order() -> None:
    async def body() -> None:
        process, done = Process("p"), []
        loop = asyncio.get_running_loop()
        for at in (3, 1, 2):
            process.run(loop.call_later, at, done.append, at)
        process.suspend()
        await asyncio.sleep(5)
        assert done == []
        process.resume()
        await asyncio.sleep(0)
        assert done == [1, 2, 3]

    run_virtual(body())


def test_what_is_cancelled_after_the_stop_is_not_run_though_it_was_due() -> None:
    async def body() -> None:
        process, done = Process("p"), []
        loop = asyncio.get_running_loop()
        later = process.run(loop.call_later, 2, done.append, "later")
        process.run(loop.call_later, 1, later.cancel)
        process.suspend()
        await asyncio.sleep(5)
        process.resume()
        await asyncio.sleep(1)
        assert done == []

    run_virtual(body())


def test_a_stopped_process_can_be_killed() -> None:
    async def body() -> None:
        process = Process("p")
        process.run(asyncio.get_running_loop().create_task, asyncio.sleep(100))
        process.suspend()
        assert await process.kill() == []

    run_virtual(body())


def test_stalled_work_is_with_the_system_and_its_end_is_heard_of_later() -> None:
    async def body() -> None:
        process, workers, events = Process("p"), SimWorkers(random.Random(1)), []
        workers.stall()
        process.run(workers.post, lambda: events.append("worked"), lambda *_: events.append("heard"))
        await asyncio.sleep(1)
        assert events == []
        process.suspend()
        workers.resume()
        await asyncio.sleep(1)
        assert events == ["worked"]
        process.resume()
        await asyncio.sleep(0)
        assert events == ["worked", "heard"]

    run_virtual(body())
