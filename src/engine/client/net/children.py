"""`Children`: what a client has made and not closed yet, and whether it makes more.

One object decides both: otherwise something made while the client closes would never be closed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from engine.aio.bag import Bag
from engine.client.net.pool import CLOSED
from engine.errors import AlreadyClosedError, EngineError


class Closable(Protocol):
    """A producer, a consumer, a reader, a view or a watch. It calls `on_closed` once it is closed."""

    async def close(self) -> None:
        """End it. Idempotent."""


C = TypeVar("C", bound=Closable)


class Children:
    """Loop thread only."""

    def __init__(self) -> None:
        self._open: Bag[Closable] = Bag()
        self._starting: Bag[asyncio.Future[None]] = Bag()
        self._ending = False

    @property
    def ending(self) -> bool:
        """From the beginning of the client's close() on."""
        return self._ending

    def check_open(self) -> None:
        """Raise AlreadyClosedError from the beginning of the client's close() on."""
        if self._ending:
            raise AlreadyClosedError(CLOSED)

    async def start(self, made: C, start: Callable[[], Coroutine[Any, Any, None]]) -> C:
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
        self._open.add(made)
        made.on_closed = self._open.discard  # type: ignore[attr-defined]
        return made

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
