"""`Footers`: what the objects of a session's log say of themselves. Read in parallel, decoded once, kept for a while.

When a broker is gone, its segments are taken over one after the other, from the same objects: each is read for the
first of them. Objects of a log never change; one that was deleted meanwhile is missed when its groups are read.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from functools import partial

from engine.aio.shielded import shielded
from engine.errors import CorruptionError
from engine.limits import KIB, WAL_FOOTERS_STEP
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
KEPT_MAX = 100_000  # groups, some 300 B each

Groups = Mapping[str, tuple[StoredGroup, ...]]  # of one object, by segment


class HoleError(Exception):
    """Within a range that was said to be stored there is no object, or a FENCE.

    R12: the caller reads the record that named the range again. If that has another owner now, the log was taken over
    and its objects may be deleted; if not, this is damage.
    """


class Footers:
    """Loop thread only. `kept_max`: groups that are kept, of the objects that were asked for last."""

    def __init__(self, store: ObjectStore, kept_max: int = KEPT_MAX) -> None:
        self._store = store
        self._kept_max = kept_max
        self._kept: OrderedDict[str, list[tuple[int, Groups]]] = OrderedDict()  # by the name of what was read
        self._size = 0
        self._reading: dict[str, asyncio.Task[list[tuple[int, Groups]]]] = {}

    async def of(self, log: LogName, start: int, end: int, segment: str) -> list[Footer]:
        """The footers of objects [start, end), in order, with the groups of one segment alone.

        One object in WAL_FOOTERS_STEP is read, and the last ones. Raises HoleError, CorruptionError, UnsupportedError,
        and what the store raises.
        """
        found: dict[int, Footer] = {}
        ends = [n for n in range(start, end) if (n + 1) % WAL_FOOTERS_STEP == 0]
        await self._read_all(log, ends, segment, found)
        await self._read_all(log, [n for n in range(start, end) if n not in found], segment, found)
        return [found[n] for n in range(start, end)]

    async def _read_all(self, log: LogName, wanted: Iterable[int], segment: str, found: dict[int, Footer]) -> None:
        room = asyncio.Semaphore(READS_AT_ONCE)

        async def one(n: int) -> None:
            async with room:
                read = await self._read(log, n)
            found.update((at, Footer(log.session, at, groups.get(segment, ()))) for at, groups in read)

        await together(one(n) for n in wanted)

    async def _read(self, log: LogName, n: int) -> list[tuple[int, Groups]]:
        name = log.object(n)
        if (kept := self._kept.get(name)) is not None:
            self._kept.move_to_end(name)
            return kept
        task = self._reading.get(name)
        if task is None:
            task = self._reading[name] = asyncio.ensure_future(self._decoded(log, n))
            task.add_done_callback(partial(self._ended, name))
        return await shielded(task)  # others may wait for it

    async def _decoded(self, log: LogName, n: int) -> list[tuple[int, Groups]]:
        return [(footer.n, _by_segment(footer)) for footer in await _footers_of(self._store, log, n)]

    def _ended(self, name: str, task: asyncio.Task[list[tuple[int, Groups]]]) -> None:
        del self._reading[name]
        if task.cancelled() or task.exception() is not None:
            return
        self._kept[name] = task.result()
        self._size += _count(task.result())
        while self._size > self._kept_max:
            _, oldest = self._kept.popitem(last=False)
            self._size -= _count(oldest)


def _by_segment(footer: Footer) -> Groups:
    found: dict[str, list[StoredGroup]] = {}
    for group in footer.groups:
        found.setdefault(group.segment, []).append(group)
    return {segment: tuple(groups) for segment, groups in found.items()}


def _count(read: list[tuple[int, Groups]]) -> int:
    """Groups, and an object without any counts, too."""
    return sum(1 + sum(map(len, groups.values())) for _, groups in read)


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
