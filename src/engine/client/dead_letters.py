"""`DeadLetters`: what was given up and waits in a subscription of a dead-letter topic, and the way back.

A letter goes back in the transaction that acknowledges it here: once. Looking at letters acknowledges nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from engine.errors import InvalidArgumentError, NotFoundError
from engine.model.names import TopicName

if TYPE_CHECKING:
    from engine._native.consume.message import Message
    from engine.client.client import AsyncClient
    from engine.client.consume.queue_consumer import AsyncQueueConsumer

SUBSCRIPTION = "dead-letters"  # letters that it has acknowledged are done
BATCH_MESSAGES = 1_000  # sent back in one transaction
WAIT_S = 10.0  # for a letter that the broker counts: another consumer may have it
_ADDED = ("origin-", "dead-letter-")  # properties that a letter has beside those of the message


def check_place(text: str) -> None:
    """Raise InvalidArgumentError for a text that is no place of a letter."""
    segment, _, offset = text.partition(":")
    if not (segment.isdecimal() and offset.isdecimal()):
        raise InvalidArgumentError(f"a letter must be given as SEGMENT:OFFSET, as in 0:17, got {text!r:.80}")


def place_of(letter: Message) -> str:
    """SEGMENT:OFFSET."""
    return f"{letter.segment_id}:{letter.offset}"


def reason_of(letter: Message) -> str:
    """Why it was given up; "" where none was said."""
    return letter.properties.get("dead-letter-reason", "")


def origin_of(letter: Message) -> dict[str, str | None]:
    """What it says of the message that it was, by the names under which commands show it."""
    said = letter.properties
    return {
        "topic": said.get("origin-topic"),
        "message": said.get("origin-message"),
        "subscription": said.get("origin-subscription"),
        "redeliveryCount": said.get("origin-redelivery-count"),
        "publishTime": said.get("origin-publish-time"),
        "reason": said.get("dead-letter-reason"),
        "raisedAt": said.get("dead-letter-raised-at"),
    }


def own_properties(letter: Message) -> dict[str, str]:
    """The properties of the message that it was."""
    return {name: value for name, value in letter.properties.items() if not name.startswith(_ADDED)}


class DeadLetters:
    """Use it with `async with`.

    `missed`: whether letters that the broker counts did not come, since another consumer of the subscription has them.
    """

    def __init__(self, client: AsyncClient, topic: str, subscription: str = SUBSCRIPTION, wait: float = WAIT_S) -> None:
        """`wait`: seconds for each letter that the broker counts."""
        self.missed = False
        self._client = client
        self._topic = topic
        self._subscription = subscription
        self._wait = wait
        self._consumer: AsyncQueueConsumer[Any] | None = None
        self._producers: dict[str, Any] = {}
        self._due: list[tuple[str, Message]] = []

    async def __aenter__(self) -> Self:
        """Begin; the subscription is made where there is none.

        Raises NotFoundError where there is no such topic: the name is mistyped, or nothing was given up yet.
        """
        if not await self._client.topic_exists(self._topic):
            raise NotFoundError(f"there is no topic {self._topic}: TOPIC must be a dead-letter topic, as orders-DLQ")
        self._consumer = await self._client.queue_consumer(self._topic, self._subscription, initial_position="earliest")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for one in [*self._producers.values(), self._consumer]:
            if one is not None:
                await one.close()

    async def letters(self, limit: int | None = None) -> AsyncIterator[Message]:
        """Those that wait, at most `limit`, without acknowledging them."""
        assert self._consumer is not None
        stats = await self._client.admin.get_stats(self._topic)
        backlog = stats["subscriptions"][self._subscription]["backlog"]
        for _ in range(backlog if limit is None else min(limit, backlog)):
            letter = await self._consumer.receive(timeout=self._wait)
            if letter is None:
                self.missed = True
                return
            yield letter

    async def send_back(
        self, chosen: Callable[[Message], bool], *, target: str | None = None, limit: int | None = None
    ) -> int:
        """Send those letters back that are `chosen`, at most `limit`, to `target` or where each is from; how many.

        Key, value, event time and own properties are those of the message. Raises InvalidArgumentError for a letter
        that says no topic, or one of another namespace, without `target`; NotFoundError for a topic that is gone. What
        was committed before stays.
        """
        count = 0
        async for letter in self.letters():
            if not chosen(letter):
                continue
            self._due.append((target or self._origin(letter), letter))
            count += 1
            if len(self._due) >= BATCH_MESSAGES:
                await self._commit()
            if count == limit:
                break
        await self._commit()
        return count

    def _origin(self, letter: Message) -> str:
        """The topic that a letter says it is from. Whatever may write letters says so, and it is the rights of what
        sends them back that count: so they go no further than the namespace. Raises InvalidArgumentError.
        """
        which = f"{place_of(letter)} of {self._topic}"
        to = letter.properties.get("origin-topic")
        if to is None:
            raise InvalidArgumentError(f"{which} has no origin-topic: name a topic with --to, or other letters")
        here, there = TopicName.parse(self._topic), TopicName.parse(to)
        if (here.tenant, here.namespace) != (there.tenant, there.namespace):
            raise InvalidArgumentError(
                f"{which} names {to:.200}, which is in another namespace: name a topic with --to, or other letters"
            )
        return to

    async def _commit(self) -> None:
        """Send what is due, and acknowledge it."""
        if not self._due:
            return
        assert self._consumer is not None
        async with self._client.transaction() as transaction:
            for target, letter in self._due:
                producer = await self._producer(target)
                await producer.writable()
                producer.send_nowait(
                    letter.encoded_value, key=letter.key, properties=own_properties(letter),
                    event_time=letter.event_time_ms, transaction=transaction,
                )  # fmt: skip
            await self._consumer.acknowledge([letter for _, letter in self._due], transaction=transaction)
        self._due.clear()

    async def _producer(self, target: str) -> Any:
        if target not in self._producers:
            if not await self._client.topic_exists(target):
                raise NotFoundError(f"there is no topic {target} any more; --to names another one")
            self._producers[target] = await self._client.producer(target)
        return self._producers[target]
