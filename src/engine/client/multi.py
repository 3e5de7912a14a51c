"""`AsyncMultiStreamConsumer` and `AsyncMultiQueueConsumer`: consumers of several topics, or of a whole namespace."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from engine._native.batch import MessageBatch
from engine._native.message import Message
from engine.client.gathered import Gathered
from engine.client.line import Line, VectorLine, created_ms
from engine.client.options import ConsumerOptions
from engine.client.pool import Pool
from engine.client.producer import refuse_transaction
from engine.client.queue_consumer import AsyncQueueConsumer
from engine.client.receiver import Receiver
from engine.client.stream_consumer import AsyncStreamConsumer
from engine.client.topic_list import TopicQuery
from engine.errors import AlreadyClosedError, EngineError, FencedError, InvalidArgumentError, NotFoundError
from engine.model.names import TopicName
from engine.model.positions import MessageId, TopicPositions
from engine.model.redelivery import DEAD_LETTER_SUFFIX, DeadLetter


class AsyncMultiStreamConsumer(Gathered[AsyncStreamConsumer]):
    """Receives the messages of its share of several topics: per segment in order, the topics in turn.

    Made by `client.stream_consumer()` with a list of topics, or with `namespace=`; usable with `async with`. What is
    said of AsyncStreamConsumer holds in each topic. A batch is of one topic. An error of one topic is raised by one
    receive; the consumer goes on with the others.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # Of topics: the vector that was found to be all acknowledged, since it was attached last (SEMANTICS 12). What
        # is not delivered further is asked for with every acknowledgement.
        self._saved: dict[str, Mapping[int, int]] = {}

    def _make_line(self) -> Line[AsyncStreamConsumer]:
        return VectorLine(self._exhausted)

    def member_attached(self, member: Any) -> None:
        """A cursor may have been moved back."""
        self._saved.pop(member.topic, None)
        super().member_attached(member)

    def _forget(self, name: str, member: AsyncStreamConsumer) -> None:
        self._saved.pop(name, None)
        super()._forget(name, member)

    async def acknowledge_cumulative(self, x: Message | MessageId | MessageBatch, *, transaction: None = None) -> None:
        """Acknowledge `x` and everything delivered before it, in all topics (SEMANTICS 11); durable when this returns.

        `x`: a Message, its id (also one kept from before a reconnect, or by an earlier consumer of this subscription)
        or a MessageBatch (its last message). Topics that have left, or were made anew since, are passed over: there,
        nothing is acknowledged. Raises as AsyncStreamConsumer does; in the topics that do not fail, it is saved.
        """
        refuse_transaction(transaction)
        vectors = self._vectors(x)
        self._check_closed()
        ours = [(self._member(topic), vector) for topic, vector in vectors.items()]
        due = [(member, vector) for member, vector in ours if member is not None and self._owes(member, vector)]
        acks = [member.acknowledge_cumulative(_as_id(member, vector)) for member, vector in due]
        ended = await asyncio.gather(*acks, return_exceptions=True)
        self._check_closed()
        failed = [
            (member, outcome)
            for (member, _), outcome in zip(due, ended, strict=True)
            if isinstance(outcome, BaseException) and not self._has_left(member, outcome)
        ]
        _raise(failed)

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

    def _owes(self, member: AsyncStreamConsumer, vector: TopicPositions) -> bool:
        if self._saved.get(member.topic) == vector.positions or not member.session.known:
            return False
        if vector.created_ms and created_ms(member) not in (0, vector.created_ms):
            return False  # another topic of its name
        if member.owes(vector.positions):
            return True
        self._saved[member.topic] = vector.positions
        return False

    def _has_left(self, member: Receiver, error: BaseException) -> bool:
        """Whether a topic that goes away explains it."""
        gone = isinstance(error, AlreadyClosedError | NotFoundError)
        return gone and (self._member(member.topic) is not member or isinstance(member.failure, NotFoundError))


class AsyncMultiQueueConsumer(Gathered[AsyncQueueConsumer]):
    """Receives messages of several topics that no other consumer of the subscription has, the topics in turn.

    Made by `client.queue_consumer()` with a list of topics, or with `namespace=`; usable with `async with`. What is
    said of AsyncQueueConsumer holds in each topic. A batch is of one topic. An error of one topic is raised by one
    receive; the consumer goes on with the others. Of a namespace it leaves out the topics that `dead_letter` puts
    messages into: they would come back from there.
    """

    def __init__(
        self,
        pool: Pool,
        topics: Iterable[TopicName] | TopicQuery,
        options: ConsumerOptions,
        make: Callable[[TopicName, ConsumerOptions], AsyncQueueConsumer],
        dead_letter: DeadLetter | None = None,
    ) -> None:
        super().__init__(pool, topics, options, make, partial(_takes_dead_letters, dead_letter))

    async def acknowledge(self, x: Message | MessageId | MessageBatch, *, transaction: None = None) -> None:
        """Acknowledge a Message, an id, or every message of a MessageBatch; durable when this returns.

        In a topic that has left, nothing is acknowledged. Raises as AsyncQueueConsumer does.
        """
        refuse_transaction(transaction)
        member = self._member_of(x)
        if member is not None:
            await member.acknowledge(x)

    async def negative_acknowledge(self, x: Message | MessageId | MessageBatch, **options: Any) -> None:
        """Hand back: it is delivered again later, as AsyncQueueConsumer.negative_acknowledge says, which also says
        what the options are.
        """
        member = self._member_of(x)
        if member is not None:
            await member.negative_acknowledge(x, **options)

    def _member_of(self, x: object) -> AsyncQueueConsumer | None:
        """Who has the topic; None when it has left. Raises InvalidArgumentError, AlreadyClosedError."""
        if isinstance(x, MessageBatch | Message):
            topic: str | None = x.topic
        else:
            ident = _id_of(x)
            topic = None if ident is None else ident.topic
        if isinstance(x, MessageBatch) and not len(x):
            return None
        known = self._check_ours(x, topic)
        self._check_closed()
        return self._member(known)


def _takes_dead_letters(policy: DeadLetter | None, topic: TopicName) -> bool:
    if policy is None:
        return False
    return topic.local.endswith(DEAD_LETTER_SUFFIX) if policy.topic is None else topic == TopicName.parse(policy.topic)


def _id_of(x: object) -> MessageId | None:
    """What is to be acknowledged; None for an empty batch. Raises InvalidArgumentError."""
    ident = x.last_id if isinstance(x, MessageBatch) else x.id if isinstance(x, Message) else x
    if ident is None and isinstance(x, MessageBatch):
        return None
    if not isinstance(ident, MessageId):
        raise InvalidArgumentError(
            f"cannot acknowledge {type(x).__name__}; a Message, MessageId or MessageBatch is right"
        )
    if ident.segment_id < 0 or (ident.segment_id, ident.offset) == (
        MessageId.latest.segment_id,
        MessageId.latest.offset,
    ):
        raise InvalidArgumentError(f"{ident!r} names no message")
    return ident


def _as_id(member: Receiver, vector: TopicPositions) -> MessageId:
    """A vector in the form in which the consumer of one topic takes it."""
    return MessageId(0, 0, vector.positions, member.topic)


def _raise(failed: Sequence[tuple[Receiver, BaseException]]) -> None:
    """Raise what failed: where all of it is that segments went elsewhere, one error that names the topics."""
    if not failed:
        return
    if len(failed) > 1 and all(isinstance(error, FencedError) for _, error in failed):
        told = "; ".join(str(error) for _, error in failed)
        raise FencedError(told)
    others = [error for _, error in failed if not isinstance(error, FencedError)]
    error = (others or [failed[0][1]])[0]
    if isinstance(error, EngineError) and len(failed) > 1:
        error.add_note(f"and {len(failed) - 1} more topics failed")
    raise error
