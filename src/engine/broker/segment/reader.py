"""`SegmentReader`: reads the blocks of a segment, one after the other, for a consumer or a dispatcher."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from engine import checks
from engine._native.serve.blocks import Block
from engine._native.serve.readers import BlockReader
from engine.errors import CorruptionError, EngineError

if TYPE_CHECKING:
    from engine.broker.segment.hosted import HostedSegment
    from engine.broker.segment.ports import Gate

COLD_BLOCKS = 16  # read by workers after one that was not in the page cache


class SegmentReader(BlockReader):
    """Reads durable blocks below the last stable offset. Loop thread only.

    `step` is called when a read or a wait has ended: with the block, or with None when there may be more to read.
    Where a block comes from decides how it is read:

    * in memory: read() returns it.
    * in the page cache, while no crowd reads: read() returns it as well. The first one that is not there is handed to
      a worker, and so are the next COLD_BLOCKS, before this is tried again.
    * on disk: a worker reads it, after a turn where many readers wait (`FileReads`).

    Invariant: at most one read or one wait is under way. Checked by check_idle(). After stop() the next one may begin
    at once; _done() may still be called for the stopped one, if that had ended just before, and ignores it.
    """

    __slots__ = ("_has_turn", "_offset", "_waits_turn")

    def __init__(
        self,
        hosted: HostedSegment,
        step: Callable[[Block | None], None],
        owner_close: Callable[[EngineError], None],
    ) -> None:
        super().__init__(hosted, step, owner_close)
        self._waits_turn = False  # to read from a file
        self._has_turn = False
        self._offset = 0  # at which the read under way began

    def began(self, found: Awaitable[Block], offset: int, bytes_max: int, at_once: bool) -> None:
        """The block is not in memory."""
        reads = self.hosted.environment.reads
        self._offset = offset
        self.cold = COLD_BLOCKS if at_once else max(self.cold - 1, 0)
        turn = None if self._has_turn else reads.turn()
        if turn is not None:
            found.close()  # type: ignore[attr-defined]
            self._watch(turn)
            self._waits_turn = True
            return
        reading = asyncio.ensure_future(found)
        reads.began(bytes_max, reading)
        self._watch(reading)

    def misplaced(self, block: Block, offset: int) -> CorruptionError | None:
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

    def read_ahead(self, offset: int, bytes_max: int) -> None:
        """Begin to read the block at `offset` unless read() would return it. An error shows at the next read()."""
        if self.at_once:
            return
        with contextlib.suppress(EngineError):
            self.read(offset, bytes_max)

    def stop(self) -> None:
        """Drop the read or the wait; `step` is not called."""
        pending, self.pending = self.pending, None
        self.waiting = self._waits_turn = False
        if pending is not None:
            if isinstance(pending, asyncio.Future):
                pending.remove_done_callback(self._done)
            pending.cancel()

    def check_idle(self) -> None:
        checks.check(self.pending is None, "a segment's reader has one read or wait under way")

    def _watch(self, future: asyncio.Future[Any]) -> None:
        self.check_idle()
        self.pending = future
        future.add_done_callback(self._done)

    def _done(self, future: asyncio.Future[Any]) -> None:
        if future is not self.pending:
            return  # stopped when this call was scheduled already
        self.pending = None
        self._has_turn, self._waits_turn = self._waits_turn, False
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
            error := self.misplaced(result, self._offset)
        ):
            self.hosted.reading_failed(self, error)
        else:
            gate: Gate | None = self.hosted.transactions
            self.step(result if gate is None else gate.cut(result))
