"""Opens the metadata store of a data directory: not where it would hide that the right one is missing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from engine.broker.settings.config import BrokerConfig
from engine.broker.upkeep.unexplained import check_explained
from engine.clock import Clock, SystemClock
from engine.errors import DataDirectoryError, InvalidConfigurationError
from engine.metadata.lockfile import LockFile, not_writable
from engine.metadata.memory import MemoryMetadataStore
from engine.metadata.sqlite import SqliteMetadataStore
from engine.metadata.store import MetadataStore
from engine.model.backups import RESTORING_FILE
from engine.storage.disk.metadata_commits import NativeCommits
from engine.storage.store import SegmentStore

if TYPE_CHECKING:
    import random

    from engine.broker.hosting.object_logs import ObjectLogs
    from engine.metadata.etcd.store import EtcdMetadataStore
    from engine.storage.objects.ports import ObjectStore
    from engine.storage.objects.remote import RemoteObjectStore

METADATA_FILE = "metadata.db"


async def open_metadata(
    data: Path,
    segments_with: Callable[[MetadataStore], SegmentStore],
    clock: Clock,
    lock: LockFile | None = None,
) -> SqliteMetadataStore:
    """`segments_with`: the segments of the directory, with a metadata store. `lock`: where the caller has taken it.

    Raises DataDirectoryError, and what SqliteMetadataStore.open() and check_explained() raise.
    """
    path = data / METADATA_FILE
    try:
        found = path.exists()
    except PermissionError as e:
        raise not_writable(data, e) from e
    if not found and (data / RESTORING_FILE).exists():
        raise DataDirectoryError(f"{data} is not restored to its end: run `engine restore` again, which goes on")
    if not found:  # checked before a new one is made, which would block restoring the correct one
        nothing = MemoryMetadataStore(clock)
        await check_explained(segments_with(nothing), nothing, str(data))
    return await SqliteMetadataStore.open(path, clock=clock, native=NativeCommits, lock=lock)


def open_objects(config: BrokerConfig, environment: Mapping[str, str], rng: random.Random) -> RemoteObjectStore | None:
    """The object store that the configuration names, with the credentials of the environment; None: it names none.

    Its owner closes it, behind the broker. No request is made. Raises InvalidArgumentError (the URL),
    InvalidConfigurationError, UnsupportedError.
    """
    if config.objects is None:
        return None
    from engine.storage.objects.remote import RemoteObjectStore

    return RemoteObjectStore.open(config.objects, environment, rng=rng)


def object_logs(
    store: ObjectStore, metadata: MetadataStore, config: BrokerConfig, url: str, segments: SegmentStore
) -> ObjectLogs:
    """A broker's sessions with an object store. `url`: of the broker."""
    from engine.broker.hosting.object_logs import ObjectLogs
    from engine.storage.objects.writer import WalConfig

    flush = WalConfig(flush_s=config.object_flush_interval)
    cache = segments.cache_of(store, config.object_cache_size)
    return ObjectLogs(
        store, metadata, cluster=config.cluster_name, url=url, rng=segments.rng, config=flush, cache=cache
    )


async def open_shared_metadata(url: str, config: BrokerConfig, rng: random.Random) -> EtcdMetadataStore:
    """The metadata store of several brokers, at an etcd:// URL. Its owner closes it, behind the broker.

    Raises InvalidArgumentError (the URL), InvalidConfigurationError, and as EtcdMetadataStore.open().
    """
    from engine.metadata.etcd.url import EtcdUrl

    EtcdUrl.parse(url)
    if config.service_url is None:
        raise InvalidConfigurationError("service_url must be set where brokers share metadata, got none")
    try:
        from engine.metadata.etcd.store import EtcdMetadataStore
    except ImportError as e:
        raise InvalidConfigurationError(f"etcd needs {e.name}: pip install 'engine[cluster]'") from e
    return await EtcdMetadataStore.open(url, clock=SystemClock(), rng=rng)
