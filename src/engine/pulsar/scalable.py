"""Scalable topics of one connection: layouts that a client follows, and consumers registered with a controller.

A lookup of theirs is a lookup of ours whose watch stays open; a consumer that subscribes at the controller is a
registration of ours. Answers and what is pushed later are made frames in encode(), in the order in which the broker has
sent them: an answer that were made later could overtake nothing, but be overtaken.

**Leaving.** A client closes the consumers of its segments, and says nothing to the controller. So a stream consumer
whose segments are all closed by the client, on this connection, leaves; of others the grace period begins when the
connection ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from engine.errors import AuthorizationError, EngineError, InvalidArgumentError, NotFoundError, UnsupportedError
from engine.limits import HASH_RING_SIZE
from engine.model.names import CLASSIC_SCHEME, TOPIC_SCHEME, SegmentName, TopicName
from engine.model.partitions import partition_names, partition_of
from engine.model.subscriptions import InitialPosition, SubscriptionKind
from engine.pulsar.layouts import partitions_of
from engine.pulsar.messages import framed
from engine.pulsar.names import scalable_of, service_url, topic_of
from engine.pulsar.server_errors import number_of
from engine.wire import commands

if TYPE_CHECKING:
    from engine.pulsar.session import Session
    from engine.wire.stream import Payload

log = logging.getLogger(__name__)

# What their clients route keys by, which has changed behind the first one.
_FIRST_CLIENT = "5.0.0-M1"
_FIRST_HASH, _HASH = "murmur3-low", "murmur3"
_KINDS = (SubscriptionKind.STREAM, SubscriptionKind.CHECKPOINT)
_STATES = {"ACTIVE": 0, "SEALED": 1}

# What a client asks of each segment, of one that stands for a classic topic.
_UNCHANGED = {"state": _STATES["ACTIVE"], "created_epoch": 0, "created_ms": 0}

_instances = itertools.count(1)


def segment_consumer(name: str, segment_id: int) -> str:
    """The name of a consumer of one segment, as a client makes it of that of its consumer of the topic."""
    return f"{name}-seg-{segment_id}"


@dataclass(eq=False)
class _Registered:
    """A consumer at the controller. `number`: its id as the client says it."""

    number: int
    topic: TopicName
    subscription: str
    name: str
    instance: str
    kind: SubscriptionKind
    segments: set[int] = field(default_factory=set)
    open: set[int] = field(default_factory=set)  # segments with a consumer on this connection
    left: bool = False

    def same_as(self, other: _Registered) -> bool:
        """Whether the controller takes both for one."""
        mine, theirs = ((one.topic, one.subscription, one.name) for one in (self, other))
        return mine == theirs


def key_hash_of(client: str) -> str:
    """The key hash by which a client chooses segments; `client`: its version as it says."""
    return _FIRST_HASH if client.endswith(_FIRST_CLIENT) else _HASH


class Scalable:
    """Loop thread only."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._watched: dict[int, tuple[int, TopicName]] = {}  # by the id at the Connection: the client's, the topic
        self._registered: dict[int, _Registered] = {}  # by the id at the Connection
        self._asking: dict[int, int] = {}  # request of ours -> that of the client, of a registration under way

    def handlers(self) -> dict[str, Callable[[Any, memoryview], None]]:
        """The commands that are about scalable topics."""
        return {
            "scalable_lookup": self._lookup,
            "scalable_close": self._close,
            "scalable_subscribe": self._subscribe,
        }

    # -- layouts ---------------------------------------------------------------------------------------------------

    def _lookup(self, header: Any, payload: memoryview) -> None:
        def failed(error: EngineError) -> None:
            self._session.say("scalable_update", session=header.session, error=number_of(error), message=str(error))

        self._session.start(0, self._looked_up(header), failed)

    async def _looked_up(self, header: Any) -> None:
        from engine.pulsar.session import watch_ident

        session, ident = self._session, watch_ident(header.session)
        topic = await self._topic_of(header.topic)
        if topic.classic:
            session.say(
                "scalable_update", session=header.session, dag=await self._classic(topic), resolved=_path(topic)
            )
            return
        session.connection.check_unused(ident)
        self._watched[ident] = header.session, topic
        try:
            try:
                await self._watch(ident, topic)
            except NotFoundError:
                # As for a lookup of ours that may create the topic.
                session.check(_lookup(0, ident, topic, create=True))
                await session.host.service.ensure_topic(topic, create=True, key_hash=key_hash_of(session.client))
                await self._watch(ident, topic)
        except BaseException:
            self._watched.pop(ident, None)
            raise

    async def _topic_of(self, text: str) -> TopicName:
        """The topic that a client means. It takes a name without a scheme for a classic one: it is the scalable one of
        that name if there is only that, as at Apache Pulsar.
        """
        if not text.startswith(CLASSIC_SCHEME):
            return scalable_of(text)
        topic = topic_of(text)
        if partition_of(topic) >= 0:
            raise InvalidArgumentError(f"the layout is one of a whole topic, got the partition {topic}")
        try:
            await partitions_of(self._session, topic)
        except NotFoundError:
            with contextlib.suppress(NotFoundError, AuthorizationError):
                other = TopicName.parse(text.replace(CLASSIC_SCHEME, TOPIC_SCHEME, 1))
                await partitions_of(self._session, other)
                return other
        return topic

    async def _classic(self, topic: TopicName) -> dict[str, Any]:
        """A classic topic as a layout: a segment for each partition, that names what clients attach to.

        They do not follow it, as at Apache Pulsar. A topic that is not there is created when one attaches to it.
        """
        try:
            count = await partitions_of(self._session, topic)
        except NotFoundError:
            count = 0
        names = partition_names(topic, range(count)) or [str(topic)]
        return {"epoch": 0, "segments": [_classic_segment(number, names) for number in range(len(names))]}

    async def _watch(self, ident: int, topic: TopicName) -> None:
        await self._session.ask(lambda number: _lookup(number, ident, topic, create=False))

    def updated(self, header: commands.ScalableTopicUpdate, payload: Payload) -> bytes:
        """A layout: the answer to a lookup of ours, or one that a client follows."""
        watched = self._watched.get(header.session_id)
        if header.request_id:
            self._session.resolve(header.request_id, header)
        if watched is None:
            return b""
        number, topic = watched
        return framed("scalable_update", session=number, dag=_dag(header.dag), resolved=str(topic))

    def watch_ended(self, ident: int, error: EngineError) -> bytes:
        """The topic was deleted, or may not be followed any more."""
        watched = self._watched.pop(ident, None)
        if watched is None:
            return b""
        return framed("scalable_update", session=watched[0], error=number_of(error), message=str(error))

    def _close(self, header: Any, payload: memoryview) -> None:
        from engine.pulsar.session import watch_ident

        ident = watch_ident(header.session)
        if self._watched.pop(ident, None) is not None:
            self._session.native(commands.ScalableTopicClose(session_id=ident))

    # -- consumers at the controller -------------------------------------------------------------------------------

    def _subscribe(self, header: Any, payload: memoryview) -> None:
        def failed(error: EngineError) -> None:
            self._session.say(
                "scalable_subscribe_response", request=header.request, error=number_of(error), message=str(error)
            )

        self._session.start(header.request, self._subscribed(header), failed)

    async def _subscribed(self, header: Any) -> None:
        from engine.pulsar.session import consumer_ident

        if not 0 <= header.type < len(_KINDS):
            raise InvalidArgumentError(f"consumer_type must be 0 or 1, got {header.type}")
        session, ident, kind = self._session, consumer_ident(header.consumer), _KINDS[header.type]
        topic = await self._topic_of(header.topic)
        if topic.classic:
            raise UnsupportedError(
                f"stream consumers and groups of checkpoint consumers read scalable topics (topic://), got {topic}: "
                "queue consumers, and checkpoint consumers alone, read classic ones"
            )
        session.connection.check_unused(ident)
        instance = f"{session.stream.peer} {session.host.clock.time_ms()} {next(_instances)}"
        one = _Registered(header.consumer, topic, header.subscription, header.name, instance, kind)

        def make(number: int) -> commands.ScalableTopicSubscribe:
            self._asking[number] = header.request
            return commands.ScalableTopicSubscribe(
                request_id=number,
                consumer_id=ident,
                topic=str(topic),
                subscription=header.subscription,
                consumer_name=header.name,
                instance=instance,
                kind=str(kind),
                # The position comes with the first consumer of a segment.
                initial_position=str(InitialPosition.UNDECIDED),
            )

        self._registered[ident] = one
        try:
            await session.ask(make)
        except BaseException:
            self._registered.pop(ident, None)
            raise
        finally:
            for number in [n for n, theirs in self._asking.items() if theirs == header.request]:
                del self._asking[number]

    def assigned(self, header: commands.ScalableTopicAssignment, payload: Payload) -> bytes:
        """The answer to a registration, or a new share."""
        one = self._registered.get(header.consumer_id)
        if header.request_id:
            self._session.resolve(header.request_id, header)
        if one is None:
            return b""
        one.segments = {segment.segment_id for segment in header.segments}
        said = {"epoch": header.layout_epoch, "segments": [_assigned(segment) for segment in header.segments]}
        if header.request_id:
            return framed("scalable_subscribe_response", request=self._asking[header.request_id], assignment=said)
        return framed("assignment_update", consumer=one.number, assignment=said)

    def registration_ended(self, ident: int, message: str | None) -> bool:
        """Whether it was one of a registration, that the broker has ended.

        The protocol has no word for that: where the connection ends, a client registers again, or learns why not.
        """
        one = self._registered.pop(ident, None)
        if one is None:
            return False
        if any(one.same_as(other) for other in self._registered.values()):
            return True  # it is the client that has registered again: it did not say that the first one was closed
        log.info("the consumer %s of %s registers again: %s", one.name, one.topic, message)
        asyncio.get_running_loop().call_soon(self._session.stream.close)
        return True

    def attached(self, segment: SegmentName, subscription: str, name: str) -> None:
        """A consumer of a segment has attached on this connection."""
        if (one := self._registration_of(segment, subscription, name)) is not None:
            one.open.add(segment.segment_id)

    async def detached(self, segment: SegmentName, subscription: str, name: str) -> None:
        """The client has closed the consumer of a segment; with the last one of its share it leaves."""
        one = self._registration_of(segment, subscription, name)
        if one is None:
            return
        one.open.discard(segment.segment_id)
        if one.open or one.left or one.kind is not SubscriptionKind.STREAM or segment.segment_id not in one.segments:
            return
        one.left = True
        ident = next(ident for ident, other in self._registered.items() if other is one)
        await self._session.ask(
            lambda number: commands.ScalableTopicUnsubscribe(
                request_id=number, consumer_id=ident, instance=one.instance
            )
        )
        self._registered.pop(ident, None)

    def _registration_of(self, segment: SegmentName, subscription: str, name: str) -> _Registered | None:
        for one in self._registered.values():
            same = (one.topic, one.subscription) == (segment.topic, subscription)
            if same and segment_consumer(one.name, segment.segment_id) == name:
                return one
        return None


def _lookup(number: int, ident: int, topic: TopicName, *, create: bool) -> commands.ScalableTopicLookup:
    return commands.ScalableTopicLookup(request_id=number, session_id=ident, topic=str(topic), create=create)


def _dag(dag: commands.Dag) -> dict[str, Any]:
    brokers = dag.segmentBrokers or {}
    found: dict[str, Any] = {
        "epoch": dag.epoch,
        "segments": [_segment(one) for one in dag.segments],
        "brokers": [
            {"id": int(number), "url": service_url(url), "url_tls": service_url(url, tls=True)}
            for number, url in brokers.items()
        ],
    }
    if dag.controllerBrokerUrl:
        found["controller"] = service_url(dag.controllerBrokerUrl)
        found["controller_tls"] = service_url(dag.controllerBrokerUrl, tls=True)
    return found


def _segment(one: commands.Segment) -> dict[str, Any]:
    found: dict[str, Any] = {
        "id": one.segmentId,
        "start": one.hashRange.start,
        "end": one.hashRange.end,
        "state": _STATES[one.state],
        "parents": one.parentIds or [],
        "children": one.childIds or [],
        "created_epoch": one.createdAtEpoch or 0,
        "created_ms": one.createdAtMs or 0,
    }
    if one.sealedAtEpoch is not None:
        found["sealed_epoch"] = one.sealedAtEpoch
    if one.sealedAtMs is not None:
        found["sealed_ms"] = one.sealedAtMs
    return found


def _path(topic: TopicName) -> str:
    """A classic topic's name in a layout, where clients want that of a scalable topic. No other topic can have it."""
    return f"{TOPIC_SCHEME}{topic.tenant}/{topic.namespace}/{topic.local}"


def _classic_segment(number: int, names: list[str]) -> dict[str, Any]:
    """The segment of a partition. A client deals keys by Murmur3 modulo the count, whatever the ranges; they only have
    to be different.
    """
    start, end = (HASH_RING_SIZE * at // len(names) for at in (number, number + 1))
    return {"id": number, "start": start, "end": end - 1, **_UNCHANGED, "classic": names[number]}


def _assigned(one: commands.AssignedSegment) -> dict[str, Any]:
    ring = SegmentName.parse(one.topic).hash_range
    return {"id": one.segment_id, "start": ring.start, "end": ring.end, "topic": one.topic}
