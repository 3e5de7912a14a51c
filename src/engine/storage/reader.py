"""Reads blocks of one segment: from memory at once, from files on a worker, or at once what the system has cached."""

from __future__ import annotations

from collections.abc import Awaitable

from engine.aio.workers import run
from engine.storage.config import storage_error
from engine.storage.context import Context
from engine.storage.logfile import Block, LogFile
from engine.storage.tail import Tail


class Reader:
    """Finds the file that holds an offset. Loop thread only."""

    __slots__ = ("_context", "_files", "blocks", "from_memory", "read_bytes", "tail")

    def __init__(self, context: Context, files: list[LogFile], segment_id: int) -> None:
        self._context = context
        self._files = files  # the segment's own list
        self.tail = Tail(segment_id)
        # Counted.
        self.blocks = 0
        self.read_bytes = 0
        self.from_memory = 0

    def read(self, offset: int, max_bytes: int, at_once: bool = False) -> Awaitable[Block] | Block:
        """The block for a reader at an offset that is there. `at_once`: from a file, too, if nobody has to wait."""
        block = self.tail.read(offset, max_bytes)
        if block is not None:
            self.from_memory += 1
        elif at_once:
            block = self._read_cached(offset, max_bytes)
        return self._read_file(offset, max_bytes) if block is None else self._counted(block)

    def _counted(self, block: Block) -> Block:
        self.blocks += 1
        self.read_bytes += block.size
        return block

    def _read_cached(self, offset: int, max_bytes: int) -> Block | None:
        """A copy within memory takes less than to hand it to a worker and to hear of it."""
        handles, file = self._context.handles, self._file_of(offset)
        if file.handle is None:
            return None  # opening it may take longer
        handle = handles.pin(file)
        try:
            return file.read_cached(handle, offset, max_bytes, self._context.buffers)
        finally:
            handles.unpin(file)

    async def _read_file(self, offset: int, max_bytes: int) -> Block:
        context, file = self._context, self._file_of(offset)
        end_offset, end_position = file.end_offset, file.end_position
        try:
            handle = context.handles.pin(file)
            try:
                return self._counted(
                    await run(context.workers, lambda: file.read(handle, offset, max_bytes, end_offset, end_position))
                )
            finally:
                context.handles.unpin(file)
        except OSError as e:
            raise storage_error(e, file.path) from e

    def _file_of(self, offset: int) -> LogFile:
        for file in reversed(self._files):
            if file.first_offset <= offset:
                return file
        return self._files[0]

    async def offset_before(self, time_ms: int) -> int | None:
        """An offset at or shortly before the first entry that was published at or after a time; None for none such."""
        file = next((f for f in self._files if f.last_time_ms >= time_ms and f.end_offset > f.first_offset), None)
        if file is None:
            return None
        handles = self._context.handles
        try:
            handle = handles.pin(file)
            try:
                index = await run(self._context.workers, lambda: file.load_index(handle))
            finally:
                handles.unpin(file)
        except OSError as e:
            raise storage_error(e, file.path) from e
        return index.offset_before_time(time_ms, file.first_offset)
