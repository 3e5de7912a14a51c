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
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from engine.errors import CorruptionError
from engine.metadata import keys, unsure
from engine.metadata.store import MetadataStore, Record
from engine.storage.objects.format import FENCE, LogName
from engine.storage.objects.names import folder, read_index, session_of, shared_of
from engine.storage.objects.ports import ObjectInfo, ObjectMissingError, ObjectStore
from engine.storage.objects.records import WalRecord
from engine.storage.objects.references import SegmentObjects
from engine.storage.objects.trim import DELETED_AT_ONCE

AGE_S = 3600.0
INHERITED = "inherited"  # inherited/{cluster}/{session}/{number}: producer snapshots of parents
INDEX_OBJECTS = "segment-objects"  # of the records of segments that say something of objects; holds their own key

_PAGE = 500

T = TypeVar("T")


@dataclass(slots=True)
class Swept:
    """What was deleted, or would be. `log_objects` of `sessions` ended sessions, and `files` that no record names."""

    sessions: int = 0
    log_objects: int = 0
    files: int = 0
    size: int = 0  # bytes
    names: list[str] = field(default_factory=list)


class Sweep:
    """Of one cluster. `now_ms`: the time by a clock like the store's. `unshared`: shared objects that no record named
    when the sweep before this one ended; run() replaces it by what it finds itself.
    """

    def __init__(
        self,
        store: ObjectStore,
        metadata: MetadataStore,
        cluster: str,
        now_ms: Callable[[], int],
        age_s: float = AGE_S,
        unshared: frozenset[str] = frozenset(),
    ) -> None:
        self.unshared = unshared
        self._store = store
        self._metadata = metadata
        self._cluster = cluster
        self._now_ms = now_ms
        self._age_ms = age_s * 1000
        self._sessions: dict[str, WalRecord] = {}  # their records, as they were read last

    async def run(self, *, dry_run: bool = False) -> Swept:
        """One sweep. `dry_run`: nothing is deleted. Raises CorruptionError: a record or an index cannot be read, and
        nothing was deleted; and what the stores raise: what was deleted until then stays so.
        """
        ended = await self._ended()
        needed, named = await self._referred()
        swept = Swept()
        before_ms = self._now_ms() - self._age_ms
        done = []
        shared: set[str] = set()
        for name in sorted(ended - needed):
            log = self._store.list(LogName(self._cluster, name).folder)
            data = [info async for info in log if info.size != len(FENCE)]
            found = [info for info in data if info.modified_ms < before_ms]
            swept.sessions += bool(found)
            swept.log_objects += len(found)
            await self._delete(found, swept, dry_run=dry_run)
            if not data:
                done.append(name)
        for where, session_in in ((folder(self._cluster), session_of), (f"{INHERITED}/{self._cluster}", _owner_of)):
            orphans: list[ObjectInfo] = []
            unknown: list[tuple[ObjectInfo, str]] = []
            async for info in self._store.list(where):
                session = session_in(info.name)
                if info.modified_ms >= before_ms or info.name in named or session is None:
                    continue
                if session in ended or self._is_settled(info.name):
                    orphans.append(info)
                elif session not in self._sessions:
                    unknown.append((info, session))
            orphans += await self._without_record(unknown)
            orphans = self._given_up(orphans, shared)
            swept.files += len(orphans)
            await self._delete(orphans, swept, dry_run=dry_run)
        for name in [] if dry_run else done:
            await unsure.delete(self._metadata, keys.wal(name))
        self.unshared = frozenset(shared)
        return swept

    def _is_settled(self, name: str) -> bool:
        """R18: whether it is a shared object that no further record will name."""
        shared = shared_of(name)
        record = None if shared is None else self._sessions.get(shared.session)
        return shared is not None and record is not None and shared.number < record.settled

    def _given_up(self, orphans: list[ObjectInfo], shared: set[str]) -> list[ObjectInfo]:
        """What may be deleted of them; the shared ones are added to `shared`."""
        of_several = {info.name for info in orphans if shared_of(info.name) is not None}
        shared |= of_several
        return [info for info in orphans if info.name not in of_several or info.name in self.unshared]

    async def _without_record(self, found: list[tuple[ObjectInfo, str]]) -> list[ObjectInfo]:
        """Those of sessions that have ended and have no record any more; by reads that follow the list of names."""
        if not found:
            return []
        living = await self.sessions()
        _, named = await self._referred()
        return [info for info, session in found if session not in living and info.name not in named]

    async def _delete(self, found: list[ObjectInfo], swept: Swept, *, dry_run: bool) -> None:
        names = [info.name for info in found]
        swept.size += sum(info.size for info in found)
        swept.names += names
        for first in range(0, 0 if dry_run else len(names), DELETED_AT_ONCE):
            await self._store.delete(names[first : first + DELETED_AT_ONCE])

    async def _ended(self) -> set[str]:
        self._sessions = await self.sessions()
        return {session for session, record in self._sessions.items() if record.fenced is not None}

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

    async def _referred(self) -> tuple[set[str], set[str]]:
        """(sessions that a record refers to, names of objects that a record or its index names)."""
        sessions: set[str] = set()
        named: set[str] = set()
        start = ""
        while page := await self._metadata.newest.list_index(INDEX_OBJECTS, start, keys.LAST, _PAGE):
            for _, record in page:
                objects = _decoded(record, SegmentObjects)
                sessions.update(objects.starts())
                named.update(await self._named(record.key, objects))
            start = page[-1][0] + "\0"
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


def _owner_of(name: str) -> str | None:
    """The session of an inherited snapshot."""
    parts = name.split("/")
    return parts[2] if len(parts) == 4 else None


def _decoded(record: Record, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(record.value, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as e:
        raise CorruptionError(f"{record.key}: {e}") from e
