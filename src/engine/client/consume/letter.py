"""`Letter`: a message on its way to a topic of dead letters, and the two ways in which it is published there once.

LetterProducer   of queues: in the transaction that acknowledges the message
LetterWriter     of streams, which acknowledge up to a place: what is behind an unfinished message cannot be
                 acknowledged together with its letter. Each letter has a producer of its own, with the sequence id
                 0, and the broker drops a duplicate. The producer's name is generated, so the broker keeps no
                 record of it, and nothing can use it without the secret, which is the hash of the message, its
                 place and the subscription: what gets the message again has it, and what cannot read the source
                 has not. A producer that attaches under that name learns whether the message is stored already,
                 also after the dead-letter topic has changed its layout.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC
from typing import TYPE_CHECKING, Any

from engine._native.consume.message import Message
from engine.client.base.options import Keys, ProducerOptions
from engine.client.consume.failure import Failure
from engine.client.net.pool import Pool
from engine.client.produce.producer import AsyncProducer
from engine.errors import CorruptionError, EngineError, InvalidArgumentError, MessageTooLargeError
from engine.model.generated_names import SECRET_SIZE, generated
from engine.model.names import TopicName
from engine.model.positions import MessageId

if TYPE_CHECKING:
    from engine.client.transact.transaction import AsyncTransaction

log = logging.getLogger(__name__)

# Of a transaction. What a killed consumer leaves is due again after that time, and readers of the dead letters wait for
# it. One that was too slow gets twice as long.
TIMEOUT_S_FIRST = 10.0
TIMEOUT_S_MAX = 60.0

OwnTransaction = Callable[[float], AbstractAsyncContextManager["AsyncTransaction"]]  # of a timeout in seconds


class Letter:
    """`failure`: why it was given up, if that was said. `bare`: without the properties of the message, which do not fit
    beside those that say where it is from.
    """

    __slots__ = ("bare", "failure", "message")

    def __init__(self, message: Message[Any], failure: Failure | None = None) -> None:
        self.message = message
        self.failure = failure
        self.bare = False

    @property
    def place(self) -> tuple[int, int]:
        """(segment, offset)."""
        return self.message.segment_id, self.message.offset

    def make_smaller(self, error: EngineError) -> bool:
        """Whether it is smaller now, and may be accepted after this error."""
        if self.bare or not isinstance(error, (InvalidArgumentError, MessageTooLargeError)):
            return False
        self.bare = True
        return True

    def content(self, subscription: str) -> tuple[Any, dict[str, Any]]:
        """(value, options of a producer's send())."""
        message = self.message
        added = origin_of(message, message.topic, subscription)
        if self.failure is not None:
            added |= self.failure.properties()
        properties = added if self.bare else {**properties_of(message), **added}
        return message.encoded_value, {
            "key": message.key, "properties": properties, "event_time": message.event_time_ms
        }  # fmt: skip


class LetterWriter:
    """Publishes dead letters of one subscription of `source` to `target`. Loop thread only.

    `created_ms`: when the source was created, which tells it from an earlier topic of its name. `keys`: as of
    LetterProducer.
    """

    def __init__(
        self, pool: Pool, source: TopicName, subscription: str, target: TopicName, created_ms: Callable[[], int | None],
        keys: Keys | None,
    ) -> None:  # fmt: skip
        self._source = str(source)
        self._target = target
        self._pool = pool
        self._subscription = subscription
        self._created_ms = created_ms
        self._keys = keys

    async def publish(self, message: Message[Any], failure: Failure | None = None) -> None:
        """Publish it unless it is stored already. Durable when this returns."""
        secret = self._secret_of(message)
        name = generated(secret)
        producer = AsyncProducer[Any](self._pool, self._target, name, _options(self._keys, name), secret)
        await producer.start()
        try:
            if producer.last_sequence_id < 0:
                await self._send(producer, Letter(message, failure))
        finally:
            await producer.close()

    async def _send(self, producer: AsyncProducer[Any], letter: Letter) -> None:
        value, options = letter.content(self._subscription)
        try:
            await producer.send(value, **options, sequence_id=0)
        except (InvalidArgumentError, MessageTooLargeError) as e:
            if not letter.make_smaller(e):
                raise
            await self._send(producer, letter)

    def _secret_of(self, message: Message[Any]) -> bytes:
        """What only the same message of the same subscription has."""
        where = (
            self._source, self._created_ms(), self._subscription, message.segment_id, message.offset,
            message.publish_time.timestamp(), message.producer_name, message.sequence_id, message.key,
        )  # fmt: skip
        found = hashlib.sha256(b"engine dead letter " + repr(where).encode() + b"\0")
        found.update(message.encoded_value)
        return found.digest()[:SECRET_SIZE]


class LetterProducer:
    """Publishes letters of one subscription to `target`. Loop thread only, one call at a time.

    Its producer has a generated name, is made at the first letter, and anew after a failure. `keys`: those that the
    subscription's messages are decrypted with; its dead letters are encrypted for the same.
    """

    def __init__(self, pool: Pool, subscription: str, target: TopicName, keys: Keys | None) -> None:
        self._target = target
        self._pool = pool
        self._subscription = subscription
        self._keys = keys
        self._producer: AsyncProducer[Any] | None = None

    async def prepare(self) -> None:
        """Have a producer. Raises what making one raises."""
        if self._producer is None:
            producer = AsyncProducer[Any](self._pool, self._target, None, _options(self._keys))
            await producer.start()
            self._producer = producer

    async def publish(self, letters: Sequence[Letter], transaction: AsyncTransaction) -> None:
        """They are durable when this returns, and seen once the transaction is committed. Raises the first failure."""
        producer = self._producer
        assert producer is not None
        try:
            for letter in letters:
                await producer.writable()
                self._send(producer, letter, transaction)
            await transaction.flush()
        except BaseException:
            self._producer = None
            self._pool.tasks.spawn(_closed(producer), name=f"close a producer of {self._target}")
            raise

    def _send(self, producer: AsyncProducer[Any], letter: Letter, transaction: AsyncTransaction) -> None:
        value, options = letter.content(self._subscription)
        try:
            producer.send_nowait(value, **options, transaction=transaction)
        except (InvalidArgumentError, MessageTooLargeError) as e:
            if not letter.make_smaller(e):
                raise
            self._send(producer, letter, transaction)

    async def close(self) -> None:
        """Idempotent."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await _closed(producer)


def _options(keys: Keys | None, name: str | None = None) -> ProducerOptions:
    if keys is None:
        return ProducerOptions(name=name)
    from engine.client.base.encryption import public_of  # loads cryptography

    return ProducerOptions(name=name, encryption_keys=public_of(keys))


async def _closed(producer: AsyncProducer[Any]) -> None:
    try:
        await producer.close()
    except EngineError as e:
        log.debug("a producer of %s, closed: %s", producer.topic, e)


def properties_of(message: Message[Any]) -> dict[str, str]:
    """Its properties; none where they cannot be read."""
    try:
        return message.properties
    except CorruptionError:
        return {}


def origin_of(message: Message[Any], source: str, subscription: str) -> dict[str, str]:
    """The origin of a dead letter, as properties."""
    return {
        "origin-topic": source,
        "origin-message": f"{message.segment_id}:{message.offset}",
        "origin-message-id": MessageId(message.segment_id, message.offset, topic=source).to_bytes().hex(),
        "origin-subscription": subscription,
        "origin-redelivery-count": str(message.redelivery_count),
        "origin-producer": message.producer_name,
        "origin-sequence-id": str(message.sequence_id),
        "origin-publish-time": message.publish_time.astimezone(UTC).isoformat(),
    }
