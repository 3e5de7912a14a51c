"""`Settling`: what was decided about a segment's messages is made durable with it, and why is forgotten after that.

A transaction ends in all its segments at once, so those of one broker settle together: each saves its own, and then the
operation records go, with one write where nothing is left of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from engine.aio.tasks import Supervisor
from engine.errors import AlreadyClosedError, EngineError
from engine.metadata.store import OutcomeUnknownError

if TYPE_CHECKING:
    from engine.broker.transactions.operations import Operations
    from engine.control.transactions.operations import Part
    from engine.storage.cursor.visibility import Visibility
    from engine.storage.segment import Segment

log = logging.getLogger(__name__)

SETTLE_S = 0.25  # what is decided meanwhile is saved together
_AGAIN_S_FIRST, _AGAIN_S_MAX = 0.05, 1.0

PASSING = (EngineError, OutcomeUnknownError)  # of the metadata store; what was asked for is asked for again

T = TypeVar("T")


async def insist(what: object, ask: Callable[[], Awaitable[T]]) -> T:
    """Ask the metadata store until it answers. Raises AlreadyClosedError. `what`: for the log."""
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
    """Of one segment. Loop thread only. `records`: what operation records say, and is decided."""

    __slots__ = ("_segment", "_visibility", "closed", "records", "rounds")

    def __init__(self, segment: Segment, visibility: Visibility, rounds: SettlingRounds) -> None:
        self.records: list[Part] = []
        self.rounds = rounds
        self.closed = False
        self._segment = segment
        self._visibility = visibility

    def __str__(self) -> str:
        return str(self._segment.name)

    def soon(self, records: Iterable[Part] = ()) -> None:
        """Save what was decided, with what else is decided by then; it makes these records needless."""
        self.records += records
        if not self.closed:
            self.rounds.join(self)

    async def save(self) -> list[Part]:
        """Now; the records that are needless once this returns. Raises what Visibility.save() raises."""
        records, self.records = self.records, []
        try:
            await self._visibility.save()
        except BaseException:
            self.records += records
            raise
        return records

    async def settle(self) -> None:
        """Save, and forget why. Raises what the metadata store raises, FencedError, NotOwnerError."""
        records = await self.save()
        try:
            await self.rounds.forget(records)
        except BaseException:
            self.records += records
            raise

    @property
    def lost(self) -> bool:
        """Whether somebody else may own the segment."""
        lease = self._segment.lease
        return self.closed or (lease is not None and not lease.held)

    async def close(self) -> None:
        """Settle as far as that can be done."""
        if not self.lost:
            with contextlib.suppress(*PASSING):
                await self.settle()
        self.closed = True


class SettlingRounds:
    """Of all segments of a broker. Loop thread only."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations
        self._waiting: dict[Settling, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._tasks = Supervisor("what transactions left")

    def join(self, segment: Settling, after: float = SETTLE_S) -> None:
        """Settle it in the next round."""
        self._waiting[segment] = None
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(after, self._begin)

    def _begin(self) -> None:
        self._timer = None
        segments, self._waiting = self._waiting, {}
        self._tasks.spawn(self._round(list(segments)), "a round of settling")

    async def _round(self, segments: list[Settling]) -> None:
        saved = await asyncio.gather(*map(self._save, segments))
        try:
            await self.forget([key for records in saved for key in records])
        except PASSING as e:
            log.warning("records of transactions that have ended are deleted again: %s", e)
            for segment, records in zip(segments, saved, strict=True):
                segment.records += records
                self._again(segment)

    async def _save(self, segment: Settling) -> list[Part]:
        try:
            return [] if segment.lost else await segment.save()
        except PASSING as e:
            if not segment.lost:
                log.warning("%s: what transactions left is saved again: %s", segment, e)
                self._again(segment)
            return []

    def _again(self, segment: Settling) -> None:
        if not segment.closed:
            self.join(segment, _AGAIN_S_MAX)

    async def forget(self, records: Iterable[Part]) -> None:
        """Delete them. Raises what the metadata store raises."""
        await self._operations.forget_settled(records)

    async def close(self) -> None:
        """Begin no more rounds. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await self._tasks.close()
