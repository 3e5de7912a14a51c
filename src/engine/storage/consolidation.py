"""`Consolidation`: rolled files of one segment become objects, and its record names them (R13, R14).

    file      rolled: another follows it, or the segment is sealed
    upload    under a name of its own, by the term and the session that own the segment as it begins; piece by piece
              while the log is quiet, for senders wait for that
    name      one write of the record, which demands that owner, that term, and a session that is not fenced;
              lost: the object is an orphan, and is deleted
    hold      the local file stays until the cache needs its room
    share     small files of several segments are one object (sharing.py): each record names its own part (R18)
    fold      when the record grows too large, its older files go to an index object
    move on   a silent segment, whose files hold all, needs nothing of the log but the header of its last file: that
              goes there once more, and what lies before is not needed (R19)

What the record names is deleted by retention: the record first, the objects after a grace for readers. Of objects that
segments share it deletes none: the sweep does, when no record names them.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from engine.errors import EngineError, NotOwnerError, UnknownOutcomeError
from engine.limits import OBJECT_RECORD_FILES_SIZE_MAX, OBJECT_SHARED_FILE_MAX
from engine.storage.file.context import Context
from engine.storage.file.logfile import LogFile
from engine.storage.file.named import NamedFiles
from engine.storage.file.retention import NamedSpan, Span
from engine.storage.file.upload import upload
from engine.storage.objects.names import INDEX, FileNames, shared_of, write_index
from engine.storage.objects.ports import ObjectStore
from engine.storage.objects.references import RolledFile, SegmentObjects
from engine.storage.objects.trim import DELETED_AT_ONCE, GRACE_S

if TYPE_CHECKING:
    from engine.storage.segment import Segment

_log = logging.getLogger("engine.storage")

YIELD_S = 4.0  # so long a piece of a file waits for the log at most
BEHIND_MAX = 4  # files of a segment; with more of them the log is not waited for

Change = Callable[[SegmentObjects], SegmentObjects]
Rolled = tuple[LogFile, LogFile | None]  # a file that gets no more entries, and the next one of the log


class ObjectsRecord(Protocol):
    """The part of a segment's record that is about objects, as its owner at one term writes it."""

    @property
    def path(self) -> str:
        """Of the record in the metadata store."""

    @property
    def term(self) -> int:
        """Under which this broker owns the segment. It never changes: another term is another record."""

    @property
    def session(self) -> str:
        """Whose log has the segment's groups."""

    @property
    def objects(self) -> SegmentObjects:
        """As this broker has read or written them last."""

    def begun(self, first_offset: int) -> int | None:
        """The lowest object of the own session that may have the header of the file that begins there; None: it was
        not begun by this owner.
        """

    async def renew(self, first_offset: int) -> int | None:
        """R19: append the header of the file that begins there to the log again, if nothing follows it in the log; the
        lowest object that may have it now. None: something does. Raises NotOwnerError: the log has ended.
        """

    async def quiet(self, within_s: float) -> None:
        """Wait until nothing of the log is on its way, at most so long."""

    async def change(self, change: Change) -> SegmentObjects:
        """Write them, if this is the owner at this term still, and its session is not fenced (R14).

        Raises NotOwnerError: it is not, and nothing was written; UnknownOutcomeError; and what the store raises.
        """


class ObjectGarbage:
    """Objects that no record names any more, which readers may still read for a while. Loop thread only."""

    def __init__(self, store: ObjectStore, grace_s: float = GRACE_S) -> None:
        self._store = store
        self._grace_s = grace_s
        self._due: deque[tuple[float, str]] = deque()  # rising

    def add(self, names: Sequence[str]) -> None:
        """Delete these after the grace. A process that ends before leaves them to the sweep."""
        due = asyncio.get_running_loop().time() + self._grace_s
        self._due.extend((due, name) for name in names)

    async def delete_due(self) -> int:
        """Delete what was added long enough ago; how many. Raises what the store raises: call it again."""
        deleted, now = 0, asyncio.get_running_loop().time()
        while self._due and self._due[0][0] <= now:
            some = [name for due, name in itertools.islice(self._due, DELETED_AT_ONCE) if due <= now]
            await self._store.delete(some)
            for _ in some:
                self._due.popleft()
            deleted += len(some)
        return deleted


class Consolidation:
    """Of one open segment, at one term. Loop thread only; one call at a time."""

    def __init__(
        self, context: Context, record: ObjectsRecord, names: FileNames, named: NamedFiles, garbage: ObjectGarbage
    ) -> None:
        self.named = named
        self.names = names
        self.context = context
        self._record = record
        self._store = named.cache.store
        self._garbage = garbage

    async def run(self, segment: Segment, in_a_hurry: Callable[[], bool] = lambda: False) -> int:
        """Upload and name what has rolled; how many files. `in_a_hurry`: asked before each piece that is to wait.

        Raises NotOwnerError, CorruptionError, UnknownOutcomeError, StorageError: what was named until then stays so,
        and the next call goes on.
        """
        count = 0
        if not self.named.objects.wal:
            return 0  # it was sealed, and all of it is named
        for file, following in _rolled(segment, self.named.end_offset):
            segment.check_lease()
            await self._consolidate(segment, file, following, in_a_hurry)
            count += 1
        await self._fold()
        return count

    async def _consolidate(
        self, segment: Segment, file: LogFile, following: LogFile | None, in_a_hurry: Callable[[], bool]
    ) -> None:
        record, context = self._record, self.context
        name = self.names.next(record.path, file.first_offset, record.term)

        async def pace() -> None:
            if len(_rolled(segment, self.named.end_offset)) <= BEHIND_MAX and not in_a_hurry():
                await record.quiet(YIELD_S)

        rolled = await upload(self._store, name, context.handles.disk, context.workers, file, following, pace)
        await self._change([name], self._naming(rolled, following))
        if all(each.key != name for each in self.named.objects.files):
            self._garbage.add([name])
        self._hold(segment, file, following, rolled)

    def is_behind(self, unneeded: int, objects_max: int) -> bool:
        """Whether its references keep much of the log, or logs of former owners. `unneeded`: see ObjectWal."""
        wal, record = self.named.objects.wal, self._record
        return len(wal) > 1 or any(r.session == record.session and unneeded - r.start >= objects_max for r in wal)

    async def move_on(self) -> bool:
        """R19, where nothing but the header of the last file is in the log. Raises as run() does."""
        end, session = self.named.end_offset, self._record.session
        start = await self._record.renew(end)
        if start is None:
            return False
        await self._change([], lambda objects: objects.moved(end, session, start))
        return True

    def small(self, segment: Segment) -> Rolled | None:
        """The file that is to be named next, when it may share an object with those of other segments."""
        if not self.named.objects.wal:
            return None
        rolled = _rolled(segment, self.named.end_offset)
        return rolled[0] if rolled and rolled[0][0].end_position <= OBJECT_SHARED_FILE_MAX else None

    async def name_shared(self, segment: Segment, file: LogFile, following: LogFile | None, rolled: RolledFile) -> None:
        """R14 for a part of an object that segments share. Raises as run() does."""
        segment.check_lease()
        await self._change([], self._naming(rolled, following))
        self._hold(segment, file, following, rolled)

    def _naming(self, rolled: RolledFile, following: LogFile | None) -> Change:
        record = self._record
        follows = upto = None
        if following is not None:
            follows = following.opening.term
            upto = record.begun(following.first_offset) if follows == record.term else None

        def naming(objects: SegmentObjects) -> SegmentObjects:
            if objects.named_end >= rolled.end > rolled.first:  # done before, by a write whose outcome was not heard
                return objects
            return objects.named(rolled, record.session, follows, upto)

        return naming

    def _hold(self, segment: Segment, file: LogFile, following: LogFile | None, rolled: RolledFile) -> None:
        if following is not None:
            self.named.cache.hold(file, rolled.size, lambda: segment.drop_local(file))

    async def _change(self, names: Sequence[str], change: Change) -> None:
        try:
            self.named.objects = await self._record.change(change)
        except UnknownOutcomeError:
            raise  # it may be named: the sweep finds out
        except EngineError as e:
            if isinstance(e, NotOwnerError):
                self._garbage.add(names)
            raise

    async def _fold(self) -> None:
        """Keep the record small: half of its files go to an index, with those of the index before it."""
        objects = self.named.objects
        if len(objects.files) < 2 or len(msgspec.json.encode(objects.files)) <= OBJECT_RECORD_FILES_SIZE_MAX:
            return
        count = len(objects.files) // 2
        files = (await self.named.all())[: -(len(objects.files) - count)]
        name = self.names.next(self._record.path, files[0].first, self._record.term, INDEX)
        older = await write_index(self._store, name, files)
        before = objects.older
        await self._change([name], lambda now: now.folded(older, count))
        if before is not None:
            self._garbage.add([before.key])

    # -- retention -------------------------------------------------------------------------------------------------

    async def spans(self, files: Sequence[LogFile]) -> list[Span]:
        """All files, oldest first: those that the record names, and those that are on this disk alone.

        `files`: those on the disk. Raises CorruptionError, and what the store raises.
        """
        rest = [file for file in files if file.first_offset >= self.named.end_offset or file is files[-1]]
        return [*(NamedSpan.of(file) for file in await self.named.all() if file.first < rest[0].first_offset), *rest]

    async def retire(self, segment: Segment, doomed: Sequence[Span]) -> int:
        """Delete files, those of spans(), whose record names them; how many. Others stay for another round.

        The record first (R17), the objects after the grace. Raises as run() does.
        """
        floor = max((each.end_offset for each in doomed if isinstance(each, NamedSpan)), default=0)
        listed = await self.named.all()
        below = [file.key for file in listed if file.first < file.end <= floor]
        if not below:
            return 0
        gone = [key for key in below if shared_of(key) is None]
        segment.check_lease()
        before = self.named.objects.older
        await self._change([], lambda objects: objects.kept(floor, listed))
        if before is not None and self.named.objects.older is None:
            gone.append(before.key)
        self._garbage.add(gone)
        for file in [file for file in segment.files[:-1] if file.end_offset <= floor]:
            segment.drop_local(file)
        return len(below)


def _rolled(segment: Segment, end: int) -> list[Rolled]:
    """The files from an offset on that get no more entries, each with the next one; None: the segment ends there.

    Empty ones are left out, but the end of a sealed segment.
    """
    last = segment.files[-1]
    kept = [f for f in segment.files if f.first_offset >= end and (f is last or not f.is_empty)]
    found: list[Rolled] = list(itertools.pairwise(kept))
    return [*found, (last, None)] if segment.sealed and last.sealed and last in kept else found
