"""`SavedRecord`: a record in the metadata store that one owner saves repeatedly; changes during a save share the next.

A save that nothing waits for (`lazy`) is deferred by a SavePace, where the store is such that each write costs much:

    lazy saves of cursors      ·  · ··    ·  ·  ·         ·  ·
    begin                    |-- interval --|-- interval --|      all that came meanwhile: one write of each cursor,
                                                                  which the metadata store takes as one batch

A save that something waits for begins at once, and takes the deferred one of its record along.

`claim()` takes such a record over from its previous owner.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from engine.errors import (
    AlreadyClosedError,
    EngineError,
    FencedError,
    NotOwnerError,
    StorageError,
    UnknownOutcomeError,
)
from engine.metadata.store import ABSENT, ConflictError, Expected, MetadataStore, OutcomeUnknownError
from engine.storage.cursor.pieces import WholeRecord, delete, name_in, read, write
from engine.storage.file.owners import Lease

SAVES_MAX = 8
_UNSURE_MAX = 64


class Deferrable(Protocol):
    """What is saved."""

    def begin(self) -> None:
        """Begin the save that was deferred, unless it was done since."""


class SavePace:
    """Loop thread only. `interval`: seconds between the saves; 0: none is deferred."""

    def __init__(self, interval: float = 0.0) -> None:
        self.interval = interval
        self._deferred: dict[Deferrable, None] = {}

    def defer(self, save: Deferrable) -> None:
        """Begin it within `interval`, with the others."""
        if not self._deferred:
            asyncio.get_running_loop().call_later(self.interval, self._begin)
        self._deferred[save] = None

    def _begin(self) -> None:
        due, self._deferred = self._deferred, {}
        for save in due:
            save.begin()


AT_ONCE = SavePace()


class SavedRecord:
    """One owner's record. `pack` returns the image to be saved now. One object per record at a time.

    Two things fence a former owner: a save compares the version, so that of two owners one is refused; and once the
    lease may be over, nothing is saved or confirmed.
    """

    __slots__ = ("_closed", "_dirty", "_due", "_lease", "_metadata", "_pace", "_pack", "_pieces", "_task", "_unsure",
                 "_version", "_waiters", "key")  # fmt: skip

    def __init__(
        self,
        metadata: MetadataStore,
        key: str,
        version: int | None,
        pack: Callable[[], bytes],
        lease: Lease | None = None,
        *,
        pieces: str = "",
        pace: SavePace = AT_ONCE,
    ) -> None:
        """`version`: of the record as it was read; None if it did not exist. `pieces`: the name of its pieces."""
        self.key = key
        self._metadata = metadata
        self._version = version
        self._pack = pack
        self._lease = lease
        self._pieces = pieces
        # Values that may have been saved since `_version`: the store did not confirm them.
        self._unsure: deque[bytes] = deque(maxlen=_UNSURE_MAX)
        self._closed: EngineError | None = None
        self._pace = pace
        self._dirty = False
        self._due = False  # a save is to begin once the present one has ended
        self._waiters: list[asyncio.Future[None]] = []
        self._task: asyncio.Task[None] | None = None

    @property
    def exists(self) -> bool:
        return self._version is not None

    @property
    def unsaved(self) -> bool:
        """Whether some change is not known to be saved: it may be lost in a crash."""
        return self._dirty or self._task is not None

    @property
    def refuses(self) -> bool:
        """Whether saves are refused from now on."""
        return self._closed is not None or (self._lease is not None and not self._lease.held)

    def check(self) -> None:
        """Raise, as the future of save() would, if saves are refused."""
        if self.refuses:
            raise self._refusal()

    def _refusal(self) -> EngineError:
        return self._closed or NotOwnerError(f"{self.key}: this broker's lease of the segment is over")

    def save(self, changed: bool = True, lazy: bool = False) -> asyncio.Future[None]:
        """A future that is done when the present state is durable. `changed`: whether it differs from the last save.
        `lazy`: it may be deferred.

        The future may fail with FencedError (another owner saved it), NotOwnerError, StorageError or an error of the
        store, AlreadyClosedError. After a failure the next call saves the state in memory.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.refuses:
            future.set_exception(self._refusal())
            return future
        self._dirty = self._dirty or changed
        if not self._dirty and self._task is None:
            future.set_result(None)
            return future
        self._waiters.append(future)
        if lazy and self._pace.interval:
            self._pace.defer(self)
        else:
            self.begin()
        return future

    def begin(self) -> None:
        """Save what was asked for; nothing where that was done since."""
        if self._waiters:
            self._due = True
            if self._task is None:
                self._task = asyncio.get_running_loop().create_task(self._save_all())

    async def _save_all(self) -> None:
        waiters: list[asyncio.Future[None]] = []
        try:
            while self._due:
                waiters, self._waiters, self._dirty, self._due = self._waiters, [], False, False
                await self._save(self._pack())
                for future in waiters:
                    if not future.done():
                        future.set_result(None)
        except Exception as e:
            self._failed(waiters + self._waiters, e)
        finally:
            self._task = None

    def _failed(self, waiters: list[asyncio.Future[None]], error: Exception) -> None:
        self._dirty, self._due = True, False
        self._waiters = []
        if isinstance(error, FencedError):
            self._closed = error
        for future in waiters:
            if not future.done():
                future.set_exception(error)

    async def _save(self, image: bytes) -> None:
        """Raises FencedError; UnknownOutcomeError if the store never confirms it."""
        if self._lease is not None:
            self._lease.check()
        for _ in range(SAVES_MAX):
            expected: Expected | int = ABSENT if self._version is None else self._version
            value = await write(self._metadata, self.key, image, self._version)
            if value not in self._unsure:
                self._unsure.append(value)
            try:
                self._version = (await self._metadata.put(self.key, value, expected)).version
            except (ConflictError, OutcomeUnknownError) as e:
                if not await self._is_saved(value, e):
                    continue
            if self._pieces or value is not image:
                await self._delete_replaced(value)
            self._unsure.clear()
            return
        raise UnknownOutcomeError(f"{self.key}: the metadata store did not confirm the save")

    async def _delete_replaced(self, value: bytes) -> None:
        """Delete the pieces of all earlier images: `value` is in force."""
        before = {self._pieces, *(name_in(earlier, self.key) for earlier in self._unsure)}
        self._pieces = name_in(value, self.key)
        await delete(self._metadata, self.key, sorted(before - {self._pieces}))

    async def _is_saved(self, value: bytes, error: Exception) -> bool:
        """Read back. The stored value may also be an earlier one, whose save seemed to fail."""
        record = await self._metadata.newest.get(self.key)
        if record is None:
            if self._version is None:
                return False
            raise FencedError(f"{self.key} was deleted by another owner") from error
        if record.stat.version != self._version and record.value not in self._unsure:
            raise FencedError(f"{self.key} was saved by another owner") from error
        self._version = record.stat.version
        return record.value == value

    async def close(self) -> None:
        """Finish saving; later calls fail. Idempotent."""
        if self._closed is None:
            self._closed = AlreadyClosedError(f"{self.key} is closed")
        self.begin()
        if self._task is not None:
            await asyncio.wait([self._task])


async def claim(
    metadata: MetadataStore, key: str, lease: Lease | None, image_of: Callable[[bytes, int], tuple[int, bytes]]
) -> WholeRecord | None:
    """The record, None if it does not exist. Under a lease its term is set first, so that former owners are fenced.

    `image_of(value, term)`: the term in the value, and the value with the given term instead. Raises FencedError if a
    later owner has claimed it; NotOwnerError; StorageError if the metadata store does not confirm.
    """
    for _ in range(SAVES_MAX):
        record = await read(metadata, key)
        if record is None or lease is None:
            return record
        term, image = image_of(record.value, lease.term)
        if term == lease.term:
            return record
        lease.check()
        if term > lease.term:
            raise FencedError(f"{key} belongs to a later owner")
        try:
            value = await write(metadata, key, image, record.stat.version)
            claimed = WholeRecord(key, image, await metadata.put(key, value, record.stat.version), name_in(value, key))
        except (ConflictError, OutcomeUnknownError):
            continue
        await delete(metadata, key, [record.pieces])
        return claimed
    raise StorageError(f"{key}: the metadata store did not confirm its owner; try again")
