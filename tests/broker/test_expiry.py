"""Messages past their time to live count as acknowledged: in open, closed and sealed segments."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engine.broker.segment.hosted import HostedSegment
from engine.broker.server import Broker
from engine.model.names import SegmentName
from engine.wire.commands import Command
from tests.broker.test_slow_topics import count_opens, publish, unload
from tests.broker.transacting import begin, end, write
from tests.kit.peer import Peer

HOUR_S = 3600.0


def hosted(broker: Broker, segment: str) -> HostedSegment:
    found = broker.segments.peek(SegmentName.parse(segment))
    assert found is not None
    return found


async def backlog(broker: Broker, topic: str = "orders") -> int:
    stats = await broker.service.get_stats(topic)
    return int(stats["subscriptions"]["s"]["backlog"])


async def subscribed(broker: Broker, peer: Peer) -> str:
    segment = await peer.segment("orders")
    await broker.service.ensure_subscription("orders", "s", initial_position="earliest")
    return segment


async def test_what_is_too_old_is_acknowledged_and_what_is_younger_stays(start_broker: Any, later: Any) -> None:
    async with start_broker(message_ttl=HOUR_S) as broker:
        peer = await Peer.connect(broker)
        segment = await subscribed(broker, peer)
        await publish(peer, segment)
        later(broker, 0.6)
        await publish(peer, segment, 3, first=5)
        await broker.parts.retention.sweep()
        assert await backlog(broker) == 8
        later(broker, 0.6)
        await broker.parts.retention.sweep()
        assert await backlog(broker) == 3
        assert hosted(broker, segment).expired_messages == 5
        consumer = await peer.consumer(segment, "exclusive", "s")
        assert await peer.messages(consumer, 3) == [(5, b"5"), (6, b"6"), (7, b"7")]


async def test_a_consumer_that_holds_them_attaches_again_and_does_not_get_them(start_broker: Any, later: Any) -> None:
    async with start_broker(message_ttl=HOUR_S) as broker:
        peer = await Peer.connect(broker)
        segment = await subscribed(broker, peer)
        await publish(peer, segment)
        consumer = await peer.consumer(segment, "queue", "s")
        assert len(await peer.messages(consumer, 5)) == 5
        later(broker, 2)
        await broker.parts.retention.sweep()
        await peer.take(Command.CLOSE_CONSUMER)
        await publish(peer, segment, 1, first=5)
        assert await peer.messages(await peer.consumer(segment, "queue", "s"), 1) == [(5, b"5")]


async def test_retention_takes_what_nobody_has_read(start_broker: Any, later: Any) -> None:
    async with start_broker(message_ttl=HOUR_S, retention_time=HOUR_S) as broker:
        peer = await Peer.connect(broker)
        segment = await subscribed(broker, peer)
        await publish(peer, segment)
        later(broker, 2)
        await broker.parts.retention.sweep()
        await broker.parts.retention.sweep()
        assert hosted(broker, segment).segment.first_offset == 5


async def test_a_closed_segment_is_opened_for_it_once(
    start_broker: Any, later: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with start_broker(retention_time=None) as broker:
        peer = await Peer.connect(broker)
        segment = await subscribed(broker, peer)
        await publish(peer, segment)
    async with start_broker(retention_time=None) as broker:
        await broker.service.change_topic_policies("orders", {"message_ttl_s": 3600})
        opened, sweep = count_opens(broker, monkeypatch), broker.parts.retention.sweep
        for hours in (0.5, 5.0, 5.0):
            later(broker, hours)
            for _ in range(121):
                await sweep()
        assert [str(name) for name in opened] == [segment]
        assert await backlog(broker) == 0


async def test_a_sealed_segment_that_nobody_reads_goes(start_broker: Any, later: Any) -> None:
    async with start_broker(message_ttl=HOUR_S, retention_time=HOUR_S) as broker:
        peer = await Peer.connect(broker)
        segment = await subscribed(broker, peer)
        await publish(peer, segment)
        await broker.service.split_segment("orders", 0)
        await unload(broker)
        later(broker, 2)
        for _ in range(2):
            await broker.parts.retention.sweep()
        layout = (await broker.service.ensure_topic("orders", create=False)).layout
        assert sorted(layout.segments) == [1, 2]


async def test_what_an_open_transaction_acknowledges_waits_for_its_end(start_broker: Any, later: Any) -> None:
    async with start_broker(message_ttl=HOUR_S) as broker:
        peer = await Peer.connect(broker)
        segment = await subscribed(broker, peer)
        await publish(peer, segment)
        consumer = await peer.consumer(segment, "queue", "s")
        assert len(await peer.messages(consumer, 5)) == 5
        transaction = await begin(peer, 10 * HOUR_S)
        await peer.ack(consumer, ranges=[[2, 2]], transaction=transaction)
        later(broker, 2)
        await broker.parts.retention.sweep()
        assert await backlog(broker) == 3
        await end(peer, transaction)
        async with asyncio.timeout(20):
            while await backlog(broker):  # until the owner has heard of it
                await broker.parts.retention.sweep()


async def test_messages_of_an_open_transaction_are_not_there_yet(start_broker: Any, later: Any) -> None:
    async with start_broker(message_ttl=HOUR_S) as broker:
        peer = await Peer.connect(broker)
        segment = await subscribed(broker, peer)
        producer = await peer.producer(segment, name="t")
        transaction = await begin(peer, 10 * HOUR_S)
        await write(peer, producer, 0, [b"x"], transaction, producer="t")
        later(broker, 2)
        await broker.parts.retention.sweep()
        await end(peer, transaction)
        assert await backlog(broker) == 1


async def test_a_clock_set_forward_expires_nothing(start_broker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async with start_broker(message_ttl=HOUR_S) as broker:
        peer = await Peer.connect(broker)
        segment = await subscribed(broker, peer)
        await publish(peer, segment)
        await broker.parts.retention.sweep()
        time_ms = broker.clock.time_ms
        monkeypatch.setattr(broker.clock, "time_ms", lambda: time_ms() + 100 * 3_600_000)
        await broker.parts.retention.sweep()
        assert await backlog(broker) == 5
