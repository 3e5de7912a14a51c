"""`SegmentReader`: reads the blocks of a segment, one after the other, for a consumer or a dispatcher."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from engine import checks
from engine.errors import CorruptionError, EngineError
from engine.storage.file.logfile import Block

if TYPE_CHECKING:
    from engine.broker.segment.hosted import HostedSegment
    from engine.broker.segment.ports import Gate

COLD_BLOCKS = 16  # read by workers after one that was not in the page cache


class SegmentReader:
    """Reads durable blocks below the last stable offset. Loop thread only.

    `step` is called when a read or a wait has ended: with the block, or with None when there may be more to read.
    Where a block comes from decides how it is read:

    * in memory: read() returns it.
    * in the page cache, while no crowd reads: read() returns it as well. The first one that is not there is handed to
      a worker, and so are the next COLD_BLOCKS, before this is tried again.
    * on disk: a worker reads it, after a turn where many readers wait (`FileReads`).

    Invariant: at most one read or one wait is under way. Checked by _watch(). After stop() the next one may begin at
    once; _done() may still be called for the stopped one, if that had ended just before, and ignores it.
    """

    __slots__ = ("_cold", "_has_turn", "_offset", "_pending", "_waits_turn", "hosted", "owner_close", "step", "waiting")

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
        self.waiting = False  # for messages to become durable
        self._waits_turn = False  # to read from a file
        self._has_turn = False
        self._offset = 0  # at which the read under way began
        self._cold = 0  # blocks that workers read before the page cache is tried again

    @property
    def busy(self) -> bool:
        """Whether a read or a wait is under way; `step` follows."""
        return self._pending is not None

    def read(self, offset: int, bytes_max: int) -> Block | None:
        """The block at `offset`. None: there is none below the last stable offset, or `step` is called with it later.

        Raises what the segment raises.
        """
        gate: Gate | None = self.hosted.transactions
        if gate is not None and (limit := gate.limit) is not None and offset >= limit:
            return None
        at_once, reads = self._at_once, self.hosted.environment.reads
        found = self.hosted.segment.read(offset, bytes_max, at_once=at_once)
        if found is None:
            return None
        if isinstance(found, Block):
            if not found.first_offset <= offset < found.next_offset and (error := self._misplaced(found, offset)):
                raise error
            return found if gate is None else gate.cut(found)
        self._offset = offset
        self._cold = COLD_BLOCKS if at_once else max(self._cold - 1, 0)
        turn = None if self._has_turn else reads.turn()
        if turn is not None:
            found.close()  # type: ignore[attr-defined]
            self._watch(turn)
            self._waits_turn = True
            return None
        reading = asyncio.ensure_future(found)
        reads.began(bytes_max, reading)
        self._watch(reading)
        return None

    def _misplaced(self, block: Block, offset: int) -> CorruptionError | None:
        """An error unless the block's first entry holds the offset that was read at, or the first one behind it that
        retention has left and that lies in no gap. Messages would be passed over otherwise, and nothing would tell.
        """
        segment = self.hosted.segment
        if block.first_offset <= segment.gaps.skip(max(offset, segment.first_offset)) and offset < block.next_offset:
            return None
        return CorruptionError(
            f"{segment.name}: a read at offset {offset} gave the messages {block.first_offset} to "
            f"{block.next_offset - 1}; the first offset that is stored is {segment.first_offset}, and the gaps are "
            f"{[list(gap) for gap in segment.gaps] or 'none'}"
        )

    @property
    def _at_once(self) -> bool:
        return not self._cold and self.hosted.environment.reads.at_once

    def read_ahead(self, offset: int, bytes_max: int) -> None:
        """Begin to read the block at `offset` unless read() would return it. An error shows at the next read()."""
        if self._at_once:
            return
        with contextlib.suppress(EngineError):
            self.read(offset, bytes_max)

    def wait(self, offset: int) -> None:
        """Call step(None) when messages at `offset` are durable, or the segment has ended."""
        self._watch(self.hosted.segment.when_durable(offset))
        self.waiting = True

    def stop(self) -> None:
        """Drop the read or the wait; `step` is not called."""
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
        if future is not self._pending:
            return  # stopped when this call was scheduled already
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
        elif not result.first_offset <= self._offset < result.next_offset and (
            error := self._misplaced(result, self._offset)
        ):
            self.hosted.reading_failed(self, error)
        else:
            gate: Gate | None = self.hosted.transactions
            self.step(result if gate is None else gate.cut(result))
