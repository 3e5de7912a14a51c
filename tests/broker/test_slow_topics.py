"""Retention of topics with few messages: open and closed ones, over restarts, with subscriptions and transactions."""

from __future__ import annotations

import pytest

from engine.broker.server import Broker
from engine.model.names import SegmentName
from engine.wire.commands import Command
from tests.broker.transacting import begin, end, write
from tests.kit.peer import Peer, make_entries, until


async def publish(peer: Peer, segment: str, count: int = 5, first: int = 0) -> int:
    """The offset of the last of them."""
    producer = await peer.producer(segment, name="p")
    peer.publish(producer, make_entries([b"%d" % (first + i) for i in range(count)], first=first))
    _, offsets = await peer.receipts(producer, count)
    await peer.ask(Command.CLOSE_PRODUCER, producer_id=producer)
    return offsets[-1]


def first_offset(broker: Broker, segment: str) -> int:
    hosted = broker.segments.peek(SegmentName.parse(segment))
    assert hosted is not None
    return hosted.segment.first_offset


async def unload(broker: Broker) -> None:
    for hosted in broker.segments:
        assert await broker.segments.unload(hosted)


def count_opens(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> list[SegmentName]:
    opened: list[SegmentName] = []
    load = broker.segments._load

    async def counted(spec, create):
        opened.append(spec.name)
        return await load(spec, create)

    monkeypatch.setattr(broker.segments, "_load", counted)
    return opened


async def test_an_idle_topics_messages_go_and_its_offsets_and_cursors_stay(start_broker, later) -> None:
    async with start_broker(retention_time=3600.0) as broker:
        peer = await Peer.connect(broker)
        segment = await peer.segment("orders")
        await broker.service.ensure_subscription("orders", "s", initial_position="earliest")
        await publish(peer, segment)
        consumer = await peer.consumer(segment, "exclusive", "s")
        later(broker, 2)
        await broker.parts.retention.sweep()
        assert first_offset(broker, segment) == 0, "it is not acknowledged"
        await peer.ack(consumer, position=5)
        await broker.parts.retention.sweep()
        assert first_offset(broker, segment) == 5
        assert broker.segments.peek(SegmentName.parse(segment)).segment.size_bytes < 1000
    async with start_broker(retention_time=3600.0) as broker:
        peer = await Peer.connect(broker)
        consumer = await peer.consumer(segment, "exclusive", "s")
        assert await publish(peer, segment, 2, first=5) == 6
        assert await peer.messages(consumer, 2) == [(5, b"5"), (6, b"6")]
        await broker.service.split_segment("orders", 0)


async def test_a_closed_segment_is_opened_when_it_is_due_and_no_sooner(start_broker, later, monkeypatch) -> None:
    async with start_broker(retention_time=40 * 60.0) as broker:
        peer = await Peer.connect(broker)
        segment = await peer.segment("orders")
        await peer.segment("empty")
        await publish(peer, segment)
    async with start_broker(retention_time=40 * 60.0) as broker:
        opened, look = count_opens(broker, monkeypatch), broker.parts.retention.sweep
        await look()
        assert opened == []
        later(broker, 0.4)
        await look()
        assert len(opened) == 1, "the last file ends, in time for it to go"
        assert len(broker.segments) == 0
        await look()
        assert len(opened) == 1
        later(broker, 0.4)
        assert await look() == 1
        assert len(opened) == 2
        for _ in range(130):  # another search among them
            assert await look() == 0
        assert len(opened) == 2, "an empty file is never due"


async def test_a_topic_that_becomes_idle_is_looked_at_again_before_the_next_search(
    start_broker, later, monkeypatch
) -> None:
    async with start_broker(retention_time=40 * 60.0) as broker:
        peer, look = await Peer.connect(broker), broker.parts.retention.sweep
        segment = await peer.segment("orders")
        await look()
        await publish(peer, segment)
        await look()
        await unload(broker)
        opened = count_opens(broker, monkeypatch)
        for _ in range(2):
            later(broker, 0.5)
            await look()
        assert await look() == 0
        assert len(opened) == 2
        assert not await broker.segments.find_aging([SegmentName.parse(segment).topic])


async def test_a_segment_of_which_nothing_can_go_is_not_opened_often(start_broker, later, monkeypatch) -> None:
    async with start_broker(retention_time=60.0) as broker:
        peer, look = await Peer.connect(broker), broker.parts.retention.sweep
        segment = await peer.segment("orders")
        await broker.service.ensure_subscription("orders", "s", initial_position="earliest")
        await publish(peer, segment)
        await unload(broker)
        opened = count_opens(broker, monkeypatch)
        later(broker, 2)
        for _ in range(400):
            await look()
        assert len(opened) == 1
        later(broker, 26)
        for _ in range(121):
            await look()
        assert len(opened) == 2, "a day later it is tried again"


async def test_the_last_file_stays_while_a_transaction_in_it_is_open(start_broker, later) -> None:
    async with start_broker(retention_time=60.0) as broker:
        peer, look = await Peer.connect(broker), broker.parts.retention.sweep
        segment = await peer.segment("orders")
        transaction = await begin(peer)
        producer = await peer.producer(segment)
        await write(peer, producer, 0, [b"a"], transaction)
        later(broker, 0.01)
        await look()
        assert first_offset(broker, segment) == 0
        await end(peer, transaction, "commit")
        hosted = broker.segments.peek(SegmentName.parse(segment))
        await until(lambda: not hosted.transactions.open_transactions)
        later(broker, 2)
        await look()
        assert first_offset(broker, segment) == 1
        await peer.ask(Command.CLOSE_PRODUCER, producer_id=producer)
        await until(lambda: not broker.segments.peek(SegmentName.parse(segment)).in_use)
        await unload(broker)
        reader = await peer.consumer(segment, "reader", None, start=0)
        await publish(peer, segment, 1, first=1)
        assert await peer.messages(reader, 1) == [(1, b"1")]
