"""Requests of consumers: attach in a mode, credit, acknowledge, redeliver, close; and positions in a segment."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from engine.broker.delivery.bucket_acks import check_buckets, open_buckets
from engine.broker.delivery.consumer import Consumer, LoneReader
from engine.broker.delivery.subscription import HostedSubscription
from engine.broker.delivery.transactional_acks import learn_buckets
from engine.broker.segment.hosted import HostedSegment
from engine.broker.session.attaching import attach, check_wanted, evict_dead, open_segment
from engine.errors import EngineError, InvalidArgumentError, NotOwnerError
from engine.model.names import check_name, check_new_name
from engine.model.subscriptions import DeliveryMode, InitialPosition, SubscriptionKind
from engine.model.transactions import parse_id
from engine.wire.commands import Command

if TYPE_CHECKING:
    from engine.broker.session.connection import Connection

Header = dict[str, Any]
GAPS_SENT_MAX = 64  # in SUBSCRIBE_SUCCESS: the newest ones


def subscribe(connection: Connection, header: Header, payload: memoryview) -> None:
    """SUBSCRIBE."""
    attach_in_mode = _ATTACH[DeliveryMode.parse(header["mode"])]
    attach(connection, header["consumer_id"], header["request_id"], _subscribe(connection, header, attach_in_mode))


async def _subscribe(connection: Connection, header: Header, attach_in_mode: Attach) -> None:
    check_new_name(header["consumer_name"], "consumer", pattern=False)
    hosted = await open_segment(connection, header["topic"])
    connection.check_attachments()
    consumer, position = await attach_in_mode(connection, hosted, header)
    try:
        check_wanted(connection, consumer.ident)
        connection.check_attachments()  # others may have attached meanwhile
    except EngineError:
        consumer.close()
        raise
    connection.consumers[consumer.ident] = consumer
    success = {
        "request_id": header["request_id"],
        "consumer_id": consumer.ident,
        "position": position,
        "first": hosted.segment.first_offset,
        "seeks": consumer.seeks,
        "created_ms": header.get("created_ms"),
    }
    if gaps := [[start, stop] for start, stop in hosted.segment.gaps if stop >= position]:
        success["gaps"] = gaps[-GAPS_SENT_MAX:]
    connection.send(Command.SUBSCRIBE_SUCCESS, success)
    consumer.pump()


async def _attach_reader(connection: Connection, hosted: HostedSegment, header: Header) -> tuple[Consumer, int]:
    hosted.check_open()
    segment = hosted.segment
    start = min(max(header.get("start") or 0, segment.first_offset), segment.durable_offset)
    return LoneReader(connection, header["consumer_id"], hosted, header["consumer_name"], start=start), start


async def _attach_exclusive(connection: Connection, hosted: HostedSegment, header: Header) -> tuple[Consumer, int]:
    subscription = await _stream_subscription(connection, hosted, header)
    own = [parse_id(ident) for ident in header.get("transactions") or ()]
    consumer = subscription.attach_exclusive(connection, header["consumer_id"], header["consumer_name"], own)
    return consumer, subscription.start


async def _attach_shared(connection: Connection, hosted: HostedSegment, header: Header) -> tuple[Consumer, int]:
    said, ends = header.get("bucketBoundaries"), list(hosted.spec.bucket_ends)
    if said is None:
        raise InvalidArgumentError("SUBSCRIBE mode 'shared' requires bucketBoundaries, as in the assignment")
    if said != ends:
        raise NotOwnerError(f"bucketBoundaries must be {ends}, those of {hosted.name}, got {said}: the layout is stale")
    subscription = await _stream_subscription(connection, hosted, header)
    await learn_buckets(subscription.pending)
    check_wanted(connection, header["consumer_id"])
    consumer = subscription.attach_shared(connection, header["consumer_id"], header["consumer_name"])
    return consumer, subscription.start


async def _stream_subscription(connection: Connection, hosted: HostedSegment, header: Header) -> HostedSubscription:
    """The subscription, when dead rivals are dropped, and the connection is the latest of the consumer's name."""
    name = header["consumer_name"]
    subscription = await _subscription(connection, hosted, header, SubscriptionKind.STREAM)
    await subscription.pending.refresh()  # a transaction that has ended may move the cursor
    await evict_dead(connection, lambda: subscription.rivals(name, DeliveryMode(header["mode"])))
    if subscription.is_read_elsewhere(connection, name):  # if this request was delayed, that is a later session
        await connection.prove_alive()
    check_wanted(connection, header["consumer_id"])
    return subscription


async def _attach_queue(connection: Connection, hosted: HostedSegment, header: Header) -> tuple[Consumer, int]:
    name = header["consumer_name"]
    subscription = await _subscription(connection, hosted, header, SubscriptionKind.QUEUE)
    await evict_dead(connection, lambda: subscription.rivals(name, DeliveryMode(header["mode"])))
    consumer = subscription.attach_queue(connection, header["consumer_id"], name, header.get("priority") or 0)
    return consumer, subscription.start


Attach = Callable[["Connection", HostedSegment, Header], Coroutine[Any, Any, tuple[Consumer, int]]]
_ATTACH: dict[DeliveryMode, Attach] = {
    DeliveryMode.EXCLUSIVE: _attach_exclusive,
    DeliveryMode.SHARED: _attach_shared,
    DeliveryMode.READER: _attach_reader,
    DeliveryMode.QUEUE: _attach_queue,
}


async def _subscription(
    connection: Connection, hosted: HostedSegment, header: Header, kind: SubscriptionKind
) -> HostedSubscription:
    name = check_name(header.get("subscription") or "", "subscription")
    position = InitialPosition.parse(header.get("initial_position") or InitialPosition.LATEST)
    host = connection.host
    known, topic = header.get("created_ms"), hosted.name.topic
    facts = await host.calls.ensure_subscription(topic, name, position, kind, known)
    header["created_ms"] = facts.created_at_ms  # for the answer
    return await host.subscriptions.open(hosted, name, facts)


def flow(connection: Connection, header: Header, payload: memoryview) -> None:
    """FLOW."""
    consumer = connection.consumers.get(header["consumer_id"])
    if consumer is not None:
        consumer.add_credit(header["messages"], header["bytes"])


def acknowledge(connection: Connection, header: Header, payload: memoryview) -> None:
    """ACK. Refused when the consumer is not attached any more (semantics 12)."""
    consumer = connection.consumers.get(header["consumer_id"])
    if consumer is None:
        raise NotOwnerError(f"the consumer {header['consumer_id']} is not attached; attach and acknowledge again")
    connection.answer_when(header["request_id"], consumer.acknowledge(header))


def redeliver(connection: Connection, header: Header, payload: memoryview) -> None:
    """REDELIVER."""
    consumer = connection.consumers.get(header["consumer_id"])
    if consumer is not None:
        consumer.redeliver(header)


def close_consumer(connection: Connection, header: Header, payload: memoryview) -> None:
    """CLOSE_CONSUMER. Acknowledges nothing."""
    consumer = connection.consumers.get(header["consumer_id"])
    if consumer is not None:
        consumer.leaving(header)
        consumer.close()
    connection.openings.abandon(header["consumer_id"])
    if header.get("request_id"):
        connection.succeed(header["request_id"])


def segment_offset(connection: Connection, header: Header, payload: memoryview) -> None:
    """SEGMENT_OFFSET."""
    connection.start(header["request_id"], _segment_offset(connection, header))


async def _segment_offset(connection: Connection, header: Header) -> dict[str, Any]:
    hosted = await open_segment(connection, header["topic"])
    segment, at, subscription = hosted.segment, header["at"], header.get("subscription")
    if isinstance(at, int):
        offset = min(await segment.offset_at(at), hosted.readable)
    else:
        earliest = InitialPosition.parse(at) is InitialPosition.EARLIEST
        offset = segment.first_offset if earliest else hosted.readable
    found: dict[str, Any] = {"offset": offset, "first": segment.first_offset, "end": segment.durable_offset}
    found["sealed"] = segment.sealed
    if subscription is not None:
        found["acknowledged"] = await connection.host.subscriptions.acknowledged_by(hosted, subscription)
        known = await connection.host.subscriptions.find(hosted, subscription)
        if header.get("buckets") is not None and known is not None:
            found["open_buckets"] = await open_buckets(known, check_buckets(header["buckets"], hosted))
    return found
