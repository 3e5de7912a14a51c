"""A topic's layout as a client sees it, and the session that keeps it current.

A broker answers SCALABLE_TOPIC_LOOKUP with the layout and pushes every later one. Several changes may arrive as one,
or out of order after a reconnect; a layout is applied only when its epoch is newer (semantics 37). One of the same
epoch brings newer addresses, and nothing else of it counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from engine.client.net.connection import Connection
from engine.client.net.pool import Pool, persist
from engine.errors import (
    AlreadyClosedError,
    EngineError,
    NotFoundError,
    NotOwnerError,
    ProtocolError,
    TimeoutError,
)
from engine.model.hashrange import HashRange
from engine.model.names import TopicName
from engine.wire import commands
from engine.wire.commands import Header

LOOK_S_MAX = 5.0  # a broker has this long to answer before another one is asked
REFUSALS_MAX = 4  # in a row, after which the layout is looked up anew: what is known may be old

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SegmentView:
    """One segment of a layout. `bucket_ends` are inclusive, the last is 65535; `url` is the owner's."""

    segment_id: int
    name: str
    hash_range: HashRange
    active: bool
    parents: tuple[int, ...]
    children: tuple[int, ...]
    bucket_ends: tuple[int, ...]
    url: str | None


@dataclass(frozen=True, slots=True)
class TopicLayout:
    """One version of a topic's layout. `active` is ordered by hash range."""

    epoch: int
    key_hash: str
    durability: str
    segments: dict[int, SegmentView]
    active: tuple[SegmentView, ...]
    controller_url: str | None
    created_ms: int | None = None  # when the topic was created: a later one of its name has another

    @classmethod
    def from_dag(cls, topic: TopicName, dag: commands.Dag) -> TopicLayout:
        """The layout in a SCALABLE_TOPIC_UPDATE. Raises ProtocolError when it is not one."""
        brokers = dag.segmentBrokers or {}
        try:
            views = [_segment_view(topic, s, brokers) for s in dag.segments]
        except ValueError as e:
            raise ProtocolError(f"SCALABLE_TOPIC_UPDATE of {topic}: the layout is malformed: {e!r}") from e
        active = sorted((v for v in views if v.active), key=lambda v: v.hash_range.start)
        return cls(
            epoch=dag.epoch,
            key_hash=dag.keyHash,
            durability=dag.durability,
            segments={v.segment_id: v for v in views},
            active=tuple(active),
            controller_url=dag.controllerBrokerUrl,
            created_ms=dag.createdAtMs or None,
        )

    def url_of(self, segment_id: int) -> str | None:
        """The owner's address, None when it is not known."""
        view = self.segments.get(segment_id)
        return None if view is None else view.url

    def has_lost(self, segment_id: int) -> bool:
        """Whether the topic had such a segment and has it no more: ids only rise, and what is pruned has children."""
        return segment_id not in self.segments and segment_id < max(self.segments)

    def readdressed(self, newer: TopicLayout) -> TopicLayout:
        """This layout with the addresses of another view of the same epoch; itself when they are the same."""
        moved = {i: replace(v, url=newer.url_of(i)) for i, v in self.segments.items() if v.url != newer.url_of(i)}
        if not moved and self.controller_url == newer.controller_url:
            return self
        segments = {**self.segments, **moved}
        active = tuple(segments[v.segment_id] for v in self.active)
        return replace(self, segments=segments, active=active, controller_url=newer.controller_url)


def _segment_view(topic: TopicName, segment: commands.Segment, brokers: dict[str, str]) -> SegmentView:
    hash_range = HashRange(segment.hashRange.start, segment.hashRange.end)
    return SegmentView(
        segment_id=segment.segmentId,
        name=str(topic.segment(hash_range, segment.segmentId)),
        hash_range=hash_range,
        active=segment.state.upper() == "ACTIVE",
        parents=tuple(segment.parentIds or ()),
        children=tuple(segment.childIds or ()),
        bucket_ends=tuple(segment.bucketBoundaries),
        url=brokers.get(str(segment.segmentId)),
    )


class TopicSession:
    """Follows one topic's layout for one producer or consumer. Loop thread only.

    `looks`: how many lookups were answered so far.
    """

    def __init__(self, pool: Pool, topic: TopicName) -> None:
        self.topic = topic
        self.pool = pool
        self.looks = 0
        self._on_layout: Callable[[TopicLayout], object] | None = None
        self._on_failed: Callable[[EngineError], object] | None = None
        self._on_addresses: Callable[[TopicLayout], object] | None = None
        self._layout: TopicLayout | None = None
        self._connection: Connection | None = None
        self._session_id = 0
        self._url: str | None = None  # of the broker that serves the session
        self._closed = False
        self._reopening = False
        self._failure: EngineError | None = None
        self._changed: asyncio.Future[None] | None = None

    @property
    def layout(self) -> TopicLayout:
        """The newest layout known, with the newest addresses."""
        if self._layout is None:
            raise AlreadyClosedError(f"the layout of {self.topic} was never received")
        return self._layout

    @property
    def known(self) -> bool:
        """Whether there is a layout yet."""
        return self._layout is not None

    @property
    def connected(self) -> bool:
        """Whether a broker tells how the topic changes."""
        return self._connection is not None

    def follow(
        self,
        on_layout: Callable[[TopicLayout], object],
        on_failed: Callable[[EngineError], object],
        on_addresses: Callable[[TopicLayout], object] | None = None,
    ) -> None:
        """From now on call `on_layout` with every newer layout, `on_addresses` when only addresses are newer, and
        `on_failed` once when the topic is gone.

        Raises if it is.
        """
        if self._failure is not None:
            raise self._failure
        self._on_layout, self._on_failed, self._on_addresses = on_layout, on_failed, on_addresses

    async def open(self, *, create: bool = True) -> TopicLayout:
        """Look the topic up (and create it where the broker allows) and follow it.

        Raises NotFoundError, ConnectError, TimeoutError.
        """
        timeout = self.pool.options.operation_timeout

        async def once() -> TopicLayout:
            await self._lookup(None, create, timeout)
            return self.layout

        return await persist(self.pool, once, timeout, f"looking up {self.topic}")

    async def _lookup(self, url: str | None, create: bool, timeout: float) -> None:
        """The session moves to the broker at `url` once that has answered."""
        connection = await self.pool.get(url)
        session_id = connection.next_id()
        connection.attach(session_id, self)
        request = commands.ScalableTopicLookup(session_id=session_id, topic=str(self.topic), create=create)
        try:
            await connection.request(request, timeout)
        except BaseException:
            connection.end_session(session_id, commands.ScalableTopicClose)
            raise
        if connection.lost is not None:
            raise connection.lost
        self._drop_session()
        self._connection, self._session_id, self._url = connection, session_id, url or self.pool.url
        self.looks += 1
        self._wake()
        if self._closed:
            self._drop_session()

    # -- Attached --------------------------------------------------------------------------------------------

    def frame_received(self, header: Header, payload: memoryview) -> None:
        """A layout, or the news that the topic is gone."""
        if self._closed:
            return
        if isinstance(header, commands.Error):
            self._fail(EngineError.from_code(header.code, header.message))
            return
        if not isinstance(header, commands.ScalableTopicUpdate):
            return
        layout, known = TopicLayout.from_dag(self.topic, header.dag), self._layout
        if known is None or layout.epoch > known.epoch:
            self._apply(layout, self._on_layout)
        elif layout.epoch == known.epoch and (same := known.readdressed(layout)) is not known:
            self._apply(same, self._on_addresses)

    def _apply(self, layout: TopicLayout, tell: Callable[[TopicLayout], object] | None) -> None:
        self._layout = layout
        self._wake()
        if tell is not None:
            tell(layout)

    def resume_writing(self) -> None:
        """A session writes nothing that could be too much."""

    def connection_lost(self, error: EngineError) -> None:
        """Look the topic up again, as often as it takes."""
        if self._connection is not None and self._connection.lost is None:
            return  # that of a lookup under way, which sees it itself
        self._connection = None
        if self._layout is not None:
            self._reopen_soon()

    def look_again(self) -> None:
        """Look the topic up anew in the background, at another broker if there is one: what is known may be old."""
        self._reopen_soon()

    def refused(self, times: int) -> None:
        """Somebody was refused so often in a row, going by the layout: it is looked up anew now and then."""
        if times % REFUSALS_MAX == 0:
            self.look_again()

    def _reopen_soon(self) -> None:
        if not (self._closed or self._reopening or self.pool.closed) and self._failure is None:
            self._reopening = True
            self.pool.tasks.spawn(self._reopen(), name=f"lookup {self.topic}")

    async def _reopen(self) -> None:
        backoff = self.pool.retry_delays()
        looks, tried = self.looks, {self._url}
        try:
            while not self._closed and not self.pool.closed and (self._connection is None or self.looks == looks):
                url, others = self._next_broker(tried)
                limit = self.pool.options.operation_timeout
                try:
                    await self._lookup(url, False, min(limit, LOOK_S_MAX) if others else limit)
                except NotFoundError as e:
                    self._fail(e)
                    return
                except EngineError:
                    await asyncio.sleep(backoff.next())
        finally:
            self._reopening = False

    def _next_broker(self, tried: set[str | None]) -> tuple[str, bool]:
        """The address of a broker that was not tried yet, connected ones first; and whether others are known."""
        layout = self.layout
        urls = (self.pool.url, layout.controller_url, *(v.url for v in layout.segments.values()))
        known = [url for url in dict.fromkeys(urls) if url is not None]
        if tried.issuperset(known):
            tried.clear()
        url = min((u for u in known if u not in tried), key=lambda u: not self.pool.is_connected(u))
        tried.add(url)
        return url, len(known) > 1

    def _fail(self, error: EngineError) -> None:
        self._failure = error
        self._wake()
        if self._on_failed is not None:
            self._on_failed(error)

    # -- waiting ---------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        changed, self._changed = self._changed, None
        if changed is not None and not changed.done():
            changed.set_result(None)

    def _change(self) -> asyncio.Future[None]:
        """Done at the next change of anything."""
        if self._changed is None:
            self._changed = asyncio.get_running_loop().create_future()
        return self._changed

    async def wait_newer(self, epoch: int, timeout: float) -> bool:
        """Wait until a layout newer than `epoch` is known, at most `timeout` seconds. Raises once the topic is gone."""
        return await self._wait(lambda: self._layout is not None and self._layout.epoch > epoch, timeout)

    async def wait_changed(self, seen: TopicLayout, timeout: float) -> bool:
        """Wait until there is another layout than the one `seen`, or newer addresses; else as wait_newer()."""
        return await self._wait(lambda: self._layout is not seen, timeout)

    async def _wait(self, condition: Callable[[], bool], timeout: float) -> bool:
        deadline = asyncio.get_running_loop().time() + timeout
        while not condition():
            if self._failure is not None:
                raise self._failure
            if self._closed:
                return False
            left = deadline - asyncio.get_running_loop().time()
            done, _ = await asyncio.wait([self._change()], timeout=left)
            if not done:
                return False
        return True

    async def at(self, place: Callable[[TopicLayout], str | None], work: Callable[[str | None], Awaitable[T]]) -> T:
        """Await `work` with the address that `place` finds in the layout.

        NotOwnerError, and `work` cancelled, when another address is known there before it has ended.
        """
        url = place(self.layout)
        task = asyncio.ensure_future(work(url))
        try:
            while not task.done():
                if place(self.layout) != url:
                    raise NotOwnerError(f"{self.topic}: moved from {url} to {place(self.layout)}")
                either: list[asyncio.Future[Any]] = [task, self._change()]
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait([task])
            if not task.cancelled():
                task.exception()  # retrieved: it may have failed in this very turn

    async def place(
        self, segment_id: int, at: str | int, subscription: str | None = None, buckets: list[list[int]] | None = None
    ) -> commands.Place:
        """What a segment's owner, wherever it is by now, answers to SEGMENT_OFFSET; asked again after passing errors.

        Raises NotFoundError when the segment is not (or no longer) there, ConnectError, TimeoutError.
        """
        timeout = self.pool.options.operation_timeout
        refusals = 0

        async def send(url: str | None) -> commands.Place:
            view = self.layout.segments.get(segment_id)
            if view is None:
                raise NotFoundError(f"segment {segment_id} of {self.topic} is not (or no longer) there")
            connection = await self.pool.get(url)
            request = commands.SegmentOffset(topic=view.name, at=at, subscription=subscription, buckets=buckets)
            return await connection.request(request, timeout)

        async def once() -> commands.Place:
            nonlocal refusals
            try:
                return await self.at(lambda layout: layout.url_of(segment_id), send)
            except EngineError:
                refusals += 1
                self.refused(refusals)
                raise

        return await persist(self.pool, once, timeout, f"asking the owner of segment {segment_id} of {self.topic}")

    async def ever_had(self, segment_id: int) -> bool:
        """Whether the topic has or had such a segment; looked up anew for one that nobody here has heard of."""
        if segment_id > max(self.layout.segments):
            await self.look()
        return segment_id <= max(self.layout.segments)

    async def look(self) -> None:
        """Look the topic up anew, and wait for that.

        Raises TimeoutError, AlreadyClosedError; NotFoundError once the topic is gone.
        """
        looks, timeout = self.looks, self.pool.options.operation_timeout
        self.look_again()
        if not await self._wait(lambda: self.looks != looks, timeout):
            self.pool.check_open()
            if self._closed:
                raise AlreadyClosedError(f"what followed {self.topic} was closed")
            raise TimeoutError(f"no broker has told the layout of {self.topic} within {timeout:g} s")

    def close(self) -> None:
        """Stop following. Idempotent."""
        self._closed = True
        self._drop_session()
        self._wake()

    def _drop_session(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.end_session(self._session_id, commands.ScalableTopicClose)
