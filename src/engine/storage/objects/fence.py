"""The fence of a session's log: after it nothing more of that session is acknowledged (R4 to R6).

    read /wal/{session}          it has an end: that is it
    from the first name without data, 16 names at once:
        PUT FENCE ── stored ───► FENCE
                  └─ refused or unknown ── read ──► data, FENCE, or nothing: again
    the lowest FENCE with only data below it is the end; none: the next 16 names
    compare-and-set of `fenced`  on the version that gave `trimmed`; lost: from the beginning

A FENCE is never deleted (R6): a PUT of a suspended machine may arrive an hour later.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from engine.aio.backoff import RetryDelay
from engine.errors import StorageError, UnknownOutcomeError
from engine.limits import WAL_FENCES
from engine.metadata.store import MetadataStore
from engine.storage.objects import records
from engine.storage.objects.format import FENCE, UUID_SIZE, LogName
from engine.storage.objects.ports import ObjectExistsError, ObjectMissingError, ObjectStore
from engine.storage.objects.together import together

if TYPE_CHECKING:
    import random

RESOLVE_S_MAX = 60.0  # for one name


async def fence(store: ObjectStore, metadata: MetadataStore, log: LogName, rng: random.Random) -> int:
    """The end of a session's log: only what is below may have been acknowledged. Idempotent.

    Raises NotFoundError, and StorageError and others if a store cannot be used now; the call may be made again.
    """
    while True:
        seen = await records.read(metadata, log.session)
        if seen.record.fenced is not None:
            return seen.record.fenced
        end = await _wall(store, log, seen.record.trimmed, rng)
        # R5: a `trimmed` that has moved since means that names were deleted on which a FENCE may stand now.
        if await records.replace(metadata, log.session, seen, msgspec.structs.replace(seen.record, fenced=end)):
            return end


async def _wall(store: ObjectStore, log: LogName, trimmed: int, rng: random.Random) -> int:
    """R4: the lowest FENCE at or above `trimmed` with only data below it."""
    at = await _first_without_data(store, log, trimmed)
    while True:
        names = range(at, at + WAL_FENCES)
        # All at once, and all are awaited: each is data or a FENCE then, and stays so.
        fences = await together(_settled(store, log.object(n), rng) for n in names)
        if True in fences:
            return names[fences.index(True)]
        at += WAL_FENCES


async def _first_without_data(store: ObjectStore, log: LogName, trimmed: int) -> int:
    """From the list of names and sizes: a FENCE is the only object of its size. The wall reads what it meets."""
    expected = trimmed
    after = log.object(trimmed - 1) if trimmed else ""
    async for info in store.list(log.folder, after):
        if info.name != log.object(expected) or info.size == len(FENCE):
            break
        expected += 1
    return expected


async def _settled(store: ObjectStore, name: str, rng: random.Random) -> bool:
    """PUT a FENCE; True where a FENCE lies at the name then, this one or another's; False: data.

    Raises StorageError when that cannot be found out.
    """
    delay = RetryDelay(rng)
    deadline = asyncio.get_running_loop().time() + RESOLVE_S_MAX
    while True:
        try:
            await store.put_if_absent(name, [FENCE])
        except (ObjectExistsError, UnknownOutcomeError):
            found = await first_bytes(store, name)
            if found is not None:
                return found == FENCE
        else:
            return True
        if asyncio.get_running_loop().time() > deadline:
            raise StorageError(f"the object store did not say within {RESOLVE_S_MAX:g} s what lies at {name}")
        await asyncio.sleep(delay.next())


async def first_bytes(store: ObjectStore, name: str) -> bytes | None:
    """What tells objects of one name apart: the uuid, or FENCE; None: there is no object."""
    try:
        return bytes(await store.get_range(name, 0, UUID_SIZE))
    except ObjectMissingError:
        return None
