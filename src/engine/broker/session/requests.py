"""What each command of a client does: looks up what the header names, attaches, and hands on."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from engine.broker.cluster.segment_calls import pack, unpack_args
from engine.broker.delivery.bucket_acks import check_buckets, open_buckets
from engine.broker.delivery.consumer import Consumer, LoneReader
from engine.broker.delivery.subscription import HostedSubscription
from engine.broker.delivery.transactional_acks import learn_buckets
from engine.broker.segment.access import WAIT, applicant
from engine.broker.segment.hosted import HostedSegment
from engine.broker.session.assignments import Registration
from engine.broker.session.layout_watch import DagWatchSession
from engine.control.base.ports import segment_spec
from engine.errors import (
    AlreadyClosedError,
    EngineError,
    InvalidArgumentError,
    NotFoundError,
    NotOwnerError,
)
from engine.model.names import SegmentName, TopicName, check_name, check_new_name
from engine.model.schema import TopicSchema
from engine.model.subscriptions import InitialPosition, SubscriptionKind
from engine.model.transactions import parse_id
from engine.wire import commands

if TYPE_CHECKING:
    from engine.broker.session.connection import Connection

GAPS_TOLD_MAX = 64  # the newest ones
ATTEMPTS_MAX = 5  # to attach while dead rivals are being dropped

Attachment = tuple[Consumer, int, int | None]  # with its position, and when its subscription was created


def _open(connection: Connection, ident: int, request_id: int, work: Coroutine[Any, Any, Any]) -> None:
    """Do it in the background when it is its turn, with the client's id reserved meanwhile."""
    try:
        connection.claim(ident)
    except EngineError:
        work.close()
        raise
    turn = connection.broker.memory.intake.request()

    def over() -> None:
        work.close()
        connection.unclaim(ident)

    async def claimed() -> Any:
        try:
            if turn is not None:
                await turn
            return await work
        finally:
            over()

    connection.start(request_id, claimed(), over)


# -- layouts and assignments -------------------------------------------------------------------------------------------


def lookup(connection: Connection, header: commands.ScalableTopicLookup, payload: memoryview) -> None:
    """SCALABLE_TOPIC_LOOKUP."""
    session = DagWatchSession(connection, header.session_id, header.topic)
    _open(connection, header.session_id, header.request_id, _lookup(connection, session, header))


async def _lookup(connection: Connection, session: DagWatchSession, header: commands.ScalableTopicLookup) -> None:
    ident = header.session_id
    connection.watches[ident] = session
    try:
        await session.open(header.request_id, header.create)
    except BaseException:
        session.close()
        raise
    if connection.closed:
        session.close()


def close_lookup(connection: Connection, header: commands.ScalableTopicClose, payload: memoryview) -> None:
    """SCALABLE_TOPIC_CLOSE."""
    session = connection.watches.get(header.session_id)
    if session is not None:
        session.close()


def register(connection: Connection, header: commands.ScalableTopicSubscribe, payload: memoryview) -> None:
    """SCALABLE_TOPIC_SUBSCRIBE."""
    registration = Registration(connection, header)
    _open(connection, header.consumer_id, header.request_id, _register(connection, registration, header))


async def _register(
    connection: Connection, registration: Registration, header: commands.ScalableTopicSubscribe
) -> None:
    ident = header.consumer_id
    connection.registrations[ident] = registration
    try:
        await registration.open(header.request_id, header.kind, header.initial_position)
    except BaseException:
        registration.closed = True
        if connection.registrations.get(ident) is registration:
            del connection.registrations[ident]
        raise


def unregister(connection: Connection, header: commands.ScalableTopicUnsubscribe, payload: memoryview) -> None:
    """SCALABLE_TOPIC_UNSUBSCRIBE."""
    registration = connection.registrations.get(header.consumer_id)
    if registration is not None:
        connection.start(header.request_id, _unregister(registration, header.instance))
    elif header.topic is not None and header.subscription is not None and header.consumer_name is not None:
        who = (header.topic, header.subscription, header.consumer_name)
        connection.start(header.request_id, _leave(connection, who, header.instance))
    else:
        connection.succeed(header.request_id)  # it has left, or was closed, already


async def _unregister(registration: Registration, instance: str) -> dict[str, Any]:
    await registration.leave(instance)
    return {}


async def _leave(connection: Connection, who: tuple[str, str, str], instance: str) -> dict[str, Any]:
    """Of a consumer that was registered over another connection, or at another broker."""
    await connection.broker.service.unregister_consumer(*who, instance=instance)
    return {}


def topic_schema(connection: Connection, header: commands.TopicSchema, payload: memoryview) -> None:
    """TOPIC_SCHEMA."""
    declared = None if header.schema is None else TopicSchema.of(header.schema, checked=False)
    work = _topic_schema(connection, TopicName.parse(header.topic), declared, header.producer)
    connection.start(header.request_id, work)


async def _topic_schema(
    connection: Connection, topic: TopicName, declared: TopicSchema | None, producer: bool
) -> commands.Schemas:
    schemas = connection.broker.service.schemas
    with connection.broker.memory.lookups:
        if declared is None:
            history = await schemas.history(topic)
        else:
            history = await schemas.declare(topic, declared, producer=producer)
    said = [version.to_mapping() for version in history.versions]
    return commands.Schemas(versions=[commands.SchemaVersion(**version) for version in said])


# -- producers ---------------------------------------------------------------------------------------------------------


def open_producer(connection: Connection, header: commands.Producer, payload: memoryview) -> None:
    """PRODUCER."""
    _open(connection, header.producer_id, header.request_id, _open_producer(connection, header))


async def _open_producer(connection: Connection, header: commands.Producer) -> None:
    who = applicant(connection, header)
    ident = who.ident
    hosted = await open_segment(connection, header.topic)
    hosted.check_active()
    await _evict_dead(connection, lambda: [p.connection for p in hosted.access.rivals(who)])
    if who.mode == WAIT:
        await hosted.access.turn(who)
    _check_wanted(connection, ident)
    connection.broker.memory.attachments.check(connection)
    producer = hosted.access.attach(who)
    connection.producers[ident] = producer
    connection.closed_ids.discard(ident)
    connection.send(producer.success(header.request_id))


def send(connection: Connection, header: commands.Send, payload: memoryview) -> None:
    """SEND."""
    ident = header.producer_id
    if (producer := connection.producers.get(ident)) is not None:
        producer.send(header.entries, payload, header.transaction, header.attempt)
        return
    connection.sends.dropped(header.transaction)
    if ident not in connection.closed_ids:
        unknown = NotFoundError(f"no producer {ident} is attached on this connection")
        refusal = commands.SendError(producer_id=ident, sequence=0, code=unknown.code, message=str(unknown))
        connection.send(refusal)


def close_producer(connection: Connection, header: commands.CloseProducer, payload: memoryview) -> None:
    """CLOSE_PRODUCER: what was sent before is still acknowledged if it is durable by then."""
    if (producer := connection.producers.get(header.producer_id)) is not None:
        producer.close()
    connection.abandon(header.producer_id)
    connection.closed_ids.discard(header.producer_id)
    if header.request_id:
        connection.succeed(header.request_id)


# -- consumers ---------------------------------------------------------------------------------------------------------


def subscribe(connection: Connection, header: commands.Subscribe, payload: memoryview) -> None:
    """SUBSCRIBE."""
    attach = _ATTACH.get(header.mode)
    if attach is None:
        raise InvalidArgumentError(f"mode {header.mode!r}; one of {', '.join(_ATTACH)} is right")
    _open(connection, header.consumer_id, header.request_id, _subscribe(connection, header, attach))


async def _subscribe(connection: Connection, header: commands.Subscribe, attach: Attach) -> None:
    check_new_name(header.consumer_name, "consumer", pattern=False)
    hosted = await open_segment(connection, header.topic)
    connection.broker.memory.attachments.check(connection)
    consumer, position, created_ms = await attach(connection, hosted, header)
    try:
        _check_wanted(connection, consumer.ident)
        connection.broker.memory.attachments.check(connection)  # others may have come meanwhile
    except EngineError:
        consumer.close()
        raise
    connection.consumers[consumer.ident] = consumer
    gaps = [[start, stop] for start, stop in hosted.segment.gaps if stop >= position]
    success = commands.SubscribeSuccess(
        request_id=header.request_id,
        consumer_id=consumer.ident,
        position=position,
        first=hosted.segment.first_offset,
        seeks=consumer.seeks,
        created_ms=created_ms,
        gaps=gaps[-GAPS_TOLD_MAX:] or None,
    )
    connection.send(success)
    consumer.pump()


async def _attach_reader(connection: Connection, hosted: HostedSegment, header: commands.Subscribe) -> Attachment:
    hosted.check_open()
    segment = hosted.segment
    start = min(max(header.start or 0, segment.first_offset), segment.durable_offset)
    return (
        LoneReader(connection, header.consumer_id, hosted, header.consumer_name, start=start),
        start,
        header.created_ms,
    )


async def _attach_exclusive(connection: Connection, hosted: HostedSegment, header: commands.Subscribe) -> Attachment:
    subscription, created_ms = await _stream_subscription(connection, hosted, header)
    own = [parse_id(ident) for ident in header.transactions or ()]
    consumer = subscription.attach_exclusive(connection, header.consumer_id, header.consumer_name, own)
    return consumer, subscription.start, created_ms


async def _attach_shared(connection: Connection, hosted: HostedSegment, header: commands.Subscribe) -> Attachment:
    said, ends = header.bucketBoundaries, list(hosted.spec.bucket_ends)
    if said is None:
        raise InvalidArgumentError("who shares a segment says its bucketBoundaries, as the assignment has them")
    if said != ends:
        raise NotOwnerError(f"{hosted.name} has the bucket boundaries {ends}, not {said}: the layout is stale")
    subscription, created_ms = await _stream_subscription(connection, hosted, header)
    await learn_buckets(subscription.pending)
    _check_wanted(connection, header.consumer_id)
    consumer = subscription.attach_shared(connection, header.consumer_id, header.consumer_name)
    return consumer, subscription.start, created_ms


async def _stream_subscription(
    connection: Connection, hosted: HostedSegment, header: commands.Subscribe
) -> tuple[HostedSubscription, int]:
    """The subscription, once nobody dead is in the way of a consumer, and it is the latest of its name."""
    name = header.consumer_name
    subscription, created_ms = await _subscription(connection, hosted, header, SubscriptionKind.STREAM)
    await subscription.pending.refresh()  # who comes after the end of a transaction begins where that leaves the cursor
    await _evict_dead(connection, lambda: subscription.rivals(name, header.mode))
    if subscription.is_read_elsewhere(connection, name):  # by its later session, if this is a dead one's held-up word
        await connection.prove_alive()
    _check_wanted(connection, header.consumer_id)
    return subscription, created_ms


async def _attach_queue(connection: Connection, hosted: HostedSegment, header: commands.Subscribe) -> Attachment:
    name = header.consumer_name
    subscription, created_ms = await _subscription(connection, hosted, header, SubscriptionKind.QUEUE)
    await _evict_dead(connection, lambda: subscription.rivals(name, header.mode))
    consumer = subscription.attach_queue(connection, header.consumer_id, name, header.priority or 0)
    return consumer, subscription.start, created_ms


Attach = Callable[["Connection", HostedSegment, commands.Subscribe], Coroutine[Any, Any, Attachment]]
_ATTACH: dict[str, Attach] = {
    "exclusive": _attach_exclusive,
    "shared": _attach_shared,
    "reader": _attach_reader,
    "queue": _attach_queue,
}


async def _subscription(
    connection: Connection, hosted: HostedSegment, header: commands.Subscribe, kind: SubscriptionKind
) -> tuple[HostedSubscription, int]:
    """It, and when it was created."""
    name = check_name(header.subscription or "", "subscription")
    position = InitialPosition.parse(header.initial_position or InitialPosition.LATEST)
    broker = connection.broker
    known, topic = header.created_ms, hosted.name.topic
    facts = await broker.calls.ensure_subscription(topic, name, position, kind, known)
    return await broker.subscriptions.open(hosted, name, facts), facts.created_at_ms


def flow(connection: Connection, header: commands.Flow, payload: memoryview) -> None:
    """FLOW."""
    consumer = connection.consumers.get(header.consumer_id)
    if consumer is not None:
        consumer.add_credit(header.messages, header.bytes)


def acknowledge(connection: Connection, header: commands.Ack, payload: memoryview) -> None:
    """ACK. One of a consumer that is not attached any more is refused, not remembered (semantics 12)."""
    consumer = connection.consumers.get(header.consumer_id)
    if consumer is None:
        raise NotOwnerError(f"the consumer {header.consumer_id} is not attached; attach and acknowledge again")
    connection.answer_when(header.request_id, consumer.acknowledge(header))


def redeliver(connection: Connection, header: commands.Redeliver, payload: memoryview) -> None:
    """REDELIVER."""
    consumer = connection.consumers.get(header.consumer_id)
    if consumer is not None:
        consumer.redeliver(header)


def close_consumer(connection: Connection, header: commands.CloseConsumer, payload: memoryview) -> None:
    """CLOSE_CONSUMER. It acknowledges nothing."""
    consumer = connection.consumers.get(header.consumer_id)
    if consumer is not None:
        consumer.leaving(header)
        consumer.close()
    connection.abandon(header.consumer_id)
    if header.request_id:
        connection.succeed(header.request_id)


def segment_offset(connection: Connection, header: commands.SegmentOffset, payload: memoryview) -> None:
    """SEGMENT_OFFSET."""
    connection.start(header.request_id, _segment_offset(connection, header))


async def _segment_offset(connection: Connection, header: commands.SegmentOffset) -> commands.Place:
    hosted = await open_segment(connection, header.topic)
    segment, at, subscription = hosted.segment, header.at, header.subscription
    if isinstance(at, int):
        offset = min(await segment.offset_at(at), hosted.readable)
    else:
        earliest = InitialPosition.parse(at) is InitialPosition.EARLIEST
        offset = segment.first_offset if earliest else hosted.readable
    place = commands.Place(offset=offset, first=segment.first_offset, end=segment.durable_offset, sealed=segment.sealed)
    if subscription is None:
        return place
    acknowledged = await connection.broker.subscriptions.acknowledged_by(hosted, subscription)
    known = await connection.broker.subscriptions.find(hosted, subscription)
    if header.buckets is None or known is None:
        return replace(place, acknowledged=acknowledged)
    buckets = await open_buckets(known, check_buckets(header.buckets, hosted))
    return replace(place, acknowledged=acknowledged, open_buckets=buckets)


# -- other brokers -----------------------------------------------------------------------------------------------------


def broker_call(connection: Connection, header: commands.BrokerCall, payload: memoryview) -> None:
    """BROKER_CALL."""
    connection.start(header.request_id, _answer_broker(connection, header, unpack_args(payload)))


async def _answer_broker(connection: Connection, header: commands.BrokerCall, args: dict[str, Any]) -> None:
    broker = connection.broker
    value = await broker.calls.answer(header.target, header.method, args)
    connection.send(commands.Success(request_id=header.request_id), pack(value))


# -- all of them -------------------------------------------------------------------------------------------------------


async def open_segment(connection: Connection, text: str) -> HostedSegment:
    """The named segment, open. Raises NotFoundError when it is not in the topic's layout or its store is gone."""
    name = SegmentName.parse(text)
    broker = connection.broker
    hosted = broker.segments.get(name)
    if hosted is not None:
        return hosted
    view = await broker.service.ensure_topic(name.topic, create=False)
    info = view.layout.segment(name.segment_id)
    if info.hash_range != name.hash_range:
        raise NotFoundError(f"{name} is not in the layout; segment {info.segment_id} has the range {info.hash_range}")
    return await broker.segments.open(segment_spec(name.topic, view.layout, info), create=info.active)


def _check_wanted(connection: Connection, ident: int) -> None:
    """Raise when the client has gone, or changed its mind: it must not take anything from whoever came after it."""
    if not connection.wants(ident):
        raise AlreadyClosedError(f"{ident} was closed before it was open")


async def _evict_dead(connection: Connection, rivals: Callable[[], list[Connection]]) -> None:
    """Drop rivals' connections that do not answer; the living stay, and whoever comes is told that they are there."""
    for _ in range(ATTEMPTS_MAX):
        others = [c for c in rivals() if c is not connection]
        if not others or all([await c.prove_alive() for c in others]):
            return
