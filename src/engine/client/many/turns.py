"""`TopicTurns`: the members of a consumer of several topics that have messages, served in turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar

from engine.aio.locks import Lock
from engine.client.consume.queue_consumer import AsyncQueueConsumer
from engine.client.consume.receiver import Receiver
from engine.client.consume.stream_consumer import AsyncStreamConsumer
from engine.client.many.history import Chapter, History
from engine.model.positions import MessageId, TopicPositions

TURN_MESSAGES = 100  # received one by one from a topic while others wait; or one batch

R = TypeVar("R", bound=Receiver[Any])


class TopicTurns(Generic[R]):
    """From any thread. It is the first member's turn until it has no message, or has given enough while others wait.

    `exhausted(member)` is called when one has no more messages, on the thread that found out.
    """

    def __init__(self, exhausted: Callable[[R], object]) -> None:
        self._exhausted = exhausted
        # Under the lock.
        self._lock = Lock()
        self._members: deque[R] = deque()
        self._known: set[R] = set()  # the same members
        self._turn: R | None = None  # whose turn has begun
        self._left = 0  # messages of this turn

    def join(self, member: R) -> None:
        """It has messages: add it at the end, unless it is waiting already."""
        with self._lock:
            if member not in self._known:
                self._known.add(member)
                self._members.append(member)

    def leave(self, member: R) -> None:
        """Remove a member."""
        with self._lock:
            self._end_turn(member)
            if member in self._known:
                self._known.discard(member)
                self._members.remove(member)
            self._forget(member)

    def interrupt(self, member: R) -> None:
        """The delivered positions of a member may have changed: end the present turn."""
        with self._lock:
            turn = self._turn
            if turn is not None:
                self._end_turn(turn)
            if turn is not member:
                self._note(member)

    def clear(self) -> None:
        """Remove all members."""
        with self._lock:
            self._members.clear()
            self._known.clear()

    @property
    def waiting(self) -> int:
        """How many messages are queued."""
        with self._lock:
            return sum(member.waiting for member in self._members)

    def take(self, max_messages: int | None, max_bytes: int) -> Any:
        """The next message (or batch) of the member whose turn it is; None when none has any."""
        with self._lock:
            while self._members:
                member = self._members[0]
                if self._turn is not member:
                    self._turn, self._left = member, TURN_MESSAGES
                    self._identify(member)
                found = member.take_now(max_messages, max_bytes)
                if found is not None:
                    self._left -= 1 if max_messages is None else TURN_MESSAGES
                    if self._left <= 0 and len(self._members) > 1:
                        self._end_turn(member)
                        self._members.rotate(-1)
                    return found
                self._members.popleft()
                self._known.discard(member)
                self._end_turn(member)
                self._exhausted(member)
        return None

    def _end_turn(self, member: R) -> None:
        if self._turn is member:
            self._turn = None
            self._note(member)

    # What kinds do with turns, under the lock.

    def _identify(self, member: R) -> None:
        """A turn begins: choose the ids of the messages that it delivers."""

    def _note(self, member: R) -> None:
        """A turn has ended: it may have delivered something."""

    def _forget(self, member: R) -> None:
        """Remove a member."""


class StreamTurns(TopicTurns[AsyncStreamConsumer[Any]]):
    """Gives every message an id with the positions delivered before it in all topics (semantics 11)."""

    def __init__(self, exhausted: Callable[[AsyncStreamConsumer[Any]], object]) -> None:
        super().__init__(exhausted)
        self._history = History()

    def _identify(self, member: AsyncStreamConsumer[Any]) -> None:
        member.identify(partial(_make_id, member.topic, created_ms(member), *self._history.mark()))

    def _note(self, member: AsyncStreamConsumer[Any]) -> None:
        self._history.note(member.topic, TopicPositions(created_ms(member), member.positions))

    def _forget(self, member: AsyncStreamConsumer[Any]) -> None:
        self._history.note(member.topic, None)


class QueueTurns(TopicTurns[AsyncQueueConsumer[Any]]):
    """Gives every message an id that distinguishes its topic from a later one of its name."""

    def _identify(self, member: AsyncQueueConsumer[Any]) -> None:
        vectors = {member.topic: TopicPositions(created_ms(member), {})}
        member.identify(partial(MessageId, topic=member.topic, vectors=vectors))


def created_ms(member: Receiver[Any]) -> int:
    """The time at which its topic was created, milliseconds; 0 when that is not known."""
    return (member.session.layout.created_ms or 0) if member.session.known else 0


def _make_id(
    topic: str, born: int, chapter: Chapter, step: int, segment_id: int, offset: int, positions: dict[int, int]
) -> MessageId:
    vectors = chapter.before(step)
    vectors[topic] = TopicPositions(born, positions)
    return MessageId(segment_id, offset, positions, topic, vectors)
