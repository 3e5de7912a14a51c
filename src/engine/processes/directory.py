"""`Directory`: the data directory as the parent holds it: its lock, its metadata store, and the store's socket."""

from __future__ import annotations

import asyncio
from pathlib import Path

from engine.broker.assembly import storage_config
from engine.broker.opening import METADATA_FILE, open_metadata
from engine.broker.settings.config import BrokerConfig
from engine.broker.upkeep.unexplained import check_explained
from engine.clock import Clock
from engine.errors import DataDirectoryBusyError
from engine.metadata import keys
from engine.metadata.lockfile import LockFile, holder_of, lock_file_of
from engine.metadata.served_sessions import SESSION_S_MAX
from engine.metadata.service import MetadataService
from engine.metadata.sqlite import SqliteMetadataStore
from engine.metadata.store import MetadataStore
from engine.storage.disk.disk import OsDisk
from engine.storage.disk.workers import NativeWorkers
from engine.storage.store import SegmentStore
from engine.wire import unix
from engine.wire.chunks import ChunkPool
from engine.wire.unix import UnixListener

METADATA_SOCKET = "metadata.sock"
LOCKED_S_MAX = 5.0  # the children of a server that was killed have this long to end
_LOCKED_AGAIN_S = 0.02


class Directory:
    """Made by open()."""

    def __init__(
        self, lock: LockFile, store: SqliteMetadataStore, service: MetadataService, listener: UnixListener
    ) -> None:
        self.lock = lock
        self.store = store
        self._service = service
        self._listener = listener

    @classmethod
    async def open(cls, path: Path, config: BrokerConfig, clock: Clock) -> Directory:
        """Lock it, open its metadata, and serve them to processes of this user.

        Raises DataDirectoryBusyError, DataDirectoryError, CorruptionError, StorageError, ConnectError.
        """
        lock = await _lock(lock_file_of(path / METADATA_FILE))
        try:
            store = await _open(path, config, clock, lock)
        except BaseException:
            lock.release()
            raise
        service = MetadataService(store, session_timeout_max=max(SESSION_S_MAX, config.session_timeout))
        service.start()
        try:
            listener = await unix.listen(str(path / METADATA_SOCKET), service.accept, pool=ChunkPool())
        except BaseException:
            await service.close()
            await store.close()
            raise
        return cls(lock, store, service, listener)

    @property
    def url(self) -> str:
        """Of the metadata store's socket."""
        return self._listener.url

    async def end_broker(self, url: str) -> None:
        """End the session of a broker whose process has died: it has no leadership and owns no segment any more."""
        record = await self.store.get(keys.broker(url))
        if record is not None and record.stat.session is not None:
            await self._service.sessions.end(record.stat.session)

    async def close(self) -> None:
        """Close the store, and release the lock."""
        self._listener.close()
        await self._service.close()
        await self.store.close()


async def _open(path: Path, config: BrokerConfig, clock: Clock, lock: LockFile) -> SqliteMetadataStore:
    """The store, which explains all messages in the directory."""
    workers = NativeWorkers()

    def segments(metadata: MetadataStore) -> SegmentStore:
        return SegmentStore(
            OsDisk(), str(path), clock=clock, metadata=metadata, executor=workers, config=storage_config(config)
        )

    try:
        store = await open_metadata(path, segments, clock, lock)
        try:
            await check_explained(segments(store), store, str(path))
        except BaseException:
            await store.close()
            raise
        return store
    finally:
        workers.close()


async def _lock(path: Path) -> LockFile:
    """The lock, waiting for the last children of a server that was killed. Raises DataDirectoryBusyError."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + LOCKED_S_MAX
    while True:
        try:
            return LockFile(path)
        except DataDirectoryBusyError:
            if loop.time() >= deadline or holder_of(path) is not None:
                raise
        await asyncio.sleep(_LOCKED_AGAIN_S)
