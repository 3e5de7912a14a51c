"""Workers for blocking file access: a few threads, a foreign executor, or the loop itself under simulation.

A worker takes a job from a `SimpleQueue` and answers with `call_soon_threadsafe`: about 50 µs per round trip on
uvloop, where `loop.run_in_executor` costs up to twice that, which is as much as the sync it waits for.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import cache
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
Work = Callable[[], Any]
Done = Callable[[Any, "BaseException | None"], None]

_LAST_TURN_S = 0.02


class Workers(Protocol):
    """Runs blocking work off the loop. Jobs may run concurrently and end in any order."""

    def post(self, work: Work, done: Done) -> None:
        """Run work() elsewhere, then call done(its result or None, its exception or None) on the calling loop."""

    def close(self) -> None:
        """Finish all posted work and stop. Idempotent."""


class ThreadWorkers:
    """Daemon threads, started on demand, at most `threads`."""

    def __init__(self, threads: int = 16, name: str = "engine-storage") -> None:
        self._threads_max = threads
        self._name = name
        self._threads: list[threading.Thread] = []
        self._jobs: queue.SimpleQueue[tuple[asyncio.AbstractEventLoop, Work, Done] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._outstanding = 0

    def post(self, work: Work, done: Done) -> None:
        with self._lock:
            self._outstanding += 1
            if self._outstanding > len(self._threads) < self._threads_max:
                self._start_one()
        self._jobs.put((asyncio.get_running_loop(), work, done))

    def _start_one(self) -> None:
        thread = threading.Thread(target=self._run, name=f"{self._name}-{len(self._threads)}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            loop, work, done = job
            result, error = call(work)
            with self._lock:
                self._outstanding -= 1
            with contextlib.suppress(RuntimeError):  # the loop was closed: nothing waits for the result
                loop.call_soon_threadsafe(done, result, error)
            del loop, job, work, done, result, error  # an idle thread must not keep objects alive

    def close(self) -> None:
        threads, self._threads = self._threads, []
        for _ in threads:
            self._jobs.put(None)
        for thread in threads:
            thread.join()


class InlineWorkers:
    """Runs the work at once, on the loop, and answers in its next turn: deterministic under virtual time."""

    def post(self, work: Work, done: Done) -> None:
        result, error = call(work)
        asyncio.get_running_loop().call_soon(done, result, error)

    def close(self) -> None:
        """Does nothing."""


class Submits(Protocol):
    """The part of concurrent.futures.Executor that is used."""

    def submit(self, fn: Callable[..., Any], /) -> Future[Any]:
        """Run fn() elsewhere."""


class ExecutorWorkers:
    """Uses an executor that another component owns."""

    def __init__(self, executor: Submits) -> None:
        self._executor = executor

    def post(self, work: Work, done: Done) -> None:
        loop = asyncio.get_running_loop()

        def finished(future: Future[Any]) -> None:
            error = future.exception()
            with contextlib.suppress(RuntimeError):  # the loop was closed: nothing waits for the result
                loop.call_soon_threadsafe(done, None if error else future.result(), error)

        self._executor.submit(work).add_done_callback(finished)

    def close(self) -> None:
        """Does nothing: the executor's owner shuts it down."""


def call(work: Work) -> tuple[Any, BaseException | None]:
    """(result, None) or (None, exception)."""
    try:
        return work(), None
    except BaseException as e:
        return None, e


def as_workers(executor: Workers | Submits) -> Workers:
    """`executor` itself when it has `post`, otherwise wrapped."""
    return executor if hasattr(executor, "post") else ExecutorWorkers(executor)  # type: ignore[return-value]


def run(workers: Workers, work: Callable[[], T]) -> asyncio.Future[T]:
    """Run blocking work; a future for its result."""
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def done(result: T, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    workers.post(work, done)
    return future


@cache
def threads_end_before_the_interpreter() -> None:
    """Let threads of a library end their last turn when the interpreter ends. Needed once for all of them.

    A thread that has handed over a result takes the interpreter's lock once more to leave; an interpreter that ends
    then kills the thread, and native code that must not be unwound takes the process with it (SIGABRT; with obstore in
    7 of 60 programs that ended at once behind a request, on a busy machine).
    """
    atexit.register(threading.Event().wait, _LAST_TURN_S)
