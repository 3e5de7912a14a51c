"""Consumers of one connection: their requests, and what the broker sends them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from engine._native.consume.opening import take_block
from engine.broker.segment.hosted import HostedSegment
from engine.broker.session.acts import on_subscription
from engine.broker.session.attaching import open_segment
from engine.errors import (
    AlreadyClosedError,
    ConsumerBusyError,
    CorruptionError,
    EngineError,
    InvalidArgumentError,
    NotFoundError,
    NotOwnerError,
    UnsupportedError,
)
from engine.model.partitions import partition_of
from engine.model.subscriptions import DeliveryMode, InitialPosition, SubscriptionKind
from engine.pulsar.consumer import PulsarConsumer, head_at
from engine.pulsar.groups import EXCLUSIVE, FAILOVER, KEY_SHARED, TYPES, Group, Groups
from engine.pulsar.key_shared import KeyDispatcher
from engine.pulsar.layouts import Place, place_of
from engine.pulsar.messages import MessageIdData, framed
from engine.pulsar.names import attached_to
from engine.pulsar.scalable import segment_consumer
from engine.pulsar.schemas import FIRST_VERSION, declare
from engine.pulsar.server_errors import number_of
from engine.pulsar.transactions import transaction_of
from engine.wire import commands

if TYPE_CHECKING:
    from engine.model.names import SegmentName, TopicName
    from engine.pulsar.session import Session
    from engine.wire.stream import Payload

log = logging.getLogger(__name__)

SOUGHT_MAX = 1_000  # readers of one connection that were moved and have not attached again
_NOWHERE = 2**64 - 1
_LATEST = 2**63 - 1  # as a ledger
_INDIVIDUAL = 0
_STICKY = 1  # KeySharedMode
_EARLIEST_FIRST = 1  # CommandSubscribe.initialPosition


class Consumers:
    """Loop thread only."""

    def __init__(self, session: Session, groups: Groups) -> None:
        self._session = session
        self._groups = groups
        self._consumers: dict[int, PulsarConsumer] = {}  # by their id at the Connection
        self._sought: dict[int, int] = {}  # readers that were moved, and where to, until they attach again

    def handlers(self) -> dict[str, Callable[[Any, memoryview], None]]:
        """The commands that are about consumers."""
        return {
            "subscribe": self._subscribe,
            "flow": self._flow,
            "ack": self._ack,
            "redeliver": self._redeliver,
            "unsubscribe": lambda header, payload: self._start(header, self._unsubscribed(header)),
            "close_consumer": lambda header, payload: self._start(header, self._closing(header)),
            "seek": lambda header, payload: self._start(header, self._seek(header)),
            "get_last_message_id": lambda header, payload: self._start(header, self._last(header)),
            "consumer_stats": lambda header, payload: self._start(header, self._stats(header)),
        }

    def _start(self, header: Any, work: Any) -> None:
        self._session.start(header.request, work, None)

    def _find(self, header: Any) -> PulsarConsumer | None:
        from engine.pulsar.session import consumer_ident

        return self._consumers.get(consumer_ident(header.consumer))

    def _of(self, header: Any) -> PulsarConsumer:
        """Raises NotFoundError, also for one that is being attached."""
        found = self._find(header)
        if found is None or not found.opened:
            raise NotFoundError(f"no consumer {header.consumer} is attached on this connection")
        return found

    # -- attaching -------------------------------------------------------------------------------------------------

    def _subscribe(self, header: Any, payload: memoryview) -> None:
        self._start(header, self._subscribed(header))

    async def _subscribed(self, header: Any) -> None:
        from engine.pulsar.session import consumer_ident

        session = self._session
        consumer = PulsarConsumer(session, consumer_ident(header.consumer), header)
        _check(header)
        create = header.create if header.HasField("create") else True
        topic = attached_to(header.topic)
        session.check(_as_ours(consumer, topic))
        if consumer.ident in self._consumers:
            raise InvalidArgumentError(
                f"the id of a new consumer must be unused, got {header.consumer}, which is in use"
            )
        self._consumers[consumer.ident] = consumer
        try:
            place = await place_of(session, header.topic, create=create)
            consumer.schema_version = (await declare(session, topic, header, producer=False)).first
            consumer.partition = partition_of(topic)
            if not topic.classic and consumer.durable and _is_stream(header):
                await self._attach_stream(consumer, place, header)
            elif consumer.durable:
                await self._attach(consumer, place, header)
            else:
                await self._attach_reader(consumer, place, header)
        except BaseException:
            self._leave(consumer)
            raise
        consumer.opened = True
        session.say("success", request=header.request)
        if consumer.group is not None:
            self._choose(consumer.group, new=consumer)

    async def _open(self, consumer: PulsarConsumer, make: Callable[[int], commands.Subscribe]) -> None:
        """Attach it at the Connection. Raises AlreadyClosedError where the client has closed it meanwhile."""
        if self._consumers.get(consumer.ident) is not consumer:
            raise AlreadyClosedError(f"the consumer {consumer.number} was closed before it was open")
        await self._session.ask(make)

    async def _attach(self, consumer: PulsarConsumer, place: Place, header: Any) -> None:
        key = (str(place.name), consumer.subscription)
        group = self._groups.find(key)
        while group is not None and group.seeking is not None:
            await asyncio.wait([group.seeking])
            group = self._groups.find(key)
        for other in list(group.members) if group is not None else ():
            if other.session is not self._session:
                await other.session.connection.prove_alive()  # it may be the dead end of a connection
        consumer.group, consumer.key = self._groups.join(key, consumer), key
        dispatcher = None
        if consumer.type == KEY_SHARED:
            dispatcher = await self._deal_by_key(consumer, place, header)
        first = header.initial_position == _EARLIEST_FIRST
        try:
            await self._open(
                consumer,
                lambda number: commands.Subscribe(
                    request_id=number,
                    consumer_id=consumer.ident,
                    topic=str(place.name),
                    subscription=consumer.subscription,
                    consumer_name=consumer.name,
                    mode="queue",
                    initial_position=str(InitialPosition.EARLIEST if first else InitialPosition.LATEST),
                    priority=consumer.priority,
                ),
            )
        finally:
            if dispatcher is not None:
                dispatcher.settle(self._session.connection, consumer.ident)

    async def _attach_stream(self, consumer: PulsarConsumer, place: Place, header: Any) -> None:
        """A segment of a stream consumer, that shares the segment's buckets with whatever consumers are assigned it.

        One that is not, as far as the controller has recorded, reads alone: others keep it from attaching.
        """
        session, name = self._session, place.name
        hosted = await open_segment(session.connection, str(name))
        subscription = await session.host.subscriptions.find(hosted, consumer.subscription)
        others = [] if subscription is None else [c for c in subscription.consumers if c.name != consumer.name]
        if others and not await self._is_assigned(consumer, name):
            for other in others:
                if await other.connection.prove_alive() and not other.closed:
                    raise ConsumerBusyError(f"{subscription} is read by the consumer {other.name!r}")
        first = header.initial_position == _EARLIEST_FIRST
        await self._open(
            consumer,
            lambda number: commands.Subscribe(
                request_id=number,
                consumer_id=consumer.ident,
                topic=str(name),
                subscription=consumer.subscription,
                consumer_name=consumer.name,
                mode=str(DeliveryMode.SHARED),
                bucketBoundaries=list(hosted.spec.bucket_ends),
                initial_position=str(InitialPosition.EARLIEST if first else InitialPosition.LATEST),
            ),
        )
        consumer.stream = name
        session.scalable.attached(name, consumer.subscription, consumer.name)

    async def _is_assigned(self, consumer: PulsarConsumer, name: SegmentName) -> bool:
        """Whether the controller has assigned it the segment."""
        of_topic = consumer.name.removesuffix(segment_consumer("", name.segment_id))
        service = self._session.host.service
        return name.segment_id in await service.assigned_segments(name.topic, consumer.subscription, of_topic)

    async def _deal_by_key(self, consumer: PulsarConsumer, place: Place, header: Any) -> KeyDispatcher:
        """Have the subscription deal by key, before the consumer attaches."""
        host, topic = self._session.host, place.name.topic
        hosted = await open_segment(self._session.connection, str(place.name))
        position = InitialPosition.EARLIEST if header.initial_position == _EARLIEST_FIRST else InitialPosition.LATEST
        facts = await host.calls.ensure_subscription(topic, consumer.subscription, position, SubscriptionKind.QUEUE)
        subscription = await host.subscriptions.open(hosted, consumer.subscription, facts)
        dispatcher = subscription.deal_with(KeyDispatcher)
        if not isinstance(dispatcher, KeyDispatcher):
            raise ConsumerBusyError(f"{subscription} is read by queue consumers, which a Key_Shared one cannot join")
        ranges = None
        if header.key_shared.mode == _STICKY:
            ranges = [(one.start, one.end) for one in header.key_shared.ranges]
        dispatcher.check(ranges)
        dispatcher.expected[self._session.connection, consumer.ident] = ranges
        return dispatcher

    async def _attach_reader(self, consumer: PulsarConsumer, place: Place, header: Any) -> None:
        sought = self._sought.pop(consumer.ident, None)
        start = header.start if header.HasField("start") else None
        where: int | str = "earliest" if header.initial_position == _EARLIEST_FIRST else "latest"
        if start is not None:
            where = _where(start)
        if not isinstance(where, int) and sought is not None:
            where = sought
        if header.rollback_s:
            where = _Time(self._session.host.clock.time_ms() - 1000 * header.rollback_s)
        if isinstance(where, int) and not isinstance(where, _Time):
            offset = where
        else:
            answer = await self._session.ask(
                lambda number: commands.SegmentOffset(request_id=number, topic=str(place.name), at=where)
            )
            offset = answer.result["offset"] if isinstance(answer.result, dict) else answer.result.offset
        await self._open(
            consumer,
            lambda number: commands.Subscribe(
                request_id=number,
                consumer_id=consumer.ident,
                topic=str(place.name),
                consumer_name=consumer.name,
                mode="reader",
                start=offset,
            ),
        )

    def _choose(self, group: Group, new: PulsarConsumer | None = None) -> None:
        """Make one consumer of a failover subscription the active one, and tell those whose part changes."""
        if group.type != FAILOVER:
            return
        before, group.active = group.active, group.choose()
        if group.active is before:
            if new is not None:
                new.session.say("active_consumer_change", consumer=new.number, active=new is before)
            return
        if before is not None and before in group.members:
            before.activate(False)
        if group.active is not None:
            group.active.activate(True)
        if new is not None and new is not group.active:
            new.session.say("active_consumer_change", consumer=new.number, active=False)

    def _leave(self, consumer: PulsarConsumer) -> None:
        if self._consumers.get(consumer.ident) is consumer:
            del self._consumers[consumer.ident]
        if consumer.key is not None:
            group = self._groups.leave(consumer.key, consumer)
            consumer.key = None
            if group is not None:
                self._choose(group)

    async def _closing(self, header: Any) -> None:
        """Also of one that is closed: from here, as by a seek, which its client had not heard."""
        consumer = self._find(header)
        if consumer is not None:
            await self._detach(consumer)
        if consumer is not None and consumer.stream is not None:
            await self._session.scalable.detached(consumer.stream, consumer.subscription, consumer.name)
        self._session.say("success", request=header.request)

    async def _detach(self, consumer: PulsarConsumer) -> None:
        """Close it at the Connection; what it holds is due to others."""
        self._leave(consumer)
        await self._session.ask(lambda number: commands.CloseConsumer(request_id=number, consumer_id=consumer.ident))

    async def _unsubscribed(self, header: Any) -> None:
        consumer = self._of(header)
        if not consumer.durable:
            await self._closing(header)
            return
        topic = consumer.broker_side.hosted.name.topic
        if not header.force:
            await self._check_alone(consumer)
        await self._detach(consumer)
        await self._session.ask(
            lambda number: commands.DeleteSubscription(
                request_id=number, topic=str(topic), subscription=consumer.subscription
            )
        )
        self._session.say("success", request=header.request)

    async def _check_alone(self, consumer: PulsarConsumer) -> None:
        """Raises ConsumerBusyError where others read its subscription, of whatever protocol."""
        members = list(consumer.group.members) if consumer.group is not None else []
        for other in members:
            if other is not consumer and (
                other.session is self._session or await other.session.connection.prove_alive()
            ):
                raise ConsumerBusyError(f"{consumer.subscription!r} is read by another consumer, {other.name!r}")
        if consumer.stream is not None:
            return  # others of its kind have their own segments
        known = [one.session.connection.consumers.get(one.ident) for one in members]
        hosted = consumer.broker_side.hosted
        subscription = await self._session.host.subscriptions.find(hosted, consumer.subscription)
        for reader in [] if subscription is None else list(subscription.consumers):
            if reader not in known and await reader.connection.prove_alive() and not reader.closed:
                raise ConsumerBusyError(f"{consumer.subscription!r} is read by another consumer, {reader.name!r}")

    def connection_lost(self) -> None:
        """The connection has ended, and all consumers on it."""
        for consumer in list(self._consumers.values()):
            self._leave(consumer)

    # -- from the broker -------------------------------------------------------------------------------------------

    def message(self, header: commands.Message, payload: Payload) -> bytes:
        """Entries become frames."""
        consumer = self._consumers.get(header.consumer_id)
        if consumer is None:
            return b""
        if not consumer.schema_version:  # when it was attached, the topic had none
            side = self._session.connection.consumers.get(consumer.ident)
            if side is not None and side.hosted.with_schema:
                consumer.schema_version = FIRST_VERSION
        skip = [(first, last) for first, last in header.skip or ()]
        again = [(first, last, times) for first, last, times in header.redelivered or ()]
        frames: list[bytes] = []
        try:
            for piece in (payload,) if isinstance(payload, (bytes, bytearray, memoryview)) else payload:
                entries, rest = take_block(piece, header.salt, header.segment_id)
                for entry in entries if rest is None else [*entries, rest]:
                    if entry.failure is not None:
                        raise CorruptionError(f"{header.segment_id}, offset {entry.first_offset}: {entry.failure}")
                    frames.extend(consumer.frames(entry, skip, again))
        except EngineError as e:
            log.error("%s: what it stores for %s cannot be sent: %s", consumer.key, self._session.stream.peer, e)
            asyncio.get_running_loop().call_soon(self._break, consumer, e)
        return frames[0] if len(frames) == 1 else b"".join(frames)

    def _break(self, consumer: PulsarConsumer, error: EngineError) -> None:
        found = self._session.connection.consumers.get(consumer.ident)
        if found is not None:
            found.close(error)

    def closed(self, header: commands.CloseConsumer, payload: Payload) -> bytes:
        """The broker has closed it: the client attaches again, or learns in that way what is wrong."""
        consumer = self._consumers.get(header.consumer_id)
        if consumer is None:
            self._session.scalable.registration_ended(header.consumer_id, header.message)
            return b""
        self._leave(consumer)
        log.info("a consumer of %s is closed: %s", self._session.stream.peer, header.message)
        return framed("close_consumer", consumer=consumer.number, request=_NOWHERE)

    def ended(self, header: commands.ReachedEnd, payload: Payload) -> bytes:
        """Its segment is sealed, and read: acknowledged too, but for readers."""
        consumer = self._consumers.get(header.consumer_id)
        return b"" if consumer is None else framed("reached_end", consumer=consumer.number)

    # -- from the client -------------------------------------------------------------------------------------------

    def _flow(self, header: Any, payload: memoryview) -> None:
        from engine.pulsar.session import consumer_ident

        consumer = self._consumers.get(consumer_ident(header.consumer))
        if consumer is not None:
            consumer.grant(header.permits)

    def _ack(self, header: Any, payload: memoryview) -> None:
        from engine.pulsar.session import consumer_ident

        consumer = self._consumers.get(consumer_ident(header.consumer))
        if consumer is None or not consumer.opened:
            self._answer_ack(header, NotOwnerError("the consumer is not attached; attach again"))
            return
        if not consumer.durable:
            self._answer_ack(header, None)  # a reader has no cursor here
            return
        if consumer.stream is not None and header.type == _INDIVIDUAL:
            self._answer_ack(header, InvalidArgumentError("a stream consumer acknowledges cumulatively"))
            return
        ranges = consumer.known_ranges(header.ids) if header.type == _INDIVIDUAL else None
        if ranges is not None and not header.HasField("request") and not header.txn_low:
            self._acknowledge(consumer, ranges)
            return

        def failed(error: EngineError) -> None:
            self._answer_ack(header, error)

        self._session.start(header.request, self._acked(consumer, header, ranges), failed)

    async def _acked(self, consumer: PulsarConsumer, header: Any, ranges: list[Any] | None) -> None:
        transaction = transaction_of(header)
        if ranges is None and header.type == _INDIVIDUAL:
            ranges = await consumer.ranges_of(header.ids)
        elif ranges is None:
            position = max([await consumer.position_of(one) for one in header.ids], default=0)
            if consumer.stream is not None:
                await self._acknowledge_stream(consumer, position, transaction)
                self._answer_ack(header, None)
                return
            ranges = [(0, position - 1)] if position else []
        if ranges:
            consumer.forget(ranges)
            await self._ask(consumer, transaction, ack_type="individual", ranges=ranges)
        self._answer_ack(header, None)

    async def _acknowledge_stream(self, consumer: PulsarConsumer, position: int, transaction: str | None) -> None:
        """All that it was sent before a position; other consumers may hold more of what is before it."""
        if position:
            consumer.forget_below(position)
            await self._ask(consumer, transaction, ack_type="cumulative", position=position)

    async def _ask(self, consumer: PulsarConsumer, transaction: str | None, **what: Any) -> None:
        """An acknowledgement that is answered."""
        await self._session.ask(
            lambda number: commands.Ack(request_id=number, consumer_id=consumer.ident, transaction=transaction, **what)
        )

    def _acknowledge(self, consumer: PulsarConsumer, ranges: list[Any]) -> None:
        """Without an answer, so that it may be saved with others."""
        consumer.forget(ranges)
        self._session.native(
            commands.Ack(
                request_id=self._session.unanswered,
                consumer_id=consumer.ident,
                ack_type="individual",
                ranges=ranges,
                lazy=True,
            )
        )

    def _answer_ack(self, header: Any, error: EngineError | None) -> None:
        if error is not None:
            log.info("an acknowledgement of %s is refused: %s", self._session.stream.peer, error)
        if not header.HasField("request"):
            return
        said = {} if error is None else {"error": number_of(error), "message": str(error)}
        self._session.say("ack_response", consumer=header.consumer, request=header.request, **said)

    def _redeliver(self, header: Any, payload: memoryview) -> None:
        from engine.pulsar.session import consumer_ident

        consumer = self._consumers.get(consumer_ident(header.consumer))
        if consumer is None or not consumer.durable or not consumer.opened:
            return
        if consumer.stream is not None:
            self._break(consumer, NotOwnerError("messages are due again; attach again"))
            return
        if not header.ids:
            consumer.redeliver_all()
            return
        self._session.start(0, self._redelivered(consumer, header), lambda error: self._answer_ack(header, error))

    async def _redelivered(self, consumer: PulsarConsumer, header: Any) -> None:
        ranges = await consumer.ranges_of(header.ids)
        self._session.native(commands.Redeliver(consumer_id=consumer.ident, ranges=ranges))

    # -- places ----------------------------------------------------------------------------------------------------

    async def _seek(self, header: Any) -> None:
        consumer = self._of(header)
        hosted = consumer.broker_side.hosted
        offset = await self._offset_of(hosted, header)
        if not consumer.durable:
            self._sought[consumer.ident] = offset
            if len(self._sought) > SOUGHT_MAX:  # of a client that moves readers and attaches none of them again
                del self._sought[next(iter(self._sought))]
            self._break(consumer, NotOwnerError("the reader was moved; attach again"))
        else:
            group, consumer_key = consumer.group, consumer.key
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            if group is not None:
                group.seeking = done
            try:
                seeking = self._session.host.subscriptions.seek(hosted, consumer.subscription, offset)
                topic, subscription = hosted.name.topic, consumer.subscription
                await on_subscription(self._session.connection, "SEEK_SUBSCRIPTION", topic, subscription, seeking)
            finally:
                done.set_result(None)
                if group is not None and consumer_key is not None:
                    self._groups.sought(consumer_key, group)
        self._session.say("success", request=header.request)

    async def _offset_of(self, hosted: HostedSegment, header: Any) -> int:
        segment = hosted.segment
        if not header.HasField("message_id"):
            return min(await segment.offset_at(header.publish_time), hosted.readable)
        where = _where(header.message_id)
        if not isinstance(where, int):
            return segment.first_offset if where == "earliest" else hosted.readable
        head = await head_at(hosted, where)
        return where if head is None else head.first

    async def _last(self, header: Any) -> None:
        """The id of the last message, and up to where the subscription has acknowledged."""
        consumer = self._of(header)
        side = consumer.broker_side
        hosted, number = side.hosted, side.hosted.name.segment_id
        end = hosted.segment.gaps.before(hosted.readable)
        head = await head_at(hosted, end - 1)
        last = MessageIdData(ledger=number, entry=_NOWHERE)
        if head is not None:
            last = MessageIdData(ledger=number, entry=head.first)
            if head.last > head.first:
                last.batch_index, last.batch_size = head.last - head.first, head.last + 1 - head.first
        if consumer.partition >= 0:
            last.partition = consumer.partition
        facts = {"request": header.request, "last": last}
        if consumer.durable:
            subscription = await self._session.host.subscriptions.find(hosted, consumer.subscription)
            position = 0 if subscription is None else subscription.cursor.position
            marked = position - 1
            if head is not None:
                marked = head.first if position > head.last else min(marked, head.first - 1)
            facts["mark_delete"] = MessageIdData(ledger=number, entry=marked if marked >= 0 else _NOWHERE)
        self._session.say("get_last_message_id_response", **facts)

    async def _stats(self, header: Any) -> None:
        consumer = self._of(header)
        side = consumer.broker_side
        subscription = None
        if consumer.durable:  # a reader may name any
            subscription = await self._session.host.subscriptions.find(side.hosted, consumer.subscription)
        self._session.say(
            "consumer_stats_response",
            request=header.request,
            name=consumer.name,
            permits=max(side.messages_credit, 0) + consumer.withheld,
            unacked=side.pending,
            address=self._session.stream.peer,
            type=TYPES[consumer.type],
            backlog=0 if subscription is None else subscription.backlog,
            blocked=False,
        )


def _as_ours(consumer: PulsarConsumer, topic: TopicName) -> commands.Subscribe:
    """The header that it stands for, as far as rights are concerned."""
    return commands.Subscribe(
        request_id=0,
        consumer_id=consumer.ident,
        topic=str(topic),
        subscription=consumer.subscription if consumer.durable else None,
        consumer_name=consumer.name,
        mode=str(DeliveryMode.QUEUE if consumer.durable else DeliveryMode.READER),
    )


def _is_stream(header: Any) -> bool:
    """Whether a segment's consumer is one of a stream: alone, or with the buckets that it was assigned."""
    sticky = header.type == KEY_SHARED and header.key_shared.mode == _STICKY
    return bool(header.type == EXCLUSIVE or sticky)


class _Time(int):
    """Milliseconds since 1970, in place of an offset."""


def _where(one: Any) -> int | str:
    """The place of a message id: its entry, "earliest" or "latest"."""
    if one.ledger == _NOWHERE or one.entry == _NOWHERE:
        return "earliest"
    return "latest" if one.ledger >= _LATEST or one.entry >= _LATEST else int(one.entry)


def _check(header: Any) -> None:
    """Raise UnsupportedError for what is not served."""
    if header.read_compacted:
        raise UnsupportedError("topics are not compacted here: read_compacted must be false")
    if header.replicated:
        raise UnsupportedError("subscriptions are not replicated here: replicate_subscription_state must be false")
    if not 0 <= header.type < len(TYPES):
        raise InvalidArgumentError(f"subType must be 0 to {len(TYPES) - 1}, got {header.type}")
    if not header.subscription:
        raise InvalidArgumentError("a subscription must have a name")
