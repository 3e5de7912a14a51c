"""A consumer's session with its topic's controller: register, follow assignments, leave.

The controller is where the newest layout says; when it moves, the consumer registers there and keeps its share.
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass

from engine.client.base.options import ConsumerOptions
from engine.client.net.connection import Connection
from engine.client.net.pool import persist
from engine.client.topic.session import TopicLayout, TopicSession
from engine.errors import (
    AlreadyClosedError,
    ConnectError,
    ConsumerBusyError,
    EngineError,
    NotOwnerError,
    ProtocolError,
    SubscriptionKindError,
    TimeoutError,
)
from engine.model.names import SegmentName
from engine.wire import commands
from engine.wire.commands import Header

log = logging.getLogger(__name__)

LEAVE_S_MAX = 2.0

_PASSING = (ConnectError, TimeoutError, AlreadyClosedError)


@dataclass(frozen=True, slots=True)
class Assigned:
    """One segment of this consumer's share. `bucket_ends`: all those of a segment to share, else none."""

    segment_id: int
    name: str
    mode: str
    bucket_ends: tuple[int, ...] = ()


class Registration:
    """Loop thread only. The session is known by the consumer's name, this object of it by `options.instance`.

    `on_assignment` gets the epoch of the layout that the share follows from, and the whole share.
    """

    def __init__(
        self,
        session: TopicSession,
        options: ConsumerOptions,
        kind: str,
        on_assignment: Callable[[int, list[Assigned]], object],
        on_failed: Callable[[EngineError], object],
    ) -> None:
        self._session = session
        self._pool = session.pool
        self._options = options
        self._kind = kind
        self._on_assignment = on_assignment
        self._on_failed = on_failed
        self._connection: Connection | None = None
        self._consumer_id = 0
        self._url: str | None = None  # the controller's, where it registered
        self.created_ms: int | None = None  # when the subscription was, once that is known
        self._ended_id = 0
        self._refused = 0  # in a row
        self._registered = False
        self._registering = False  # again, in the background
        self._closed = False

    async def start(self) -> None:
        """Register; `on_assignment` was called when this returns.

        Raises ConsumerBusyError, NotFoundError, ConnectError, TimeoutError.
        """
        timeout = self._pool.options.operation_timeout
        await persist(self._pool, self._register, timeout, f"registering with the controller of {self._session.topic}")
        self._registered = True
        if self._connection is None:
            self.connection_lost(ConnectError("the connection was lost right behind the answer"))

    async def _register(self) -> None:
        try:
            await self._session.at(_controller_url, self._register_at)
        except EngineError:
            self._refused += 1
            self._session.refused(self._refused)
            raise
        self._refused = 0

    async def _register_at(self, url: str | None) -> None:
        connection = await self._pool.get(url)
        consumer_id = connection.next_id()
        self._ended_id = 0  # ids repeat from connection to connection
        connection.attach(consumer_id, self)
        self._connection, self._consumer_id, self._url = connection, consumer_id, url
        request = commands.ScalableTopicSubscribe(
            consumer_id=consumer_id,
            topic=str(self._session.topic),
            subscription=self._options.subscription or self._options.group or "",
            consumer_name=self._options.name,
            instance=self._options.instance,
            kind=self._kind,
            initial_position=self._options.initial_position,
            created_ms=self.created_ms,
        )
        try:
            await connection.request(request, self._pool.options.operation_timeout)
        except BaseException:
            connection.detach(consumer_id)
            self._connection = None
            raise
        if connection.lost is not None:  # right behind the answer; connection_lost() left it to this attempt
            raise connection.lost
        if self._ended_id == consumer_id:
            raise NotOwnerError("the registration ended as it began")

    # -- Attached --------------------------------------------------------------------------------------------

    def frame_received(self, header: Header, payload: memoryview) -> None:
        """An assignment, or the end of the registration."""
        if self._closed:
            return
        if isinstance(header, commands.ScalableTopicAssignment):
            self.created_ms = self.created_ms or header.created_ms
            self._on_assignment(header.layout_epoch, _assigned(header.segments))
        elif isinstance(header, commands.CloseConsumer) and header.request_id is None:
            error = EngineError.from_code(header.code or NotOwnerError.code, header.message or "closed")
            self._ended_id = header.consumer_id
            if self._connection is not None:
                self._connection.detach(self._consumer_id)
            self.connection_lost(error)

    def resume_writing(self) -> None:
        """Nothing is held back."""

    def connection_lost(self, error: EngineError) -> None:
        """Register again: within the grace period the share is kept."""
        self._connection = None
        if self._closed or not self._registered or self._pool.closed:
            return
        if not (error.layout_stale or isinstance(error, _PASSING)):
            self._registered = False
            self._on_failed(error)
        elif not self._registering:
            self._registering = True
            self._pool.tasks.spawn(self._again(), name=f"register {self._options.name}")

    def look(self) -> None:
        """The layout may name another controller by now: register there. The old one is not told: it is a leave
        that it would hear.
        """
        moved = self._session.layout.controller_url not in (None, self._url)
        if moved and self._registered and not self._registering and self._connection is not None:
            self._connection.detach(self._consumer_id)
            self.connection_lost(NotOwnerError("another broker leads the topic"))

    async def _again(self) -> None:
        backoff = self._pool.retry_delays()
        try:
            while self._registered and not self._closed and self._connection is None:
                seen = self._session.layout
                try:
                    await self._register()
                except EngineError as e:
                    if self._pool.closed:
                        return
                    passing = e.layout_stale or isinstance(e, (*_PASSING, ConsumerBusyError))
                    if not passing or isinstance(e, SubscriptionKindError):
                        self._on_failed(e)
                        return
                    await self._session.wait_changed(seen, backoff.next())
        except EngineError as e:  # the topic is gone
            self._on_failed(e)
        finally:
            self._registering = False

    async def close(self) -> None:
        """Leave explicitly (semantics 13). Idempotent.

        When the controller is not where it was, it is looked for a little, as long as there are brokers: else the
        others would wait for the end of the grace period.
        """
        self._closed = True
        backoff = self._pool.retry_delays()
        timeout = self._pool.options.operation_timeout if self._connection is not None else LEAVE_S_MAX
        deadline: float | None = None  # from the first failure on
        while self._registered:
            seen = self._session.layout
            try:
                async with asyncio.timeout(timeout):
                    await self._session.at(_controller_url, self._leave_at)
                self._registered = False
            except (EngineError, builtins.TimeoutError) as e:
                log.debug("leaving %s: %s", self._session.topic, e)
                now = asyncio.get_running_loop().time()
                deadline = deadline or now + LEAVE_S_MAX
                timeout = deadline - now
                if timeout <= 0 or not self._session.connected:
                    break
                with contextlib.suppress(EngineError):
                    await self._session.wait_changed(seen, min(backoff.next(), timeout))
        if self._connection is not None:
            self._connection.detach(self._consumer_id)

    async def _leave_at(self, url: str | None) -> None:
        """Anybody may say that this instance leaves; over its own connection the registration is named by its id."""
        known = self._connection
        connection = known if known is not None and known.lost is None and url == self._url else None
        if connection is None:
            connection = await self._pool.get(url)
        request = commands.ScalableTopicUnsubscribe(
            consumer_id=self._consumer_id if connection is known else connection.next_id(),
            instance=self._options.instance,
            topic=str(self._session.topic),
            subscription=self._options.subscription or self._options.group,
            consumer_name=self._options.name,
        )
        await connection.request(request, self._pool.options.operation_timeout)


def _controller_url(layout: TopicLayout) -> str | None:
    return layout.controller_url


def _assigned(segments: list[commands.AssignedSegment]) -> list[Assigned]:
    """Raises ProtocolError, InvalidArgumentError, where a name is not that of its segment."""
    for s in segments:
        if SegmentName.parse(s.topic).segment_id != s.segment_id:
            raise ProtocolError(f"SCALABLE_TOPIC_ASSIGNMENT: segment {s.segment_id} is not {s.topic!r:.200}")
    return [Assigned(s.segment_id, s.topic, s.mode, tuple(s.bucketBoundaries or ())) for s in segments]
