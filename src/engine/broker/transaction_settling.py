"""`Settling`: what was decided about a segment's messages is made durable with it, and why is forgotten after that."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from engine.aio.turns import Turns
from engine.errors import AlreadyClosedError, EngineError
from engine.metadata.store import OutcomeUnknownError

if TYPE_CHECKING:
    from engine.broker.operations import Operations
    from engine.storage.segment import Segment
    from engine.storage.visibility import Visibility

log = logging.getLogger(__name__)

SETTLE_S = 0.1  # what is decided meanwhile is saved together
_AGAIN_S_FIRST, _AGAIN_S_MAX = 0.05, 1.0
_TOGETHER = 256

PASSING = (EngineError, OutcomeUnknownError)  # of the metadata store; what was asked for is asked for again

T = TypeVar("T")


async def insist(what: str, ask: Callable[[], Awaitable[T]]) -> T:
    """Ask the metadata store until it answers. Raises AlreadyClosedError."""
    pause = _AGAIN_S_FIRST
    while True:
        try:
            return await ask()
        except AlreadyClosedError:
            raise
        except PASSING as e:
            log.warning("%s: tried again: %s", what, e)
        await asyncio.sleep(pause)
        pause = min(2 * pause, _AGAIN_S_MAX)


class Settling:
    """Of one segment. Loop thread only. `records`: keys of operation records that only say what is decided."""

    __slots__ = ("_closed", "_loop", "_operations", "_segment", "_task", "_timer", "_turns", "_visibility", "records")

    def __init__(self, segment: Segment, visibility: Visibility, operations: Operations) -> None:
        self.records: list[str] = []
        self._segment = segment
        self._visibility = visibility
        self._operations = operations
        self._loop = asyncio.get_running_loop()
        self._turns = Turns()
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def soon(self, records: Iterable[str] = (), after: float = SETTLE_S) -> None:
        """Save what was decided, with what else is decided by then; it makes these records needless."""
        self.records += records
        if self._timer is None and not self._closed:
            self._timer = self._loop.call_later(after, self._begin)

    def _begin(self) -> None:
        self._timer = None
        self._task = self._loop.create_task(self._save_quietly())

    async def _save_quietly(self) -> None:
        try:
            await self.save()
        except PASSING as e:
            if not (self._closed or self._lost):
                log.warning("%s: what transactions left is saved again: %s", self._segment.name, e)
                self.soon(after=_AGAIN_S_MAX)

    @property
    def _lost(self) -> bool:
        lease = self._segment.lease
        return lease is not None and not lease.held

    async def save(self) -> None:
        """Now. Raises what the metadata store raises, FencedError, NotOwnerError."""
        await self._turns.take(self._save)

    async def _save(self) -> None:
        records, self.records = self.records, []
        try:
            await self._visibility.save()
            while records:
                some = records[:_TOGETHER]
                await asyncio.gather(*map(self._operations.delete, some))
                del records[: len(some)]
        finally:
            self.records += records

    async def close(self) -> None:
        """Save as far as that can be done."""
        if not (self._lost or self._closed):
            with contextlib.suppress(*PASSING):
                await self.save()
        self.abandon()

    def abandon(self) -> None:
        """Save nothing any more. Idempotent."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
