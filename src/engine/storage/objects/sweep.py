"""`Sweep`: deletes what sessions that have ended have left behind and no record names (R16).

    1  each session's record: those with `fenced` have ended, and can name nothing more
    2  the records of all segments: what they refer to, and the files that they and their indexes name
    3  the list of names: logs of ended sessions without a reference, but their FENCEs (R6); files of ended sessions
       that are not named
    4  the records of ended sessions without a reference of which step 3 found FENCEs alone: an earlier sweep has
       deleted the rest

Of what segments share (R18), sessions that live are swept as well: step 1 reads which of their objects they will name
no more, and step 2 whether a record does. Such an object is deleted by the second sweep in a row that finds it so: the
last record that named it may have given it up just now.

In this order: a file that was named between 2 and 3 would be of a session that was not fenced at 1. A session without a
record has ended, as it begins with its record: for its files 1 and 2 are done again, behind 3. Late PUTs may bring back
what was deleted; that is harmless, and the next sweep deletes it, while there is the session's record. Objects younger
than an hour stay, for readers that have begun. Other files of a session that lives are its own matter.

What a sweep holds in memory does not grow with the objects of the cluster: names that records mention are in a set of a
fixed size that may say yes too often (`Mentioned`), so that a sweep may leave something to the next one; what is to be
deleted is taken in pieces. It grows with the sessions that have a record.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from engine.errors import CorruptionError
from engine.metadata import keys, unsure
from engine.metadata.store import MetadataStore, Record
from engine.storage.objects.format import FENCE, LogName
from engine.storage.objects.mentioned import Mentioned
from engine.storage.objects.names import folder, read_index, session_of, shared_of
from engine.storage.objects.ports import ObjectInfo, ObjectMissingError, ObjectStore
from engine.storage.objects.records import WalRecord
from engine.storage.objects.references import SegmentObjects
from engine.storage.objects.trim import DELETED_AT_ONCE

AGE_S = 3600.0
INHERITED = "inherited"  # inherited/{cluster}/{session}/{number}: producer snapshots of parents
INDEX_OBJECTS = "segment-objects"  # of the records of segments that say something of objects; holds their own key

NAMES_KEPT = 1_000  # of what was deleted, in an answer
UNKNOWN_AT_ONCE = 20_000  # objects of sessions without a record, for which records are read again
UNSHARED_MAX = 10_000  # shared objects that are remembered until the next sweep; others wait one longer

_PAGE = 500
_ADDED_AT_ONCE = 500  # names, until others may run

T = TypeVar("T")
Refers = Callable[[Record, SegmentObjects], None]


@dataclass(slots=True)
class Swept:
    """What was deleted, or would be. `log_objects` of `sessions` ended sessions, and `files` that no record names.

    `names`: the first of them.
    """

    sessions: int = 0
    log_objects: int = 0
    files: int = 0
    size: int = 0  # bytes
    names: list[str] = field(default_factory=list)


class Sweep:
    """Of one cluster. `now_ms`: the time by a clock like the store's. `unshared`: shared objects that no record named
    when the sweep before this one ended; run() replaces it by what it finds itself, and does not delete. `refers`:
    called with each record that refers to a log, when run() has read all `found` sessions.
    """

    def __init__(
        self,
        store: ObjectStore,
        metadata: MetadataStore,
        cluster: str,
        now_ms: Callable[[], int],
        age_s: float = AGE_S,
        unshared: frozenset[str] = frozenset(),
        refers: Refers | None = None,
    ) -> None:
        self.unshared = unshared
        self.found: dict[str, WalRecord] = {}  # the records of all sessions, as they were read last
        self._store = store
        self._metadata = metadata
        self._cluster = cluster
        self._now_ms = now_ms
        self._age_ms = age_s * 1000
        self._refers = refers

    async def run(self, *, dry_run: bool = False) -> Swept:
        """One sweep. `dry_run`: nothing is deleted. Raises CorruptionError: a record or an index cannot be read, and
        nothing was deleted; and what the stores raise: what was deleted until then stays so.
        """
        ended = await self._ended()
        needed, named = await self._referred()
        swept = Swept()
        before_ms = self._now_ms() - self._age_ms
        done = [
            name for name in sorted(ended - needed) if await self._sweep_log(name, before_ms, swept, dry_run=dry_run)
        ]
        shared: set[str] = set()
        for where, session_in in ((folder(self._cluster), session_of), (f"{INHERITED}/{self._cluster}", _owner_of)):
            orphans: list[ObjectInfo] = []
            unknown: list[tuple[ObjectInfo, str]] = []
            async for info in self._store.list(where):
                session = session_in(info.name)
                if info.modified_ms >= before_ms or session is None or info.name in named:
                    continue
                if session in ended or self._is_settled(info.name):
                    orphans.append(info)
                elif session not in self.found:
                    unknown.append((info, session))
                if len(orphans) >= DELETED_AT_ONCE:
                    await self._sweep_files(orphans, shared, swept, dry_run=dry_run)
                    orphans.clear()
                if len(unknown) >= UNKNOWN_AT_ONCE:
                    await self._sweep_files(await self._without_record(unknown), shared, swept, dry_run=dry_run)
                    unknown.clear()
            orphans += await self._without_record(unknown)
            await self._sweep_files(orphans, shared, swept, dry_run=dry_run)
        for name in [] if dry_run else done:
            await unsure.delete(self._metadata, keys.wal(name))
        self.unshared = frozenset(shared)
        return swept

    async def _sweep_log(self, session: str, before_ms: float, swept: Swept, *, dry_run: bool) -> bool:
        """The log of a session that has ended, without references; whether it had nothing but FENCEs (R6)."""
        found: list[ObjectInfo] = []
        count = young = 0
        async for info in self._store.list(LogName(self._cluster, session).folder):
            if info.size == len(FENCE):
                continue
            if info.modified_ms >= before_ms:
                young += 1
                continue
            found.append(info)
            count += 1
            if len(found) >= DELETED_AT_ONCE:
                await self._delete(found, swept, dry_run=dry_run)
                found.clear()
        await self._delete(found, swept, dry_run=dry_run)
        swept.sessions += bool(count)
        swept.log_objects += count
        return not count and not young

    async def _sweep_files(self, orphans: list[ObjectInfo], shared: set[str], swept: Swept, *, dry_run: bool) -> None:
        """Files that no record names. Shared ones that stay until the next sweep are added to `shared`."""
        gone = self._given_up(orphans, shared)
        swept.files += len(gone)
        await self._delete(gone, swept, dry_run=dry_run)

    def _is_settled(self, name: str) -> bool:
        """R18: whether it is a shared object that no further record will name."""
        shared = shared_of(name)
        record = None if shared is None else self.found.get(shared.session)
        return shared is not None and record is not None and shared.number < record.settled

    def _given_up(self, orphans: list[ObjectInfo], shared: set[str]) -> list[ObjectInfo]:
        """What may be deleted of them; the other shared ones are added to `shared`, as far as there is room."""
        kept = [info.name for info in orphans if shared_of(info.name) is not None and info.name not in self.unshared]
        shared.update(kept[: max(0, UNSHARED_MAX - len(shared))])
        stay = set(kept)
        return [info for info in orphans if info.name not in stay]

    async def _without_record(self, found: list[tuple[ObjectInfo, str]]) -> list[ObjectInfo]:
        """Those of sessions that have ended and have no record any more; by reads that follow the list of names."""
        if not found:
            return []
        living = await self.sessions()
        left = {info.name for info, session in found if session not in living}
        async for record, objects in self._records_of_segments():
            left.difference_update(await self._named(record.key, objects))
        return [info for info, _ in found if info.name in left]

    async def _delete(self, found: list[ObjectInfo], swept: Swept, *, dry_run: bool) -> None:
        names = [info.name for info in found]
        swept.size += sum(info.size for info in found)
        swept.names += names[: NAMES_KEPT - len(swept.names)]
        for first in range(0, 0 if dry_run else len(names), DELETED_AT_ONCE):
            await self._store.delete(names[first : first + DELETED_AT_ONCE])

    async def _ended(self) -> set[str]:
        self.found = await self.sessions()
        return {session for session, record in self.found.items() if record.fenced is not None}

    async def sessions(self) -> dict[str, WalRecord]:
        """The records of all sessions, as they are in the store. Raises CorruptionError, and what the store raises."""
        return {
            keys.decode(record.key.removeprefix(keys.WALS)): _decoded(record, WalRecord)
            async for record in self._records(keys.WALS, keys.prefix_end(keys.WALS))
        }

    async def _records(self, start: str, end: str) -> AsyncIterator[Record]:
        while page := await self._metadata.newest.list(start, end, _PAGE):
            for record in page:
                yield record
            start = page[-1].key + "\0"

    async def _records_of_segments(self) -> AsyncIterator[tuple[Record, SegmentObjects]]:
        start = ""
        while page := await self._metadata.newest.list_index(INDEX_OBJECTS, start, keys.LAST, _PAGE):
            for _, record in page:
                yield record, _decoded(record, SegmentObjects)
            start = page[-1][0] + "\0"

    async def _referred(self) -> tuple[set[str], Mentioned]:
        """(sessions that a record refers to, names of objects that a record or its index names)."""
        sessions: set[str] = set()
        named = Mentioned(self._now_ms())
        async for record, objects in self._records_of_segments():
            sessions.update(objects.starts())
            if objects.wal and self._refers is not None:
                self._refers(record, objects)
            await _add(named, await self._named(record.key, objects))
        return sessions, named

    async def _named(self, key: str, objects: SegmentObjects) -> list[str]:
        names = [file.key for file in objects.files]
        if objects.inherited is not None:
            names.append(objects.inherited.key)
        if objects.older is not None:
            try:
                names += [objects.older.key, *(file.key for file in await read_index(self._store, objects.older))]
            except ObjectMissingError:  # replaced meanwhile, or lost: nothing is deleted by what is not known
                raise CorruptionError(f"{key}: the index {objects.older.key} is missing; sweep again") from None
        return names


async def _add(named: Mentioned, names: Sequence[str]) -> None:
    for first in range(0, len(names), _ADDED_AT_ONCE):
        if first:
            await asyncio.sleep(0)
        named.update(names[first : first + _ADDED_AT_ONCE])


def _owner_of(name: str) -> str | None:
    """The session of an inherited snapshot."""
    parts = name.split("/")
    return parts[2] if len(parts) == 4 else None


def _decoded(record: Record, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(record.value, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as e:
        raise CorruptionError(f"{record.key}: {e}") from e
