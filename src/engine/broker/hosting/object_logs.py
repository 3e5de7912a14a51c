"""`ObjectLogs`: this broker's sessions with the object store, one behind the other (R8), and its segments on them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from engine.aio.backoff import RetryDelay
from engine.aio.tasks import Supervisor
from engine.broker.hosting.object_backing import ObjectBacking
from engine.broker.hosting.ownership import Owned, Ownership
from engine.errors import EngineError, NotOwnerError
from engine.metadata.store import MetadataStore
from engine.model.names import SegmentName
from engine.storage.consolidation import ObjectGarbage
from engine.storage.objects.cache import ObjectCache
from engine.storage.objects.names import FileNames
from engine.storage.objects.ports import ObjectStore
from engine.storage.objects.probe import probe
from engine.storage.objects.wal import ObjectWal
from engine.storage.objects.writer import WalConfig

if TYPE_CHECKING:
    import random

    from engine.storage.segment import Segment

log = logging.getLogger(__name__)


class ObjectLogs:
    """Loop thread only. `lost` is called when a session has ended: its segments are given up, and taken over again."""

    def __init__(
        self,
        store: ObjectStore,
        metadata: MetadataStore,
        *,
        cluster: str,
        url: str,
        rng: random.Random,
        config: WalConfig,
        cache: ObjectCache,
    ) -> None:
        """`cache`: for what is read of rolled files. Not started."""
        self.store = store
        self.cache = cache
        self.cluster = cluster
        self.garbage = ObjectGarbage(store)
        self.lost: Callable[[], None] = lambda: None
        self._metadata = metadata
        self._url = url
        self._rng = rng
        self._config = config
        self._wal: ObjectWal | None = None
        self._names: FileNames | None = None
        self._backings: dict[SegmentName, ObjectBacking] = {}
        self._tasks = Supervisor("sessions with the object store")
        self.sessions = 0  # that were begun
        self.newest = ""  # the session that was begun last

    async def start(self) -> None:
        """Try the store, and begin a session. Raises UnsupportedError: the store cannot hold a log; StorageError,
        AuthenticationError, AuthorizationError, and what the metadata store raises.
        """
        await self.cache.start()
        await probe(self.store, self._rng)
        self._wal = await self._begin()
        self._tasks.spawn(self._keep(), "session with the object store")

    async def _begin(self) -> ObjectWal:
        session = self.newest = self._rng.randbytes(10).hex()
        wal = await ObjectWal.open(
            self.store, self._metadata, self.cluster, session, self._url, rng=self._rng, config=self._config
        )
        self.sessions += 1
        return wal

    @property
    def wal(self) -> ObjectWal:
        """The log of the session now. Raises NotOwnerError while there is none."""
        if self._wal is None or self._wal.writer.over is not None:
            raise NotOwnerError("this broker has no session with the object store; try again, or another broker")
        return self._wal

    async def _keep(self) -> None:
        """R8: when a session has ended, go on with another one."""
        while self._wal is not None:
            await asyncio.wait([self._wal.ended])
            over, self._wal = self._wal, None
            log.warning(
                "%s: the session %s with the object store is over: %s", self._url, over.session, over.ended.result()
            )
            self.lost()
            await over.writer.close()
            delay = RetryDelay(self._rng)
            while self._wal is None:
                try:
                    self._wal = await self._begin()
                except EngineError as e:
                    log.warning("no session with the object store could be begun, retrying: %s", e)
                    await asyncio.sleep(delay.next())

    # -- segments --------------------------------------------------------------------------------------------------

    def backing(self, ownership: Ownership, name: SegmentName, owned: Owned) -> ObjectBacking:
        """What a segment is opened with that was claimed. Raises NotOwnerError: there is no session."""
        made = ObjectBacking(self.store, self.wal, self._metadata, ownership, name, owned, self._rng)
        backing = self._backings[name] = made
        return backing

    def attach(self, segment: Segment, backing: ObjectBacking) -> None:
        """An open segment is consolidated from now on, and its named files are read. Idempotent."""
        segment.consolidate_on(backing, self.names_of(backing.session), self.cache, self.garbage)

    def names_of(self, session: str) -> FileNames:
        """The session's one counter of tries (R13), and of what segments share (R18)."""
        if self._names is None or self._names.session != session:
            self._names = FileNames(self.cluster, session)
        return self._names

    def of(self, name: SegmentName) -> ObjectBacking | None:
        """Of a segment that is open, or was last; None: it is not on objects."""
        return self._backings.get(name)

    def forget(self, name: SegmentName) -> None:
        """It is not open any more."""
        self._backings.pop(name, None)

    async def close(self) -> None:
        """End the session in order, so that its end is known. Behind the segments. Idempotent."""
        await self._tasks.close()
        await self.cache.close()
        wal, self._wal = self._wal, None
        if wal is not None:
            try:
                await wal.close()
            except EngineError as e:
                log.warning("the session with the object store was not ended in order: %s", e)
                await wal.writer.close()
