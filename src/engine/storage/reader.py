"""Reads blocks of one segment: from memory, from files on a worker, or directly from what the system has cached."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple

from engine._native.serve import log
from engine._native.serve.blocks import Block
from engine._native.serve.tails import Pieces
from engine.aio.workers import run
from engine.storage.disk.config import storage_error
from engine.storage.file.context import Context
from engine.storage.file.index import Index
from engine.storage.file.logfile import LogFile

if TYPE_CHECKING:
    from engine.storage.file.named import NamedFiles

STRETCHES_MAX = 64  # per call


class Stretch(NamedTuple):
    """Entries back to back in one file, for local reads by another process. What lies before `end` is durable.

    `opening`: the opening block, by which a reader recognises the file. `position`: of an entry at or before the offset
    that was asked for.
    """

    path: str
    opening: bytes
    salt: int
    position: int
    end: int
    next_offset: int  # after the last entry before `end`


class Reader:
    """Finds the file that holds an offset."""

    __slots__ = ("_context", "_files", "blocks", "named", "read_bytes", "tail")

    def __init__(self, context: Context, files: list[LogFile], segment_id: int) -> None:
        self._context = context
        self._files = files  # the segment's own list
        self.tail = Pieces(segment_id)
        self.named: NamedFiles | None = None  # those of the oldest offsets may be objects alone
        # Counted, without what was in memory.
        self.blocks = 0
        self.read_bytes = 0

    def read(self, offset: int, max_bytes: int, at_once: bool = False) -> Awaitable[Block] | Block:
        """The block for a reader at an existing offset that is not in memory. `at_once`: read what the system has
        cached on the loop.
        """
        if self.named is not None and offset < self._files[0].first_offset:
            return self._read_named(self.named, offset, max_bytes)
        block = self._read_cached(offset, max_bytes) if at_once else None
        return self._read_file(offset, max_bytes) if block is None else self._counted(block)

    def _counted(self, block: Block) -> Block:
        self.blocks += 1
        self.read_bytes += block.size
        return block

    def _read_cached(self, offset: int, max_bytes: int) -> Block | None:
        """A copy within memory takes less time than the way to a worker and back."""
        handles, file = self._context.handles, self._file_of(offset)
        if file.handle is None:
            return None  # opening it may take longer
        handle = handles.pin(file)
        try:
            block = file.read_cached(handle, offset, max_bytes, self._context.buffers)
        finally:
            handles.unpin(file)
        if block is not None:
            self._note_pages(file, offset, block)  # such a read has the system read ahead
        return block

    def _note_pages(self, file: LogFile, offset: int, block: Block) -> None:
        if file.index is not None:
            position = file.index.position_before(offset, file.opening.data_position)
            self._context.pages.read(file, position, block.size)

    async def _read_named(self, named: NamedFiles, offset: int, max_bytes: int) -> Block:
        return self._counted(await named.read(offset, max_bytes))

    async def _read_file(self, offset: int, max_bytes: int) -> Block:
        context, file = self._context, self._file_of(offset)
        if self.named is not None:
            self.named.cache.touch(file)
        end_offset, end_position = file.end_offset, file.end_position
        try:
            handle = context.handles.pin(file)
            try:
                block = await run(
                    context.workers, lambda: file.read(handle, offset, max_bytes, end_offset, end_position)
                )
                self._note_pages(file, offset, block)
                return self._counted(block)
            finally:
                context.handles.unpin(file)
        except OSError as e:
            raise storage_error(e, file.path) from e

    def _file_of(self, offset: int) -> LogFile:
        for file in reversed(self._files):
            if file.first_offset <= offset:
                return file
        return self._files[0]

    async def stretches(self, start: int, stop: int) -> list[Stretch]:
        """The file ranges of durable messages from `start` up to `stop`, of STRETCHES_MAX files at most.

        Empty if other processes cannot open these files.
        """
        indexes = {file: await self._index_of(file) for file in self._files_of(start, stop)}
        found: list[Stretch] = []
        for file in self._files_of(start, stop):
            path, index = self._context.handles.disk.shared_path(file.path), indexes.get(file)
            at = found[-1].next_offset if found else start
            if path is None or index is None or file.first_offset > at:  # the last: a gap, or retention deleted it
                break
            position = index.position_before(at, file.opening.data_position)
            found.append(Stretch(path, file.opening.pack(), file.salt, position, file.end_position, file.end_offset))
        return found

    def _files_of(self, start: int, stop: int) -> list[LogFile]:
        return [f for f in self._files if f.first_offset < stop and start < f.end_offset][:STRETCHES_MAX]

    async def _index_of(self, file: LogFile) -> Index:
        if file.index is not None:
            return file.index
        handles = self._context.handles
        try:
            handle = handles.pin(file)
            try:
                return await run(self._context.workers, lambda: file.load_index(handle))
            finally:
                handles.unpin(file)
        except OSError as e:
            raise storage_error(e, file.path) from e

    async def offset_at(self, time_ms: int, read: Callable[[int], Awaitable[Block] | Block | None]) -> int | None:
        """The first offset whose publish time is at or after a time, among what `read` returns; None for none."""
        named = self.named if self.named is not None and self.named.objects.file_bytes else None
        offset = None if named is None else await named.offset_before(time_ms)
        if offset is None:
            file = next((f for f in self._files if f.last_time_ms >= time_ms and f.end_offset > f.first_offset), None)
            offset = (
                None if file is None else (await self._index_of(file)).offset_before_time(time_ms, file.first_offset)
            )
        while offset is not None and (block := read(offset)) is not None:
            if not isinstance(block, Block):
                block = await block
            found = log.offset_at_time(block.data, time_ms)
            if found >= 0:
                return found
            offset = block.next_offset
        return None
