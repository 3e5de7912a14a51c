"""A topic's layout as a client sees it, and the session that keeps it current.

The broker answers SCALABLE_TOPIC_LOOKUP with the layout and pushes every later one. Several changes may arrive as one,
or out of order after a reconnect; a layout is applied only when its epoch is newer (SEMANTICS 37).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from engine.client.connection import Connection
from engine.client.pool import Pool
from engine.errors import AlreadyClosedError, ConnectError, EngineError, NotFoundError, ProtocolError, TimeoutError
from engine.model.hashrange import HashRange
from engine.model.names import TopicName
from engine.wire.commands import Command

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

    @classmethod
    def from_dag(cls, topic: TopicName, dag: dict[str, Any]) -> TopicLayout:
        """The layout in a SCALABLE_TOPIC_UPDATE. Raises ProtocolError when it is not one."""
        try:
            brokers = dag.get("segmentBrokers") or {}
            views = [_segment_view(topic, s, brokers) for s in dag["segments"]]
            active = sorted((v for v in views if v.active), key=lambda v: v.hash_range.start)
            return cls(
                epoch=int(dag["epoch"]),
                key_hash=str(dag.get("keyHash", "xxh64")),
                durability=str(dag.get("durability", "fsync")),
                segments={v.segment_id: v for v in views},
                active=tuple(active),
                controller_url=dag.get("controllerBrokerUrl"),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            raise ProtocolError(f"SCALABLE_TOPIC_UPDATE of {topic}: the layout is malformed: {e!r}") from e


def _segment_view(topic: TopicName, segment: dict[str, Any], brokers: dict[Any, str]) -> SegmentView:
    segment_id = int(segment["segmentId"])
    hash_range = HashRange(int(segment["hashRange"]["start"]), int(segment["hashRange"]["end"]))
    return SegmentView(
        segment_id=segment_id,
        name=str(topic.segment(hash_range, segment_id)),
        hash_range=hash_range,
        active=str(segment["state"]).upper() == "ACTIVE",
        parents=tuple(segment.get("parentIds") or ()),
        children=tuple(segment.get("childIds") or ()),
        bucket_ends=tuple(segment["bucketBoundaries"]),
        url=brokers.get(str(segment_id)),
    )


class TopicSession:
    """Follows one topic's layout for one producer or consumer. Loop thread only."""

    def __init__(self, pool: Pool, topic: TopicName) -> None:
        self.topic = topic
        self.pool = pool
        self._on_layout: Callable[[TopicLayout], object] | None = None
        self._on_failed: Callable[[EngineError], object] | None = None
        self._layout: TopicLayout | None = None
        self._connection: Connection | None = None
        self._session_id = 0
        self._closed = False
        self._reopening = False
        self._failure: EngineError | None = None
        self._changed: asyncio.Future[None] | None = None

    @property
    def layout(self) -> TopicLayout:
        """The newest layout known."""
        if self._layout is None:
            raise AlreadyClosedError(f"the layout of {self.topic} was never received")
        return self._layout

    def follow(self, on_layout: Callable[[TopicLayout], object], on_failed: Callable[[EngineError], object]) -> None:
        """From now on call `on_layout` with every newer layout, `on_failed` once when the topic is gone.

        Raises if it is.
        """
        if self._failure is not None:
            raise self._failure
        self._on_layout, self._on_failed = on_layout, on_failed

    async def open(self, *, create: bool = True) -> TopicLayout:
        """Look the topic up (and create it where the broker allows) and follow it.

        Raises NotFoundError, ConnectError, TimeoutError.
        """
        timeout = self.pool.options.operation_timeout

        async def once() -> TopicLayout:
            await self._lookup(create)
            return self.layout

        return await persist(self.pool, once, timeout, f"looking up {self.topic}")

    async def _lookup(self, create: bool) -> None:
        connection = await self.pool.get()
        self._drop_session()
        session_id = connection.next_id()
        self._connection, self._session_id = connection, session_id
        connection.attach(session_id, self)
        header = {"session_id": session_id, "topic": str(self.topic), "create": create}
        try:
            await connection.request(Command.SCALABLE_TOPIC_LOOKUP, header, self.pool.options.operation_timeout)
        except BaseException:
            connection.detach(session_id)
            raise
        if self._closed:
            self._drop_session()

    # -- Attached --------------------------------------------------------------------------------------------

    def frame_received(self, command: Command, header: dict[str, Any], payload: memoryview) -> None:
        """A layout, or the news that the topic is gone."""
        if self._closed:
            return
        if command is Command.ERROR:
            self._fail(EngineError.from_code(header["code"], header["message"]))
            return
        layout = TopicLayout.from_dag(self.topic, header["dag"])
        if self._layout is not None and layout.epoch <= self._layout.epoch:
            return
        self._layout = layout
        self._wake()
        if self._on_layout is not None:
            self._on_layout(layout)

    def resume_writing(self) -> None:
        """A session writes nothing that could be too much."""

    def connection_lost(self, error: EngineError) -> None:
        """Look the topic up again, as often as it takes."""
        self._connection = None
        if not (self._closed or self._reopening) and self._layout is not None and self._failure is None:
            self._reopening = True
            self.pool.tasks.spawn(self._reopen(), name=f"lookup {self.topic}")

    async def _reopen(self) -> None:
        backoff = self.pool.retry_delays()
        try:
            while not self._closed and not self.pool.closed and self._connection is None:
                try:
                    await self._lookup(create=False)
                except EngineError as e:
                    if isinstance(e, NotFoundError):
                        self._fail(e)
                        return
                    self._connection = None
                    await asyncio.sleep(backoff.next())
        finally:
            self._reopening = False

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

    async def wait_newer(self, epoch: int, timeout: float) -> bool:
        """Wait until a layout newer than `epoch` is known, at most `timeout` seconds. Raises once the topic is gone."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while self._layout is None or self._layout.epoch <= epoch:
            if self._failure is not None:
                raise self._failure
            if self._changed is None:
                self._changed = loop.create_future()
            done, _ = await asyncio.wait([self._changed], timeout=deadline - loop.time())
            if not done:
                return False
        return True

    def close(self) -> None:
        """Stop following. Idempotent."""
        self._closed = True
        self._drop_session()
        self._wake()

    def _drop_session(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and connection.lost is None:
            connection.detach(self._session_id)
            connection.stream.send(Command.SCALABLE_TOPIC_CLOSE, {"session_id": self._session_id})


async def persist(pool: Pool, attempt: Callable[[], Awaitable[T]], timeout: float, what: str) -> T:
    """Await `attempt()` again after errors that pass (lost connection, stale layout), for `timeout` seconds in total.

    A broker that was never reached is not waited for: its first ConnectError is raised at once.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    backoff = pool.retry_delays()
    while True:
        try:
            return await attempt()
        except EngineError as e:
            passing = e.layout_stale or (isinstance(e, ConnectError) and pool.ever_connected)
            if not passing or pool.closed:
                raise
            delay = backoff.next()
            if loop.time() + delay >= deadline:
                raise _given_up(e, what, timeout) from e
        await asyncio.sleep(delay)


def _given_up(error: EngineError, what: str, timeout: float) -> EngineError:
    kind = ConnectError if isinstance(error, ConnectError) else TimeoutError
    return kind(f"{what} was given up after {timeout:g} s: {error}")
