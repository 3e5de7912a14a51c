"""`WatchHub`: all watches of a store, as watchers in one stream of etcd.

A watch begins with a read of its range at one revision, and a watcher from the next one on. A stream that is lost is
opened again at another member, each watcher from the revision behind the last one that was received: no event is lost.
Where etcd has forgotten that revision, the range is read again, and the reader is told what is new and what has gone
(RemoteWatch).

A write waits, for a moment at most, until the watches of this store have its events, and its caller is answered before
their readers go on: as in a store of one process, what was written is known here. For that, events that arrive while a
transaction is under way are held back until its callers are answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import grpc.aio

from engine.aio.backoff import RetryDelay
from engine.errors import AuthenticationError, AuthorizationError, EngineError
from engine.metadata.etcd import messages as m
from engine.metadata.etcd.cluster import Cluster
from engine.metadata.etcd.feeds import Feed, Heard, event_of
from engine.metadata.etcd.layout import Layout, decoded, record_of, whole
from engine.metadata.etcd.ranges import read
from engine.metadata.store import Event, EventKind, Record

if TYPE_CHECKING:
    import random

    from engine.metadata.etcd.requests import GroupRequest

log = logging.getLogger(__name__)

HELD_S_MAX = 0.25  # events are held back, and a write waits for its events, for so long
BEGUN_S_MAX = 0.5  # a write waits for so long for the snapshots of watches that were opened before it
_NO_KEY = ""
_REFUSED = -1  # as the number of a watcher: of one that was not begun
_REFUSALS = ("permission denied", "invalid auth token", "auth store is old", "user name is empty")


class WatchHub:
    """Loop thread only. `seen`: called with versions of events, `snapshot_version`: of a read at a revision."""

    def __init__(
        self, cluster: Cluster, layout: Layout, rng: random.Random, seen: Callable[[int], object],
        snapshot_version: Callable[[int], int],
    ) -> None:  # fmt: skip
        self.restarts = 0  # of watches whose history was compacted
        self.streams = 0  # opened
        self._cluster = cluster
        self._layout = layout
        self._rng = rng
        self._seen = seen
        self._snapshot_version = snapshot_version
        self._feeds: dict[Feed, asyncio.Task[None] | None] = {}  # and the task that begins it
        self._by_ident: dict[int, Feed] = {}
        self._by_common: dict[bytes, dict[Feed, None]] = {}
        self._lengths: Counter[int] = Counter()  # of the keys of `_by_common`
        self._beginning: dict[Feed, asyncio.Event] = {}  # set when the snapshot's revision is certain
        self._last_ident = 0
        self._out: asyncio.Queue[Any] | None = None  # requests to the present stream
        self._stream_now: Any = None
        self._running: asyncio.Task[None] | None = None
        self._held: list[Callable[[], None]] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._arrived = asyncio.Event()  # replaced whenever a feed has got further

    def __len__(self) -> int:
        return len(self._feeds)

    # -- watches ---------------------------------------------------------------------------------------------------

    def open(self, feed: Feed, *, resumed: bool) -> None:
        """Begin a watch: behind `feed.after` where it is resumed, else with a snapshot."""
        if self._running is None:
            self._running = asyncio.get_running_loop().create_task(self._run(), name="etcd watches")
        self._by_common.setdefault(feed.common, {})[feed] = None
        self._lengths[len(feed.common)] += 1
        if resumed:
            # The last revision again, whose later events the reader may not have seen.
            feed.revision = (feed.after >> 16) - 1
            feed.watch.begun(resumed=True)
            self._feeds[feed] = None
            self._create(feed)
        else:
            self._begin(feed)

    def _begin(self, feed: Feed) -> None:
        self._beginning[feed] = asyncio.Event()
        self._feeds[feed] = asyncio.get_running_loop().create_task(self._read(feed), name="etcd snapshot")

    def drop(self, feed: Feed) -> None:
        """End a watch. Idempotent."""
        if feed not in self._feeds:
            return
        beginning = self._feeds.pop(feed)
        if beginning is not None:
            beginning.cancel()
        self._unlist(feed)
        self._begun_one(feed)
        if self._by_ident.pop(feed.ident, None) is not None and self._out is not None:
            self._out.put_nowait(m.WatchRequest(cancel_request=m.WatchCancelRequest(watch_id=feed.ident)))

    def _unlist(self, feed: Feed) -> None:
        feeds, length = self._by_common[feed.common], len(feed.common)
        del feeds[feed]
        self._lengths[length] -= 1
        if not feeds:
            del self._by_common[feed.common]
        if not self._lengths[length]:
            del self._lengths[length]

    def _covering(self, keys: Iterable[bytes]) -> list[Feed]:
        """The watches of some keys: found by look-ups, however many watches there are."""
        found = {
            feed: None for key in keys for length in self._lengths for feed in self._by_common.get(key[:length], ())
            if feed.covers(key)
        }  # fmt: skip
        return list(found)

    async def close(self) -> None:
        """End all of it."""
        for feed in list(self._feeds):
            feed.watch.close()
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        if self._timer is not None:
            self._timer.cancel()

    async def _read(self, feed: Feed) -> None:
        """Read a watch's range, pass it on as a snapshot, and have etcd watch from there on."""
        delay = RetryDelay(self._rng, initial=0.05, maximum=1.0)
        while True:
            try:
                found, revision = await read(self._cluster, *feed.range)
                heard = [await self._whole(one) for one in feed.snapshot(found)]
                break
            except EngineError as e:
                log.warning("a watch of %s is not begun yet: %s", self._cluster.url.text, e)
                await asyncio.sleep(delay.next())
        feed.revision = revision
        events = [event_of(one) for one in heard if one is not None]
        newest = max((event.version for event in events), default=0)
        end = Event(EventKind.SNAPSHOT_END, _NO_KEY, max(newest, self._snapshot_version(revision)))
        self._deliver(feed, [*events, end], anew=True)
        self._feeds[feed] = None
        self._begun_one(feed)
        self._create(feed)

    def _begun_one(self, feed: Feed) -> None:
        begun = self._beginning.pop(feed, None)
        if begun is not None:
            begun.set()

    async def begun(self) -> None:
        """Wait, for a moment at most, until the snapshots of all watches so far are read."""
        waiting = [asyncio.ensure_future(begun.wait()) for begun in self._beginning.values()]
        if waiting:
            _, late = await asyncio.wait(waiting, timeout=BEGUN_S_MAX)
            for task in late:
                task.cancel()

    def _create(self, feed: Feed) -> None:
        """Ask the present stream for a watcher; where there is none, the next one begins with it.

        It begins with the revision that was received last, not behind it: a compaction to the next revision removes a
        deletion of that revision, and etcd refuses only what begins below the compaction.
        """
        self._by_ident.pop(feed.ident, None)
        feed.live = False
        if self._out is None or feed not in self._feeds or self._feeds[feed] is not None:
            return
        self._last_ident += 1
        feed.ident = self._last_ident
        self._by_ident[feed.ident] = feed
        start, end = feed.range
        create = m.WatchCreateRequest(
            key=start, range_end=end, start_revision=max(feed.revision, 1), progress_notify=True, watch_id=feed.ident
        )
        self._out.put_nowait(m.WatchRequest(create_request=create))

    # -- the stream ------------------------------------------------------------------------------------------------

    def move(self) -> None:
        """Open the stream again, by the channel of now."""
        if self._stream_now is not None:
            self._stream_now.cancel()

    async def _run(self) -> None:
        delay = RetryDelay(self._rng, initial=0.02, maximum=1.0)
        while True:
            endpoint = self._cluster.endpoint
            try:
                await self._stream(delay)
                why = "it ended"
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                continue  # move() has cancelled the stream, and not this task
            except grpc.aio.AioRpcError as e:
                why = e.details() or str(e.code())
                if "auth" in why or "user name is empty" in why:
                    self._cluster.forget_token()
            except EngineError as e:
                why = str(e)
            finally:
                self._out = None
                self._by_ident.clear()
                for feed in self._feeds:
                    feed.live = False
            log.info("watches of %s go on at another member: %s", self._cluster.url.text, why)
            self._cluster.leave(endpoint)
            await asyncio.sleep(delay.next())

    async def _stream(self, delay: RetryDelay) -> None:
        out: asyncio.Queue[Any] = asyncio.Queue()
        self._out = out
        self.streams += 1
        for feed in list(self._feeds):
            self._create(feed)
        stream = self._stream_now = await self._cluster.open_watch()
        sending = asyncio.get_running_loop().create_task(_send_all(out, stream), name="etcd watch requests")
        try:
            while (response := await stream.read()) is not grpc.aio.EOF:
                if not response.canceled:
                    delay.reset()
                await self._received(response)
        finally:
            self._stream_now = None
            stream.cancel()
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    async def _received(self, response: Any) -> None:
        feed = self._by_ident.get(response.watch_id)
        if response.canceled and response.watch_id == _REFUSED:  # etcd answers in order
            feed = next((each for each in self._by_ident.values() if not each.live), None)
        if feed is None:
            return
        if response.canceled:
            await self._canceled(feed, response)
            return
        if response.created:
            feed.live = True
            return
        if not response.events:
            feed.revision = max(feed.revision, response.header.revision)
            return
        at, events = 0, response.events
        while at < len(events) and feed.ident == response.watch_id:
            revision, start = events[at].kv.mod_revision, at
            while at < len(events) and events[at].kv.mod_revision == revision:
                at += 1
            if revision > feed.revision:
                heard = [await self._whole(one) for one in feed.take(revision, events[start:at])]
                self._deliver(feed, [event_of(one) for one in heard if one is not None])
        self._arrived.set()

    async def _canceled(self, feed: Feed, response: Any) -> None:
        """etcd has ended a watcher: its history is gone, or it was refused."""
        del self._by_ident[feed.ident]
        feed.live = False
        if response.compact_revision:
            self.restarts += 1
            self._begin(feed)
            return
        reason = response.cancel_reason or "a watcher was canceled"
        if any(text in reason for text in _REFUSALS):
            await self._check_allowed(feed)
        if feed in self._feeds:
            raise EngineError(reason)  # another stream

    async def _check_allowed(self, feed: Feed) -> None:
        """Fail a watch whose keys this client may not read.

        etcd judges a watcher by the token with which its stream began, and some releases say "permission denied" of a
        token that is over as well. A read with a new token tells the two apart, and the next stream begins with it.
        """
        self._cluster.forget_token()
        start, end = feed.range
        try:
            await self._cluster.call("Range", m.RangeRequest(key=start, range_end=end, limit=1, keys_only=True))
        except (AuthenticationError, AuthorizationError) as e:
            feed.watch.fail(e)

    async def _whole(self, one: Heard) -> Heard | None:
        """An event with its record, which is read where its row does not carry it; None: it is gone, which follows."""
        if one.deleted or one.record is not None:
            return one
        record = await read_record(self._cluster, self._layout, one.key)
        return None if record is None else Heard(one.key, one.version, record, deleted=False)

    # -- readers and writers ---------------------------------------------------------------------------------------

    def _deliver(self, feed: Feed, events: Sequence[Event], *, anew: bool = False) -> None:
        """Pass events on, behind those that are held back. `anew`: they are a snapshot."""
        if self._held is not None:
            self._held.append(lambda: self._pass(feed, events, anew=anew))
        else:
            self._pass(feed, events, anew=anew)

    def _pass(self, feed: Feed, events: Sequence[Event], *, anew: bool) -> None:
        if feed in self._feeds:
            if anew:
                feed.watch.begin_anew()
            for event in events:
                self._seen(event.version)
                feed.watch.received(event)

    def hold(self) -> None:
        """Hold events back, until release() or for a moment."""
        if self._held is None:
            self._held = []
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(HELD_S_MAX, self.release)

    def release(self) -> None:
        """Pass on what was held back. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        held, self._held = self._held, None
        for deliver in held or ():
            deliver()

    async def reached(self, revision: int, parts: Sequence[GroupRequest]) -> None:
        """Wait, for a moment at most, until the watches of what was written have it."""
        if self._feeds:
            keys = [self._layout.record(key) for part in parts for key in part.records]
            keys += [row for part in parts for row in part.rows]
            await self._until(self._covering(keys), revision)

    async def reached_range(self, revision: int, start: str, end: str) -> None:
        """The same of the records of a range."""
        first, last = self._layout.record_range(start, end)
        await self._until([f for f in self._feeds if f.range[0] < last and first < f.range[1]], revision)

    async def _until(self, feeds: list[Feed], revision: int) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HELD_S_MAX):
                while any(feed.revision < revision and feed in self._feeds and self._follows(feed) for feed in feeds):
                    self._arrived.clear()
                    await self._arrived.wait()

    def _follows(self, feed: Feed) -> bool:
        """Whether a watch will soon have what was just written."""
        return self._out is not None and self._feeds.get(feed) is None


async def _send_all(requests: asyncio.Queue[Any], stream: Any) -> None:
    """Until cancelled, or the stream has ended, which its reader learns."""
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        while True:
            await stream.write(await requests.get())


async def read_record(cluster: Cluster, layout: Layout, key: str) -> Record | None:
    """A record as of now."""
    answer = await cluster.call("Range", m.RangeRequest(key=layout.record(key)))
    if not answer.kvs:
        return None
    return record_of(key, answer.kvs[0], decoded(answer.kvs[0], key))


def version_at(revision: int, known: int) -> int:
    """The version behind a read at a revision, where `known` is the last version of this process."""
    return whole(revision) if revision > known >> 16 else known
