"""`AsyncMultiStreamConsumer` and `AsyncMultiQueueConsumer`: consumers of several topics, or of a whole namespace."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from engine._native.consume.batch import MessageBatch
from engine._native.consume.message import Message
from engine._native.consume.permits import Permits
from engine.client.base.options import ConsumerOptions, check_seconds
from engine.client.consume.letter import LetterWriter
from engine.client.consume.permits import permits_of
from engine.client.consume.queue_consumer import Acknowledgeable, AsyncQueueConsumer
from engine.client.consume.receiver import Receiver
from engine.client.consume.receiving import V
from engine.client.consume.runs import QueueRuns, StreamRuns
from engine.client.consume.stream_consumer import AsyncStreamConsumer
from engine.client.many.consumer import MultiConsumer, MultiConsumerStatistics
from engine.client.many.turns import QueueTurns, StreamTurns, TopicTurns, created_ms
from engine.client.net.pool import Pool
from engine.client.topic.topic_list import TopicQuery
from engine.client.transact.scope import InTransaction
from engine.errors import AlreadyClosedError, InvalidArgumentError
from engine.model.names import TopicName
from engine.model.positions import MessageId, TopicPositions
from engine.model.redelivery import DEAD_LETTER_SUFFIX, DeadLetter


class AsyncMultiStreamConsumer(StreamRuns[V], MultiConsumer[AsyncStreamConsumer[Any], V]):
    """Receives the messages of its share of several topics: per segment in order, the topics in turn.

    Made by `client.stream_consumer()` with a list of topics, or with `namespace=`; usable with `async with`. In each
    topic it behaves like an AsyncStreamConsumer. A batch is of one topic. An error of one topic is raised by one
    receive; the consumer continues with the others.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # By topic: the vector that was found to be acknowledged since the last attachment (semantics 12): topics
        # without new messages are part of every acknowledgement.
        self._saved: dict[str, Mapping[int, int]] = {}

    def _make_turns(self) -> TopicTurns[AsyncStreamConsumer[Any]]:
        return StreamTurns(self._exhausted)

    def member_attached(self, member: Any) -> None:
        """A cursor may have been moved back."""
        self._saved.pop(member.topic, None)
        super().member_attached(member)

    def _forget(self, name: str, member: AsyncStreamConsumer[Any]) -> None:
        self._saved.pop(name, None)
        super()._forget(name, member)

    def acknowledge_cumulative(
        self, x: Message[Any] | MessageId | MessageBatch[Any], *, transaction: InTransaction | None = None
    ) -> Coroutine[Any, Any, None]:
        """Acknowledge `x` and everything delivered before it, in all topics (semantics 11); durable once this has been
        awaited. It is sent whether it is awaited or not.

        `x`: a Message, its id (also one kept from before a reconnect, or by an earlier consumer of this subscription)
        or a MessageBatch (its last message). In topics that have left, or were created again since, nothing is
        acknowledged. Raises as AsyncStreamConsumer[Any] does; in the topics that do not fail, it is saved.
        """
        return self._starting.call(lambda: self._begin_acknowledge(self.asked(x), transaction))

    def acknowledge_cumulative_nowait(self, x: Message[Any] | MessageId | MessageBatch[Any]) -> None:
        """acknowledge_cumulative() that nothing waits for: it is sent at once. flush() and close() wait until it is
        durable, and raise what became of it. Raises InvalidArgumentError, AlreadyClosedError.
        """
        self.acknowledge_asked(self.asked(x))

    def asked(self, x: object) -> Mapping[str, TopicPositions]:
        """What acknowledging `x` asks for. From any thread. Raises InvalidArgumentError."""
        return self._vectors(x)

    def acknowledge_asked(self, asked: Mapping[str, TopicPositions]) -> None:
        """acknowledge_cumulative_nowait() of what asked() has returned."""
        self._check_closed()
        for member, vector in self._due(asked):
            member.acknowledge_cumulative_nowait(_as_id(member, vector))

    def _due(self, vectors: Mapping[str, TopicPositions]) -> list[tuple[AsyncStreamConsumer[Any], TopicPositions]]:
        ours = [(self._member(topic), vector) for topic, vector in vectors.items()]
        return [(member, vector) for member, vector in ours if member is not None and self._owes(member, vector)]

    def _begin_acknowledge(
        self, vectors: Mapping[str, TopicPositions], transaction: InTransaction | None
    ) -> Coroutine[Any, Any, None] | None:
        self._check_closed()
        due = self._due(vectors)
        acks = [
            (member, member.acknowledge_cumulative(_as_id(member, vector), transaction=transaction))
            for member, vector in due
        ]
        return self._settled(acks) if acks else None

    def letter_writer(self, topic: str, target: TopicName) -> LetterWriter:
        """Publishes dead letters of one of the topics, also when that has left."""
        member, subscription = self._member(topic), str(self.options.subscription)
        born = None if member is None else created_ms(member)
        keys = self.options.decryption_keys
        return LetterWriter(self.pool, TopicName.parse(topic), subscription, target, lambda: born, keys)

    def _check_dead_letter(self, target: TopicName) -> None:
        query = self._query
        if str(target) in self._named or (
            query is not None and f"{target.tenant}/{target.namespace}" == query.namespace
        ):
            raise InvalidArgumentError(f"dead_letter must be a topic that {self!r} does not receive from, got {target}")

    def _vectors(self, x: object) -> Mapping[str, TopicPositions]:
        """{topic: how far it was delivered}. Raises InvalidArgumentError."""
        ident = _id_of(x)
        if ident is None:
            return {}
        topic = self._check_ours(ident, ident.topic)
        for other in ident.vectors:
            self._check_ours(ident, other)
        positions = ident.positions or {ident.segment_id: ident.offset + 1}
        return ident.vectors or {topic: TopicPositions(0, positions)}

    def _owes(self, member: AsyncStreamConsumer[Any], vector: TopicPositions) -> bool:
        if self._saved.get(member.topic) == vector.positions or not member.session.known:
            return False
        if _is_of_another(member, vector.created_ms):
            return False
        if member.owes(vector.positions):
            return True
        self._saved[member.topic] = vector.positions
        return False


@dataclass(frozen=True, slots=True)
class MultiQueueConsumerStatistics(MultiConsumerStatistics):
    """MultiConsumerStatistics, and the sums of the fields of QueueConsumerStatistics."""

    acknowledged: int
    negatively_acknowledged: int
    timed_out: int
    dead_lettered: int
    unacknowledged: int


class AsyncMultiQueueConsumer(QueueRuns[V], MultiConsumer[AsyncQueueConsumer[Any], V]):
    """Receives messages of several topics that no other consumer of the subscription has, the topics in turn.

    Made by `client.queue_consumer()` with a list of topics, or with `namespace=`; usable with `async with`. In each
    topic it behaves like an AsyncQueueConsumer. A batch is of one topic. An error of one topic is raised by one
    receive; the consumer continues with the others. Of a namespace it leaves out the topics into which `dead_letter`
    moves messages: they would be received again from there.
    """

    _TOTALS: ClassVar[tuple[str, ...]] = (
        *MultiConsumer._TOTALS, "acknowledged", "negatively_acknowledged", "timed_out", "dead_lettered",
    )  # fmt: skip

    def __init__(
        self,
        pool: Pool,
        topics: Iterable[TopicName] | TopicQuery,
        options: ConsumerOptions,
        make: Callable[[TopicName, ConsumerOptions], AsyncQueueConsumer[Any]],
        dead_letter: DeadLetter | None = None,
    ) -> None:
        super().__init__(pool, topics, options, make, partial(_takes_dead_letters, dead_letter))

    def _make_permits(self) -> Permits:
        return permits_of(self.options, self._loop)

    def _make_turns(self) -> TopicTurns[AsyncQueueConsumer[Any]]:
        return QueueTurns(self._exhausted)

    def acknowledge(self, x: Acknowledgeable, *, transaction: InTransaction | None = None) -> Coroutine[Any, Any, None]:
        """Acknowledge a Message, an id, every message of a MessageBatch, or several messages or ids, of any of its
        topics; durable once this has been awaited. It is sent whether it is awaited or not.

        In a topic that has left, or was created again since, nothing is acknowledged. Raises as AsyncQueueConsumer[Any]
        does; in the topics that do not fail, it is saved.
        """
        return self._starting.call(self._begin_acknowledge, x, transaction)

    def _begin_acknowledge(self, x: Acknowledgeable, transaction: InTransaction | None) -> Coroutine[Any, Any, None]:
        parts = self._by_member(x)
        return self._settled([(member, member.acknowledge(part, transaction=transaction)) for member, part in parts])

    def acknowledge_nowait(self, x: Acknowledgeable) -> None:
        """acknowledge() that nothing waits for: it is sent at once. flush() and close() wait until it is durable, and
        raise what became of it. Raises InvalidArgumentError, AlreadyClosedError.
        """
        self.acknowledge_asked(self.asked(x))

    def asked(self, x: Any) -> Any:
        """What acknowledging `x` asks for. From any thread. Raises InvalidArgumentError."""
        parts = list(_each(x))
        for one in parts:
            if (ident := _id_of(one)) is not None:
                self._check_ours(one, ident.topic)
        return x if isinstance(x, MessageBatch) else parts

    def acknowledge_asked(self, asked: Any) -> None:
        """acknowledge_nowait() of what asked() has returned."""
        for member, part in self._by_member(asked):
            member.acknowledge_nowait(part)

    def negative_acknowledge(
        self, x: Acknowledgeable, *, delay: float | None = None, reason: str | BaseException | None = None
    ) -> Coroutine[Any, Any, None]:
        """Hand back what acknowledge() takes: it is delivered again later. See AsyncQueueConsumer."""
        return self._starting.call(self._begin_negative_acknowledge, x, delay, reason)

    def _begin_negative_acknowledge(
        self, x: Acknowledgeable, delay: float | None, reason: str | BaseException | None
    ) -> Coroutine[Any, Any, None]:
        if delay is not None:
            check_seconds("delay", delay)
        parts = self._by_member(x)
        return self._settled(
            [(member, member.negative_acknowledge(part, delay=delay, reason=reason)) for member, part in parts]
        )

    def unsee(self, x: Acknowledgeable) -> None:
        """The program has not seen these: closing does not count them as delivered."""
        with suppress(AlreadyClosedError):
            for member, part in self._by_member(x):
                member.unsee(part)

    def _by_member(self, x: object) -> list[tuple[AsyncQueueConsumer[Any], Any]]:
        """(member, the part of `x` that is its topic's); nothing for topics that have left.

        Raises InvalidArgumentError, AlreadyClosedError.
        """
        by_topic: dict[str, list[tuple[Any, int]]] = {}
        for one in _each(x):
            ident = _id_of(one)
            if ident is not None:
                topic = self._check_ours(one, ident.topic)
                born = ident.vectors[topic].created_ms if topic in ident.vectors else 0
                by_topic.setdefault(topic, []).append((one, born))
        self._check_closed()
        found: list[tuple[AsyncQueueConsumer[Any], Any]] = []
        for topic, parts in by_topic.items():
            member = self._member(topic)
            if member is not None and (kept := [one for one, born in parts if not _is_of_another(member, born)]):
                found.append((member, kept[0] if isinstance(kept[0], MessageBatch) else kept))
        return found

    def statistics(self) -> MultiQueueConsumerStatistics:
        """A frozen record of totals."""
        return self._summed(MultiQueueConsumerStatistics)


def _takes_dead_letters(policy: DeadLetter | None, topic: TopicName) -> bool:
    if policy is None:
        return False
    return topic.local.endswith(DEAD_LETTER_SUFFIX) if policy.topic is None else topic == TopicName.parse(policy.topic)


def _each(x: object) -> Iterable[object]:
    """The messages or ids in `x`; a batch counts as one. Raises InvalidArgumentError for several batches."""
    if isinstance(x, MessageBatch | str | bytes | bytearray | memoryview) or not isinstance(x, Iterable):
        return (x,)
    several = list(x)
    if any(isinstance(one, MessageBatch) for one in several):
        raise InvalidArgumentError("what is acknowledged must be one batch or several messages, got many batches")
    return several


def _is_of_another(member: Receiver[Any], born: int) -> bool:
    """Whether an id is of another topic of the same name, created at another time."""
    return born != 0 and created_ms(member) not in (0, born)


def _id_of(x: object) -> MessageId | None:
    """The id to acknowledge; None for an empty batch. Raises InvalidArgumentError."""
    ident = x.last_id if isinstance(x, MessageBatch) else x.id if isinstance(x, Message) else x
    if ident is None and isinstance(x, MessageBatch):
        return None
    if not isinstance(ident, MessageId):
        raise InvalidArgumentError(
            f"what is acknowledged must be a Message, MessageId or MessageBatch, got {type(x).__name__}"
        )
    if ident.segment_id < 0 or (ident.segment_id, ident.offset) == (
        MessageId.latest.segment_id,
        MessageId.latest.offset,
    ):
        raise InvalidArgumentError(f"{ident!r} names no message")
    return ident


def _as_id(member: Receiver[Any], vector: TopicPositions) -> MessageId:
    """A vector as the id that the consumer of one topic takes."""
    return MessageId(0, 0, vector.positions, member.topic)
