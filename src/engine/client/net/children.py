"""`Children`: what a client has made and not closed yet, and whether it makes more.

One object decides both: otherwise something made while the client closes would never be closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Protocol

from engine.aio.bag import Bag
from engine.client.net.pool import CLOSED, call_threadsafe
from engine.errors import AlreadyClosedError, EngineError

log = logging.getLogger(__name__)


class Closable(Protocol):
    """What works for a producer, a consumer, a reader, a view or a watch. It calls `on_closed` once it is closed."""

    on_closed: Callable[[], object] | None

    async def close(self) -> None:
        """End it. Idempotent."""


class Children:
    """Loop thread only, but for `current` and lost(). An `Owner`."""

    def __init__(self) -> None:
        self._of_parent = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lost: Bag[asyncio.Task[None]] = Bag()  # what closes what the program has lost
        self._open: Bag[Closable] = Bag()
        self._starting: Bag[asyncio.Future[None]] = Bag()
        self._ending = False

    @property
    def ending(self) -> bool:
        """From the beginning of the client's close() on."""
        return self._ending

    @property
    def current(self) -> bool:
        """Whether it is open, and of this process."""
        return not self._ending and not self._of_parent

    def after_fork(self) -> None:
        """In a forked child: it is the parent's."""
        self._of_parent = True

    def check_open(self) -> None:
        """Raise AlreadyClosedError from the beginning of the client's close() on."""
        if self._ending:
            raise AlreadyClosedError(CLOSED)

    async def start(self, made: Closable, start: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start it, and keep it until it is closed. Raises what `start` raises, which cleans up after itself.

        AlreadyClosedError when the client closes meanwhile, which cancels `start`: what is made by then is closed.
        """
        self.check_open()
        starting = asyncio.ensure_future(start())
        self._starting.add(starting)
        try:
            await starting
        except (EngineError, asyncio.CancelledError) as e:
            self._check_cancelled(e)
            raise
        finally:
            self._starting.discard(starting)
        if self._ending:
            with contextlib.suppress(EngineError):
                await made.close()
            raise AlreadyClosedError(CLOSED)
        self._loop = asyncio.get_running_loop()
        self._open.add(made)
        made.on_closed = partial(self._open.discard, made)

    def lost(self, working: Any) -> None:
        """The program has lost it: close it soon. From any thread. Nothing happens when the loop has ended."""
        if self._loop is not None and not self._loop.is_closed():
            call_threadsafe(self._loop, partial(self._close_lost, working))

    def _close_lost(self, working: Closable) -> None:
        task = asyncio.ensure_future(self._close_one(working))
        self._lost.add(task)
        task.add_done_callback(self._lost.discard)

    async def _close_one(self, working: Closable) -> None:
        try:
            await working.close()
        except EngineError as e:
            log.warning("what was collected unclosed could not be closed in order: %s", e)

    def _check_cancelled(self, error: BaseException) -> None:
        """Raise AlreadyClosedError when the client's closing explains it, and not that the caller was cancelled."""
        caller = asyncio.current_task()
        if self._ending and not (caller is not None and caller.cancelling()):
            raise AlreadyClosedError(CLOSED) from error

    def end(self) -> None:
        """Refuse everything new from now on."""
        self._ending = True

    async def close(self) -> None:
        """Close everything concurrently. Raises the first failure, after all of it has ended."""
        self.end()
        for starting in list(self._starting):
            starting.cancel()
        if len(self._starting):
            await asyncio.wait(list(self._starting))
        ended = await asyncio.gather(*(one.close() for one in list(self._open)), return_exceptions=True)
        self._open.clear()
        for outcome in ended:
            if isinstance(outcome, BaseException):
                raise outcome
