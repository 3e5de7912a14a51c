"""`SegmentReader`: the blocks of a segment one after the other, for whoever sends them on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from engine import checks
from engine.errors import EngineError
from engine.storage.file.logfile import Block

if TYPE_CHECKING:
    from engine.broker.segment.hosted import HostedSegment

COLD_BLOCKS = 16  # read by workers after one that the system did not have in its cache


class SegmentReader:
    """Fetches a segment's durable blocks one after the other for whoever has credit. Loop thread only.

    `step` is called whenever there may be something to do. Invariant: at most one read or one wait is under way.
    Checked by _watch().
    """

    __slots__ = ("_cold", "_has_turn", "_pending", "_waits_turn", "hosted", "owner_close", "step", "waiting")

    def __init__(
        self,
        hosted: HostedSegment,
        step: Callable[[Block | None], None],
        owner_close: Callable[[EngineError], None],
    ) -> None:
        self.hosted = hosted
        self.step = step
        self.owner_close = owner_close
        self._pending: asyncio.Future[Any] | None = None
        self.waiting = False  # what is under way is a wait for something durable
        self._waits_turn = False  # for a turn to read from a file
        self._has_turn = False
        self._cold = 0  # so many blocks are for workers before it is tried without one again

    @property
    def busy(self) -> bool:
        """A read or a wait is under way; `step` follows."""
        return self._pending is not None

    def read(self, offset: int, bytes_max: int) -> Block | None:
        """The block at `offset` if it is in memory. None: nothing yet, or not at once; `step` is called with it then.

        Nothing of a transaction that is open, nor what comes after it. Raises what the segment raises.
        """
        transactions = self.hosted.transactions
        if transactions is not None and (limit := transactions.limit) is not None and offset >= limit:
            return None
        at_once, reads = self._at_once, self.hosted.reads
        found = self.hosted.segment.read(offset, bytes_max, at_once=at_once)
        if found is None or isinstance(found, Block):
            return found if transactions is None or found is None else transactions.cut(found)
        self._cold = COLD_BLOCKS if at_once else max(self._cold - 1, 0)
        turn = None if reads is None or self._has_turn else reads.turn()
        if turn is not None:
            found.close()  # type: ignore[attr-defined]
            self._watch(turn)
            self._waits_turn = True
            return None
        reading = asyncio.ensure_future(found)
        if reads is not None:
            reads.began(bytes_max, reading)
        self._watch(reading)
        return None

    @property
    def _at_once(self) -> bool:
        return not self._cold and self.hosted.reads is not None and self.hosted.reads.at_once

    def read_ahead(self, offset: int, bytes_max: int) -> None:
        """Begin to read the block at `offset`, unless it is in memory anyway. An error shows at the next read()."""
        if self._at_once:
            return
        with contextlib.suppress(EngineError):
            self.read(offset, bytes_max)

    def wait(self, offset: int) -> None:
        """Call step(None) when there may be something durable at `offset`, or the segment has ended."""
        self._watch(self.hosted.segment.when_durable(offset))
        self.waiting = True

    def stop(self) -> None:
        """Nothing is called any more."""
        pending, self._pending = self._pending, None
        self.waiting = self._waits_turn = False
        if pending is not None:
            pending.remove_done_callback(self._done)
            pending.cancel()

    def _watch(self, future: asyncio.Future[Any]) -> None:
        checks.check(self._pending is None, "a segment's reader has one read or wait under way")
        self._pending = future
        future.add_done_callback(self._done)

    def _done(self, future: asyncio.Future[Any]) -> None:
        self._pending = None
        self._has_turn, self.waiting, self._waits_turn = self._waits_turn, False, False
        if future.cancelled():
            return
        if (error := future.exception()) is not None:
            self.hosted.reading_failed(self, error)
            return
        result = future.result()
        if not isinstance(result, Block):
            self.step(None)
            self._has_turn = False
        else:
            transactions = self.hosted.transactions
            self.step(result if transactions is None else transactions.cut(result))
