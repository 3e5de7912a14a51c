"""Receiving, common to all consumers: receives served in order of arrival, batches, iteration, the end.

A receive takes messages only in the very step in which it returns them, so a cancelled one has taken nothing
(semantics 41).
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar, overload

from engine._native.consume.batch import MessageBatch
from engine._native.consume.message import Message
from engine._native.consume.permits import Permits
from engine._native.consume.receiving import Receives, Wait
from engine.client.base.html import HtmlRecord
from engine.client.base.options import check_count, check_timeout
from engine.client.base.owned import Owned
from engine.client.base.starting import Starting
from engine.client.consume.credit import Budget
from engine.errors import AlreadyClosedError, EngineError

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from engine.client.consume.receiver import Receiver
    from engine.client.transact.scope import Scope
    from engine.model.positions import MessageId

BATCH_MESSAGES = 10_000
T = TypeVar("T")
V = TypeVar("V")  # of the values of messages


class MemberOwner(Protocol):
    """A consumer of several topics, made of consumers of one. Methods run on the loop, and neither block nor raise."""

    budget: Budget
    permits: Permits | None

    def messages_came(self, member: Receiver[Any]) -> None:
        """Messages are queued there."""

    def member_attached(self, member: Receiver[Any]) -> None:
        """Attached to a segment again: what was delivered from it may be delivered again."""

    def member_failed(self, member: Receiver[Any], error: EngineError) -> None:
        """Nothing more arrives there, or it was closed."""


@dataclass(frozen=True, slots=True)
class ConsumerStatistics(HtmlRecord):
    """Totals since the consumer was made; `…_queued` and `segments` are current values. Bytes are those of entries.

    `…_received`: what the program has received, and not what was fetched ahead for it; an entry's bytes count with its
    last message.

    `corrupt_entries`, `corrupt_messages`: bad ones that were skipped. `gaps`: places at which messages may have been
    lost before they were synced, in a relaxed mode of durability. `handled`, `handler_failures`: calls of the handler
    of run() that returned, and that raised.
    """

    messages_received: int
    bytes_received: int
    messages_queued: int
    bytes_queued: int
    segments: int
    corrupt_entries: int
    corrupt_messages: int
    gaps: int
    handled: int
    handler_failures: int


class Receiving(Receives, Owned, ABC, Generic[V]):
    """Loop thread only, but for take_now()."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._starting = Starting(self._loop)
        self._receives: deque[Wait] = deque()
        self._failure: EngineError | None = None
        self._paused = False

    @overload
    async def receive(self, timeout: None = None) -> Message[V]: ...
    @overload
    async def receive(self, timeout: float | None) -> Message[V] | None: ...
    async def receive(self, timeout: float | None = None) -> Message[V] | None:
        """The next message; None when none arrived within `timeout` seconds (None: no limit).

        Raises AlreadyClosedError when the consumer is closed, also meanwhile; CorruptionError for damaged data;
        InvalidArgumentError for a `timeout` below 0 or no number.
        """
        if timeout is not None:
            check_timeout(timeout)
        if not self._receives and (message := self._pop_message()) is not None:
            self._popped()
            return message
        return await self._in_turn(self._pop_message, timeout)

    async def receive_batch(
        self, max_messages: int = BATCH_MESSAGES, max_bytes: int | None = None, timeout: float | None = None
    ) -> MessageBatch[V]:
        """The queued messages: at least one, at most `max_messages`, at most `max_bytes` of keys and values (a single
        message may be larger).

        Empty when none arrived within `timeout` seconds. Raises as receive().
        """
        check_count("max_messages", max_messages)
        if max_bytes is not None:
            check_count("max_bytes", max_bytes)
        check_timeout(timeout)
        limit = -1 if max_bytes is None else max_bytes
        if not self._receives and (batch := self._pop_batch(max_messages, limit)) is not None:
            self._popped()
            return batch
        found = await self._in_turn(partial(self._pop_batch, max_messages, limit), timeout)
        return self._no_messages() if found is None else found

    def __aiter__(self) -> AsyncIterator[Message[V]]:
        """Messages as they arrive, until the consumer is closed."""
        return self._iterate()

    async def _iterate(self) -> AsyncIterator[Message[V]]:
        while True:
            try:
                message = await self.receive()
            except AlreadyClosedError:
                return
            yield message

    @abstractmethod
    def take_now(self, max_messages: int | None = None, max_bytes: int = -1) -> Any:
        """From any thread: the next Message (or MessageBatch); None when none is queued, or other receives wait."""

    async def reply(
        self, message: Message[Any], value: Buffer, *, properties: Mapping[str, str] | None = None
    ) -> MessageId:
        """Send the reply to a request that was received, and wait until it is durable; acknowledge the request then.

        `value`: any buffer. `properties`: text to text, besides the `correlation_id` of the request. Raises
        NotFoundError when the requester is gone; InvalidArgumentError when the message is no request; what a producer's
        send() raises.
        """
        self._check_open()
        sent: MessageId = await self._client.exchange.responses.reply(message, value, properties)
        return sent

    @property
    def handled(self) -> int:
        """Calls of the handler of run() that returned."""
        return 0

    @property
    def handler_failures(self) -> int:
        """Calls of the handler of run() that raised."""
        return 0

    # -- pausing ---------------------------------------------------------------------------------------------

    @property
    def paused(self) -> bool:
        """Whether receives wait, whatever is queued."""
        return self._paused

    def pause(self) -> None:
        """Deliver nothing until resume(): receives wait, and what is fetched ahead stays here. Idempotent."""
        self._paused = True

    def resume(self) -> None:
        """Deliver again after pause(). Idempotent."""
        self._paused = False
        self._wake()

    # -- what the consumer does ------------------------------------------------------------------------------

    @property
    @abstractmethod
    def waiting(self) -> int:
        """How many messages are queued."""

    @abstractmethod
    def _pop_message(self) -> Message[V] | None:
        """The next message, None when none is queued."""

    @abstractmethod
    def _pop_batch(self, max_messages: int, max_bytes: int) -> MessageBatch[V] | None:
        """The next batch, None when nothing is queued."""

    @abstractmethod
    def _no_messages(self) -> MessageBatch[V]:
        """An empty batch."""

    async def _in_turn(self, pop: Callable[[], T | None], timeout: float | None) -> T | None:
        """pop() once there is something, and all receives that came before are served."""
        turn = self._begin_turn(timeout)
        try:
            while await turn.future:
                found = pop()
                if found is not None:
                    self._popped()
                    return found
                self._check_coming()  # nothing would wake it any more
                turn.future = self._loop.create_future()  # a take_now() was faster
                self._asked()
            return None
        finally:
            self._end_turn(turn)

    # -- the end ---------------------------------------------------------------------------------------------

    def check_open(self) -> None:
        """Raise AlreadyClosedError after close(). From any thread."""
        if isinstance(self._failure, AlreadyClosedError):
            raise self._failure

    def _check_open_in(self, scope: Scope) -> None:
        """Raise what refuses an acknowledgement in a transaction, which cannot be committed without it."""
        try:
            self._check_open()
        except EngineError as e:
            scope.fail(e)
            raise

    def fail(self, error: EngineError) -> None:
        """Nothing more arrives; receives raise this error once everything queued was received."""
        if self._failure is not None:
            return
        self._failure = error
        for turn in self._receives:
            if not turn.future.done():
                turn.future.set_exception(error)

    # -- life ------------------------------------------------------------------------------------------------

    def end(self, error: AlreadyClosedError) -> None:
        """It was closed: waiting receives raise this error, and so does every later call."""
        self.fail(error)
        self._failure = error

    @abstractmethod
    async def close(self) -> None:
        """Leave. Acknowledges nothing (semantics 13); waiting receives raise AlreadyClosedError. Idempotent."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
