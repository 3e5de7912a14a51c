"""What no client of ours would send, and disks that fail under a running broker: typed errors that hurt nobody else."""

from __future__ import annotations

import random
import struct

import pytest

from engine._native.format.crc32c import crc32c
from engine.aio.workers import ThreadWorkers
from engine.broker.server import Broker
from engine.broker.settings.config import BrokerConfig
from engine.clock import SystemClock
from engine.errors import (
    CorruptionError,
    DiskFullError,
    InvalidArgumentError,
    MessageTooLargeError,
    NotFoundError,
)
from engine.limits import ENTRY_SIZE_MAX, KIB, MIB
from engine.metadata.memory import MemoryMetadataStore
from engine.testing.disk import SimDisk
from engine.wire.commands import Command
from tests.broker.over_http import BASE, call
from tests.kit.peer import Peer, make_entries

BAD_TOPICS = [
    "",
    "/",
    "a/b",
    "a//b",
    "http://a/b/c",
    "topic://a/b",
    "topic://a/b/c/d",
    "a/b/c\n",
    "t" * 256,
    "a/b/\u0000",
]
BAD_SEGMENTS = ["orders", "segment://", "segment://a/b/c", "segment://a/b/c/0-1-2", "segment://a/b/c/0000-ffff-x"]
HUGE = 2**63


def grown(image: bytes, size: int) -> bytes:
    """The same entry with zeros behind its body, all checksums right."""
    image = bytearray(image.ljust(size, b"\0"))
    struct.pack_into("<I", image, 4, size)
    struct.pack_into("<I", image, 24, size - 128)  # the body's size before compression
    struct.pack_into("<I", image, 12, crc32c(image[128:]))
    struct.pack_into("<I", image, 8, crc32c(image[12:80]))
    return bytes(image)


async def test_an_oversized_entry_is_refused_alone(peer: Peer):
    producer = await peer.producer(await peer.segment("orders"))
    first, second, third = make_entries([b"a", b"b", b"c"])
    peer.publish(producer, [first])
    await peer.receipts(producer, 1)
    peer.publish(producer, [grown(second, ENTRY_SIZE_MAX + 8)])
    with pytest.raises(MessageTooLargeError, match=str(ENTRY_SIZE_MAX)):
        await peer.receipts(producer, 1)
    peer.publish(producer, [third])
    _, offsets = await peer.receipts(producer, 1)
    assert offsets == [1]


@pytest.mark.parametrize("topic", BAD_TOPICS)
async def test_malformed_topic_names_are_named(broker, topic):
    peer = await Peer.connect(broker)
    with pytest.raises(InvalidArgumentError, match=r"topic|namespace|tenant"):
        await peer.lookup(topic)
    with pytest.raises(InvalidArgumentError):
        await peer.ask(
            Command.SCALABLE_TOPIC_SUBSCRIBE, topic=topic, consumer_id=1, subscription="s", consumer_name="c",
            instance="i", kind="stream", initial_position="earliest",
        )  # fmt: skip
    await peer.lookup("orders")


@pytest.mark.parametrize("segment", BAD_SEGMENTS)
async def test_malformed_segment_names_are_named(broker, segment):
    peer = await Peer.connect(broker)
    for ask in (lambda: peer.producer(segment), lambda: peer.consumer(segment, "exclusive")):
        with pytest.raises(InvalidArgumentError, match="segment"):
            await ask()
    with pytest.raises(InvalidArgumentError):
        await peer.ask(Command.SEGMENT_OFFSET, topic=segment, at="latest")


@pytest.mark.parametrize("path", ["a%0Ab", "t" * 256, "a%2Fb", "a%00b"])
async def test_malformed_names_over_http(http, path):
    for method, rest in (("PUT", ""), ("GET", ""), ("DELETE", ""), ("GET", "/stats"), ("PUT", "/subscriptions/s")):
        answer = await call(http, method, f"{BASE}/{path}{rest}", 400)
        assert answer["code"] == InvalidArgumentError.code
    await call(http, "PUT", f"{BASE}/orders")
    answer = await call(http, "PUT", f"{BASE}/orders/subscriptions/{path}", 400)
    assert answer["code"] == InvalidArgumentError.code


async def test_with_auto_create_off_nothing_appears_by_itself(start_broker):
    async with start_broker(auto_create_topics=False) as broker:
        peer = await Peer.connect(broker)
        with pytest.raises(NotFoundError, match="orders"):
            await peer.lookup("orders", create=True)
        with pytest.raises(NotFoundError, match="orders"):
            await peer.producer("segment://public/default/orders/0000-ffff-0")
        with pytest.raises(NotFoundError, match="orders"):
            await peer.consumer("segment://public/default/orders/0000-ffff-0", "queue")
        assert await broker.admin.list_topics("public/default") == []
        await broker.admin.create_topic("orders")
        assert (await peer.lookup("orders"))["epoch"] == 0


async def test_numbers_out_of_any_range_are_refused_or_clamped(peer: Peer, segment: str, producer: int):
    peer.publish(producer, make_entries([b"x"] * 3))
    await peer.receipts(producer, 3)
    for at, offset in ((2 * HUGE - 1, 3), (HUGE, 3), (-HUGE, 0)):
        assert (await peer.ask(Command.SEGMENT_OFFSET, topic=segment, at=at))["result"]["offset"] == offset
    reader = await peer.consumer(segment, "reader", None, start=2 * HUGE - 1)
    queue = await peer.consumer(segment, "queue", credit=0)
    peer.flow(queue, 2 * HUGE - 1, 2 * HUGE - 1)
    peer.flow(queue, -HUGE, -HUGE)
    assert len(await peer.messages(queue, 3)) == 3
    for ranges in ([[0, HUGE]], [[-HUGE, 1]], [[2, 1]], [[0]], ["00"], [[0, 1.5]], [None]):
        with pytest.raises(InvalidArgumentError, match="range"):
            await peer.ack(queue, ranges=ranges)
    lone = await peer.consumer(segment, "exclusive", "other")
    for position in (HUGE, -HUGE):
        with pytest.raises(InvalidArgumentError):
            await peer.ack(lone, position=position)
    for window in (2**63, HUGE, -HUGE):
        for consumer in (reader, queue, lone):
            peer.send(Command.FLOW, {"consumer_id": consumer, "messages": 1, "bytes": 1, "window": window})
    await peer.ask(Command.CLOSE_CONSUMER, consumer_id=reader)


async def test_a_field_of_the_wrong_type_ends_the_connection_and_no_other(broker):
    good, bad = await Peer.connect(broker), await Peer.connect(broker)
    host, port = await broker.serve("127.0.0.1", 0)
    bad = await Peer.connect(broker, f"engine://{host}:{port}")
    bad.send(Command.FLOW, {"consumer_id": "one", "messages": 1, "bytes": 1})
    await bad.until(bad.lost.done)
    await good.lookup("orders")


async def test_seek_to_a_time_out_of_any_range(broker):
    await broker.admin.create_topic("orders")
    await broker.admin.create_subscription("orders", "s", initial_position="earliest")
    for when in (10**30, -(10**30)):
        await broker.admin.seek_subscription("orders", "s", when)


async def test_a_bit_that_flips_under_a_running_broker_is_reported_and_hurts_nobody_else(start_broker, tmp_path):
    async with start_broker() as broker:
        peer = await Peer.connect(broker)
        segment = await peer.segment("orders")
        producer = await peer.producer(segment)
        peer.publish(producer, make_entries([b"%04d" % i * KIB for i in range(8)]))
        await peer.receipts(producer, 8)
    path = tmp_path / "data/segments/public/default/orders/0000-ffff-0/0.log"
    async with start_broker() as broker:
        peer, other = await Peer.connect(broker), await Peer.connect(broker)
        producer = await peer.producer(segment)
        image = bytearray(path.read_bytes())
        image[20_000] ^= 4
        path.write_bytes(image)
        consumer = await peer.consumer(segment, "exclusive")
        _, closing, _ = await peer.take(Command.CLOSE_CONSUMER, consumer_id=consumer)
        assert closing["code"] == CorruptionError.code
        assert "0.log" in closing["message"]
        peer.publish(producer, make_entries([b"more"], first=8))
        await peer.receipts(producer, 1)
        fine = await other.producer(await other.segment("fine"))
        other.publish(fine, make_entries([b"x"]))
        await other.receipts(fine, 1)
        reader = await other.consumer(await other.segment("fine"), "exclusive")
        assert await other.messages(reader, 1) == [(0, b"x")]


async def fill(peer: Peer, producer: int, entries: list[bytes]) -> int:
    """Publish until there is no room; how many were acknowledged."""
    for i, entry in enumerate(entries):
        peer.publish(producer, [entry])
        try:
            await peer.receipts(producer, 1)
        except DiskFullError:
            return i
    pytest.fail("there was room for everything")


async def test_a_disk_that_fills_up_stops_who_needs_room_and_nobody_longer_than_that(tmp_path):
    disk = SimDisk(random.Random(1))
    metadata, workers = MemoryMetadataStore(SystemClock()), ThreadWorkers(2)

    def make() -> Broker:
        return Broker(tmp_path, config=BrokerConfig(), disk=disk.mount(), metadata=metadata, executor=workers)

    broker = make()
    await broker.start()
    peer, other = await Peer.connect(broker), await Peer.connect(broker)
    segments = [await peer.segment("orders"), await peer.segment("others")]
    producers = [await peer.producer(segments[0]), await other.producer(segments[1])]
    large = make_entries([bytes([i]) * MIB for i in range(6)])
    for one, producer in zip((peer, other), producers, strict=True):
        one.publish(producer, large[:1])
        await one.receipts(producer, 1)
    disk.capacity = disk.used() + 2 * MIB + 300 * KIB  # room for two more, of six
    acknowledged = []
    for one, producer in zip((peer, other), producers, strict=True):
        acknowledged.append(1 + await fill(one, producer, large[1:4]))
    assert sum(acknowledged) <= 4
    assert broker.memory.in_flight == 0
    disk.capacity = None
    for i, one in enumerate((peer, other)):
        producer = await one.producer(segments[i])
        one.publish(producer, large[acknowledged[i] :])
        await one.receipts(producer, 6 - acknowledged[i])
    for one in (peer, other):
        await one.close()
    disk.crash()
    broker_after = make()
    await broker_after.start()
    peer = await Peer.connect(broker_after)
    for segment in segments:
        consumer = await peer.consumer(segment, "reader", None)
        assert [(o, v[:1]) for o, v in await peer.messages(consumer, 6)] == [(i, bytes([i])) for i in range(6)]
    await peer.close()
    await broker_after.close()
    await broker.close()  # its disk is dead; it ends without a word
    workers.close()
