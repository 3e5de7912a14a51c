"""Producers of one connection: what they send becomes entries, and the receipts of these become theirs.

A SEND becomes one entry or several, which are appended together; it is answered with one receipt, once all of them are
durable. Entries are answered in the order in which they were sent, so `sent` is a queue:

    SEND ──> entries ──> Connection          head of `sent`: waits for `left` more entries
         ├──> cannot be read: `refusal`      answered when it is at the head
         └──> interleaves with others        held, and stored together with them: see interleaved.py

An error that is not about one entry closes the producer: the client opens it again, and sends again what has no
receipt, as ours do.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from engine._native.produce.hashing import KEY_HASHES, xxh64
from engine._native.pulsar.sends import receipt_frame
from engine.broker.segment.access import given_name
from engine.broker.segment.producer import ENTRY_ERRORS
from engine.errors import EngineError, FencedError, NotOwnerError, ProducerBusyError, UnsupportedError
from engine.model.partitions import partition_of
from engine.model.subscriptions import InitialPosition, SubscriptionKind
from engine.model.transactions import parse_id
from engine.pulsar.chunks import Chunks, chunks_of
from engine.pulsar.interleaved import NOTHING_PASSED, Held, Interleaved, Remembered, Run, ranges_of
from engine.pulsar.layouts import place_of
from engine.pulsar.messages import framed
from engine.pulsar.names import attached_to, producer_of
from engine.pulsar.payloads import Published, Routing, batch_published, plain_published, published
from engine.pulsar.scalable import key_hash_of
from engine.pulsar.schemas import Declared, declare
from engine.pulsar.server_errors import CHECKSUM, NOT_ALLOWED, number_of
from engine.pulsar.transactions import transaction_of
from engine.wire import commands

if TYPE_CHECKING:
    from engine.model.names import SegmentName, TopicName
    from engine.pulsar.session import Session
    from engine.wire.stream import Payload

log = logging.getLogger(__name__)

_MODES = ("shared", "exclusive", "wait_for_exclusive", "exclusive_with_fencing")
_WAIT_S = 0.2  # after so long without access, the client is told that it waits
_NOWHERE = 2**64 - 1  # the place of a message that is not known

PlainSend = tuple[int, int, int, int, int, memoryview, memoryview]  # as plain_send() returns it


class _Sent:
    """One SEND. `left`: entries that are not answered. `together`: of the first of several that were stored together,
    which waits for all their entries.
    """

    __slots__ = ("chunk", "highest", "left", "offset", "refusal", "sequence", "together")

    def __init__(self, sequence: int, highest: int, *, chunk: bool) -> None:
        self.chunk = chunk
        self.sequence = sequence
        self.highest = highest
        self.left = 1
        self.offset: int | None = None  # of the first message
        self.refusal: EngineError | None = None
        self.together: _Together | None = None


class _Together(NamedTuple):
    """SENDs that were stored together. `entries`: the first and last sequence id of each entry.
    `again`: some of it may have been stored before, so that its offsets are not known.
    """

    sends: list[Held]
    entries: list[tuple[int, int]]
    again: bool

    def place(self, offset: int) -> None:
        """The first entry is at an offset: tell each SEND one of as many messages as it has."""
        for held in self.sends:
            held.sent.offset = -1 if self.again else offset
            offset += len(held.ids)

    def refuse(self, index: int, error: EngineError) -> None:
        """An entry is refused: so are the SENDs that have a message in it."""
        first, last = self.entries[index]
        for held in self.sends:
            if any(first <= number <= last for number in held.ids):
                held.sent.refusal = error


class _Producer:
    """One producer. `number`: its id as the client says it. `stored`: its last sequence id when it was opened."""

    __slots__ = ("chunks", "name", "number", "order", "partition", "place", "routing", "segment", "sent", "stored",
                 "topic", "versions")  # fmt: skip

    order: Interleaved

    def __init__(
        self,
        number: int,
        name: str,
        place: SegmentName,
        routing: Routing,
        partition: int,
        stored: int,
        chunks: Chunks,
    ) -> None:
        self.chunks = chunks
        self.number = number
        self.name = name.encode()
        self.place = str(place)
        self.topic = place.topic
        self.segment = place.segment_id
        self.routing = routing
        self.partition = partition
        self.stored = stored
        self.versions = range(0)  # those that the topic's schema has
        self.sent: deque[_Sent] = deque()


class Producers:
    """Loop thread only."""

    def __init__(self, session: Session, remembered: Remembered) -> None:
        self._session = session
        self._remembered = remembered
        self._producers: dict[int, _Producer] = {}  # by their id at the Connection
        self._opening: dict[int, tuple[str, str]] = {}  # (segment, name) of those that are being opened
        self._named = 0

    def handlers(self) -> dict[str, Callable[[Any, memoryview], None]]:
        """The commands that are about producers."""
        return {"producer": self._open, "send": self._send, "close_producer": self._close}

    # -- opening ---------------------------------------------------------------------------------------------------

    def _open(self, header: Any, payload: memoryview) -> None:
        self._session.start(header.request, self._opened(header), None)

    async def _opened(self, header: Any) -> None:
        from engine.pulsar.session import producer_ident

        session, ident = self._session, producer_ident(header.producer)
        if not 0 <= header.access_mode < len(_MODES):
            raise UnsupportedError(f"producer_access_mode must be 0 to {len(_MODES) - 1}, got {header.access_mode}")
        topic, name = attached_to(header.topic), producer_of(header.name)
        asked = commands.Producer(
            request_id=0,
            producer_id=ident,
            topic=str(topic),
            producer_name=name or self._new_name(),
            access_mode=_MODES[header.access_mode],
            properties={pair.key: pair.value for pair in header.metadata} or None,
        )
        session.check(asked)
        if header.initial_subscription:
            session.check(_subscribed(topic, header.initial_subscription))
        place = await place_of(session, header.topic, create=True)
        if header.initial_subscription:  # so that what is sent before its first consumer comes waits for that
            await session.host.calls.ensure_subscription(
                topic, header.initial_subscription, InitialPosition.EARLIEST, SubscriptionKind.QUEUE
            )
        self._check_name(ident, name, str(place.name))
        self._opening[ident] = str(place.name), name
        try:
            await self._attach(header, asked, place.name)
        finally:
            self._opening.pop(ident, None)

    async def _attach(self, header: Any, asked: commands.Producer, place: SegmentName) -> None:
        """The rest of _opened(), while no other producer can be opened by its name."""
        session, topic, ident = self._session, place.topic, asked.producer_id
        name = header.name or asked.producer_name  # as the client knows it
        schema = await declare(session, topic, header, producer=True)
        if header.HasField("topic_epoch"):
            asked = replace(asked, renewal=True, claim=_claim(header.topic_epoch, place.segment_id))
        opening = asyncio.ensure_future(session.ask(lambda number: replace(asked, request_id=number, topic=str(place))))
        if _MODES[header.access_mode] == "wait_for_exclusive":
            await asyncio.wait([opening], timeout=_WAIT_S)
            if not opening.done():
                session.say("producer_success", request=header.request, name=name, ready=False)
        try:
            answer = await opening
        except ProducerBusyError as e:
            if _MODES[header.access_mode] == "exclusive":
                raise FencedError(str(e)) from e  # busy would have the client try again
            raise
        try:
            routing = await self._routing_of(place)
            chunks = await self._chunks_of(place, asked)
        except EngineError:
            session.native(commands.CloseProducer(producer_id=ident))
            raise
        if ident not in session.connection.producers:  # what it sends would be dropped, and its name stay taken
            raise _closed_early(asked.producer_name, place)
        made = self._producers[ident] = _Producer(
            header.producer, asked.producer_name, place, routing, partition_of(topic), answer.last_sequence, chunks
        )
        before = self._remembered.take(made.place, made.name) if header.epoch else NOTHING_PASSED  # else it is another
        made.order = Interleaved(
            made.stored,
            routing.buckets,
            partial(self._store_together, ident, made),
            partial(session.say, "ping"),
            before.as_stored(made.stored),
        )
        self.declared(topic, schema)
        success = {"request": header.request, "name": name, "last_sequence": answer.last_sequence}
        if answer.claim is not None:
            success["topic_epoch"] = answer.claim[1] << 32 | answer.claim[2]
        if schema.version:
            success["schema_version"] = schema.version
        session.say("producer_success", **success, ready=True)

    def declared(self, topic: TopicName, schema: Declared) -> None:
        """The versions of a topic's schema, as a client on this connection has been told them."""
        for ident, producer in self._producers.items():
            if producer.topic == topic:
                producer.versions = range(schema.known)
                if schema.first and (opened := self._session.connection.producers.get(ident)) is not None:
                    opened.hosted.with_schema = True

    def _check_name(self, ident: int, name: str, place: str) -> None:
        """Raises ProducerBusyError where another producer of this connection has the name; a new connection fences."""
        raw = name.encode()
        opened = (other for other, one in self._producers.items() if (one.place, one.name) == (place, raw))
        opening = (other for other, found in self._opening.items() if found == (place, name))
        if name and any(other != ident for other in chain(opened, opening)):
            raise ProducerBusyError(f"the producer {name!r} of {place} is open on this connection already")

    async def _routing_of(self, name: SegmentName) -> Routing:
        """Of a segment. Raises UnsupportedError where the client would use other segments for the same keys."""
        layout = (await self._session.host.service.ensure_topic(name.topic, create=False)).layout
        right = "murmur3" if name.topic.classic else key_hash_of(self._session.client)
        if layout.key_hash != right:
            raise UnsupportedError(
                f"the key hash of {name.topic} must be {right} for producers of this client, got {layout.key_hash}: "
                "it is chosen when a topic is created"
            )
        ends, ring = layout.segment(name.segment_id).bucket_ends, name.hash_range
        return Routing((ring.start, ring.end), ends, KEY_HASHES[right])

    async def _chunks_of(self, place: SegmentName, asked: commands.Producer) -> Chunks:
        """What is stored of its messages in chunks."""
        opened = self._session.connection.producers.get(asked.producer_id)
        if opened is None:
            raise _closed_early(asked.producer_name, place)
        return await chunks_of(opened.hosted, opened.name, whole=place.topic.classic)

    def _new_name(self) -> str:
        """A name that no other producer has, on whatever broker."""
        self._named += 1
        host, stream = self._session.host, self._session.stream
        origin = xxh64(f"{host.addresses.url_for(stream)} {stream.peer} {host.clock.time_ms()}".encode())
        return given_name(origin, self._named)

    # -- sending ---------------------------------------------------------------------------------------------------

    def _send(self, header: Any, payload: memoryview) -> None:
        def make(producer: _Producer) -> tuple[Published, str | None]:
            transaction = transaction_of(header)
            number = None if transaction is None else parse_id(transaction)
            made = published(
                payload, producer.name, producer.stored, producer.routing, number, chunks=producer.chunks,
                versions=producer.versions,
            )  # fmt: skip
            return made, transaction

        sent = _Sent(header.sequence, max(header.highest_sequence, header.sequence), chunk=header.is_chunk)
        self._publish(header.producer, sent, payload, make)

    def send_plain(self, send: PlainSend) -> None:
        """_send() of a plain batch, whose frame was read already. Raises InvalidArgumentError for the producer."""
        number, sequence, highest, first, count, payload, batch = send

        def make(producer: _Producer) -> tuple[Published, str | None]:
            return plain_published(batch, count, first, producer.name, producer.stored, producer.routing), None

        self._publish(number, _Sent(sequence, highest, chunk=False), payload, make)

    def _publish(
        self,
        number: int,
        sent: _Sent,
        payload: memoryview,
        make: Callable[[_Producer], tuple[Published, str | None]],
    ) -> None:
        """Have a SEND stored as the entries that `make` returns, with the transaction that they belong to."""
        from engine.pulsar.session import producer_ident

        ident = producer_ident(number)
        producer = self._producers.get(ident)
        if producer is None:
            return  # closed from here; the client sends it again, once the producer is open again
        producer.sent.append(sent)
        try:
            made, transaction = make(producer)
            order = producer.order
            if not order.is_ordinary(made) and order.take(payload, sent, transaction):
                return
        except EngineError as e:
            sent.left, sent.refusal = 0, e
            self._session.put(self._answers(producer))
            return
        sent.left = made.number
        if not made.number:
            self._session.put(self._answers(producer))
            return
        command = commands.Send(producer_id=ident, entries=made.number, transaction=transaction)
        self._session.native(command, memoryview(made.entries))

    def _store_together(self, ident: int, producer: _Producer, sends: list[Held], runs: list[Run]) -> None:
        """Store what was held, and answer its SENDs when all of it is durable."""
        if self._producers.get(ident) is not producer:
            return
        transaction, head = sends[0].transaction, sends[0].sent
        number = None if transaction is None else parse_id(transaction)
        try:
            made = [
                batch_published(
                    *run, producer.name, producer.stored, producer.routing, number, versions=producer.versions
                )
                for run in runs
            ]
        except EngineError as e:
            made = []
            for held in sends:
                held.sent.refusal = e
        ranges = [span for one in made for span in ranges_of(one.entries)]
        again = any(held.ids[0] <= producer.stored for held in sends)
        head.together = _Together(sends, ranges, again)
        for held in sends:
            held.sent.left = len(ranges) if held.sent is head else 0
        for one in made:
            command = commands.Send(producer_id=ident, entries=one.number, transaction=transaction)
            self._session.native(command, memoryview(one.entries))
        self._session.put(self._answers(producer))

    def _close(self, header: Any, payload: memoryview) -> None:
        self._session.start(header.request, self._closing(header), None)

    async def _closing(self, header: Any) -> None:
        from engine.pulsar.session import producer_ident

        ident = producer_ident(header.producer)
        if (producer := self._producers.get(ident)) is not None:
            producer.order.release()
        await self._session.ask(lambda number: commands.CloseProducer(request_id=number, producer_id=ident))
        self._producers.pop(ident, None)
        self._session.say("success", request=header.request)

    # -- answers of the Connection ---------------------------------------------------------------------------------

    def receipt(self, header: commands.SendReceipt, payload: Payload) -> bytes:
        """Entries are durable."""
        producer = self._producers.get(header.producer_id)
        if producer is None:
            return b""
        answers = []
        for offset in header.offsets:
            if producer.sent:
                head = producer.sent[0]
                head.left -= 1
                if head.offset is None:
                    head.offset = offset
                    if head.together is not None:
                        head.together.place(offset)
                answers.append(self._answers(producer))
        return b"".join(answers)

    def refused(self, header: commands.SendError, payload: Payload) -> bytes:
        """An entry is refused. Where the error is not about that one alone, the producer is closed behind it."""
        producer, error = self._producers.get(header.producer_id), EngineError.from_code(header.code, header.message)
        if producer is not None and producer.sent and isinstance(error, ENTRY_ERRORS):
            head = producer.sent[0]
            if head.together is None:
                head.refusal = error
            else:
                head.together.refuse(-head.left, error)
            head.left -= 1
            if head.chunk:
                producer.chunks.give_up()
            return self._answers(producer)
        return b""

    def closed(self, header: commands.CloseProducer, payload: Payload) -> bytes:
        """The broker has closed it: the client opens it again."""
        producer = self._producers.pop(header.producer_id, None)
        if producer is None:
            return b""
        self._drop(producer)
        log.info("a producer of %s is closed: %s", self._session.stream.peer, header.message)
        return framed("close_producer", producer=producer.number, request=_NOWHERE)

    def ponged(self) -> None:
        """The client has answered a PING: what it sent before has come."""
        for producer in self._producers.values():
            producer.order.ponged()

    def connection_lost(self) -> None:
        """What is held is sent again by the client, as it has no receipt."""
        for producer in self._producers.values():
            self._drop(producer)

    def _drop(self, producer: _Producer) -> None:
        producer.order.drop()
        self._remembered.keep(producer.place, producer.name, producer.order.passed)

    def _answers(self, producer: _Producer) -> bytes:
        """The frames that answer what is complete at the head."""
        frames = []
        while producer.sent and producer.sent[0].left <= 0:
            done = producer.sent.popleft()
            if done.refusal is not None:
                frames.append(self._refusal(producer, done, done.refusal))
                continue
            ledger = entry = _NOWHERE
            if done.offset is not None and done.offset >= 0:
                ledger, entry = producer.segment, done.offset
            frames.append(
                receipt_frame(producer.number, done.sequence, done.highest, ledger, entry, producer.partition)
            )
        return b"".join(frames)

    def _refusal(self, producer: _Producer, done: _Sent, error: EngineError) -> bytes:
        # The C++ client, and those made of it, gives one message up for this error alone.
        number = CHECKSUM if "CPP" in self._session.client else number_of(error) or NOT_ALLOWED
        log.warning("a message of %s is refused: %s", self._session.stream.peer, error)
        return framed("send_error", producer=producer.number, sequence=done.sequence, error=number, message=str(error))


def _subscribed(topic: TopicName, subscription: str) -> commands.Subscribe:
    """The header that the creation of a subscription stands for, as far as rights are concerned."""
    return commands.Subscribe(
        request_id=0, consumer_id=0, topic=str(topic), subscription=subscription, consumer_name="", mode="queue"
    )


def _closed_early(name: str, place: SegmentName) -> NotOwnerError:
    return NotOwnerError(f"the producer {name!r} of {place} was closed as it opened; try again")


def _claim(epoch: int, segment: int) -> list[int]:
    """The claim to the topic that was given as an epoch."""
    return [segment, epoch >> 32, epoch & 0xFFFFFFFF]
