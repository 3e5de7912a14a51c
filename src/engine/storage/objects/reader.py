"""Reads ranges of a session's log: the footers (footers.py), then the groups of one segment (R11, R12)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable

from engine._native.format.crc32c import crc32c
from engine.errors import CorruptionError
from engine.limits import MIB
from engine.storage.objects.footers import READS_AT_ONCE, Footers, HoleError
from engine.storage.objects.format import LogName, StoredGroup
from engine.storage.objects.ports import ObjectMissingError, ObjectStore

READ_SIZE = 8 * MIB  # groups that lie behind each other are read together up to this size


async def groups(
    store: ObjectStore, footers: Footers, log: LogName, start: int, end: int, segment: str
) -> AsyncIterator[tuple[StoredGroup, memoryview]]:
    """The groups of a segment in objects [start, end), in order, with their bytes, which are checked.

    Raises as Footers.of() does.
    """
    runs = _runs(group for footer in await footers.of(log, start, end, segment) for group in footer.groups)
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
