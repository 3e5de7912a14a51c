"""Requests and replies: `Requests` of a client that asks, `Responses` of one that answers.

A request is a message with two properties, the topic for its reply and an id that the reply repeats. The first request
into a namespace makes a topic of replies there, which one consumer reads for all requests of the client. A reply is
known by its id: the first one ends the request, and what comes later, or twice, is counted and dropped.

Replies to requests that are encrypted are encrypted, too. A client makes a pair of keys for them, which lives as long
as their topic; the request names the public key, among what is encrypted. Plain and encrypted replies have topics of
their own.

The topic is deleted when the client closes, as far as the client may do that. What a client leaves behind that died, or
may not delete topics, a broker deletes (engine/broker/upkeep/reply_topics.py).
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from engine._native.consume.message import Message
from engine.aio.shielded import shielded
from engine.client.base.options import ConsumerOptions, Keys, ProducerOptions, check_timeout
from engine.client.consume.checkpoint_consumer import AsyncCheckpointConsumer
from engine.client.produce.producer import AsyncProducer
from engine.client.topic.session import TopicSession
from engine.errors import (
    AlreadyClosedError,
    EncryptionRequiredError,
    EngineError,
    InvalidArgumentError,
    NoResponderError,
    NotFoundError,
    QueueFullError,
    TimeoutError,
)
from engine.limits import REQUESTS_MAX, RESPONDERS_MAX
from engine.model.names import TopicName
from engine.model.positions import Checkpoint
from engine.model.reply_topics import CORRELATION_ID, REPLY_KEY, REPLY_TO, is_reply_topic, reply_topic

if TYPE_CHECKING:
    from engine.client.net.pool import Pool
    from engine.model.positions import MessageId

log = logging.getLogger(__name__)

GOODBYE_S_MAX = 2.0  # for deleting a topic of replies
STATISTICS_S_MAX = 1.0  # for asking whether a topic has a consumer

MakeOptions = Callable[[Keys | None], ConsumerOptions]
Delete = Callable[[str], Awaitable[None]]
Statistics = Callable[[str], Awaitable[Any]]
_Target = tuple[str, str | None]  # a topic of replies, and the public key that they are encrypted for


class _Inbox:
    """A topic of replies in one namespace, and its consumer. `dropped`: replies that nothing waited for.

    `key`: the public key that replies are encrypted for; None: they are not.
    """

    def __init__(self, pool: Pool, topic: TopicName, options: ConsumerOptions, key: str | None) -> None:
        self.topic = topic
        self.key = key
        self.dropped = 0
        self._pool = pool
        self._consumer = AsyncCheckpointConsumer[bytes](pool, topic, options)
        self._waiting: dict[str, asyncio.Future[Message[bytes]]] = {}
        self._reading: asyncio.Task[None] | None = None
        self.failure: EngineError | None = None

    async def start(self) -> None:
        """Create the topic, and read it from its beginning."""
        session = TopicSession(self._pool, self.topic)
        try:
            await session.open(create=True)
        finally:
            session.close()
        await self._consumer.start(Checkpoint.earliest())
        self._reading = asyncio.get_running_loop().create_task(self._read(), name=f"engine: {self.topic}")

    async def _read(self) -> None:
        try:
            while True:
                for message in await self._consumer.receive_batch():
                    future = self._waiting.pop(message.properties.get(CORRELATION_ID, ""), None)
                    if future is None or future.done():
                        self.dropped += 1
                    elif self.key is not None and message.properties.get(REPLY_KEY) != self.key:
                        future.set_exception(
                            EncryptionRequiredError("the reply must be encrypted, got one that is not")
                        )
                    else:
                        future.set_result(message)
        except EngineError as e:
            self.fail(e)

    def expect(self, correlation_id: str) -> asyncio.Future[Message[bytes]]:
        """The reply to come. InvalidArgumentError: another request waits under this id."""
        if correlation_id in self._waiting:
            raise InvalidArgumentError(
                f"the property {CORRELATION_ID} must differ from those of requests that wait, got {correlation_id:.100}"
            )
        future: asyncio.Future[Message[bytes]] = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = future
        return future

    def forget(self, correlation_id: str) -> None:
        """The reply is not waited for any more."""
        self._waiting.pop(correlation_id, None)

    def fail(self, error: EngineError) -> None:
        """No reply comes any more."""
        self.failure = self.failure or error
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(error)

    async def close(self, error: EngineError) -> None:
        """End what waits, with this error."""
        self.fail(error)
        await self._consumer.close()
        if self._reading is not None:
            await asyncio.wait([self._reading])


class Requests:
    """Of one client. Loop thread only. `token`: random bits. `outstanding`: requests without a reply yet."""

    def __init__(
        self, pool: Pool, token: Callable[[int], int], options: MakeOptions, delete: Delete, statistics: Statistics
    ) -> None:
        self._pool, self._token, self._options = pool, token, options
        self._delete, self._statistics = delete, statistics
        self._inboxes: dict[tuple[str, bool], asyncio.Task[_Inbox]] = {}  # by namespace, and whether encrypted
        self.outstanding = 0
        self._closed = False

    async def request(
        self,
        producer: AsyncProducer[Any],
        value: Any,
        *,
        timeout: float,
        properties: Mapping[str, str] | None,
        encrypted: bool,
        **options: Any,
    ) -> Message[bytes]:
        """See AsyncProducer.request."""
        check_timeout(timeout)
        if timeout is None:
            raise InvalidArgumentError("timeout must be a number of seconds, got None: a reply may never come")
        self._check_open()
        if self.outstanding >= REQUESTS_MAX:
            raise QueueFullError(f"{REQUESTS_MAX:,} requests of this client wait for replies, as many as there may be")
        self.outstanding += 1
        try:
            async with asyncio.timeout(timeout):
                inbox = await self._inbox(TopicName.parse(producer.topic), encrypted=encrypted)
                return await self._asked(inbox, producer, value, properties or {}, options)
        except builtins.TimeoutError as e:
            if isinstance(e, TimeoutError):  # the send's own
                raise
            raise await self._late(producer.topic, timeout) from None
        finally:
            self.outstanding -= 1

    async def _asked(
        self,
        inbox: _Inbox,
        producer: AsyncProducer[Any],
        value: Any,
        properties: Mapping[str, str],
        options: dict[str, Any],
    ) -> Message[bytes]:
        correlation_id = properties.get(CORRELATION_ID) or f"{self._token(128):032x}"
        future = inbox.expect(correlation_id)
        try:
            named = {**properties, REPLY_TO: str(inbox.topic), CORRELATION_ID: correlation_id}
            named.pop(REPLY_KEY, None)
            if inbox.key is not None:
                named[REPLY_KEY] = inbox.key
            await producer.send(value, properties=named, **options)
            return await future
        finally:
            inbox.forget(correlation_id)
            if future.done() and not future.cancelled():
                future.exception()  # it may have failed together with the send, which is raised

    async def _late(self, topic: str, timeout: float) -> TimeoutError:
        """What a request without a reply is told."""
        with contextlib.suppress(Exception):  # it is only for a better word, and may need a right
            async with asyncio.timeout(STATISTICS_S_MAX):
                subscriptions = (await self._statistics(topic))["subscriptions"]
            if not any(one["consumerCount"] for one in subscriptions.values()):
                return NoResponderError(
                    f"no reply came within {timeout:g} s, and no subscription of {topic} has a consumer"
                )
        return TimeoutError(f"no reply to a request to {topic} came within {timeout:g} s; a later one is dropped")

    async def _inbox(self, topic: TopicName, *, encrypted: bool) -> _Inbox:
        """That of the topic's namespace; a new one where that has failed, or there is none."""
        of = f"{topic.tenant}/{topic.namespace}", encrypted
        task = self._inboxes.get(of)
        if task is None or (task.done() and (task.cancelled() or task.exception() or task.result().failure)):
            opening = self._open(reply_topic(topic, self._token(128)), encrypted=encrypted)
            task = self._inboxes[of] = asyncio.get_running_loop().create_task(opening)
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await shielded(task)

    async def _open(self, topic: TopicName, *, encrypted: bool) -> _Inbox:
        key, private = None, None
        if encrypted:
            from engine.client.base.encryption import reply_pair  # loads cryptography, as the producer has

            key, private = reply_pair()
        inbox = _Inbox(self._pool, topic, self._options(private), key)
        try:
            await inbox.start()
            self._check_open()
        except BaseException:
            await inbox.close(self._ended())
            raise
        return inbox

    def _check_open(self) -> None:
        if self._closed:
            raise self._ended()

    @staticmethod
    def _ended() -> AlreadyClosedError:
        return AlreadyClosedError("the client was closed before the reply came")

    async def close(self) -> None:
        """End the requests that wait, and delete the topics of replies. Idempotent."""
        self._closed = True
        tasks, self._inboxes = list(self._inboxes.values()), {}
        for opened in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(opened, _Inbox):
                await opened.close(self._ended())
                await self._goodbye(str(opened.topic))

    async def _goodbye(self, topic: str) -> None:
        try:
            async with asyncio.timeout(GOODBYE_S_MAX):
                await self._delete(topic)
        except Exception as e:  # without the right, or the broker: a broker deletes it later
            log.debug("%s is left to the broker: %s", topic, e)


class Responses:
    """Sends replies, by a producer for each topic of replies (and key, of those that are encrypted); the ones used last
    are kept. Loop thread only.
    """

    def __init__(self, pool: Pool, make_name: Callable[[str], str]) -> None:
        self._pool, self._make_name = pool, make_name
        self._producers: OrderedDict[_Target, asyncio.Task[AsyncProducer[Any]]] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    async def reply(self, message: Message[Any], value: Any, properties: Mapping[str, str] | None) -> MessageId:
        """See AsyncStreamConsumer.reply."""
        if self._closed:
            raise AlreadyClosedError("the client was closed")
        if not isinstance(message, Message):
            raise InvalidArgumentError(f"message must be an engine.Message, got {type(message).__name__}")
        asked = message.properties
        target, correlation_id = asked.get(REPLY_TO), asked.get(CORRELATION_ID)
        if target is None or correlation_id is None:
            raise InvalidArgumentError(
                f"the message must be a request, with properties {REPLY_TO} and {CORRELATION_ID}"
            )
        name = TopicName.parse(target)
        if not is_reply_topic(name):
            raise InvalidArgumentError(f"replies go to topics of replies alone, and {target:.100} is none")
        key = asked.get(REPLY_KEY)
        to = str(name), key
        task = self._producer(to)
        named = {**(properties or {}), CORRELATION_ID: correlation_id}
        if key is not None:
            named[REPLY_KEY] = key
        try:
            producer = await shielded(task)
            return await producer.send(value, properties=named)
        except NotFoundError as e:
            self._drop(to, task)
            raise NotFoundError(f"the requester is gone, and its topic of replies with it: {e}") from e
        except EngineError:
            if task.done() and (task.cancelled() or task.exception() or task.result().closed):
                self._drop(to, task)
            raise

    def _producer(self, to: _Target) -> asyncio.Task[AsyncProducer[Any]]:
        task = self._producers.get(to)
        if task is None:
            task = self._producers[to] = asyncio.get_running_loop().create_task(self._open(*to))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            while len(self._producers) > RESPONDERS_MAX:
                self._drop(*next(iter(self._producers.items())))
        self._producers.move_to_end(to)
        return task

    async def _open(self, topic: str, key: str | None) -> AsyncProducer[Any]:
        name = TopicName.parse(topic)
        keys = None
        if key is not None:
            from engine.client.base.encryption import reply_recipient  # loads cryptography

            keys = reply_recipient(key)
        session = TopicSession(self._pool, name)
        try:
            await session.open(create=False)  # a producer would create it anew
        finally:
            session.close()
        own = self._make_name("replies")
        producer = AsyncProducer[Any](self._pool, name, own, ProducerOptions(encryption_keys=keys))
        try:
            await producer.start()
        except BaseException:
            await _close_quietly(producer)
            raise
        return producer

    def _drop(self, to: _Target, task: asyncio.Task[AsyncProducer[Any]]) -> None:
        if self._producers.get(to) is task:
            del self._producers[to]
        closing = asyncio.get_running_loop().create_task(_close_opened(task))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Send what is left. Idempotent."""
        self._closed = True
        producers, self._producers = self._producers, OrderedDict()
        await asyncio.gather(*map(_close_opened, producers.values()), *self._closing)


async def _close_opened(task: asyncio.Task[AsyncProducer[Any]]) -> None:
    with contextlib.suppress(Exception):
        await _close_quietly(await task)


async def _close_quietly(producer: AsyncProducer[Any]) -> None:
    """Each reply has been told of its failure."""
    with contextlib.suppress(EngineError):
        await producer.close()
