"""Opens the metadata store of a data directory: not where it would hide that the right one is missing.

Brokers with their metadata in etcd share a data directory, or keep messages in an object store. A disk does not say
which machines have it; so the directory has a random number, in a file that the first broker makes, and the metadata
have it too. A broker whose directory has another one does not start: its messages would be lost with its machine.
"""

from __future__ import annotations

import errno
import logging
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from engine.broker.admin.dynamic import FollowedLimits
from engine.broker.settings.config import BrokerConfig
from engine.broker.upkeep.unexplained import check_explained
from engine.clock import Clock, SystemClock
from engine.errors import DataDirectoryError, InvalidConfigurationError, UnknownOutcomeError
from engine.metadata import keys
from engine.metadata.lockfile import LockFile, not_writable
from engine.metadata.memory import MemoryMetadataStore
from engine.metadata.sqlite import SqliteMetadataStore
from engine.metadata.store import ABSENT, ConflictError, MetadataStore, OutcomeUnknownError
from engine.model.backups import RESTORING_FILE
from engine.storage.disk.config import storage_error
from engine.storage.disk.disk import Disk, OsDisk, make_data_directory
from engine.storage.disk.metadata_commits import NativeCommits
from engine.storage.store import SegmentStore

if TYPE_CHECKING:
    import random

    from engine.broker.hosting.object_logs import ObjectLogs
    from engine.broker.limits.limits import BrokerLimits
    from engine.broker.server import Broker
    from engine.metadata.etcd.store import EtcdMetadataStore
    from engine.storage.objects.ports import ObjectStore
    from engine.storage.objects.remote import RemoteObjectStore

METADATA_FILE = "metadata.db"
NUMBER_FILE = "directory.id"
_NUMBER_SIZE = 16  # hexadecimal digits
_NUMBER = re.compile(rb"[0-9a-f]{%d}" % _NUMBER_SIZE)
_ATTEMPTS_MAX = 8
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS}  # from link()

log = logging.getLogger(__name__)


def followed_limits(broker: Broker, metadata: MetadataStore) -> FollowedLimits:
    """The limits of what is at a broker; what goes by them is loaded with the first one."""

    def begin() -> BrokerLimits:
        from engine.broker.limiting import Limiting

        broker.limiting = Limiting(broker)
        return broker.limiting.limits

    def here() -> set[str]:
        from engine.broker.limiting import groups_here

        return groups_here(broker)

    return FollowedLimits(metadata, begin, here, broker.tasks)


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


async def open_shared_metadata(
    url: str, config: BrokerConfig, rng: random.Random, data: str | Path
) -> EtcdMetadataStore:
    """The metadata store of several brokers, at an etcd:// URL. Its owner closes it, behind the broker.

    `data`: the data directory, which is made, and where `config` names no object store must be that of all brokers.

    Raises InvalidArgumentError (the URL, or the directory), InvalidConfigurationError, as EtcdMetadataStore.open(), and
    as check_common().
    """
    from engine.metadata.etcd.url import EtcdUrl

    EtcdUrl.parse(url)
    if config.service_url is None:
        raise InvalidConfigurationError("service_url must be set where brokers share metadata, got none")
    try:
        from engine.metadata.etcd.store import EtcdMetadataStore
    except ImportError as e:
        raise InvalidConfigurationError(f"etcd needs {e.name}: pip install 'engine[cluster]'") from e
    store = await EtcdMetadataStore.open(url, clock=SystemClock(), rng=rng)
    try:
        if config.objects is None:
            await check_common(OsDisk(), str(data), store, rng)
    except BaseException:
        await store.close()
        raise
    return store


async def check_common(disk: Disk, data: str, metadata: MetadataStore, rng: random.Random) -> None:
    """Compare the number of a data directory with that of the metadata. The one that is not there yet is made.

    The file comes first, and under its name as a whole: of brokers that start at once on one directory, one makes it.

    Raises DataDirectoryError: the brokers have another directory; InvalidArgumentError, StorageError: it cannot be
    used; UnknownOutcomeError, and what the metadata store raises.
    """
    make_data_directory(disk, data)
    try:
        own = _number_of(disk, data, rng)
    except OSError as e:
        raise storage_error(e, f"{data}/{NUMBER_FILE}") from e
    if own is None:
        log.warning("%s has no hard links, so it is not compared with that of other brokers", data)
        return
    for _ in range(_ATTEMPTS_MAX):
        found = await metadata.newest.get(keys.DIRECTORY)
        if found is None:
            try:
                await metadata.put(keys.DIRECTORY, own.encode(), ABSENT)
            except (ConflictError, OutcomeUnknownError):
                continue
            return
        if (common := found.value.decode(errors="replace")) != own:
            raise DataDirectoryError(
                f"{data} must be the data directory that the brokers of this metadata share, {common}, got another, "
                f"{own} ({NUMBER_FILE}): mount theirs there; one that was restored from a copy gets their number. "
                "Brokers without a shared disk keep messages in an object store: --objects URL; with durability fsync "
                "they would be lost with a machine"
            )
        return
    raise UnknownOutcomeError(f"the metadata store did not say whether {keys.DIRECTORY} was written; start again")


def _number_of(disk: Disk, data: str, rng: random.Random) -> str | None:
    """The number of a directory, drawn where it has none, durable; None: the disk has no hard links, by which one
    broker alone draws it. Raises OSError, DataDirectoryError.
    """
    path, new = f"{data}/{NUMBER_FILE}", f"{data}/{NUMBER_FILE}.{rng.getrandbits(64):016x}"
    if not disk.exists(path):
        file = disk.create(new)
        try:
            try:
                file.write([f"{rng.getrandbits(64):016x}".encode()], 0)
                file.sync()
            finally:
                file.close()
            if not _linked(disk, new, path):
                return None
        finally:
            disk.unlink(new)
    disk.sync_directory(data)  # also for one that died before it did
    image = bytearray(_NUMBER_SIZE)
    file = disk.open(path)
    try:
        count = file.read_into(image, 0)
    finally:
        file.close()
    if not _NUMBER.fullmatch(image[:count]):
        raise DataDirectoryError(f"{path} must have {_NUMBER_SIZE} hexadecimal digits, got {bytes(image[:count])!r}")
    return image.decode()


def _linked(disk: Disk, old: str, new: str) -> bool:
    """Give a file another name, if no broker has done so just now. False: the disk has no hard links."""
    try:
        disk.link(old, new)
    except FileExistsError:
        return True
    except OSError as e:
        if e.errno in _NO_LINKS:
            return False
        raise
    return True
