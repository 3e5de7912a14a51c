"""Segments that nobody uses: closed after a while, opened again as if nothing had been, kept while it matters."""

from __future__ import annotations

import asyncio
import random

import pytest

from engine.broker.segment.access import Applicant
from engine.broker.upkeep.idle import IdleLoop
from engine.errors import NotOwnerError, StorageError
from engine.metadata.memory import MemoryMetadataStore
from engine.model.access import AccessMode
from engine.testing.clock import FakeClock
from engine.testing.metadata import FaultyMetadataStore
from engine.wire.commands import Command
from tests.kit.peer import Peer, make_entries


def values(n: int) -> list[bytes]:
    return [b"%08d" % i for i in range(n)]


async def unload_idle(broker) -> int:
    """What one look sees as idle, the next one unloads."""
    loop = IdleLoop(broker.segments, 0.0)
    return await loop.sweep() + await loop.sweep()


async def test_an_idle_segment_is_closed_and_comes_back_with_everything(
    broker, peer: Peer, segment: str, producer: int
):
    peer.publish(producer, make_entries(values(10)))
    await peer.receipts(producer, 10)
    consumer = await peer.consumer(segment, "exclusive")
    await peer.messages(consumer, 10)
    await peer.ack(consumer, position=4)
    assert await unload_idle(broker) == 0, "somebody is attached"
    await peer.ask(Command.CLOSE_PRODUCER, producer_id=producer)
    assert await unload_idle(broker) == 0
    await peer.ask(Command.CLOSE_CONSUMER, consumer_id=consumer)
    assert await unload_idle(broker) == 1
    assert len(broker.segments) == 0
    consumer = await peer.consumer(segment, "exclusive")
    assert await peer.messages(consumer, 6) == [(i, b"%08d" % i) for i in range(4, 10)]
    producer = await peer.producer(segment)
    peer.publish(producer, make_entries(values(11)))
    _, offsets = await peer.receipts(producer, 11)
    assert offsets[-1] == 10, "what was there is recognised"


async def test_whoever_asks_while_a_segment_is_being_closed_gets_it_again(broker):
    peer = await Peer.connect(broker)
    segment = await peer.segment("orders")
    for _ in range(20):
        await peer.ask(Command.SEGMENT_OFFSET, topic=segment, at="latest")
        (hosted,) = broker.segments
        leaving = asyncio.ensure_future(broker.segments.unload(hosted))
        await asyncio.sleep(0)
        answers = await asyncio.gather(*(peer.producer(segment, f"p{i}") for i in range(3)))
        assert await leaving
        (again,) = broker.segments
        assert again is not hosted
        assert again.term == hosted.term + 1
        assert len(again.producers) == 3
        for producer in answers:
            await peer.ask(Command.CLOSE_PRODUCER, producer_id=producer)


async def test_nobody_attaches_to_what_was_closed(broker):
    peer = await Peer.connect(broker)
    segment = await peer.segment("orders")
    await peer.ask(Command.SEGMENT_OFFSET, topic=segment, at="latest")
    (hosted,) = broker.segments
    await broker.service.create_subscription("orders", "s")
    subscription = await broker.subscriptions.open(hosted, "s")
    await broker.segments.unload(hosted)
    (connection,) = broker.connections
    for attach in (
        lambda: hosted.access.attach(Applicant(connection, 1, "p", AccessMode.SHARED)),
        lambda: subscription.attach_exclusive(connection, 1, "c"),
        lambda: subscription.attach_queue(connection, 1, "c", 0),
    ):
        with pytest.raises(NotOwnerError, match="attach again"):
            attach()
    with pytest.raises(NotOwnerError):
        await broker.subscriptions.open(hosted, "other")


async def test_the_loop_closes_what_is_idle(start_broker):
    async with start_broker(segment_idle_time=0.05) as broker:
        peer = await Peer.connect(broker)
        for i in range(20):
            await peer.ask(Command.SEGMENT_OFFSET, topic=await peer.segment(f"t{i}"), at="latest")
        async with asyncio.timeout(20):
            while len(broker.segments):  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.01)


async def test_redelivery_counts_outlive_the_last_consumer(broker, peer: Peer):
    segment = await peer.segment("work")
    producer = await peer.producer(segment)
    peer.publish(producer, make_entries(values(3), per_entry=3))
    await peer.receipts(producer, 1)
    await peer.ask(Command.CLOSE_PRODUCER, producer_id=producer)
    for count in range(4):
        consumer = await peer.consumer(segment, "queue")
        _, header, _ = await peer.take(Command.MESSAGE, consumer_id=consumer)
        assert header.get("redelivered") == ([[0, 2, count]] if count else None), "it grows (semantics 22)"
        await peer.ask(Command.CLOSE_CONSUMER, consumer_id=consumer)
    assert await unload_idle(broker) == 0, "the counts are nowhere else"
    consumer = await peer.consumer(segment, "queue")
    await peer.messages(consumer, 3)
    await peer.ack(consumer, ranges=[[0, 2]])
    await peer.ask(Command.CLOSE_CONSUMER, consumer_id=consumer)
    assert await unload_idle(broker) == 1


async def test_l1_ownership_is_taken_from_a_store_that_is_unsure(start_broker, monkeypatch):
    async with start_broker() as broker:
        peer = await Peer.connect(broker)
        segment = await peer.segment("orders")
        faulty = FaultyMetadataStore(MemoryMetadataStore(FakeClock()), random.Random(3))
        faulty.unknown_rate = 0.6
        monkeypatch.setattr(broker.members.ownership, "_metadata", faulty)
        terms = []
        for _ in range(30):
            await peer.ask(Command.SEGMENT_OFFSET, topic=segment, at="latest")
            (hosted,) = broker.segments
            terms.append(hosted.term)
            await broker.segments.unload(hosted)
        assert terms == sorted(set(terms)), "each claim has a term of its own"
        faulty.unknown_rate = 2.0
        with pytest.raises(StorageError, match="try again"):
            await peer.ask(Command.SEGMENT_OFFSET, topic=segment, at="latest")
        assert StorageError.retryable
