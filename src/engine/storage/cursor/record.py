"""`SavedRecord`: one owner's record in the metadata store, saved again and again, what comes meanwhile together.

`claim()` takes such a record over from who owned it before.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from engine.errors import (
    AlreadyClosedError,
    EngineError,
    FencedError,
    NotOwnerError,
    StorageError,
    UnknownOutcomeError,
)
from engine.metadata.store import ABSENT, ConflictError, Expected, MetadataStore, OutcomeUnknownError, Record
from engine.storage.file.owners import Lease

SAVES_MAX = 8
_UNSURE_MAX = 64


class SavedRecord:
    """Loop thread only. `pack` makes the image of what is to be saved now. One object per record at a time.

    Saving is by compare-and-set, so that of two who believe to own the record one is refused, and by its own time: once
    the lease may be over, nothing is saved or confirmed.
    """

    __slots__ = ("_closed", "_dirty", "_lease", "_metadata", "_pack", "_task", "_unsure", "_version", "_waiters", "key")

    def __init__(
        self,
        metadata: MetadataStore,
        key: str,
        version: int | None,
        pack: Callable[[], bytes],
        lease: Lease | None = None,
    ) -> None:
        """`version`: of the record as it was read, None when there was none."""
        self.key = key
        self._metadata = metadata
        self._version = version
        self._pack = pack
        self._lease = lease
        # What may have been saved since `_version`, when the store did not say.
        self._unsure: deque[bytes] = deque(maxlen=_UNSURE_MAX)
        self._closed: EngineError | None = None
        self._dirty = False
        self._waiters: list[asyncio.Future[None]] = []
        self._task: asyncio.Task[None] | None = None

    @property
    def exists(self) -> bool:
        """Whether it was ever saved."""
        return self._version is not None

    @property
    def unsaved(self) -> bool:
        """Whether something is not known to be saved, so that nobody may rely on it."""
        return self._dirty or self._task is not None

    @property
    def refuses(self) -> bool:
        """Whether nothing can be saved any more."""
        return self._closed is not None or (self._lease is not None and not self._lease.held)

    def check(self) -> None:
        """Raise, as the future of save() would, when nothing can be saved any more."""
        if self.refuses:
            raise self._refusal()

    def _refusal(self) -> EngineError:
        return self._closed or NotOwnerError(f"{self.key}: this broker may own the segment no more")

    def save(self, changed: bool = True) -> asyncio.Future[None]:
        """Done when all there is now is durable; `changed`: whether that is more than before.

        The future may fail with FencedError (another owner saved it), NotOwnerError, StorageError or what the store
        raises, AlreadyClosedError; what is in memory is then saved with the next call.
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
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._save_all())
        return future

    async def _save_all(self) -> None:
        waiters: list[asyncio.Future[None]] = []
        try:
            while self._dirty or self._waiters:
                waiters, self._waiters, self._dirty = self._waiters, [], False
                await self._save(self._pack())
                for future in waiters:
                    if not future.done():
                        future.set_result(None)
        except Exception as e:
            self._failed(waiters + self._waiters, e)
        finally:
            self._task = None

    def _failed(self, waiters: list[asyncio.Future[None]], error: Exception) -> None:
        self._dirty = True
        self._waiters = []
        if isinstance(error, FencedError):
            self._closed = error
        for future in waiters:
            if not future.done():
                future.set_exception(error)

    async def _save(self, image: bytes) -> None:
        """Raises FencedError; UnknownOutcomeError when the store leaves it open time and again."""
        if self._lease is not None:
            self._lease.check()
        self._unsure.append(image)
        for _ in range(SAVES_MAX):
            expected: Expected | int = ABSENT if self._version is None else self._version
            try:
                self._version = (await self._metadata.put(self.key, image, expected)).version
            except (ConflictError, OutcomeUnknownError) as e:
                if not await self._is_saved(image, e):
                    continue
            self._unsure.clear()
            return
        raise UnknownOutcomeError(f"{self.key}: the metadata store does not say whether it was saved")

    async def _is_saved(self, image: bytes, error: Exception) -> bool:
        """Read back. What is there may also be an earlier image, whose save seemed to fail."""
        record = await self._metadata.get(self.key)
        if record is None:
            if self._version is None:
                return False
            raise FencedError(f"{self.key} was deleted by another owner") from error
        if record.stat.version != self._version and record.value not in self._unsure:
            raise FencedError(f"{self.key} was saved by another owner") from error
        self._version = record.stat.version
        return record.value == image

    async def close(self) -> None:
        """Finish saving; later calls fail. Idempotent."""
        task = self._task
        if self._closed is None:
            self._closed = AlreadyClosedError(f"{self.key} is closed")
        if task is not None:
            await asyncio.wait([task])


async def claim(
    metadata: MetadataStore, key: str, lease: Lease | None, image_of: Callable[[bytes, int], tuple[int, bytes]]
) -> Record | None:
    """The record as it stands, None when there is none. Under a lease, nobody who owned it before can save it any more.

    `image_of`: of a value and a term, the term in that value, and the same value with the other term. FencedError:
    somebody later has claimed it; NotOwnerError; StorageError: the metadata store is unsure.
    """
    for _ in range(SAVES_MAX):
        record = await metadata.get(key)
        if record is None or lease is None:
            return record
        term, image = image_of(record.value, lease.term)
        if term == lease.term:
            return record
        lease.check()
        if term > lease.term:
            raise FencedError(f"{key} belongs to a later owner")
        try:
            return Record(key, image, await metadata.put(key, image, record.stat.version))
        except (ConflictError, OutcomeUnknownError):
            continue
    raise StorageError(f"{key}: the metadata store does not say who owns it; try again")
