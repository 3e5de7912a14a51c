"""A subscription as its consumers see it: its backlog, seeks, its end."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Literal

from msgspec import UNSET

from engine.client.consume.receiver import Receiver
from engine.client.consume.receiving import V
from engine.client.net.pool import Pool, persist
from engine.client.topic.session import TopicSession
from engine.errors import InvalidArgumentError, NotFoundError, UnsupportedError
from engine.model.checks import milliseconds
from engine.model.names import TopicName
from engine.wire import commands
from engine.wire.commands import SUBSCRIPTION_CONTROL

When = datetime | Literal["earliest", "latest"]
Change = commands.SeekSubscription | commands.DeleteSubscription


def check_when(when: object) -> str | int:
    """A place to seek to, as commands have it. Raises InvalidArgumentError."""
    if isinstance(when, datetime):
        return milliseconds(when)
    if isinstance(when, str) and when in ("earliest", "latest"):
        return when
    raise InvalidArgumentError(f"when must be 'earliest', 'latest' or an aware datetime, got {when!r:.80}")


async def change(pool: Pool, change: Change) -> None:
    """Have the topic's controller change a subscription. Raises NotFoundError, ConnectError, TimeoutError."""
    session = TopicSession(pool, TopicName.parse(change.topic))
    refusals = 0

    async def send(url: str | None) -> None:
        connection = await pool.get(url)
        if SUBSCRIPTION_CONTROL not in connection.features:
            raise UnsupportedError("the broker is of an earlier version: use the admin API")
        await connection.request(change, pool.options.operation_timeout)

    async def once() -> None:
        nonlocal refusals
        try:
            await session.at(lambda layout: layout.controller_url, send)
        except BaseException:
            refusals += 1
            session.refused(refusals)
            raise

    try:
        await session.open(create=False)
        what = f"changing the subscription {change.subscription} of {change.topic}"
        await persist(pool, once, pool.options.operation_timeout, what)
    finally:
        session.close()


async def unacknowledged(session: TopicSession, segment_id: int, subscription: str) -> int:
    """The messages of a segment that a subscription has not acknowledged; 0 of a deleted segment."""
    try:
        place = await session.place(segment_id, "latest", subscription)
    except NotFoundError:
        await session.refresh()  # raises when the topic is gone
        if segment_id in session.layout.segments:
            raise
        return 0
    if place.backlog is not UNSET:
        return place.backlog
    return place.end - max(place.first, place.acknowledged or 0)  # an earlier version counts no single messages


class SubscriptionConsumer(Receiver[V]):
    """What stream and queue consumers of one topic share."""

    @property
    def subscription(self) -> str:
        """The subscription's name."""
        return str(self.options.subscription)

    async def lag(self) -> int:
        """How many messages of the topic the subscription has not acknowledged, as the segments' owners say now.

        Raises NotFoundError when it was deleted, AlreadyClosedError, ConnectError, TimeoutError.
        """
        self._check_open()
        await self.session.refresh()
        segments = list(self.session.layout.segments)
        return sum(await asyncio.gather(*(unacknowledged(self.session, i, self.subscription) for i in segments)))

    async def seek(self, when: When) -> None:
        """Move the subscription, for all its consumers: to "earliest", "latest", or the first message published at an
        aware datetime or later. What was fetched before is dropped.

        Raises NotFoundError, AlreadyClosedError, ConnectError, TimeoutError, InvalidArgumentError.
        """
        place = check_when(when)
        self._check_open()
        seek = commands.SeekSubscription(topic=self._topic, subscription=self.subscription, when=place)
        await change(self.pool, seek)

    async def unsubscribe(self) -> None:
        """Close, then delete the subscription; its other consumers get NotFoundError.

        Raises NotFoundError when it was deleted before, ConnectError, TimeoutError.
        """
        await self.close()
        await change(self.pool, commands.DeleteSubscription(topic=self._topic, subscription=self.subscription))
