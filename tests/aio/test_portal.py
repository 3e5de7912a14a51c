"""The portal: waiting for a loop on another thread."""

from __future__ import annotations

import asyncio
import queue
import random
import signal
import sys
import threading

import pytest

from engine.aio.backoff import RetryDelay
from engine.aio.portal import Portal
from engine.aio.tasks import Supervisor
from engine.aio.uv import new_event_loop, run
from engine.errors import AlreadyClosedError, InvalidArgumentError

UNNOTICED_S = 30.0  # after which a wait that does not notice a signal is given up


@pytest.fixture
def portal():
    portal = Portal("test")
    yield portal
    portal.close()


async def add(a: int, b: int) -> int:
    await asyncio.sleep(0)
    return a + b


def test_run_returns_and_raises(portal):
    assert portal.run(add(1, 2)) == 3

    async def fail():
        raise KeyError("x")

    with pytest.raises(KeyError):
        portal.run(fail())
    with pytest.raises(TimeoutError):
        portal.run(asyncio.sleep(60), timeout=0.01)


def test_submit_and_call(portal):
    assert portal.submit(add(1, 1)).result(10) == 2
    assert portal.call(lambda x: x * 2, 21) == 42
    assert portal.call(threading.get_ident) != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        portal.call(lambda: 1 / 0)
    done = threading.Event()
    portal.call_soon_threadsafe(done.set)
    assert done.wait(10)


def test_a_signal_that_does_not_wake_the_waiting_thread_is_noticed(portal):
    """The system runs its handler on the portal's thread, so the blocked one hears as little of it as in the race."""
    caller, left = threading.get_ident(), queue.SimpleQueue[str]()

    async def interrupt() -> None:
        waiting = threading.Condition.wait.__code__
        while sys._current_frames()[caller].f_code is not waiting:  # noqa: ASYNC110 - a blocked thread sets no event
            await asyncio.sleep(0)
        signal.raise_signal(signal.SIGINT)
        try:
            await asyncio.sleep(UNNOTICED_S)
            left.put("finished, with the caller blocked until then")
        except asyncio.CancelledError:
            left.put("cancelled")

    # A thread that blocks drops the interpreter's lock, and here for no other reason: in `wait`, it is asleep.
    interval, handler = sys.getswitchinterval(), signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.setswitchinterval(UNNOTICED_S)
    try:
        with pytest.raises(KeyboardInterrupt):
            portal.run(interrupt())
    finally:
        sys.setswitchinterval(interval)
        signal.signal(signal.SIGINT, handler)
    assert left.get(timeout=UNNOTICED_S) == "cancelled"


def test_waiting_for_oneself_is_refused(portal):
    async def inside():
        return portal.run(add(1, 2))

    with pytest.raises(InvalidArgumentError, match="await there"):
        portal.run(inside())


def test_close_cancels_and_refuses_afterwards():
    portal = Portal()
    ended = threading.Event()

    async def forever():
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    future = portal.submit(forever())
    portal.run(add(0, 0))
    portal.close()
    portal.close()
    assert ended.is_set()
    assert future.cancelled()
    assert portal.closed
    with pytest.raises(AlreadyClosedError):
        portal.submit(add(1, 2))
    with pytest.raises(AlreadyClosedError):
        portal.call_soon_threadsafe(print)


def test_many_threads_at_once(portal):
    results: list[int] = []
    threads = [threading.Thread(target=lambda n=n: results.append(portal.run(add(n, n)))) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [2 * n for n in range(20)]


def test_run_uses_uvloop():
    async def which():
        return type(asyncio.get_running_loop()).__module__

    assert run(which()).startswith("uvloop")
    loop = new_event_loop()
    loop.close()


async def test_supervisor_logs_failures_and_cancels_the_rest(caplog):
    supervisor = Supervisor("room")

    async def fail():
        raise ValueError("boom")

    supervisor.spawn(fail(), "failing")
    waiting = supervisor.spawn(asyncio.Event().wait(), "waiting")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert "failing" in caplog.text
    assert len(supervisor) == 1
    await supervisor.close()
    assert waiting.cancelled()
    assert supervisor.spawn(fail()) is None


def test_backoff_grows_jitters_and_replays():
    def delays(seed: int) -> list[float]:
        backoff = RetryDelay(random.Random(seed), initial=0.1, maximum=2.0)
        return [backoff.next() for _ in range(10)]

    assert delays(1) == delays(1) != delays(2)
    for n, delay in enumerate(delays(3)):
        ceiling = min(0.1 * 2**n, 2.0)
        assert ceiling / 2 <= delay <= ceiling
    with pytest.raises(InvalidArgumentError):
        RetryDelay(random.Random(0), initial=2, maximum=1)


def test_a_thread_that_has_the_ident_of_the_ended_one_may_close():
    """The system gives the ident of a thread that has ended to a later one."""
    portal = Portal("ended")
    portal.close()
    ident = portal._thread.ident
    outcomes: list[BaseException | None] = []

    def close() -> None:
        if threading.get_ident() != ident:
            return
        try:
            portal.close()
            outcomes.append(None)
        except BaseException as e:
            outcomes.append(e)

    for _ in range(10_000):
        thread = threading.Thread(target=close)
        thread.start()
        thread.join()
        if outcomes:
            break
    assert outcomes == [None]


def test_closing_ends_what_waits_with_a_typed_error():
    portal, begun = Portal("closing"), threading.Event()

    async def wait() -> None:
        begun.set()
        await asyncio.Event().wait()

    outcomes: list[BaseException] = []

    def run() -> None:
        try:
            portal.run(wait())
        except BaseException as e:
            outcomes.append(e)

    thread = threading.Thread(target=run)
    thread.start()
    begun.wait()
    portal.close()
    thread.join()
    assert [type(outcome) for outcome in outcomes] == [AlreadyClosedError]


def test_closing_ends_what_begins_while_others_are_cancelled():
    portal, begun = Portal("closing"), threading.Event()
    ended: list[str] = []

    async def inner() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("inner")

    async def outer() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            portal.late = asyncio.ensure_future(inner())  # type: ignore[attr-defined]
            await asyncio.sleep(0)
            ended.append("outer")

    future = portal.submit(outer())
    begun.wait()
    portal.close()
    assert future.cancelled()
    assert sorted(ended) == ["inner", "outer"]
