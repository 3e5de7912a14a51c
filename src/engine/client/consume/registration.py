"""A consumer's session with its topic's controller: register, follow the assignments, leave.

The newest layout names the controller; when that moves, the consumer registers there and keeps its share.
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass

from engine.client.base.options import ConsumerOptions
from engine.client.net.link import REGISTRATION, Link, LinkState
from engine.client.net.pool import persist
from engine.client.topic.layout import TopicLayout
from engine.client.topic.session import TopicSession
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
from engine.model.subscriptions import DeliveryMode
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
    mode: DeliveryMode
    bucket_ends: tuple[int, ...] = ()


class Registration:
    """Loop thread only. The controller identifies the session by the consumer's name, this object by
    `options.instance`.

    `on_assignment` gets the epoch of the layout that the share is computed from, and the whole share.
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
        self._link: Link | None = None  # while it is open
        self._opening: Link | None = None
        self._url: str | None = None  # of the controller that it registered with
        self.created_ms: int | None = None  # of the subscription, once known
        self._refused = 0  # in a row
        self._registered = False
        self._registering = False  # again, in the background
        self._closed = False

    async def start(self) -> None:
        """Register; `on_assignment` was called when this returns.

        Raises ConsumerBusyError, NotFoundError, ConnectError, TimeoutError.
        """
        timeout = self._pool.options.operation_timeout
        what = f"registering with the controller of {self._session.topic}"
        # The controller says TimeoutError while a segment's owner is dead, and none other may begin.
        await persist(self._pool, self._register, timeout, what, (ConnectError, TimeoutError))
        self._registered = True
        if self._link is None:
            self.link_ended(ConnectError("the connection was lost right behind the answer"))

    async def _register(self) -> None:
        try:
            await self._session.at(_controller_url, self._register_at)
        except EngineError:
            self._refused += 1
            self._session.refused(self._refused)
            raise
        self._refused = 0

    async def _register_at(self, url: str | None) -> None:
        if self._closed:  # before this attempt had a link that could be closed
            return
        link = self._opening = Link(self._pool, REGISTRATION, self)
        self._url = url
        try:
            if await link.open(url, self._subscribe, self._pool.options.operation_timeout) is not None:
                self._link = link
        finally:
            self._opening = None

    def _subscribe(self, ident: int) -> commands.ScalableTopicSubscribe:
        return commands.ScalableTopicSubscribe(
            consumer_id=ident,
            topic=str(self._session.topic),
            subscription=self._options.subscription or self._options.group or "",
            consumer_name=self._options.name,
            instance=self._options.instance,
            kind=self._kind,
            initial_position=self._options.initial_position,
            created_ms=self.created_ms,
        )

    # -- Attached --------------------------------------------------------------------------------------------

    def frame_received(self, header: Header, payload: memoryview) -> None:
        """An assignment."""
        if self._closed:
            return
        if isinstance(header, commands.ScalableTopicAssignment):
            self.created_ms = self.created_ms or header.created_ms
            self._on_assignment(header.layout_epoch, _assigned(header.segments))

    def resume_writing(self) -> None:
        """Nothing is held back."""

    def link_ended(self, error: EngineError) -> None:
        """Register again: within the grace period the share is kept."""
        self._link = None
        if self._closed or not self._registered or self._pool.closed:
            return
        if not (error.layout_stale or isinstance(error, _PASSING)):
            self._registered = False
            self._on_failed(error)
        elif not self._registering:
            self._registering = True
            self._pool.tasks.spawn(self._again(), name=f"register {self._options.name}")

    def check_controller(self) -> None:
        """Register with another controller if the layout names one. The old one is not told: to it, that would be a
        leave.
        """
        moved = self._session.layout.controller_url not in (None, self._url)
        if moved and self._registered and not self._registering and self._link is not None:
            self._link.drop()
            self.link_ended(NotOwnerError("another broker leads the topic"))

    async def _again(self) -> None:
        backoff = self._pool.retry_delays()
        try:
            while self._registered and not self._closed and self._link is None:
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

        A controller that has moved is looked up, for a few seconds, as long as brokers are connected: otherwise the
        other consumers would wait for the end of the grace period.
        """
        self._closed = True
        backoff = self._pool.retry_delays()
        timeout = self._pool.options.operation_timeout if self._link or self._opening else LEAVE_S_MAX
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
        for link in (self._link, self._opening):
            if link is not None:
                link.drop()

    async def _leave_at(self, url: str | None) -> None:
        """Any connection may carry the leave of this instance; its own one names the registration by its id."""
        known, ident = self._link or self._opening, None
        if known is not None and known.state is not LinkState.NEW and known.connection.lost is None:
            ident = known.ident if url == self._url else None
        connection = await self._pool.get(url) if known is None or ident is None else known.connection
        request = commands.ScalableTopicUnsubscribe(
            consumer_id=connection.next_id() if ident is None else ident,
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
    return [
        Assigned(s.segment_id, s.topic, DeliveryMode.parse(s.mode), tuple(s.bucketBoundaries or ())) for s in segments
    ]
