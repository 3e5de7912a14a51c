"""`Settling`: decisions about a segment's messages are saved with it; after that their operation records are deleted.

A transaction ends in all its segments at once, so the segments of a broker settle together, in rounds: each saves its
decisions, then the operation records of all are deleted, many at a time.
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

SETTLE_S = 0.25  # between rounds
_AGAIN_S_FIRST, _AGAIN_S_MAX = 0.05, 1.0

PASSING = (EngineError, OutcomeUnknownError)  # of the metadata store: the request is repeated

T = TypeVar("T")


async def insist(what: object, ask: Callable[[], Awaitable[T]]) -> T:
    """Repeat a request until the metadata store answers. Raises AlreadyClosedError. `what`: for the log."""
    pause = _AGAIN_S_FIRST
    while True:
        try:
            return await ask()
        except AlreadyClosedError:
            raise
        except PASSING as e:
            log.warning("%s: retrying: %s", what, e)
        await asyncio.sleep(pause)
        pause = min(2 * pause, _AGAIN_S_MAX)


class Settling:
    """The decisions of one segment. Loop thread only. `records`: operations that are decided."""

    __slots__ = ("_segment", "_visibility", "closed", "records", "rounds", "waits")

    def __init__(self, segment: Segment, visibility: Visibility, rounds: SettlingRounds) -> None:
        self.records: list[Part] = []
        self.rounds = rounds
        self.closed = False
        self.waits = False  # for the next round
        self._segment = segment
        self._visibility = visibility

    def __str__(self) -> str:
        return str(self._segment.name)

    def soon(self, records: Iterable[Part] = ()) -> None:
        """Save decisions in the next round; the records are deleted then."""
        self.records += records
        if not self.waits and not self.closed:
            self.rounds.join(self)

    async def save(self) -> list[Part]:
        """Save now; the records that may be deleted. Raises what Visibility.save() raises."""
        records, self.records = self.records, []
        try:
            await self._visibility.save()
        except BaseException:
            self.records += records
            raise
        return records

    async def settle(self) -> None:
        """Save, and delete the records. Raises what the metadata store raises, FencedError, NotOwnerError."""
        records = await self.save()
        try:
            await self.rounds.forget(records)
        except BaseException:
            self.records += records
            raise

    @property
    def lost(self) -> bool:
        """Whether another broker may own the segment."""
        lease = self._segment.lease
        return self.closed or (lease is not None and not lease.held)

    async def close(self) -> None:
        """Settle, as far as possible."""
        if not self.lost:
            with contextlib.suppress(*PASSING):
                await self.settle()
        self.closed = True


class SettlingRounds:
    """The rounds of all segments of a broker. Loop thread only."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations
        self._waiting: dict[Settling, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._tasks = Supervisor("what transactions left")

    def join(self, segment: Settling, after: float = SETTLE_S) -> None:
        """Settle a segment in the next round."""
        self._waiting[segment] = None
        segment.waits = True
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(after, self._begin)

    def _begin(self) -> None:
        self._timer = None
        segments, self._waiting = self._waiting, {}
        for segment in segments:
            segment.waits = False
        self._tasks.spawn(self._round(list(segments)), "a round of settling")

    async def _round(self, segments: list[Settling]) -> None:
        saved = await asyncio.gather(*map(self._save, segments))
        try:
            await self.forget([key for records in saved for key in records])
        except PASSING as e:
            log.warning("operation records could not be deleted, retrying: %s", e)
            for segment, records in zip(segments, saved, strict=True):
                segment.records += records
                self._again(segment)

    async def _save(self, segment: Settling) -> list[Part]:
        try:
            return [] if segment.lost else await segment.save()
        except PASSING as e:
            if not segment.lost:
                log.warning("%s: decisions of transactions could not be saved, retrying: %s", segment, e)
                self._again(segment)
            return []

    def _again(self, segment: Settling) -> None:
        if not segment.closed:
            self.join(segment, _AGAIN_S_MAX)

    async def forget(self, records: Iterable[Part]) -> None:
        """Delete records. Raises what the metadata store raises."""
        await self._operations.forget_settled(records)

    async def close(self) -> None:
        """Begin no more rounds. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await self._tasks.close()
