"""An event loop on a thread of its own, and a thread-safe way for blocking code to run coroutines on it."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import logging
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from engine.aio.uv import new_event_loop
from engine.clock import SystemClock
from engine.errors import AlreadyClosedError, EngineError, InvalidArgumentError, UnsupportedError

log = logging.getLogger(__name__)

T = TypeVar("T")

SIGNALS_S = 0.5  # within which a blocked main thread handles a signal
_CLOCK = SystemClock()
CLOSED = "the engine or client was closed; open another one"
EXITING = "an engine or a client must be opened before the interpreter shuts down, got a call in an exit handler"
FORKED = "this was made before the process was forked, and works in the parent only: make another one"


class ForkListener(Protocol):
    """An object that must be told when its process was forked: in the child its portal is dead."""

    def after_fork(self, error: AlreadyClosedError) -> None:
        """Runs in the child. `error` is to be raised by every later use of the portal."""


def drop(coroutine: Coroutine[Any, Any, Any]) -> None:
    """It will not run. Some take their close() for a mistake of the program, and have a method for this."""
    getattr(coroutine, "drop", coroutine.close)()


class Portal:
    """Runs coroutines on its own loop for callers on any other thread.

    All methods are thread-safe. Those that block (`run`, `call`, `close`) refuse the portal's own thread, where they
    would deadlock. The thread is a daemon; a portal that is still open when the interpreter exits is closed then. A
    forked child has no such thread: there the portal is closed, and its error says why.
    """

    def __init__(
        self, name: str = "engine", *, loop_factory: Callable[[], asyncio.AbstractEventLoop] = new_event_loop
    ) -> None:
        if getattr(threading, "_SHUTTING_DOWN", False):  # nothing could end its thread any more
            raise UnsupportedError(EXITING)
        self.loop = loop_factory()
        self._closed = False
        self._forked = False
        self.fork_listeners: weakref.WeakSet[ForkListener] = weakref.WeakSet()
        # Orders submit() against close(): nothing is scheduled on a stopping loop. Within it, the garbage collector may
        # run what calls finish().
        self._lock = threading.RLock()
        self._thread = threading.Thread(target=self._run_loop, name=name, daemon=True)
        self._thread.start()
        atexit.register(self.close)
        _portals.add(self)

    def run(self, coroutine: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run it on the loop and block until its result is there, at most `timeout` seconds.

        On KeyboardInterrupt or timeout the coroutine is cancelled. Raises the coroutine's error, TimeoutError,
        AlreadyClosedError after close().
        """
        try:
            self.check_thread()
        except (InvalidArgumentError, AlreadyClosedError):
            drop(coroutine)
            raise
        future = self.submit(coroutine)
        try:
            return result_of(future, timeout)
        except concurrent.futures.CancelledError:
            if not self._closed:
                raise
            raise AlreadyClosedError(CLOSED) from None  # only close() cancels work on the loop
        except BaseException:
            future.cancel()
            raise

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Schedule it on the loop and return at once. Raises AlreadyClosedError after close()."""
        with self._lock:
            if self._closed:
                drop(coroutine)
                raise AlreadyClosedError(CLOSED)
            return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def call(self, function: Callable[..., T], *args: Any) -> T:
        """Call a plain function on the loop thread and block until it has returned."""
        self.check_thread()
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        self.call_soon_threadsafe(_call_into, future, function, args)
        return result_of(future)

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: Any) -> None:
        """Schedule a callback on the loop thread. Raises AlreadyClosedError after close()."""
        with self._lock:
            if self._closed:
                raise AlreadyClosedError(CLOSED)
            self.loop.call_soon_threadsafe(callback, *args)

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def in_loop_thread(self) -> bool:
        """Whether the caller runs on the portal's own thread."""
        return threading.current_thread() is self._thread  # not by ident: the system reuses those of ended threads

    def close(self) -> None:
        """Cancel all tasks, stop the loop and join the thread. Idempotent; does nothing in a forked child."""
        if self._forked:
            return
        self.check_thread()
        with self._lock:
            if not self._closed:
                self._closed = True
                self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        atexit.unregister(self.close)

    def finish(
        self, work: Callable[[], Coroutine[Any, Any, object]], ends: Callable[[], bool]
    ) -> concurrent.futures.Future[None] | None:
        """Run it without waiting, on whatever thread this is called; then close, if `ends()` says so.

        The future is done when the work is. None: the portal is closed.
        """

        async def last() -> None:
            try:
                await work()
            except EngineError as e:
                log.warning("what was collected unclosed could not be closed in order: %s", e)
            if ends():
                with self._lock:
                    self._closed = True
                atexit.unregister(self.close)
                self.loop.stop()

        try:
            return self.submit(last())
        except AlreadyClosedError:
            return None

    def check_thread(self) -> None:
        """Raise InvalidArgumentError on the portal's own thread, AlreadyClosedError in a forked child."""
        if self._forked:
            raise AlreadyClosedError(FORKED)
        if self.in_loop_thread:
            raise InvalidArgumentError("a blocking call was made on the event loop's own thread; await there instead")

    def after_fork(self) -> None:
        """In the child, right after a fork: the thread does not exist here, so nothing may wait for it."""
        self._lock = threading.RLock()  # another thread of the parent may have held the old one
        if not self._closed:
            self._closed = self._forked = True
            for listener in list(self.fork_listeners):
                listener.after_fork(AlreadyClosedError(FORKED))

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            _cancel_all(self.loop)
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
        finally:
            asyncio.set_event_loop(None)
            self.loop.close()


_portals: weakref.WeakSet[Portal] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for portal in list(_portals):
        portal.after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)


def before_exit(callback: Callable[[], object]) -> None:
    """Register a callback for the start of interpreter shutdown, while executors and daemon threads still run.

    It runs before atexit's callbacks and cannot be unregistered.
    """
    getattr(threading, "_register_atexit", atexit.register)(callback)


def _call_into(future: concurrent.futures.Future[T], function: Callable[..., T], args: tuple[Any, ...]) -> None:
    try:
        future.set_result(function(*args))
    except Exception as e:  # raised on the calling thread
        future.set_exception(e)


def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel all tasks of the stopped loop, including new ones, and run it until all have ended."""
    while tasks := asyncio.all_tasks(loop):
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))


def result_of(future: concurrent.futures.Future[T], timeout: float | None = None) -> T:
    """The result of a future, awaited for at most `timeout` seconds. Raises what it raises, TimeoutError.

    A signal that arrives just before the thread blocks does not wake it; so it blocks in slices, between which Python
    runs the handlers.
    """
    until = None if timeout is None else _CLOCK.monotonic() + timeout
    while True:
        left = SIGNALS_S if until is None else min(SIGNALS_S, until - _CLOCK.monotonic())
        try:
            return future.result(max(left, 0.0))
        except TimeoutError:  # of this slice, unless the coroutine itself raised it
            if future.done():
                return future.result()
            if until is not None and _CLOCK.monotonic() >= until:
                raise
