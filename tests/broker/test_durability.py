"""What survives a restart, and what a broker says while it closes (D1, C1)."""

from __future__ import annotations

import asyncio

import pytest

from engine.errors import DataDirectoryBusyError
from engine.model.names import TopicName
from engine.wire.commands import Command
from tests.kit.peer import Peer, leader_term, make_entries


def values(n: int) -> list[bytes]:
    return [b"%08d" % i for i in range(n)]


async def test_acknowledged_messages_and_cursors_survive_a_restart(start_broker):
    async with start_broker() as broker:
        peer = await Peer.connect(broker)
        segment = await peer.segment("orders")
        producer = await peer.producer(segment)
        peer.publish(producer, make_entries(values(100), per_entry=5))
        await peer.receipts(producer, 20)
        consumer = await peer.consumer(segment, "exclusive")
        await peer.messages(consumer, 100)
        await peer.ack(consumer, position=42)
        await peer.ack(consumer, position=17)  # never back (C1)
    async with start_broker() as broker:
        peer = await Peer.connect(broker)
        ident = peer.next_id()
        answer = await peer.ask(
            Command.SUBSCRIBE,
            consumer_id=ident,
            topic=segment,
            subscription="s",
            consumer_name="c",
            mode="exclusive",
            initial_position="latest",
        )
        assert answer["position"] == 42
        peer.flow(ident, 1000)
        got = await peer.messages(ident, 58)
        assert got == [(i, b"%08d" % i) for i in range(42, 100)]
        producer = await peer.producer(segment)
        peer.publish(producer, make_entries(values(100), per_entry=5))
        await peer.receipts(producer, 20)  # duplicates (D3); their offsets need not be known any more
        answer = await peer.ask(Command.SEGMENT_OFFSET, topic=segment, at="latest")
        assert answer["result"]["end"] == 100


async def test_the_last_sequence_is_told(start_broker):
    async with start_broker() as broker:
        peer = await Peer.connect(broker)
        segment = await peer.segment("orders")
        answer = await peer.ask(
            Command.PRODUCER, producer_id=77, topic=segment, producer_name="p", access_mode="shared"
        )
        assert (answer["last_sequence"], answer["durability"]) == (-1, "fsync")
        peer.publish(77, make_entries(values(10), per_entry=5))
        await peer.receipts(77, 2)
    async with start_broker() as broker:
        peer = await Peer.connect(broker)
        answer = await peer.ask(
            Command.PRODUCER, producer_id=77, topic=segment, producer_name="p", access_mode="shared"
        )
        assert answer["last_sequence"] == 9


async def test_an_acknowledgement_is_answered_only_when_durable(start_broker, monkeypatch):
    async with start_broker() as broker:
        peer = await Peer.connect(broker)
        segment = await peer.segment("orders")
        producer = await peer.producer(segment)
        peer.publish(producer, make_entries(values(3)))
        await peer.receipts(producer, 3)
        consumer = await peer.consumer(segment, "exclusive")
        await peer.messages(consumer, 3)
        gate = asyncio.Event()
        metadata = broker.metadata
        put = metadata.put

        async def slow_put(*args, **kwargs):
            await gate.wait()
            return await put(*args, **kwargs)

        monkeypatch.setattr(metadata, "put", slow_put)
        acking = asyncio.ensure_future(peer.ack(consumer, position=3))
        await peer.ask(Command.SEGMENT_OFFSET, topic=segment, at="latest")
        assert not acking.done()
        gate.set()
        await asyncio.wait_for(acking, 10)


async def test_the_term_grows_with_every_opening(start_broker):
    terms = []
    for _ in range(3):
        async with start_broker() as broker:
            peer = await Peer.connect(broker)
            await peer.producer(await peer.segment("orders"))
            terms += [hosted.term for hosted in broker.segments]
    assert terms == [1, 2, 3]


async def test_two_brokers_cannot_have_one_directory(start_broker):
    async with start_broker():
        with pytest.raises(DataDirectoryBusyError):
            async with start_broker():
                pass
    async with start_broker():
        pass


async def test_a_sealed_segment_ends_its_consumers_and_producers(start_broker):
    async with start_broker() as broker:
        peer = await Peer.connect(broker)
        segment = await peer.segment("orders")
        producer = await peer.producer(segment)
        peer.publish(producer, make_entries(values(10)))
        await peer.receipts(producer, 10)
        consumer = await peer.consumer(segment, "exclusive")
        queue = await peer.consumer(segment, "queue", "q")
        await peer.messages(consumer, 10)
        await peer.messages(queue, 10)
        (hosted,) = broker.segments
        drained: list[str] = []
        broker.hosting.watch_drained(hosted.spec, "s", lambda: drained.append("s"))
        end = await broker.hosting.terminate_segment(hosted.spec, term=await leader_term(broker, "orders"))
        assert end.offset == 10
        await peer.take(Command.CLOSE_PRODUCER, producer_id=producer)
        _, reached, _ = await peer.take(Command.REACHED_END, consumer_id=consumer)
        assert reached["end"] == 10
        with pytest.raises(Exception, match="sealed"):
            await peer.producer(segment)
        assert drained == []
        await peer.ack(consumer, position=10)
        assert not [f for f in peer.frames if f[0] is Command.REACHED_END]
        await peer.ack(queue, ranges=[[0, 9]])
        await peer.take(Command.REACHED_END, consumer_id=queue)
        assert drained == ["s"]


async def test_retention_deletes_what_is_acknowledged_and_old(start_broker, monkeypatch):
    async with start_broker(retention_time=0.0, log_file_size=64 << 20) as broker:
        peer = await Peer.connect(broker)
        segment = await peer.segment("orders")
        producer = await peer.producer(segment)
        for entry in make_entries([bytes(4 << 20)] * 40):
            peer.publish(producer, [entry])
        await peer.receipts(producer, 40)
        consumer = await peer.consumer(segment, "exclusive", credit=0)
        (hosted,) = broker.segments
        assert await broker.parts.retention.sweep() == 0
        await peer.ack(consumer, position=20)
        monkeypatch.setattr(broker.clock, "time_ms", lambda: 2**50)
        assert await broker.parts.retention.sweep() == 1
        assert 0 < hosted.segment.first_offset <= 20
        reader = await peer.consumer(segment, "reader", None)
        assert (await peer.messages(reader, 1))[0][0] == hosted.segment.first_offset


async def test_retention_looks_at_closed_segments_too(start_broker, monkeypatch):
    async with start_broker(retention_time=0.0, log_file_size=64 << 20) as broker:
        peer = await Peer.connect(broker)
        for topic in ("orders", "small"):
            producer = await peer.producer(await peer.segment(topic))
            for entry in make_entries([bytes(4 << 20)] * (40 if topic == "orders" else 1)):
                peer.publish(producer, [entry])
            await peer.receipts(producer, 40 if topic == "orders" else 1)
    async with start_broker(retention_time=0.0, log_file_size=64 << 20) as broker:
        monkeypatch.setattr(broker.clock, "time_ms", lambda: 2**50)
        assert await broker.parts.retention.sweep() == 4, "of the last file, too, all is acknowledged and old"
        assert not len(broker.segments), "it is closed again"
        peer = await Peer.connect(broker)
        answer = await peer.ask(Command.SEGMENT_OFFSET, topic=await peer.segment("orders"), at="earliest")
        assert answer["result"]["first"] == 40


async def test_retention_is_the_topics_else_the_namespaces_else_the_brokers_field_by_field(start_broker):
    async with start_broker(retention_time=0.5, retention_size=100) as broker:
        admin = broker.admin
        await admin.create_topic("orders")

        async def limits() -> tuple[int | None, int | None]:
            broker.parts.retention._namespaces.clear()
            return (await broker.parts.retention._limits(TopicName.parse("orders")))[:2]

        assert await limits() == (500, 100)
        await admin.set_namespace_policies("public/default", {"retention_time_s": -1})
        await admin.set_namespace_policies("public/default", {"durability": "os"})
        assert await limits() == (None, 100), "what was to be kept for ever still is"
        await admin.set_namespace_policies("public/default", {"retention_size_bytes": -1})
        assert await limits() == (None, None)
        await admin.set_topic_policies("orders", {"retention_time_s": 7})
        assert await limits() == (7000, None)
        await admin.set_topic_policies("orders", {"retention_size_bytes": 0})
        assert await limits() == (7000, 0)
        await admin.remove_namespace_policies("public/default")
        await admin.set_topic_policies("orders", {"retention_time_s": None})
        assert await limits() == (500, 0)
        await admin.remove_topic_policies("orders")
        assert await limits() == (500, 100)
