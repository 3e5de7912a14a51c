"""`SegmentStore`: the segments of one data directory, by name."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote, unquote

from engine._native.serve.tails import TailCache
from engine.aio.shielded import shielded
from engine.aio.workers import Submits, Workers, as_workers, run
from engine.clock import Clock
from engine.errors import (
    AlreadyClosedError,
    CorruptionError,
    InvalidArgumentError,
    NotFoundError,
    UnsupportedError,
)
from engine.limits import BUCKETS_PER_SEGMENT_MAX, HASH_RING_SIZE
from engine.metadata.store import MetadataStore
from engine.model.identity import Identity
from engine.model.names import SegmentName, TopicName
from engine.storage.cursor.record import SavePace
from engine.storage.cursor.store import CursorStore
from engine.storage.disk.config import FSYNC, OBJECT, StorageConfig, check_mode, storage_error
from engine.storage.disk.disk import Disk
from engine.storage.disk.metrics import StorageStatistics
from engine.storage.file.context import Context
from engine.storage.file.continuation import NOTHING, Known
from engine.storage.file.extent import Extent, read_extent
from engine.storage.file.handles import Handles
from engine.storage.file.logfile import SyncFailed, holds_messages, parse_file_name, read_header
from engine.storage.file.owners import Lease
from engine.storage.file.page_cache import PageCache
from engine.storage.file.removal import finish_removal, remaining, remove, term_of
from engine.storage.file.stored import Stored, stored

if TYPE_CHECKING:
    from engine.model.backups import KeptSegment
    from engine.storage.commit.ports import Backing
    from engine.storage.file.recovery import Recovered
    from engine.storage.objects.cache import ObjectCache
    from engine.storage.objects.ports import ObjectStore
    from engine.storage.segment import Segment
    from engine.storage.shared_moment import Held, SharedMoment

SEGMENTS = "segments"
OBJECTS = "objects"  # what was read of an object store
DIRECTORY_NAME_MAX = 255
CLOSE_AT_ONCE = 64
_TOPICS_AT_ONCE = 64  # per job: one that reads more directories keeps the loop waiting for the interpreter lock
WHOLE_RING = (HASH_RING_SIZE - 1,)

log = logging.getLogger("engine.storage")

_plain = re.compile(r"[A-Za-z0-9_.-]*").fullmatch

T = TypeVar("T")


class _Alone:
    """A lock, and the number of its holders and waiters."""

    __slots__ = ("lock", "users")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0


class SegmentStore:
    """Creates, opens and deletes segments below `{root}/segments`.

    `executor` does the blocking work: `ThreadWorkers()`, `InlineWorkers()` under simulation, or any
    concurrent.futures executor (slower by the cost of its queue). It belongs to the caller. `rng` makes the salts.
    """

    def __init__(
        self,
        disk: Disk,
        root: str,
        *,
        clock: Clock,
        metadata: MetadataStore,
        executor: Workers | Submits,
        config: StorageConfig | None = None,
        rng: random.Random | None = None,
    ) -> None:
        config, workers = config or StorageConfig(), as_workers(executor)
        self.data = root
        self._root = f"{root}/{SEGMENTS}"
        self._cache_root = f"{root}/{OBJECTS}"
        self._disk = self.disk = disk
        self._context = Context(
            disk,
            workers,
            clock,
            config,
            Handles(disk, config.open_files_max),
            TailCache(config.cache_bytes),
            PageCache(disk, workers, config.log_cache_bytes),
            rng or random.SystemRandom(),
        )
        self.cursors = CursorStore(metadata, SavePace(config.cursor_save_ms / 1000))
        self._segments: dict[SegmentName, Segment] = {}
        self._busy: dict[SegmentName, _Alone] = {}
        self._quiet = asyncio.Event()  # set when `_busy` becomes empty
        self._settling: asyncio.Future[None] | None = None  # while nothing may be opened, closed or deleted
        self._closed = False

    @property
    def rng(self) -> random.Random:
        return self._context.rng

    @contextlib.asynccontextmanager
    async def _alone(self, name: SegmentName) -> AsyncIterator[None]:
        """Hold the segment's lock: opening, closing and deleting it exclude each other."""
        while self._settling is not None:
            await shielded(self._settling)
        alone = self._busy.setdefault(name, _Alone())
        alone.users += 1
        try:
            async with alone.lock:
                yield
        finally:
            alone.users -= 1
            if not alone.users:
                del self._busy[name]
            if not self._busy:
                self._quiet.set()

    @contextlib.asynccontextmanager
    async def settled(self) -> AsyncIterator[None]:
        """Inside, no segment is being opened, closed or deleted. What is under way is waited for; the rest waits."""
        while self._settling is not None:
            await shielded(self._settling)
        self._settling = asyncio.get_running_loop().create_future()
        try:
            while self._busy:
                self._quiet.clear()
                await self._quiet.wait()
            yield
        finally:
            self._settling.set_result(None)
            self._settling = None

    def freeze(self, into: str, shared: SharedMoment | None = None) -> Freeze:
        """Keep all segments as they are now. Inside of settled(). `into`: an empty directory on the same file system.

        Until its end(), what changes a segment keeps it first. `shared`: other processes keep theirs at this moment.
        """
        from engine.storage.frozen import hold  # loaded with the first backup

        held = {name: hold(segment) for name, segment in self._segments.items()}
        if shared is not None:
            shared.write(held)
        return Freeze(self, self._context, into, held, shared)

    def identify(self, store: int, generation: int) -> None:
        """Set the id and the start count of the metadata that files created or opened for writing from now on state."""
        self._context = replace(self._context, store=store, generation=generation)

    def cache_of(self, objects: ObjectStore, bytes_max: int) -> ObjectCache:
        """For what is read of an object store, on the disk beside the segments. Not started."""
        from engine.storage.objects.cache import ObjectCache

        return ObjectCache(objects, self._disk, self._context.workers, self._cache_root, bytes_max)

    def get(self, name: SegmentName) -> Segment | None:
        """The segment of that name, if it is open."""
        return self._segments.get(name)

    def resize_cache(self, bytes_max: int) -> None:
        """Set the bytes of the newest messages to keep in memory."""
        self._context.cache.resize(bytes_max)

    def statistics(self) -> StorageStatistics:
        context = self._context
        metrics, cache = context.metrics, context.cache
        return StorageStatistics(
            sync_s=metrics.sync_s.statistics(),
            commit_bytes=metrics.commit_bytes.statistics(),
            commit_appends=metrics.commit_appends.statistics(),
            cache_bytes=cache.size,
            cache_limit=cache.limit,
            log_cache_bytes=context.pages.size,
            log_cache_dropped_bytes=context.pages.dropped_bytes,
            open_files=len(context.handles),
            segments=len(self._segments),
            trouble=metrics.trouble,
            torn_tails=metrics.torn_tails,
            torn_bytes=metrics.torn_bytes,
            gaps=metrics.gaps,
        )

    async def create(
        self,
        name: SegmentName,
        *,
        durability: str = FSYNC,
        interval_ms: int | None = None,
        bucket_ends: Sequence[int] = WHOLE_RING,
        term: int = 0,
        lease: Lease | None = None,
        known: Known = NOTHING,
        backing: Backing | None = None,
    ) -> Segment:
        """The segment, created if there is none. It survives a crash when this returns.

        `bucket_ends`: the inclusive ends of its entry buckets, rising, the last 65535. `lease`: where several brokers
        share the disk (file/owners.py). `known`: how far the log reached according to records outside of it
        (file/continuation.py). `backing`: with durability "object", and a lease. Raises CorruptionError, StorageError.
        """
        recover = partial(self._recover, name, tuple(bucket_ends), durability, lease, known, create=True)
        return await self._enter(name, durability, interval_ms, bucket_ends, term, lease, recover, backing)

    async def open(
        self,
        name: SegmentName,
        *,
        durability: str = FSYNC,
        interval_ms: int | None = None,
        bucket_ends: Sequence[int] = WHOLE_RING,
        term: int = 0,
        lease: Lease | None = None,
        known: Known = NOTHING,
        backing: Backing | None = None,
    ) -> Segment:
        """The segment, recovered from its files. Raises NotFoundError, CorruptionError, StorageError."""
        recover = partial(self._recover, name, tuple(bucket_ends), durability, lease, known, create=False)
        return await self._enter(name, durability, interval_ms, bucket_ends, term, lease, recover, backing)

    async def _enter(
        self,
        name: SegmentName,
        durability: str,
        interval_ms: int | None,
        bucket_ends: Sequence[int],
        term: int,
        lease: Lease | None,
        recover: Callable[[], Recovered],
        backing: Backing | None,
    ) -> Segment:
        check_mode(durability)
        _check_bucket_ends(bucket_ends)
        if (durability == OBJECT) != (backing is not None):
            raise UnsupportedError(f"{name}: durability {durability!r} needs an object store, which is not set up here")
        async with self._alone(name):
            self._check_open()
            segment = self._segments.get(name)
            if segment is not None and segment.lease is not lease:
                self._segments.pop(name).release()  # its lease is over
                segment = None
            if segment is None:
                await self._context.will_change(name)
                if backing is not None:
                    await self._restore(backing, self.directory(name))
                recovered = await self._run(recover, self.directory(name))
                self._check_open()
                self._report(name, recovered)
                if backing is not None:
                    await backing.serve()
                from engine.storage.segment import Segment  # with the first one

                segment = Segment(name, self._context, recovered, durability, term, lease, backing)
                await self._begin(segment, recovered)
                self._check_open()
                self._segments[name] = segment
        if term > segment.term:
            segment.fence(term)
        if interval_ms is not None:
            segment.interval_ms = interval_ms
        return segment

    async def _restore(self, backing: Backing, directory: str) -> None:
        """What the directory has is a cache at best: a former owner may have left it behind long ago."""
        try:
            await backing.restore(self._disk, self._context.workers, directory)
        except OSError as e:
            raise storage_error(e, directory) from e

    async def _begin(self, segment: Segment, recovered: Recovered) -> None:
        """Create a new file at once, if the previous owner may still write: it states where the old file ends. Likewise
        behind a gap, which an orderly close of the old file would lose.
        """
        succeeds = segment.lease is not None and not recovered.orderly
        if not succeeds and recovered.restart == recovered.end:
            return
        try:
            segment.check_lease()
            await segment.begin_file()
            segment.check_lease()
        except BaseException:
            segment.release()
            raise

    def _recover(
        self,
        name: SegmentName,
        bucket_ends: tuple[int, ...],
        durability: str,
        lease: Lease | None,
        known: Known,
        *,
        create: bool,
    ) -> Recovered:
        from engine.storage.file.recovery import file_facts, make, recover  # with the first segment

        disk, directory = self._disk, self.directory(name)
        finish_removal(disk, directory)
        found = recover(disk, directory, name, bucket_ends, durability=durability, known=known, lease=lease)
        if found is None and create:
            return make(disk, directory, name, bucket_ends, file_facts(self._context, name, durability), lease)
        if found is None:
            raise NotFoundError(f"{name} has no files in {directory}")
        return found

    def _report(self, name: SegmentName, recovered: Recovered) -> None:
        """Log and count what was lost."""
        metrics, torn, end, restart = self._context.metrics, recovered.torn, recovered.end, recovered.restart
        if torn is not None:
            metrics.torn_tails += 1
            metrics.torn_bytes += torn.size
            log.warning(
                "%s, position %d: %d bytes from offset %d on were not known to be durable and fail their checks; "
                "the torn tail was cut off", torn.path, torn.position, torn.size, torn.offset,
            )  # fmt: skip
        if restart > end:
            metrics.gaps += 1
            log.warning(
                "%s: the log ends at offset %d and goes on at %d: it was not closed in order, and its durability does "
                "not sync before it acknowledges; messages between, if there were any, are lost", name, end, restart,
            )  # fmt: skip

    async def _run(self, work: Callable[[], T], what: str) -> T:
        try:
            return await run(self._context.workers, work)
        except SyncFailed as e:
            raise storage_error(e.error, what) from e
        except OSError as e:
            raise storage_error(e, what) from e

    async def delete(self, name: SegmentName, term: int | None = None) -> None:
        """Remove the segment's files, if there are any. Durable when it returns. Raises StorageError.

        `term`: where brokers share the disk, the deleting owner's. Files of larger terms belong to a later segment.
        """
        async with self._alone(name):
            self._check_open()
            segment = self._segments.pop(name, None)
            await self._context.will_change(name)
            if segment is not None:
                await segment.close()
            directory = self.directory(name)
            await self._run(lambda: remove(self._disk, directory, term), directory)

    async def release(self, name: SegmentName) -> None:
        """Close the segment if it is open; its files stay."""
        async with self._alone(name):
            segment = self._segments.pop(name, None)
            if segment is not None:
                await segment.close()

    async def abandon(self, name: SegmentName) -> None:
        """Release a segment that another broker may own, without writing to its files."""
        async with self._alone(name):
            segment = self._segments.pop(name, None)
            if segment is not None:
                segment.release()

    async def find_aging(self, topics: Iterable[TopicName]) -> list[Stored]:
        """The segments of these topics that retention may have work in. Reads directories, and heads of files."""
        found: list[Stored] = []
        source = iter(topics)
        while some := list(islice(source, _TOPICS_AT_ONCE)):
            found += await self._run(partial(self._stored, some), self._root)
        return found

    def _stored(self, topics: Sequence[TopicName]) -> list[Stored]:
        return [
            found
            for topic in topics
            for name, files in _stores_in(self._disk, topic, self._topic_directory(topic))
            if (found := stored(self._disk, self.directory(name), name, remaining(files))) is not None
        ]

    async def extent(self, name: SegmentName, bucket_ends: Sequence[int], born: int = 0) -> Extent:
        """How far a closed segment's log reaches, from its files; see read_extent(). Opens and repairs nothing.

        Raises CorruptionError, UnsupportedError, StorageError.
        """
        directory = self.directory(name)
        return await self._run(partial(read_extent, self._disk, directory, bucket_ends, born), directory)

    async def exists(self, name: SegmentName) -> bool:
        """Whether the segment has files, and its deletion was not begun. Reads a directory only."""
        if name in self._segments:
            return True
        directory = self.directory(name)
        return bool(remaining(await self._run(lambda: self._disk.list(directory), directory)))

    async def last_term(self, name: SegmentName) -> int:
        """The largest term in the names of the segment's files; 0 for none. Reads a directory only."""
        directory = self.directory(name)
        return max(map(term_of, await self._run(lambda: self._disk.list(directory), directory)), default=0)

    async def has_messages(self, name: SegmentName) -> bool:
        """Whether the segment's files hold messages. False if it has none, or its deletion was begun."""
        disk, directory = self._disk, self.directory(name)
        return await self._run(lambda: holds_messages(disk, directory, remaining(disk.list(directory))), directory)

    async def newest(self, names: Iterable[SegmentName]) -> Identity | None:
        """The identity of the newest metadata that the last files of these segments state; None: no file states one.

        Of different stores, any. Reads a directory and one header per segment. A damaged header is passed over: opening
        the segment reports it.
        """
        newest: Identity | None = None
        source = iter(names)
        while some := list(islice(source, _TOPICS_AT_ONCE)):
            for found in await self._run(partial(self._identities, some), self._root):
                newest = found if newest is None or found.generation > newest.generation else newest
        return newest

    def _identities(self, names: Sequence[SegmentName]) -> list[Identity]:
        found: list[Identity] = []
        for name in names:
            directory = self.directory(name)
            logs = [log for log in remaining(_names_in(self._disk, directory)) if parse_file_name(log)]
            if logs:
                last = max(logs, key=lambda log: (term_of(log), parse_file_name(log)))
                with contextlib.suppress(CorruptionError, UnsupportedError):
                    identity = read_header(self._disk, directory, last)[0].identity
                    found += [] if identity is None else [identity]
        return found

    async def long_named(self, topics: AsyncIterator[Sequence[TopicName]]) -> list[str]:
        """The directories of topics with names too long to be spelled in them, except those of these topics."""
        found = set(await self._run(lambda: _long_named(self._disk, self._root), self._root))
        if found:
            async for some in topics:
                found.difference_update(self._topic_directory(topic) for topic in some)
        return sorted(found)

    async def everything(self) -> dict[TopicName, Sequence[SegmentName]]:
        """All directories of segments, also empty ones and those whose deletion was begun. Reads directories only.

        Topics with names too long to be spelled in the directory's name are left out.
        """
        return await self._run(lambda: _spelled(self._disk, self._root), self._root)

    async def list(self, topic: TopicName) -> list[SegmentName]:
        """The segments of a topic that have files, by id."""
        directory = self._topic_directory(topic)

        def work() -> Sequence[SegmentName]:
            inside = _stores_in(self._disk, topic, directory)
            return [n for n, files in inside if remaining(files)]

        return sorted(await self._run(work, directory), key=lambda n: n.segment_id)

    async def close(self) -> None:
        """Close all segments in order. Idempotent."""
        self._closed = True
        segments, self._segments = list(self._segments.values()), {}
        for start in range(0, len(segments), CLOSE_AT_ONCE):
            await asyncio.gather(*(s.close() for s in segments[start : start + CLOSE_AT_ONCE]))
        self._context.pages.close()

    def directory(self, name: SegmentName) -> str:
        """The directory of a segment's files."""
        return f"{self._topic_directory(name.topic)}/{name.descriptor}"

    def _topic_directory(self, topic: TopicName) -> str:
        return "/".join((self._root, *(_encode(part) for part in (topic.tenant, topic.namespace, topic.local))))

    def _check_open(self) -> None:
        if self._closed:
            raise AlreadyClosedError("the segment store is closed")


class Freeze:
    """A store's segments, kept as they were: see frozen.py. Loop thread only."""

    def __init__(
        self,
        store: SegmentStore,
        context: Context,
        into: str,
        held: Mapping[SegmentName, Held],
        shared: SharedMoment | None = None,
    ) -> None:
        self._store = store
        self._hooks = context.before_change
        from engine.storage.frozen import Frozen

        known = (lambda: held) if shared is None else shared.held
        self._frozen = Frozen(context.disk, context.workers, into, known, shared)
        self._hooks.append(self._before_change)

    async def keep(self, name: SegmentName) -> KeptSegment | None:
        """The segment's files, which stay from now on; None where it had none. Raises as Frozen.keep()."""
        return await self._frozen.keep(name, self._store.directory(name), self._store.data)

    async def _before_change(self, name: SegmentName) -> None:
        await self._frozen.keep_before_change(name, self._store.directory(name), self._store.data)

    def end(self) -> None:
        """All that counts is kept. Idempotent."""
        if self._before_change in self._hooks:
            self._hooks.remove(self._before_change)


def _encode(part: str) -> str:
    """A directory's name: characters that file systems may refuse are percent-encoded; long names end in a checksum."""
    if len(part) <= DIRECTORY_NAME_MAX and _plain(part):  # most are, and a start asks for each segment's
        return part
    text = quote(part, safe=" !#$&'()+,;=@[]{}~^").replace("~", "%7E") if part.isascii() else quote(part, safe="")
    if len(text) <= DIRECTORY_NAME_MAX:
        return text
    from engine._native.produce.hashing import xxh64

    return f"{text[: DIRECTORY_NAME_MAX - 17]}~{xxh64(part.encode()):016x}"


def _spelled(disk: Disk, root: str) -> dict[TopicName, Sequence[SegmentName]]:
    found: dict[TopicName, Sequence[SegmentName]] = {}
    for tenant, namespace, local in _topic_places(disk, root):
        if "~" not in f"{tenant}{namespace}{local}":
            topic = TopicName(unquote(tenant), unquote(namespace), unquote(local))
            inside = _names_in(disk, f"{root}/{tenant}/{namespace}/{local}")
            found[topic] = list(_segments_in(topic, inside))
    return found


def _topic_places(disk: Disk, root: str) -> Iterator[tuple[str, str, str]]:
    for tenant in _names_in(disk, root):
        for namespace in _names_in(disk, f"{root}/{tenant}"):
            for local in _names_in(disk, f"{root}/{tenant}/{namespace}"):
                yield tenant, namespace, local


def _long_named(disk: Disk, root: str) -> list[str]:
    places = (place for place in _topic_places(disk, root) if any("~" in part for part in place))
    return [path for place in places if _names_in(disk, path := "/".join((root, *place)))]


def _names_in(disk: Disk, path: str) -> list[str]:
    try:
        return disk.list(path)
    except NotADirectoryError:
        return []  # no directory of a store


def _stores_in(disk: Disk, topic: TopicName, directory: str) -> Iterator[tuple[SegmentName, Sequence[str]]]:
    """Each segment with the names in its directory. Other names, as `lost+found`, are passed over."""
    for name in _segments_in(topic, _names_in(disk, directory)):
        yield name, _names_in(disk, f"{directory}/{name.descriptor}")


def _segments_in(topic: TopicName, descriptors: Iterable[str]) -> Iterator[SegmentName]:
    try:
        topic.check()
    except InvalidArgumentError:
        return
    for descriptor in descriptors:
        with contextlib.suppress(InvalidArgumentError):
            yield SegmentName.described(topic, descriptor)


def _check_bucket_ends(ends: Sequence[int]) -> None:
    rising = all(a < b for a, b in itertools.pairwise(ends))
    if not (1 <= len(ends) <= BUCKETS_PER_SEGMENT_MAX and rising and ends[0] >= 0 and ends[-1] == HASH_RING_SIZE - 1):
        raise InvalidArgumentError(
            f"bucket ends must be 1 to {BUCKETS_PER_SEGMENT_MAX} rising numbers, the last {HASH_RING_SIZE - 1}, "
            f"got {list(ends)!r}"
        )
