"""`MultiConsumer`: a consumer of several topics, made of the consumers of one; the topics may come and go.

Each topic has a consumer of its own (a *member*), with its own attachments and reconnects. What they fetch ahead counts
against one budget (credit.py), and members with messages are served in turn (turns.py).

Which topics. `_topics` are the topics that there should be, as given or as the namespace's list says; `_members` are
those that there are. For each topic in one and not in the other, one task at a time joins or leaves it:

    wanted, no member      make a member and start it; after an error that passes, again with growing pauses
    member, not wanted     close it; its totals are kept
    member of an earlier   close it, then join: the topic was deleted and created again, or its member has failed

A topic that appears later is read from its earliest message, so that nothing published in between is missed.

Errors. What fails in one topic is raised by one receive, after the messages that are queued of it; the others continue.
While start() runs, the first error ends it, except that a topic of a namespace was deleted meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

from engine._native.consume.batch import MessageBatch
from engine._native.consume.message import Message
from engine._native.consume.permits import Permits
from engine.aio.once import Once
from engine.aio.tasks import Supervisor
from engine.client.base.options import ConsumerOptions
from engine.client.consume.credit import Budget, Gate
from engine.client.consume.queue_consumer import AsyncQueueConsumer
from engine.client.consume.receiving import ConsumerStatistics, Receiving, V
from engine.client.consume.stream_consumer import AsyncStreamConsumer
from engine.client.consume.subscribed import When, change, check_when
from engine.client.many.turns import TopicTurns
from engine.client.net.pool import Pool, call_threadsafe
from engine.client.topic.topic_list import TopicListSession, TopicQuery
from engine.errors import (
    AlreadyClosedError,
    ConnectError,
    ConsumerBusyError,
    EngineError,
    FencedError,
    InvalidArgumentError,
    NotFoundError,
    SubscriptionKindError,
    SubscriptionNotFoundError,
    TimeoutError,
)
from engine.limits import RECEIVE_QUEUE_BYTES
from engine.model.names import TopicName
from engine.model.positions import MessageId
from engine.wire import commands

_JOINS_MAX = 64  # at once
_PASSING = (ConnectError, TimeoutError, AlreadyClosedError, ConsumerBusyError)

R = TypeVar("R", bound=AsyncStreamConsumer[Any] | AsyncQueueConsumer[Any])


@dataclass(frozen=True, slots=True)
class MultiConsumerStatistics(ConsumerStatistics):
    """Sums over all topics of a consumer, former ones included, and its present topics.

    `failed`: topics from which nothing is received any more, because of an error that a receive has raised.
    """

    topics: tuple[str, ...]
    failed: tuple[str, ...]


S = TypeVar("S", bound=MultiConsumerStatistics)


class _Topic(Generic[R]):
    """A topic that is wanted. `position`: where a new subscription starts. `error`: why the topic has failed."""

    __slots__ = ("error", "joined", "member", "position", "retry")

    def __init__(self, position: str) -> None:
        self.position = position
        self.member: R | None = None
        self.joined = False  # `member` has started
        self.retry = True
        self.error: EngineError | None = None


class MultiConsumer(Receiving[V], Generic[R, V]):
    """Loop thread only, but for take_now(). The MemberOwner of its members.

    `make(topic, options)` makes the consumer of one topic. `topics`: the topics, or a query that selects them, now and
    later; `left_out(topic)`: whether a selected topic is skipped.
    """

    _TOTALS: ClassVar[tuple[str, ...]] = (
        "messages_received",
        "bytes_received",
        "corrupt_entries",
        "corrupt_messages",
        "gaps",
    )

    def __init__(
        self,
        pool: Pool,
        topics: Iterable[TopicName] | TopicQuery,
        options: ConsumerOptions,
        make: Callable[[TopicName, ConsumerOptions], R],
        left_out: Callable[[TopicName], bool] = lambda topic: False,
    ) -> None:
        super().__init__()
        self.pool = pool
        self.options = options
        self.permits = self._make_permits()
        counted = options.fetched_ahead if self.permits is None else 0
        self.budget: Budget = Gate((counted, RECEIVE_QUEUE_BYTES), memory=pool.memory)
        self._leave_memory = pool.memory.consumer_came()
        self._make = make
        self._left_out = left_out
        self._query = topics if isinstance(topics, TopicQuery) else None
        self._list = None if self._query is None else TopicListSession(pool, self._query, self._list_changed)
        # See the head of this file.
        self._topics: dict[str, _Topic[R]] = {}
        self._members: dict[str, R] = {}
        self._tending: set[str] = set()
        if not isinstance(topics, TopicQuery):
            self._topics.update((str(topic), _Topic(options.initial_position)) for topic in topics)
        self._named = frozenset(self._topics)
        self._tasks = Supervisor(f"topics of {options.name}")
        self._joins = asyncio.Semaphore(_JOINS_MAX)
        self._started = self._closed = False
        self._end = Once()
        self._errors: deque[EngineError] = deque()  # of single topics, each raised once
        self._past: Counter[str] = Counter()  # totals of topics that have left
        self._turns = self._make_turns()

    async def start(self) -> None:
        """Join every topic. Raises what one of them raises, except NotFoundError of a topic of a namespace."""
        try:
            if self._list is not None:
                await self._list.open()
                self._want(self._list.born, self.options.initial_position)
            self.budget.expected = max(len(self._topics), 1)
            names = list(self._topics)
            self._tending.update(names)
            for outcome in await asyncio.gather(*map(self._tend, names), return_exceptions=True):
                if isinstance(outcome, BaseException):
                    raise outcome
        except BaseException:
            await self.close()
            raise
        self._started = True
        for name in {**self._topics, **self._members}:  # the list may have changed meanwhile
            self._tend_soon(name)

    # -- topics come and go ----------------------------------------------------------------------------------

    def _want(self, names: Iterable[str], position: str) -> list[str]:
        found = [name for name in names if not self._left_out(TopicName.parse(name))]
        self._topics.update((name, _Topic(position)) for name in found)
        return found

    def _list_changed(self, removed: list[str], added: list[str]) -> None:
        """The list of the namespace has changed."""
        changed = [name for name in removed if self._topics.pop(name, None) is not None]
        changed += self._want(added, "earliest")
        self.budget.expected = max(len(self._topics), 1)
        for name in dict.fromkeys(changed):
            self._tend_soon(name)

    def _tend_soon(self, name: str) -> None:
        if self._started and name not in self._tending:
            self._tending.add(name)
            self._tasks.spawn(self.working._tend(name), name=f"tend {name}")

    async def _tend(self, name: str) -> None:
        """Join or leave the topic until it is as wanted. One task at a time does this for a topic."""
        backoff = self.pool.retry_delays()
        try:
            while not self._closed:
                topic, member = self._topics.get(name), self._members.get(name)
                if member is not None and (topic is None or topic.member is not member):
                    await self._leave(name, member)
                elif topic is None or member is not None or not topic.retry:
                    return
                elif not await self._join(name, topic):
                    if not self._started:
                        return
                    await asyncio.sleep(backoff.next())
        finally:
            self._tending.discard(name)

    async def _join(self, name: str, topic: _Topic[R]) -> bool:
        """Whether that is final: it has joined, or another attempt would be of no use."""
        options = replace(self.options, initial_position=topic.position, create_topic=self._list is None)
        member = self._make(TopicName.parse(name), options)
        member.become_member(self.working)
        self._members[name] = topic.member = member  # messages may arrive before it has started
        try:
            async with self._joins:
                await member.start()
        except BaseException as e:
            topic.member = None
            self._forget(name, member)
            if not isinstance(e, EngineError):
                raise
            return self._refused(name, topic, e)
        topic.joined = True
        if member.failure is not None:  # by damaged data, raised behind what is good
            self.member_failed(member, member.failure)
        return True

    def _refused(self, name: str, topic: _Topic[R], error: EngineError) -> bool:
        gone = _is_gone(error)
        if not self._started and not (gone and self._list is not None):
            raise error
        kind = isinstance(error, SubscriptionKindError)
        if error.layout_stale or (isinstance(error, _PASSING) and not kind) or (gone and self._list is not None):
            return False
        topic.retry = False
        if not gone:
            topic.error = error
            self._surface(name, error)
        return True

    async def _leave(self, name: str, member: R) -> None:
        """Close a member. Acknowledges nothing; what is queued of it is not delivered."""
        self._forget(name, member)
        statistics = member.statistics()
        self._past.update({total: getattr(statistics, total) for total in self._TOTALS})
        with contextlib.suppress(EngineError):  # acknowledgements in a topic that has left
            await member.close()

    def _forget(self, name: str, member: R) -> None:
        if self._members.get(name) is member:
            del self._members[name]
        self._turns.leave(member)

    # -- MemberOwner --------------------------------------------------------------------------------------------

    def messages_came(self, member: Any) -> None:
        """Serve it in its turn."""
        ours: Any = self._members.get(member.topic)
        if ours is member and not self._closed:
            self._turns.join(ours)
            self._wake()

    def member_attached(self, member: Any) -> None:
        """Its cursor may have been moved back."""
        ours: Any = self._members.get(member.topic)
        if ours is member:
            self._turns.interrupt(ours)

    def member_failed(self, member: Any, error: EngineError) -> None:
        """What is queued of it is delivered first. A deleted topic leaves without an error."""
        name = member.topic
        topic = self._topics.get(name)
        if self._closed or topic is None or topic.member is not member or isinstance(error, AlreadyClosedError):
            return
        if not topic.joined:
            return  # start() raises it
        topic.retry, topic.error = False, None if _is_gone(error) else error
        if topic.error is None or not topic.member.waiting:
            self._give_up(name, topic)

    def _give_up(self, name: str, topic: _Topic[R]) -> None:
        if topic.member is not None and self._topics.get(name) is topic:
            topic.member, topic.joined = None, False
            if topic.error is not None:
                self._surface(name, topic.error)
            self._tend_soon(name)

    def _surface(self, name: str, error: EngineError) -> None:
        """Have one receive raise it."""
        error.add_note(f"the topic {name} failed; the consumer continues with the others")
        for turn in self._receives:
            if not turn.future.done():
                turn.future.set_exception(error)
                return
        self._errors.append(error)

    def _check_open(self) -> None:
        super()._check_open()
        self._raise_error()

    def _raise_error(self) -> None:
        """Before any message is taken: topics that always have some must not delay it."""
        if self._errors:
            raise self._errors.popleft()

    # -- receiving -------------------------------------------------------------------------------------------

    def take_now(self, max_messages: int | None = None, max_bytes: int = -1) -> Any:
        """From any thread: the next Message (or MessageBatch); None when none is queued, or other receives wait."""
        return None if self._receives or self._errors else self._take(max_messages, max_bytes)

    def _pop_message(self) -> Message[V] | None:
        self._raise_error()
        message: Message[V] | None = self._take(None, -1)
        return message

    def _pop_batch(self, max_messages: int, max_bytes: int) -> MessageBatch[V] | None:
        self._raise_error()
        batch: MessageBatch[V] | None = self._take(max_messages, max_bytes)
        return batch

    def _no_messages(self) -> MessageBatch[V]:
        return MessageBatch(self.topic, [], {}, MessageId)

    @property
    def waiting(self) -> int:
        """How many messages are queued."""
        return 0 if self._paused else self._turns.waiting

    def _take(self, max_messages: int | None, max_bytes: int) -> Any:
        return None if self._paused else self._turns.take(max_messages, max_bytes)

    def _exhausted(self, member: R) -> None:
        """Nothing more is queued of it: it may have failed before; or a bad entry is next."""
        if member.damaged() is not None:
            call_threadsafe(self._loop, partial(self._pass_damage, member))
            return
        topic = self._topics.get(member.topic)
        if topic is not None and topic.error is not None and topic.member is member:
            call_threadsafe(self._loop, partial(self._give_up, member.topic, topic))

    def _pass_damage(self, member: R) -> None:
        if self._member(member.topic) is member and (error := member.meet_damage()) is not None:
            self._surface(member.topic, error)
        if member.waiting:
            self.messages_came(member)
        else:
            self._exhausted(member)

    def _asked(self) -> None:
        if self.permits is not None and not self.waiting:
            self.permits.ask()

    def _make_permits(self) -> Permits | None:
        return None

    def _make_turns(self) -> TopicTurns[R]:
        return TopicTurns(self._exhausted)

    # -- acknowledging ---------------------------------------------------------------------------------------

    def _member(self, name: str) -> R | None:
        """The member of a wanted topic."""
        topic = self._topics.get(name)
        return None if topic is None else topic.member

    def _has_left(self, member: R, error: BaseException) -> bool:
        """Whether the error follows from the topic having left."""
        ours: AsyncStreamConsumer[Any] | AsyncQueueConsumer[Any] | None = self._member(member.topic)
        gone = isinstance(error, AlreadyClosedError | NotFoundError)
        return gone and (ours is not member or isinstance(member.failure, NotFoundError))

    async def _settled(self, acks: Sequence[tuple[R, Coroutine[Any, Any, None]]]) -> None:
        """Wait for all that was sent to members. Raises what failed, but for topics that have left."""
        ended = await asyncio.gather(*(ack for _, ack in acks), return_exceptions=True)
        self._check_closed()
        outcomes = zip(acks, ended, strict=True)
        _raise([(m, e) for (m, _), e in outcomes if isinstance(e, BaseException) and not self._has_left(m, e)])

    def flush(self) -> Coroutine[Any, Any, None]:
        """Awaited, it waits until every acknowledgement that is not awaited by itself (`…_nowait`) is durable.

        Raises the first failure that was not raised yet.
        """
        return self._starting.call(self._begin_flush)

    def _begin_flush(self) -> Coroutine[Any, Any, None] | None:
        due = [(member, member.flush()) for member in list(self._members.values()) if member.unconfirmed]
        return self._settled(due) if due else None

    @property
    def closed(self) -> bool:
        """Whether close() was called, here or on its client."""
        return self._closed

    def _check_closed(self) -> None:
        """Raise after close(). Errors of single topics are raised by receives only."""
        if self._failure is not None:
            raise self._failure

    def _check_ours(self, x: object, topic: str | None) -> str:
        """`topic`, if it is or could be one of this consumer's. Raises InvalidArgumentError."""
        if topic is None:
            raise InvalidArgumentError(f"the id must be of a message that this consumer has received, got {x!r}")
        ours = topic in self._members or topic in self._named
        if not ours and self._query is not None:
            name = TopicName.parse(topic)
            ours = f"{name.tenant}/{name.namespace}" == self._query.namespace
        if not ours:
            raise InvalidArgumentError(f"{x!r} cannot be acknowledged here: {topic} is not a topic of {self!r}")
        return topic

    # -- life ------------------------------------------------------------------------------------------------

    @property
    def topic(self) -> str:
        """The "tenant/namespace" whose topics these are, or the names of the topics themselves."""
        return ", ".join(sorted(self._named)) if self._query is None else self._query.namespace

    @property
    def topics(self) -> list[str]:
        """The names of its present topics, sorted."""
        return sorted(name for name, topic in list(self._topics.items()) if topic.member is not None)

    @property
    def name(self) -> str:
        """The consumer's name, the same in all topics."""
        return self.options.name

    @property
    def subscription(self) -> str:
        """The subscription's name, the same in all topics."""
        return str(self.options.subscription)

    async def lag(self) -> int:
        """How many messages of its present topics the subscription has not acknowledged, as their owners say now.

        Raises AlreadyClosedError, ConnectError, TimeoutError.
        """
        self._check_closed()
        return sum(await asyncio.gather(*(self._lag_of(member) for member in list(self._members.values()))))

    async def _lag_of(self, member: R) -> int:
        try:
            return await member.lag()
        except EngineError as e:
            if self._has_left(member, e):
                return 0
            raise

    async def seek(self, when: When) -> None:
        """Move the subscription in all present topics, for all its consumers: to "earliest", "latest", or the first
        message published at an aware datetime or later. What was fetched before is dropped.

        Raises NotFoundError, AlreadyClosedError, ConnectError, TimeoutError, InvalidArgumentError; some topics may have
        been moved then.
        """
        check_when(when)
        self._check_closed()
        await asyncio.gather(*(member.seek(when) for member in list(self._members.values())))

    async def unsubscribe(self) -> None:
        """Close, then delete the subscription in each present topic; its other consumers get NotFoundError.

        Raises ConnectError, TimeoutError; it may have been deleted in some topics then.
        """
        topics = self.topics
        await self.close()
        deletions = [commands.DeleteSubscription(topic=topic, subscription=self.subscription) for topic in topics]
        for outcome in await asyncio.gather(*(change(self.pool, one) for one in deletions), return_exceptions=True):
            if isinstance(outcome, BaseException) and not isinstance(outcome, NotFoundError):
                raise outcome

    def statistics(self) -> MultiConsumerStatistics:
        """A frozen record of totals."""
        return self._summed(MultiConsumerStatistics)

    def _summed(self, kind: type[S]) -> S:
        """The sums over all topics; totals include former topics."""
        each = [member.statistics() for member in list(self._members.values())]
        own = {"handled": self.handled, "handler_failures": self.handler_failures}
        numbers = [field.name for field in fields(kind) if field.name not in ("topics", "failed", *own)]
        failed = sorted(name for name, topic in list(self._topics.items()) if topic.error is not None)
        sums = {name: self._past[name] + sum(getattr(one, name) for one in each) for name in numbers}
        return kind(**sums, **own, topics=tuple(self.topics), failed=tuple(failed))

    async def close(self) -> None:
        """Leave every topic. Acknowledges nothing (semantics 13); waiting receives raise AlreadyClosedError.

        Idempotent.
        """
        self._closed = True
        await self._end.run(self._close)

    async def _close(self) -> None:
        unconfirmed = await self._starting.failure_of(self.flush())
        self.end(AlreadyClosedError(f"the consumer {self.options.name} of {self.topic} was closed"))
        self._turns.clear()
        if self._list is not None:
            self._list.close()
        try:
            await self._tasks.close()
            await asyncio.gather(*(member.close() for member in list(self._members.values())))
        finally:
            self._leave_memory()
            if self.on_closed is not None:
                self.on_closed()
        if unconfirmed is not None:
            raise unconfirmed

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of {self.topic}{' (closed)' if self._closed else ''}>"


def _is_gone(error: BaseException) -> bool:
    """Whether the topic was deleted, not only its subscription."""
    return isinstance(error, NotFoundError) and not isinstance(error, SubscriptionNotFoundError)


def _raise(failed: Sequence[tuple[object, BaseException]]) -> None:
    """Raise what failed; where all failures are FencedError, one error with the messages of all."""
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
