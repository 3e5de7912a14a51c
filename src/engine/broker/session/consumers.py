"""Requests of consumers: attach in a mode, credit, acknowledge, redeliver, close; and positions in a segment."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from engine.broker.delivery.bucket_acks import check_buckets, open_buckets
from engine.broker.delivery.consumer import Consumer, LoneReader, consumer_key
from engine.broker.delivery.subscription import HostedSubscription
from engine.broker.delivery.transactional_acks import learn_buckets
from engine.broker.rights.need import Need, on_topic
from engine.broker.segment.hosted import HostedSegment
from engine.broker.session.attaching import attach, check_wanted, evict_dead, open_segment
from engine.errors import EngineError, InvalidArgumentError, LimitExceededError, NotOwnerError
from engine.model.names import check_name, check_new_name
from engine.model.subscriptions import DeliveryMode, InitialPosition, SubscriptionKind
from engine.model.transactions import parse_id
from engine.wire import commands

if TYPE_CHECKING:
    from engine.broker.session.connection import Connection

SETTLE = "settle"  # the type of an ACK that hurries lazy ones
GAPS_SENT_MAX = 64  # in SUBSCRIBE_SUCCESS: the newest ones

Attached = tuple[Consumer, int, int | None]  # with its position, and when its subscription was created


def subscribe(connection: Connection, header: commands.Subscribe, payload: memoryview) -> None:
    """SUBSCRIBE."""
    attach_in_mode = _ATTACH[DeliveryMode.parse(header.mode)]
    attach(connection, header.consumer_id, header.request_id, _subscribe(connection, header, attach_in_mode))


async def _subscribe(connection: Connection, header: commands.Subscribe, attach_in_mode: Attach) -> None:
    check_new_name(header.consumer_name, "consumer", pattern=False)
    hosted = await open_segment(connection, header.topic)
    connection.check_attachments()
    await _make_room(connection, hosted, header)
    _check_limits(connection, hosted, header)
    consumer, position, created_ms = await attach_in_mode(connection, hosted, header)
    try:
        check_wanted(connection, consumer.ident)
        connection.check_attachments()  # others may have attached meanwhile
        _check_limits(connection, hosted, header)
    except EngineError:
        consumer.close()
        raise
    connection.consumers[consumer.ident] = consumer
    if (limits := connection.host.memory.limits) is not None:
        consumer.limit(limits)
    gaps = [[start, stop] for start, stop in hosted.segment.gaps if stop >= position]
    success = commands.SubscribeSuccess(
        request_id=header.request_id,
        consumer_id=consumer.ident,
        position=position,
        first=hosted.segment.first_offset,
        seeks=consumer.seeks,
        created_ms=created_ms,
        gaps=gaps[-GAPS_SENT_MAX:] or None,
    )
    connection.send(success)
    consumer.pump()


def _check_limits(connection: Connection, hosted: HostedSegment, header: commands.Subscribe) -> None:
    """Raise LimitExceededError unless the consumer may attach."""
    if (limits := connection.host.memory.limits) is not None:
        name = consumer_key(header.subscription, header.consumer_name)
        several = header.mode in (DeliveryMode.READER, DeliveryMode.QUEUE)
        limits.check_consumer(hosted.name, connection.role, name, several=several)


async def _make_room(connection: Connection, hosted: HostedSegment, header: commands.Subscribe) -> None:
    """One that comes back is not refused for its own earlier attachment, over a connection that is dead."""
    limits = connection.host.memory.limits
    name = consumer_key(header.subscription, header.consumer_name)
    if limits is not None and (alike := limits.alike(hosted.name, name)):
        try:
            _check_limits(connection, hosted, header)
        except LimitExceededError:
            await evict_dead(connection, lambda: [peer for peer in alike if not peer.closed])


async def _attach_reader(connection: Connection, hosted: HostedSegment, header: commands.Subscribe) -> Attached:
    hosted.check_open()
    segment = hosted.segment
    start = min(max(header.start or 0, segment.first_offset), segment.durable_offset)
    reader = LoneReader(connection, header.consumer_id, hosted, header.consumer_name, start=start)
    return reader, start, header.created_ms


async def _attach_exclusive(connection: Connection, hosted: HostedSegment, header: commands.Subscribe) -> Attached:
    subscription, created_ms = await _stream_subscription(connection, hosted, header)
    _check_name(connection, subscription, header.consumer_name)
    own = [parse_id(ident) for ident in header.transactions or ()]
    consumer = subscription.attach_exclusive(connection, header.consumer_id, header.consumer_name, own)
    return consumer, subscription.start, created_ms


async def _attach_shared(connection: Connection, hosted: HostedSegment, header: commands.Subscribe) -> Attached:
    said, ends = header.bucketBoundaries, list(hosted.spec.bucket_ends)
    if said is None:
        raise InvalidArgumentError("SUBSCRIBE mode 'shared' requires bucketBoundaries, as in the assignment")
    if said != ends:
        raise NotOwnerError(f"bucketBoundaries must be {ends}, those of {hosted.name}, got {said}: the layout is stale")
    subscription, created_ms = await _stream_subscription(connection, hosted, header)
    await learn_buckets(subscription.pending)
    check_wanted(connection, header.consumer_id)
    _check_name(connection, subscription, header.consumer_name)
    consumer = subscription.attach_shared(connection, header.consumer_id, header.consumer_name)
    return consumer, subscription.start, created_ms


def _check_name(connection: Connection, subscription: HostedSubscription, name: str) -> None:
    """A role does not end the session of another one's consumer by its name. Raises AuthorizationError."""
    taken = any(c.name == name and c.connection.role != connection.role for c in subscription.consumers)
    if connection.needs is not None and taken:
        need = Need(0, on_topic(subscription.hosted.name.topic), subscription.name)
        raise connection.denial("SUBSCRIBE", f"the consumer name {name!r:.200} is in use by another role", need)


async def _stream_subscription(
    connection: Connection, hosted: HostedSegment, header: commands.Subscribe
) -> tuple[HostedSubscription, int]:
    """The subscription, when dead rivals are dropped, and the connection is the latest of the consumer's name."""
    name = header.consumer_name
    subscription, created_ms = await _subscription(connection, hosted, header, SubscriptionKind.STREAM)
    await subscription.pending.refresh()  # a transaction that has ended may move the cursor
    await evict_dead(connection, lambda: subscription.rivals(name, DeliveryMode(header.mode)))
    if subscription.is_read_elsewhere(connection, name):  # if this request was delayed, that is a later session
        await connection.prove_alive()
    check_wanted(connection, header.consumer_id)
    return subscription, created_ms


async def _attach_queue(connection: Connection, hosted: HostedSegment, header: commands.Subscribe) -> Attached:
    name = header.consumer_name
    subscription, created_ms = await _subscription(connection, hosted, header, SubscriptionKind.QUEUE)
    await evict_dead(connection, lambda: subscription.rivals(name, DeliveryMode(header.mode)))
    consumer = subscription.attach_queue(connection, header.consumer_id, name, header.priority or 0)
    return consumer, subscription.start, created_ms


Attach = Callable[["Connection", HostedSegment, commands.Subscribe], Coroutine[Any, Any, Attached]]
_ATTACH: dict[DeliveryMode, Attach] = {
    DeliveryMode.EXCLUSIVE: _attach_exclusive,
    DeliveryMode.SHARED: _attach_shared,
    DeliveryMode.READER: _attach_reader,
    DeliveryMode.QUEUE: _attach_queue,
}


async def _subscription(
    connection: Connection, hosted: HostedSegment, header: commands.Subscribe, kind: SubscriptionKind
) -> tuple[HostedSubscription, int]:
    """It, and when it was created."""
    name = check_name(header.subscription or "", "subscription")
    position = InitialPosition.parse(header.initial_position or InitialPosition.LATEST)
    host = connection.host
    known, topic = header.created_ms, hosted.name.topic
    facts = await host.calls.ensure_subscription(topic, name, position, kind, known)
    return await host.subscriptions.open(hosted, name, facts), facts.created_at_ms


def flow(connection: Connection, header: commands.Flow, payload: memoryview) -> None:
    """FLOW."""
    consumer = connection.consumers.get(header.consumer_id)
    if consumer is not None:
        consumer.add_credit(header.messages, header.bytes, header.window)


def acknowledge(connection: Connection, header: commands.Ack, payload: memoryview) -> None:
    """ACK. Refused when the consumer is not attached any more (semantics 12)."""
    consumer = connection.consumers.get(header.consumer_id)
    if consumer is None:
        raise NotOwnerError(f"the consumer {header.consumer_id} is not attached; attach and acknowledge again")
    done = consumer.settled() if header.ack_type == SETTLE else consumer.acknowledge(header)
    connection.answer_when(header.request_id, done)


def redeliver(connection: Connection, header: commands.Redeliver, payload: memoryview) -> None:
    """REDELIVER."""
    consumer = connection.consumers.get(header.consumer_id)
    if consumer is not None:
        consumer.redeliver(header)


def close_consumer(connection: Connection, header: commands.CloseConsumer, payload: memoryview) -> None:
    """CLOSE_CONSUMER. Acknowledges nothing."""
    consumer = connection.consumers.get(header.consumer_id)
    if consumer is not None:
        consumer.leaving(header)
        consumer.close()
    connection.openings.abandon(header.consumer_id)
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
    acknowledged = await connection.host.subscriptions.acknowledged_by(hosted, subscription)
    known = await connection.host.subscriptions.find(hosted, subscription)
    backlog = segment.durable_offset - max(segment.first_offset, acknowledged) if known is None else known.backlog
    place = replace(place, acknowledged=acknowledged, backlog=max(backlog, 0))
    if header.buckets is None or known is None:
        return place
    buckets = await open_buckets(known, check_buckets(header.buckets, hosted))
    return replace(place, open_buckets=buckets)
