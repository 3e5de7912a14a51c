"""`EtcdMetadataStore`: the metadata store of a cluster (docs/formats/metadata-etcd.md).

    reads     linearisable reads of etcd, also those of `mirror`, which may ask the nearest member
    writes    writer.py: one transaction at a time, of all that was asked for meanwhile
    watches   watching.py: one stream
    sessions  leases.py

What this process does not know of a key is read; what it knows is verified by each transaction. A transaction whose
answer was lost is sent again, and done once (numbered.py). So OutcomeUnknownError is left to clusters that do not
answer at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from engine.aio.shielded import shielded
from engine.clock import Clock
from engine.errors import AlreadyClosedError, InvalidArgumentError, UnsupportedError
from engine.metadata.batch import check_version, check_writes, checked_append, checked_put
from engine.metadata.etcd import messages as m
from engine.metadata.etcd.changes import Unit, Write
from engine.metadata.etcd.cluster import Cluster, CompactedError
from engine.metadata.etcd.deletions import RangeDeletion
from engine.metadata.etcd.feeds import Feed, IndexFeed, resumes
from engine.metadata.etcd.known import Known, record_state
from engine.metadata.etcd.layout import FORMAT, Layout, decoded, record_of
from engine.metadata.etcd.leases import EtcdSession, end_all, grant
from engine.metadata.etcd.numbered import Numbered
from engine.metadata.etcd.ranges import read
from engine.metadata.etcd.requests import GROUP_KEYS_MAX, REQUEST_SIZE_MAX, is_revision, put_op, read_op
from engine.metadata.etcd.statistics import EtcdStatistics
from engine.metadata.etcd.url import EtcdUrl
from engine.metadata.etcd.watching import WatchHub, read_record, version_at
from engine.metadata.etcd.writer import BATCH_SIZE_MAX, Writer
from engine.metadata.remote_watch import RemoteWatch, Watched
from engine.metadata.store import (
    ANY,
    Append,
    Delete,
    Demands,
    Expected,
    IndexedRecords,
    Indexes,
    Keys,
    Outcome,
    Outcomes,
    Put,
    Record,
    Session,
    Stat,
)

if TYPE_CHECKING:
    import random

    from engine.metadata.etcd.inspection import Contents, Member

TIMEOUT_S = 10.0
_CLOSE_S_MAX = 2.0

_list = list  # inside the class, `list` is a method


class EtcdMetadataStore:
    """Open it with `await EtcdMetadataStore.open(url, …)`. Used on the loop that opened it. See MetadataStore."""

    def __init__(self, url: EtcdUrl, *, clock: Clock, rng: random.Random, timeout: float) -> None:
        """Use open()."""
        self.url = url.text
        self._clock = clock
        self._timeout = timeout
        self._layout = Layout(url.prefix)
        self._cluster = Cluster(url, clock=clock, rng=rng, timeout=timeout)
        self._known = Known()
        self._version = 0
        self._hub = WatchHub(self._cluster, self._layout, rng, self._seen, self._read_at)
        self._numbered = Numbered(self._cluster, self._layout, clock)
        self._writer: Writer
        self._watches = 0
        self._sessions: dict[EtcdSession, None] = {}
        self._closed = False
        self._closing: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"EtcdMetadataStore({self.url!r})"

    @classmethod
    async def open(
        cls, url: str, *, clock: Clock, rng: random.Random, timeout: float = TIMEOUT_S, writes: bool = True
    ) -> EtcdMetadataStore:
        """The records below the URL's prefix, which are made where there are none. `timeout`: seconds a call waits.

        Without `writes` nothing is made, and nothing may be written: so it is opened also where etcd is full.
        Raises InvalidArgumentError (the URL), InvalidConfigurationError (a PEM file), AuthenticationError,
        AuthorizationError, TimeoutError, UnsupportedError (the records of a newer build).
        """
        store = cls(EtcdUrl.parse(url), clock=clock, rng=rng, timeout=timeout)
        try:
            await store._check_format(writes=writes)
            if writes:
                await store._numbered.begin()
                await store._numbered.fence()
        except BaseException:
            await store._numbered.end()
            await store._cluster.close()
            raise
        store._writer = Writer(
            store._cluster, store._layout, store._known, store._numbered, store._hub, clock,
            lambda: store._version, store._seen,
        )  # fmt: skip
        store._cluster.renewed = store._hub.move
        store._cluster.follow_files()
        return store

    async def _check_format(self, *, writes: bool) -> None:
        key = self._layout.format
        if writes:
            made = m.TxnRequest(compare=[is_revision(key, 0)], success=[put_op(key, FORMAT)], failure=[read_op(key)])
            answer = await self._cluster.call("Txn", made)
            there = [] if answer.succeeded else answer.responses[0].response_range.kvs
        else:  # a full etcd refuses each transaction
            answer = await self._cluster.call("Range", m.RangeRequest(key=key))
            there = answer.kvs
        self._read_at(answer.header.revision)
        if there and there[0].value != FORMAT:
            found = there[0].value
            raise UnsupportedError(f"the records at {self.url} must be of format {FORMAT!r}, got {found!r:.40}")

    # -- versions --------------------------------------------------------------------------------------------------

    def _seen(self, version: int) -> None:
        self._version = max(self._version, version)

    def _read_at(self, revision: int) -> int:
        """A read has shown everything up to a revision; the version behind it."""
        self._version = version_at(revision, self._version)
        return self._version

    @property
    def version(self) -> int:
        return self._version

    def check_open(self) -> None:
        """Raise AlreadyClosedError behind close()."""
        if self._closed:
            raise AlreadyClosedError("the metadata store is closed")

    # -- reads -----------------------------------------------------------------------------------------------------

    @property
    def newest(self) -> EtcdMetadataStore:
        return self

    @property
    def mirror(self) -> EtcdMetadataStore:
        return self

    async def get(self, key: str) -> Record | None:
        self.check_open()
        await self._writer.settled()
        name = self._layout.record(key)
        answer = await self._cluster.call("Range", m.RangeRequest(key=name))
        self._read_at(answer.header.revision)
        return self._record(answer.kvs[0]) if answer.kvs else None

    def _record(self, kv: Any) -> Record:
        key = self._layout.key_of(kv.key)
        self._known.put(kv.key, record_state(kv, key))
        return record_of(key, kv, decoded(kv, key))

    async def _range(self, keys: tuple[bytes, bytes], limit: int | None, *, keys_only: bool = False) -> _list[Any]:
        self.check_open()
        start, end = keys
        if end <= start or (limit is not None and limit <= 0):
            return []
        await self._writer.settled()
        found, revision = await read(self._cluster, start, end, limit=limit, keys_only=keys_only)
        self._read_at(revision)
        return found

    async def list(self, start: str, end: str, limit: int | None = None) -> list[Record]:
        return [self._record(kv) for kv in await self._range(self._layout.record_range(start, end), limit)]

    async def list_keys(self, start: str, end: str, limit: int | None = None) -> Keys:
        found = await self._range(self._layout.record_range(start, end), limit, keys_only=True)
        return [self._layout.key_of(kv.key) for kv in found]

    async def list_index(self, index: str, start: str, end: str, limit: int | None = None) -> IndexedRecords:
        found: IndexedRecords = []
        for kv in await self._range(self._layout.row_range(index, start, end), limit):
            index_key, key = self._layout.row_of(kv.key)
            stored = decoded(kv, key)
            if stored.value is not None:
                found.append((index_key, record_of(key, kv, stored)))
            elif (record := await read_record(self._cluster, self._layout, key)) is not None:
                found.append((index_key, record))
        return found

    # -- writes ----------------------------------------------------------------------------------------------------

    def _unit(self, writes: Sequence[Write], result: Callable[[_list[Any]], Any], *, together: bool = False) -> Unit:
        loop = asyncio.get_running_loop()
        due = self._clock.monotonic() + self._timeout
        return Unit(writes, result, loop.create_future(), due, together)

    def _write(self, unit: Unit) -> asyncio.Future[Any]:
        if unit.size > REQUEST_SIZE_MAX:
            limit = f"must have at most {REQUEST_SIZE_MAX} bytes together"
            raise InvalidArgumentError(f"what one call writes to etcd {limit}, got {unit.size}")
        self._writer.add([unit])
        return unit.future

    async def put(
        self,
        key: str,
        value: bytes,
        expected: Expected | int = ANY,
        *,
        session: Session | None = None,
        partition_key: str | None = None,
        indexes: Indexes | None = None,
        also: Demands | None = None,
    ) -> Stat:
        self.check_open()
        put = checked_put(Put(key, value, expected, session, partition_key, indexes, also))
        stat: Stat = await self._write(self._unit([put], _only))
        return stat

    async def delete(self, key: str, expected: Expected | int = ANY) -> bool:
        self.check_open()
        existed: bool = await self._write(self._unit([Delete(key, check_version(expected))], _only))
        return existed

    async def delete_range(self, start: str, end: str) -> int:
        self.check_open()
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._writer.add(RangeDeletion(start, end, future, self._clock.monotonic() + self._timeout))
        return await future

    async def put_sequence(
        self,
        prefix: str,
        value: bytes,
        *,
        partition_key: str | None = None,
        indexes: Indexes | None = None,
    ) -> Record:
        self.check_open()
        append = checked_append(Append(prefix, value, partition_key, indexes))
        record: Record = await self._write(self._unit([append], _only))
        return record

    async def put_with_sequence(self, put: Put, appended: Append) -> tuple[Stat, Record]:
        self.check_open()
        put, appended = checked_put(put), checked_append(appended)
        both: tuple[Stat, Record] = await self._write(self._unit([appended, put], _both, together=True))
        return both

    async def write_all(self, writes: Sequence[Put | Delete]) -> Outcomes:
        """As MetadataStore says. Writes of more than 48 keys are several parts of one request, and those of more than
        1 MiB are several requests; parts whose keys other clients change in that moment take place a little later.
        """
        self.check_open()
        check_writes(len(writes))
        checked = [_checked(write) for write in writes]
        parts = _parts(checked)
        units = [self._unit([checked[at] for at in part], _as_they_are) for part in parts]
        for several in _at_once(units):
            self._writer.add(several)
        found: Outcomes = [False] * len(checked)
        done = await asyncio.gather(*(unit.future for unit in units), return_exceptions=True)
        for part, outcomes in zip(parts, done, strict=True):
            if isinstance(outcomes, BaseException):
                raise outcomes
            for at, outcome in zip(part, outcomes, strict=True):
                found[at] = outcome
        return found

    # -- watches ---------------------------------------------------------------------------------------------------

    def watch(self, prefix: str, from_version: int | None = None) -> RemoteWatch:
        self.check_open()
        resumed = resumes(from_version, self._version)
        watch = self._new_watch(prefix, from_version)
        feed = Feed(watch, self._layout, self._layout.record_prefix(prefix), from_version if resumed else None)
        return self._open(watch, feed, resumed=resumed)

    def watch_key(self, key: str) -> RemoteWatch:
        self.check_open()
        watch = self._new_watch((key,), None)
        return self._open(watch, Feed(watch, self._layout, self._layout.record_alone(key), None), resumed=False)

    def watch_index(self, index: str, start: str, end: str) -> RemoteWatch:
        self.check_open()
        watch = self._new_watch((index, start, end), None)
        feed = IndexFeed(watch, self._layout, self._layout.row_range(index, start, end))
        return self._open(watch, feed, resumed=False)

    def _new_watch(self, what: Watched, from_version: int | None) -> RemoteWatch:
        self._watches += 1
        return RemoteWatch(self._watches, what, from_version, lambda ident: None)

    def _open(self, watch: RemoteWatch, feed: Feed, *, resumed: bool) -> RemoteWatch:
        watch.ended = lambda ident: self._hub.drop(feed)
        self._hub.open(feed, resumed=resumed)
        return watch

    # -- sessions --------------------------------------------------------------------------------------------------

    async def session(self, timeout: float = 30.0) -> EtcdSession:
        """A lease of `timeout`, in whole seconds; etcd grants no less than about two."""
        self.check_open()
        sent = self._clock.monotonic()
        lease, seconds = await grant(self._cluster, timeout)
        session = EtcdSession(self._cluster, self._clock, lease, sent + seconds)
        session.closed = lambda ended: self._sessions.pop(ended, None)
        self._sessions[session] = None
        return session

    # -- upkeep ----------------------------------------------------------------------------------------------------

    async def revision(self) -> int:
        """The present revision of etcd."""
        self.check_open()
        answer = await self._cluster.call("Range", m.RangeRequest(key=self._layout.format, count_only=True))
        return int(answer.header.revision)

    async def compact(self, revision: int) -> None:
        """Have etcd forget the history before a revision: of all keys, also those of other applications.

        A watch that was disconnected for longer starts over with a snapshot. Nothing happens where it is forgotten
        already.
        """
        self.check_open()
        try:
            await self._cluster.call("Compact", m.CompactionRequest(revision=revision))
        except CompactedError:
            return

    async def members(self) -> _list[Member]:
        """Each member of the URL as it is now, for operators."""
        from engine.metadata.etcd.inspection import members

        return await members(self._cluster.url, self._cluster, self._clock)

    async def contents(self) -> Contents:
        """Whether the members of the URL have the same records, for operators: each reads all that it has."""
        from engine.metadata.etcd.inspection import contents

        return await contents(self._cluster.url, self._cluster)

    async def history_s(self, compacted: int) -> float | None:
        """About how old the revision is up to which etcd has forgotten its history; None: nothing tells."""
        from engine.metadata.etcd.inspection import history_s

        return await history_s(self._cluster, self._layout, self._clock, compacted)

    def statistics(self) -> EtcdStatistics:
        done = self._writer.statistics
        return EtcdStatistics(
            done.writes, done.transactions, done.refused, done.conflicts, done.unknown, self._cluster.full,
            len(self._hub), self._hub.streams, self._hub.restarts, self._version, self._cluster.unusable,
            self._writer.took.statistics(),
        )  # fmt: skip

    # -- the end ---------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Finish queued writes, end sessions and watches, disconnect. Idempotent."""
        if self._closing is None:
            self._closed = True
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await shielded(self._closing)

    async def _close(self) -> None:
        seconds = min(_CLOSE_S_MAX, self._timeout)
        await self._writer.close(seconds)
        await end_all(_list(self._sessions), self._clock.monotonic() + seconds)
        self._sessions.clear()
        await self._hub.close()
        await self._numbered.end()
        await self._cluster.close()


def _only(outcomes: list[Any]) -> Any:
    if isinstance(outcomes[0], Exception):
        raise outcomes[0]
    return outcomes[0]


def _both(outcomes: list[Any]) -> tuple[Stat, Record]:
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
    record, stat = outcomes
    return stat, record


def _as_they_are(outcomes: list[Outcome]) -> list[Outcome]:
    return outcomes


def _checked(write: Put | Delete) -> Put | Delete:
    if isinstance(write, Put):
        return checked_put(write)
    if isinstance(write, Delete):
        return Delete(write.key, check_version(write.expected))
    raise InvalidArgumentError(f"a write must be a Put or a Delete, got {write!r:.80}")


def _parts(writes: Sequence[Put | Delete]) -> list[list[int]]:
    """The places of writes, in parts of a bounded number of keys; those of one key are in the same part, in order."""
    by_key: dict[str, list[int]] = {}
    for at, write in enumerate(writes):
        by_key.setdefault(write.key, []).append(at)
    parts: list[list[int]] = []
    keys, size = GROUP_KEYS_MAX, 0
    for places in by_key.values():
        puts = [put for at in places if isinstance(put := writes[at], Put)]
        these, demanded = sum(len(put.value) for put in puts), sum(len(put.also or ()) for put in puts)
        if demanded >= GROUP_KEYS_MAX:
            text = f"the writes of one key must demand fewer than {GROUP_KEYS_MAX} others, got {demanded}"
            raise InvalidArgumentError(text)
        if keys + demanded >= GROUP_KEYS_MAX or size + these > BATCH_SIZE_MAX:
            parts.append([])
            keys = size = 0
        parts[-1] += places
        keys, size = keys + 1 + demanded, size + these
    return [sorted(part) for part in parts]


def _at_once(units: list[Unit]) -> list[list[Unit]]:
    """Units in runs that one request takes."""
    runs: list[list[Unit]] = []
    size = 0
    for unit in units:
        if not runs or size + unit.size > BATCH_SIZE_MAX:
            runs.append([])
            size = 0
        runs[-1].append(unit)
        size += unit.size
    return runs
