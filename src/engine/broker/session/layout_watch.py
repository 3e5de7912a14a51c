"""`DagWatchSession`: a client follows the layout of a topic (PIP-468)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from engine.control.base.ports import TopicView, TopicWatch
from engine.errors import AlreadyClosedError, NotFoundError
from engine.model.segment import SegmentInfo
from engine.wire import commands

if TYPE_CHECKING:
    from engine.broker.session.connection import Connection


# Changes of owners within this time are sent together; it grows by as much for every so many segments, since while a
# wide topic is opened, each of its segments gets an owner, and each check reads the owners of all.
_OWNERS_S = 0.01
_OWNERS_PER_PAUSE = 64


class DagWatchSession:
    """Sends SCALABLE_TOPIC_UPDATE: first as the answer to the request, then for every newer layout, and for the same
    layout when a segment has a new owner or the topic a new controller.

    A TopicListener. Loop thread only.
    """

    __slots__ = ("_connection", "_gone", "_ident", "_looking", "_stop_listening", "_topic", "_urls", "_watch", "closed")

    def __init__(self, connection: Connection, ident: int, topic: str) -> None:
        self._connection = connection
        self._ident = ident
        self._topic = topic
        self._watch: TopicWatch | None = None  # once the request was answered
        self._gone: NotFoundError | None = None
        self._urls: dict[str, str] = {}  # of the segments' owners, as last sent
        self._stop_listening: Callable[[], None] | None = None
        self._looking: asyncio.TimerHandle | None = None
        self.closed = False

    async def open(self, request_id: int, create: bool) -> None:
        """Answer the request, and follow the topic.

        Raises NotFoundError, InvalidArgumentError, TooManyRequestsError, TimeoutError; AlreadyClosedError: by close().
        """
        host = self._connection.host
        with host.memory.lookups:
            watch = await host.service.watch_topic(self._topic, self, create=create)
        if not self.closed:
            await self._connection.answers.room()
        if self._gone is not None:
            raise self._gone
        stop_listening = _nothing
        try:
            if not self.closed:
                stop_listening = await host.members.ownership.listen(watch.view.topic, self._owners_changed)
            if self._gone is not None:
                raise self._gone
        except BaseException:
            stop_listening()
            watch.close()
            raise
        if self.closed:
            stop_listening()
            watch.close()
            raise AlreadyClosedError(f"{self._ident} was closed before it was open")
        self._send(watch.view, request_id)
        self._watch = watch
        self._stop_listening = stop_listening

    def _owners_changed(self) -> None:
        """Check soon: when a broker joins or leaves, many owners change."""
        if self._looking is None and not self.closed:
            pause = _OWNERS_S * (1 + len(self._urls) // _OWNERS_PER_PAUSE)
            self._looking = asyncio.get_running_loop().call_later(pause, self._check_owners)

    def _check_owners(self) -> None:
        self._looking = None
        if self._watch is not None and not self.closed and self._owners(self._watch.view) != self._urls:
            self._connection.answers.send_update(self)

    def topic_changed(self, view: TopicView) -> None:
        """Send the newest layout, when the peer takes answers."""
        if self._watch is not None and not self.closed:
            self._connection.answers.send_update(self)

    def send_update(self) -> None:
        """Send the current layout."""
        if self._watch is not None and not self.closed:
            self._send(self._watch.view, None)

    def topic_deleted(self) -> None:
        """Send the error, and end."""
        if not self.closed:
            self._gone = NotFoundError(f"the topic {self._topic} was deleted")
            if self._watch is not None:  # else it is the answer to the request
                self._connection.error(0, self._gone, session_id=self._ident)
            self.close()

    def close(self) -> None:
        """Stop following. Idempotent."""
        self.closed = True
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()
        stop, self._stop_listening = self._stop_listening, None
        if stop is not None:
            stop()
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None
        if self._connection.watches.get(self._ident) is self:
            del self._connection.watches[self._ident]

    def connection_lost(self) -> None:
        """The connection is closed."""
        self.close()

    def _send(self, view: TopicView, request_id: int | None) -> None:
        update = commands.ScalableTopicUpdate(
            request_id=request_id,
            session_id=self._ident,
            topic=str(view.topic),
            epoch=view.layout.epoch,
            dag=self._dag(view),
        )
        self._connection.send(update)

    def _dag(self, view: TopicView) -> commands.Dag:
        host, stream = self._connection.host, self._connection.stream
        layout = view.layout
        self._urls = self._owners(view)
        return commands.Dag(
            epoch=layout.epoch,
            keyHash=layout.key_hash,
            durability=layout.durability,
            createdAtMs=layout.created_at_ms,
            segments=[_segment(s) for s in layout.segments.values()],
            segmentBrokers=self._urls,
            controllerBrokerUrl=host.addresses.dial(view.controller_url, stream),
        )

    def _owners(self, view: TopicView) -> dict[str, str]:
        """The address of each segment's owner for this client, by the segment's id."""
        host, stream = self._connection.host, self._connection.stream
        url_of = host.members.ownership.url_of
        names = [view.topic.segment(s.hash_range, s.segment_id) for s in view.layout.segments.values()]
        owners = {str(name.segment_id): url_of(name) for name in names}
        # A wide topic has many segments and few owners: what the client dials is the same for all of one owner.
        dialled = {owner: host.addresses.dial(owner, stream) for owner in set(owners.values())}
        return {ident: dialled[owner] for ident, owner in owners.items()}


def _nothing() -> None:
    """Not listening yet."""


def _segment(info: SegmentInfo) -> commands.Segment:
    return commands.Segment(
        segmentId=info.segment_id,
        hashRange=commands.Ring(start=info.hash_range.start, end=info.hash_range.end),
        state=str(info.state),
        createdAtEpoch=info.created_at_epoch,
        sealedAtEpoch=info.sealed_at_epoch,
        createdAtMs=info.created_at_ms,
        sealedAtMs=info.sealed_at_ms,
        parentIds=list(info.parent_ids),
        childIds=list(info.child_ids),
        bucketBoundaries=list(info.bucket_ends),
    )
