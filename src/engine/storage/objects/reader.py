"""Reads ranges of a session's log: the footers in parallel, then the groups of one segment (R11, R12)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable

from engine._native.format.crc32c import crc32c
from engine.errors import CorruptionError
from engine.limits import KIB, MIB, WAL_FOOTERS_STEP
from engine.storage.objects.format import (
    FENCE,
    TRAILER_SIZE,
    Footer,
    LogName,
    StoredGroup,
    Trailer,
    unpack_footers,
)
from engine.storage.objects.ports import ObjectMissingError, ObjectStore
from engine.storage.objects.together import together

TAIL_SIZE = 64 * KIB  # read first of an object: most footers are smaller
READS_AT_ONCE = 16
READ_SIZE = 8 * MIB  # groups that lie behind each other are read together up to this size


class HoleError(Exception):
    """Within a range that was said to be stored there is no object, or a FENCE.

    R12: the caller reads the record that named the range again. If that has another owner now, the log was taken over
    and its objects may be deleted; if not, this is damage.
    """


async def footers(store: ObjectStore, log: LogName, start: int, end: int, segment: str | None = None) -> list[Footer]:
    """The footers of objects [start, end), in order. One object in WAL_FOOTERS_STEP is read, and the last ones.

    `segment`: of its groups alone, which are few of those of a long log.

    Raises HoleError, CorruptionError, UnsupportedError, and what the store raises.
    """
    found: dict[int, Footer] = {}
    ends = [n for n in range(start, end) if (n + 1) % WAL_FOOTERS_STEP == 0]
    await _read_footers(store, log, ends, segment, found)
    await _read_footers(store, log, [n for n in range(start, end) if n not in found], segment, found)
    return [found[n] for n in range(start, end)]


async def _read_footers(
    store: ObjectStore, log: LogName, wanted: Iterable[int], segment: str | None, found: dict[int, Footer]
) -> None:
    room = asyncio.Semaphore(READS_AT_ONCE)

    async def one(n: int) -> None:
        async with room:
            read = await _footers_of(store, log, n)
        found.update((footer.n, footer if segment is None else footer.only(segment)) for footer in read)

    await together(one(n) for n in wanted)


async def _footers_of(store: ObjectStore, log: LogName, n: int) -> list[Footer]:
    """What object n says of itself, and of those before it."""
    name = log.object(n)
    try:
        tail = await store.get_tail(name, TAIL_SIZE)
        if bytes(tail.data) == FENCE:
            raise HoleError(f"a FENCE lies at {name}")
        trailer = Trailer.unpack(tail.data[-TRAILER_SIZE:], name)
        stop = tail.size - TRAILER_SIZE
        if trailer.position + trailer.size != stop:
            raise CorruptionError(f"{name}: the object has {tail.size} bytes, its trailer says another size")
        skipped = tail.size - len(tail.data)
        if trailer.position >= skipped:
            data = tail.data[trailer.position - skipped : -TRAILER_SIZE]
        else:
            data = await store.get_range(name, trailer.position, stop)
    except ObjectMissingError:
        raise HoleError(f"no object lies at {name}") from None
    found = unpack_footers(data, trailer.count, log.session, name)
    if not found or found[-1].n != n:
        raise CorruptionError(f"{name}: the object is that of another n")
    return found


async def groups(
    store: ObjectStore, log: LogName, start: int, end: int, segment: str
) -> AsyncIterator[tuple[StoredGroup, memoryview]]:
    """The groups of a segment in objects [start, end), in order, with their bytes, which are checked.

    Raises as footers() does.
    """
    runs = _runs(group for footer in await footers(store, log, start, end, segment) for group in footer.groups)
    reading: deque[tuple[list[StoredGroup], asyncio.Future[memoryview]]] = deque()
    try:
        for run in runs:
            reading.append((run, asyncio.ensure_future(_read_run(store, log, run))))
            if len(reading) >= READS_AT_ONCE:
                for each in await _opened(*reading.popleft(), log):
                    yield each
        while reading:
            for each in await _opened(*reading.popleft(), log):
                yield each
    finally:
        for _, task in reading:
            task.cancel()


def _runs(wanted: Iterable[StoredGroup]) -> list[list[StoredGroup]]:
    """Groups that lie right behind each other in one object, joined up to READ_SIZE."""
    runs: list[list[StoredGroup]] = []
    for group in wanted:
        last = runs[-1][-1] if runs else None
        joined = last is not None and last.n == group.n and last.position + last.size == group.position
        if joined and group.position + group.size - runs[-1][0].position <= READ_SIZE:
            runs[-1].append(group)
        else:
            runs.append([group])
    return runs


async def _read_run(store: ObjectStore, log: LogName, run: list[StoredGroup]) -> memoryview:
    try:
        return await store.get_range(log.object(run[0].n), run[0].position, run[-1].position + run[-1].size)
    except ObjectMissingError:
        raise HoleError(f"no object lies at {log.object(run[0].n)}") from None


async def _opened(
    run: list[StoredGroup], task: asyncio.Future[memoryview], log: LogName
) -> list[tuple[StoredGroup, memoryview]]:
    data, opened = await task, []
    for group in run:
        body = data[group.position - run[0].position :][: group.size]
        if len(body) != group.size or crc32c(body) != group.crc:
            where = f"{log.object(group.n)}, {group.size} bytes at {group.position}"
            raise CorruptionError(f"{where}: a group of {group.segment} fails its checksum")
        opened.append((group, body))
    return opened
