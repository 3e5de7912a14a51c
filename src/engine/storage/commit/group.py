"""A group of appends that is written, and becomes durable or fails, together."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from typing_extensions import Buffer

from engine._native.serve import log
from engine.errors import EngineError
from engine.limits import KIB, MIB
from engine.storage.file.logfile import LogFile
from engine.storage.file.tail import pinned

COPY_MAX = 16 * KIB  # smaller appends are copied together, so that they do not hold on to the chunk they came in
PINNED_MAX = 8  # and so are those that are less than this part of it: what is kept is not much more than what counts
CHUNK_MAX = 1 * MIB  # of such copies
GROUP_MAX = 8 * MIB  # a group of this size is not added to


class Appended(NamedTuple):
    """One entry's place in the log."""

    first_sequence: int
    last_sequence: int
    first_offset: int  # -1: a duplicate whose original's offset is forgotten
    count: int  # type: ignore[assignment]
    duplicate: bool


Waiter = tuple["asyncio.Future[list[Appended]]", list[Appended]]


class Chunk:
    """Stamped entries that are one buffer."""

    __slots__ = ("data", "first_offset", "grows", "next_offset")

    def __init__(self, data: Buffer, first_offset: int, next_offset: int, grows: bool) -> None:
        self.data = data
        self.first_offset = first_offset
        self.next_offset = next_offset
        self.grows = grows


class Group:
    """Appends that go to one file at one position. Loop thread only, until a job has taken its `buffers`."""

    __slots__ = ("chunks", "file", "first_offset", "next_offset", "position", "size", "waiters")

    def __init__(self, file: LogFile, position: int, first_offset: int) -> None:
        self.file = file
        self.position = position
        self.first_offset = first_offset
        self.next_offset = first_offset
        self.size = 0
        self.chunks: list[Chunk] = []
        self.waiters: list[Waiter] = []

    @property
    def end_position(self) -> int:
        """Where the next group begins."""
        return self.position + self.size

    @property
    def buffers(self) -> list[Buffer]:
        """What is to be written."""
        return [c.data for c in self.chunks]

    def add(self, data: memoryview, term: int, time_ms: int, durable_upto: int) -> None:
        """Stamp entries, in place when they are many bytes in a writable buffer, else in a copy."""
        salt, segment_id = self.file.salt, self.file.opening.segment_id
        chunk, start = self._room_for(data)
        after = log.stamp(chunk.data, salt, term, self.next_offset, time_ms, durable_upto, segment_id, start)
        self.next_offset = chunk.next_offset = after
        self.size += len(data)

    def _room_for(self, data: memoryview) -> tuple[Chunk, int]:
        if len(data) > COPY_MAX and PINNED_MAX * len(data) >= pinned(data):
            chunk = Chunk(bytearray(data) if data.readonly else data, self.next_offset, 0, False)
            self.chunks.append(chunk)
            return chunk, 0
        last = self.chunks[-1] if self.chunks else None
        if last is not None and last.grows and isinstance(last.data, bytearray) and len(last.data) < CHUNK_MAX:
            start = len(last.data)
            last.data += data
            return last, start
        chunk = Chunk(bytearray(data), self.next_offset, 0, True)
        self.chunks.append(chunk)
        return chunk, 0

    def succeed(self) -> None:
        """Tell everybody who waits."""
        for future, result in self.waiters:
            if not future.done():
                future.set_result(result)
        self.waiters = []

    def fail(self, error: EngineError) -> None:
        """Tell everybody who waits; each gets an exception of its own."""
        for future, _ in self.waiters:
            if not future.done():
                future.set_exception(type(error)(*error.args))
        self.waiters = []


def join_fresh(data: memoryview, claims: list[log.Claim]) -> tuple[memoryview, list[log.Claim]]:
    """Only the entries that are new, in a buffer of their own."""
    out = bytearray()
    for claim in claims:
        start, claim.position = claim.position, len(out)
        out += data[start : start + claim.size]
    return memoryview(out), claims
