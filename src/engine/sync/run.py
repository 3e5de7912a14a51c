"""The blocking form of `run()`: its calls are made on threads, or one at a time on the thread of the caller."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextvars import copy_context
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from engine.aio.portal import SIGNALS_S, Portal, result_of
from engine.aio.signals import on_sigterm
from engine.errors import InvalidArgumentError

T = TypeVar("T")
Handler = Callable[[Any], object]
Begin = Callable[[Callable[[Any], Coroutine[Any, Any, None]]], Coroutine[Any, Any, None]]


class _InterruptedError(BaseException):
    """A handler was left by Ctrl-C, an exit or alike, its cause, which would end the loop if it were raised there."""


class _CallersThread(Executor):
    """Makes calls on the thread that serves them."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """From any thread."""
        future: Future[T] = Future()

        def call() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(fn(*args, **kwargs))
            except (Exception, _InterruptedError) as e:
                future.set_exception(e)

        self._calls.put(call)
        return future

    def end(self, _: object = None) -> None:
        """Let serve() return. From any thread."""
        self._calls.put(None)

    def serve(self) -> None:
        """Make the calls that come, until end()."""
        while True:
            try:  # in slices, between which Python runs the handlers of signals
                call = self._calls.get(timeout=SIGNALS_S)
            except Empty:
                continue
            if call is None:
                return
            call()


def run_on_threads(
    portal: Portal, handler: Handler, concurrency: object, begin: Begin, stop: Callable[[], None]
) -> None:
    """Run a consumer until it ends. `begin` starts run() with an async handler, `stop` ends it; both on the loop."""
    if inspect.iscoroutinefunction(handler):
        raise InvalidArgumentError("handler must be a plain function; an async one needs an AsyncClient")
    if not callable(handler):
        raise InvalidArgumentError(f"handler must be a function, got {type(handler).__name__}")
    portal.check_thread()
    here = _CallersThread() if concurrency == 1 else None
    threads = int(concurrency) if isinstance(concurrency, int) and concurrency > 0 else 1  # run() refuses others
    executor: Executor = here or ThreadPoolExecutor(threads, thread_name_prefix="engine-run")

    async def call(item: Any) -> None:
        await asyncio.wrap_future(executor.submit(copy_context().run, _call, handler, item))

    def terminate() -> None:
        with contextlib.suppress(RuntimeError):  # the loop has been closed
            portal.loop.call_soon_threadsafe(stop)

    running = portal.submit(begin(call))
    try:
        with on_sigterm(terminate):
            if here is not None:
                running.add_done_callback(here.end)
                here.serve()
            result_of(running)
    except _InterruptedError as e:
        raise e.__cause__ or e from None
    except BaseException:
        running.cancel()
        raise
    finally:
        executor.shutdown(wait=False, cancel_futures=True)


def _call(handler: Handler, item: Any) -> object:
    try:
        return handler(item)
    except Exception:
        raise
    except BaseException as e:
        raise _InterruptedError from e
