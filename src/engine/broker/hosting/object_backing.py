"""`ObjectBacking`: one segment on objects, while this broker owns it under one term (docs/formats/objects.md).

claim (R1)      before; the record then names this broker, and what former owners left
restore()       their sessions are fenced (R3, R10); their files are made again from their logs (R11)
serve()         one compare-and-set of the record: their ends, and the own log as the last reference (R2)
append()        groups, as long as the lease and the own session last
renew()         the header of an empty last file is appended again, so that the log before it is not needed (R19)
left()          a handover in order: where the segment's groups in the own log end (R9)
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from engine._native.format.crc32c import crc32c
from engine.aio.backoff import RetryDelay
from engine.aio.workers import Workers, run
from engine.broker.hosting.ownership import Owned, OwnerLease, Ownership
from engine.errors import CorruptionError, EngineError, FencedError, NotFoundError, NotOwnerError, UnknownOutcomeError
from engine.metadata import keys
from engine.metadata.store import MetadataStore
from engine.model.names import SegmentName
from engine.storage.commit.failures import LogEndedError
from engine.storage.commit.ports import Ended
from engine.storage.disk.disk import Disk
from engine.storage.file.format import FOOTER_MAGIC
from engine.storage.file.producer_snapshot import INHERITED, write_producer_snapshot
from engine.storage.file.restore import fetch, restore
from engine.storage.objects import records
from engine.storage.objects.footers import HoleError
from engine.storage.objects.format import WalGroup
from engine.storage.objects.ports import ObjectExistsError, ObjectMissingError, ObjectStore
from engine.storage.objects.references import Inherited, SegmentObjects
from engine.storage.objects.takeover import close, recovered
from engine.storage.objects.wal import ObjectWal

if TYPE_CHECKING:
    import random

    from typing_extensions import Buffer

GATHERED = 0.1  # of the time that a group may wait for others in its object
_PUTS_MAX = 8
_FOOTER = FOOTER_MAGIC.to_bytes(4, "little")
Change = Callable[[SegmentObjects], SegmentObjects]


class _Head(NamedTuple):
    """The header of a file, as it is in the log."""

    first_offset: int
    data: bytes


class ObjectBacking:
    """A `storage.commit.ports.Backing`. Loop thread only."""

    def __init__(
        self,
        store: ObjectStore,
        wal: ObjectWal,
        metadata: MetadataStore,
        ownership: Ownership,
        name: SegmentName,
        owned: Owned,
        rng: random.Random,
    ) -> None:
        """`owned`: as it was claimed, with a lease. `wal`: of this broker's session now."""
        assert owned.lease is not None
        self.name = name
        self.path = keys.segment(name)
        self.objects = owned.objects or SegmentObjects()
        self.wal = wal
        self.flush_s: float | None = None
        self._rng = rng
        self._store = store
        self._metadata = metadata
        self._ownership = ownership
        self._owned = owned
        self._lease: OwnerLease = owned.lease
        self._appends: set[asyncio.Task[None]] = set()
        self._begun: dict[int, int] = {}  # first offset of a file: the lowest object that may have its header
        self._head: _Head | None = None  # the header of a file, as long as no group follows it in the log

    @property
    def term(self) -> int:
        """Of the lease, in the names of files and in references."""
        return self._lease.term

    @property
    def session(self) -> str:
        """Whose log has the segment's groups."""
        return self.wal.session

    @property
    def over(self) -> bool:
        """Whether the session has ended, so that another owner, perhaps this broker, has to take the segment over."""
        return self.wal.writer.over is not None

    def begun(self, first_offset: int) -> int | None:
        """The lowest object of the own session that may have the header of the file that begins at an offset.

        None: it was not begun by this owner.
        """
        return self._begun.get(first_offset)

    # -- the takeover ----------------------------------------------------------------------------------------------

    async def restore(self, disk: Disk, workers: Workers, directory: str) -> None:
        """See Backing."""
        try:
            if self.wal.writer.holds(self.path):  # of an earlier segment of this name, or an earlier lease
                await self.wal.drain()
            self.objects = await close(self.wal, self.objects)
            self._lease.check()
            names = await restore(disk, workers, directory, recovered(self.wal, self.objects, self.path))
            if not names and self.objects.files:  # it was sealed, and all of it is named
                await fetch(disk, workers, directory, self._store, self.objects.files[-1])
            if self.objects.inherited is not None:
                snapshot = await self._read_inherited(self.objects.inherited)
                path = f"{directory}/{INHERITED}-{self.objects.inherited.term}"
                await run(workers, lambda: write_producer_snapshot(disk, path, snapshot))
        except (FencedError, UnknownOutcomeError) as e:
            raise self._not_now(e) from e
        except (HoleError, NotFoundError) as e:
            await self._superseded()  # R12
            raise CorruptionError(f"{self.name}: its log is incomplete: {e}") from e

    async def _read_inherited(self, found: Inherited) -> bytes:
        try:
            data = bytes(await self._store.get(found.key))
        except ObjectMissingError as e:
            raise HoleError(f"no object lies at {found.key}") from e
        if len(data) != found.size or crc32c(data) != found.crc:
            raise CorruptionError(f"{self.name}: {found.key} fails its checksum")
        return data

    async def _superseded(self) -> None:
        """Raise NotOwnerError if another broker has claimed the segment since."""
        owner = await self._ownership.read(self.name)
        if owner.term != self._owned.term or not self._ownership.is_mine(owner):
            raise NotOwnerError(f"{self.name} belongs to another broker by now; look the topic up again")

    async def serve(self) -> None:
        """See Backing. R2: all former references have ends, and the own one begins with the next object."""
        with self.wal.beginning() as start:
            served = self.objects.served(self.session, start, self.term)
            self.objects = await self._write(lambda _: served)

    async def change(self, change: Change) -> SegmentObjects:
        """Write what the record says of its objects, if this is the owner at this term still, and its session is not
        fenced (R14). Raises NotOwnerError: it is not, and nothing was written; UnknownOutcomeError; as the store does.
        """
        self.objects = await self._write(change)
        return self.objects

    async def _write(self, change: Change) -> SegmentObjects:
        self._lease.check()
        return await self._ownership.change(
            self.name, self._owned, lambda objects: change(objects or SegmentObjects()), self._own_session
        )

    async def _own_session(self) -> Mapping[str, int]:
        """The demand that the own session is not fenced."""
        try:
            seen = await records.read_own(self._metadata, self.session)
        except FencedError as e:
            self.wal.writer.end(e)
            raise self._not_now(e) from e
        return {keys.wal(self.session): seen.version}

    def _not_now(self, error: EngineError) -> NotOwnerError:
        """R8: the broker goes on with another session, and takes the segment over again."""
        return NotOwnerError(f"{self.name} cannot be served in this moment ({error}); look the topic up again")

    # -- the owner's time ------------------------------------------------------------------------------------------

    @property
    def gather_s(self) -> float:
        """See Backing."""
        return GATHERED * (self.flush_s or self.wal.writer.flush_s)

    def append(self, first_offset: int, next_offset: int, buffers: Sequence[Buffer], done: Ended) -> None:
        """See Backing."""
        self._head = None
        if first_offset == next_offset and memoryview(buffers[0])[:4] != _FOOTER:
            self._begun.setdefault(first_offset, self.wal.next_n)
            self._head = _Head(first_offset, b"".join(buffers))
        group = WalGroup(self.path, self.term, first_offset, next_offset, buffers)
        task = asyncio.get_running_loop().create_task(self._append(group, done))
        self._appends.add(task)
        task.add_done_callback(self._appends.discard)

    async def _append(self, group: WalGroup, done: Ended) -> None:
        try:
            await self.wal.append(group, self._lease.check, self.flush_s)
        except NotOwnerError as e:
            done(LogEndedError(str(e)))
        except EngineError as e:
            self.wal.writer.end(FencedError(f"an append failed: {e}"))  # if it is not over already
            done(LogEndedError(str(e)))
        except Exception as e:  # a fault of this program: nothing waits for ever because of it
            self.wal.writer.end(FencedError(f"an append failed: {e!r}"))
            done(LogEndedError(repr(e)))
            raise
        else:
            done(None)

    async def quiet(self, within_s: float) -> None:
        """See ObjectsRecord."""
        await self.wal.writer.quiet(within_s)

    async def renew(self, first_offset: int) -> int | None:
        """See ObjectsRecord. The bytes are those of the header before, so that entries may follow either."""
        head = self._head
        if head is None or head.first_offset != first_offset:
            return None
        start, stored = self.wal.next_n, asyncio.get_running_loop().create_future()

        def done(error: BaseException | None) -> None:
            if not stored.done():
                stored.set_result(error)

        self.append(first_offset, first_offset, [head.data], done)
        if (error := await stored) is not None:
            raise NotOwnerError(f"{self.name}: its log has ended: {error}")
        return start

    async def keep_inherited(self, snapshot: bytes) -> None:
        """See Backing. It is an object of its own, since the log is trimmed."""
        await self._superseded()
        key = self.wal.new_name("inherited")
        await self._put(key, snapshot)
        named = Inherited(self.term, len(snapshot), crc32c(snapshot), key)
        await self.change(lambda objects: msgspec.structs.replace(objects, inherited=named))

    async def _put(self, key: str, data: bytes) -> None:
        """Store an object under a name that was drawn. A refusal is resolved like any outcome: by reading (R7)."""
        delay = RetryDelay(self._rng)
        for _ in range(_PUTS_MAX):
            with contextlib.suppress(ObjectExistsError, UnknownOutcomeError):
                await self._store.put_if_absent(key, [data])
                return
            with contextlib.suppress(ObjectMissingError):
                await self._store.get_range(key, 0, 1)
                return
            await asyncio.sleep(delay.next())
        raise UnknownOutcomeError(f"{self.name}: the object store did not say whether {key} is stored")

    async def left(self) -> tuple[str, int] | None:
        """R9: the own session, and the first of its objects that has no group of the segment. Behind the last append.

        None: the session is over, and the next owner finds its end.
        """
        try:
            return self.session, await self.wal.drain()
        except EngineError:
            return None
