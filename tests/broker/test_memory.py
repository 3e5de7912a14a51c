"""What grows with what others do is bounded: slow readers, floods of connections, lookups and half-sent frames."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from engine.broker.pools.pools import BrokerMemory
from engine.broker.server import Broker
from engine.broker.settings.config import BrokerConfig
from engine.broker.settings.machine import machine_memory
from engine.errors import ConnectError, PermitTimeoutError, TooManyRequestsError
from engine.limits import CONNECTION_WRITE_HIGH, KIB, MIB, READ_BLOCK_SIZE, SCARCE_BLOCK_SIZE
from engine.testing.maps import encode_bytes
from engine.wire.chunks import ChunkPool
from engine.wire.commands import Command, Ping
from tests.kit.peer import Peer, listening, make_entries, until

# -- readers -----------------------------------------------------------------------------------------------------------


async def fill(broker: Broker, url: str, size: int, topic: str = "t") -> str:
    """Publish so many bytes; the segment."""
    peer = await Peer.connect(broker, url)
    segment = await peer.segment(topic)
    producer = await peer.producer(segment)
    value = bytes(100 * KIB)
    count = size // len(value)
    for first in range(0, count, 10):
        peer.publish(producer, make_entries([value] * 10, first=first))
    await peer.receipts(producer, -(-count // 10) * 10)
    return segment


async def slow_reader(broker: Broker, url: str, segment: str) -> Peer:
    """It asks for everything and reads nothing."""
    peer = await Peer.connect(broker, url)
    consumer = await peer.consumer(segment, "reader", start=0, credit=0)
    peer.stop_reading()
    peer.send(Command.FLOW, {"consumer_id": consumer, "messages": 1 << 30, "bytes": 1 << 40})
    return peer


@pytest.mark.parametrize("cache", [0, 64 * MIB], ids=["files", "memory"])
async def test_many_slow_readers_hold_no_more_than_the_limit_and_a_fast_one_goes_on(start_broker, cache):
    limit, crowd = 16 * MIB, 20
    async with start_broker(reads_in_flight_max=limit, read_cache_max=cache) as broker:
        url = await listening(broker)
        segment = await fill(broker, url, 24 * MIB)
        slow = [await slow_reader(broker, url, segment) for _ in range(crowd)]
        await until(lambda: broker.memory.outbound.full)
        assert broker.memory.outbound.block_size == SCARCE_BLOCK_SIZE
        fast = await Peer.connect(broker, url)
        consumer = await fast.consumer(segment, "reader", start=0)
        seen = 0
        while seen < 100:
            fast.send(Command.FLOW, {"consumer_id": consumer, "messages": 1_000, "bytes": 1 << 30})
            _, header, _ = await fast.take(Command.MESSAGE, consumer_id=consumer)
            seen += header["messages"]
        most = limit + crowd * READ_BLOCK_SIZE  # what each was given before it was full
        assert sum(c.stream.unsent_bytes for c in broker.connections) <= most < crowd * CONNECTION_WRITE_HIGH
        for peer in slow:
            peer.stream.abort()
        await until(lambda: broker.memory.outbound.block_size == READ_BLOCK_SIZE)


async def test_a_slow_reader_goes_on_when_it_reads_again(start_broker):
    async with start_broker(reads_in_flight_max=MIB) as broker:
        url = await listening(broker)
        segment = await fill(broker, url, 24 * MIB)
        peer = await slow_reader(broker, url, segment)
        await until(lambda: broker.memory.outbound.full)
        peer.resume_reading()
        seen = 0
        while seen < 240:
            _, header, _ = await peer.take(Command.MESSAGE)
            seen += header["messages"]
        await until(lambda: broker.memory.outbound.used == 0 or not broker.memory.outbound.full)


async def test_who_asks_and_does_not_read_is_not_listened_to_while_it_is_full(start_broker):
    async with start_broker(reads_in_flight_max=MIB) as broker:
        url = await listening(broker)
        segment = await fill(broker, url, 24 * MIB)
        await slow_reader(broker, url, segment)
        await until(lambda: broker.memory.outbound.full)
        stuck = next(c for c in broker.connections if c.pressure.held_back)
        assert not stuck.writable
        stuck.frame_received(Ping(), memoryview(b""))
        assert stuck.held


# -- requests ----------------------------------------------------------------------------------------------------------


async def test_lookups_above_the_limit_are_refused_by_a_typed_error(start_broker, monkeypatch):
    async with start_broker(lookups_max=1) as broker:
        peer = await Peer.connect(broker)
        await peer.lookup("t")
        going, original = asyncio.Event(), broker.service.watch_topic

        async def slow(*args: Any, **options: Any) -> Any:
            await going.wait()
            return await original(*args, **options)

        monkeypatch.setattr(broker.service, "watch_topic", slow)
        first = asyncio.ensure_future(peer.lookup("t"))
        await until(lambda: broker.memory.lookups.used)
        with pytest.raises(TooManyRequestsError, match=r"lookup limit reached \(1\)"):
            await peer.lookup("t")
        going.set()
        await first
        assert (broker.memory.lookups.used, broker.memory.lookups.refusals) == (0, 1)


async def test_segments_are_opened_some_at_a_time(start_broker):
    async with start_broker(topic_loads_max=1) as broker:
        loads = broker.memory.topic_loads
        loads.timeout = 0.01
        peer = await Peer.connect(broker)
        segment = await peer.segment("t")
        held = await loads.acquire(1)
        with pytest.raises(PermitTimeoutError, match="topic_loads"):
            await peer.producer(await peer.segment("u"))
        loads.release(held)
        await peer.producer(segment)
        await peer.producer(await peer.segment("u"))
        assert loads.used == 0


# -- connections -------------------------------------------------------------------------------------------------------


async def test_an_address_has_so_many_connections(start_broker):
    async with start_broker(connections_per_address_max=2) as broker:
        url = await listening(broker)
        peers = [await Peer.connect(broker, url) for _ in range(2)]
        with pytest.raises(ConnectError, match="2 connections from this address"):
            await Peer.connect(broker, url)
        await Peer.connect(broker)  # from within the process
        await peers[0].close()
        await until(lambda: broker.memory.callers.count(peers[1].stream.peer) <= 1 or len(broker.connections) <= 2)
        await Peer.connect(broker, url)


async def test_half_sent_frames_are_bounded_and_those_that_are_finished_count(start_broker):
    crowd, limit = 40, 16 * MIB
    async with start_broker(receive_buffers_max=limit) as broker:
        url = await listening(broker)
        whole = await Peer.connect(broker, url)
        await whole.lookup("t")
        frame = encode_bytes(Command.SEND, {"producer_id": 1, "entries": 1}, bytes(MIB))
        peers = [await Peer.connect(broker, url) for _ in range(crowd)]
        for peer in peers:
            peer.stream.transport.write(frame[:-1])
        await until(lambda: broker.memory.half_frames.cut)
        await until(lambda: broker._pool.taken <= limit)
        await whole.lookup("t")
        living = [peer for peer in peers if not peer.lost.done()]
        assert 0 < len(living) < crowd
        living[-1].stream.transport.write(frame[-1:])
        assert (await living[-1].take(Command.SEND_ERROR))[1]["producer_id"] == 1


async def test_a_frame_that_is_never_finished_ends_its_connection(start_broker):
    async with start_broker(keep_alive=0.05) as broker:
        url = await listening(broker)
        peer = await Peer.connect(broker, url)
        frame = encode_bytes(Command.SEND, {"producer_id": 1, "entries": 1}, bytes(MIB))
        peer.stream.transport.write(frame[:100])
        at = 100
        while not peer.lost.done():  # a byte now and then is a sign of life, and not enough
            peer.stream.transport.write(frame[at : at + 1])
            at += 1
            await asyncio.wait([peer.lost], timeout=0.01)
        assert len(broker.connections) == 0


async def test_a_pool_of_chunks_knows_what_receivers_hold():
    pool = ChunkPool()
    chunk, exact = pool.take(), pool.take_exactly(100)
    assert pool.taken == chunk.size + 100
    pool.give(chunk, 10)
    pool.give(exact, 100)
    assert pool.taken == 0
    pool.limit = 2 * pool.chunk_size
    held = [pool.take() for _ in range(2)]
    assert pool.take(10).size < pool.chunk_size == held[0].size  # scarce: no more than is needed


# -- all of them -------------------------------------------------------------------------------------------------------


def test_every_pool_is_told_in_one_place():
    memory = BrokerMemory(BrokerConfig())
    pools = {pool.name: pool for pool in memory.pools()}
    lists = {"topic_list_heap", "topic_list_direct", "topic_list_parts"}
    assert set(pools) == lists | {"publish", "reads", "lookups", "topic_loads", "bodies", "attachments", "open_entries"}
    assert all(pool.limit > 0 and pool.used == 0 for pool in pools.values())


def test_limits_are_taken_over_at_run_time():
    memory = BrokerMemory(BrokerConfig())
    memory.configure(
        BrokerConfig(
            topic_list_heap_max="2MB",
            topic_list_direct_timeout="3s",
            publish_bytes_max="64MB",
            reads_in_flight_max=0,
            lookups_max=7,
            attachments_max=6,
            topic_loads_max=8,
            topic_list_heap_queue_max=9,
        )
    )
    pools = {pool.name: pool for pool in memory.pools()}
    limits = {name: pool.limit for name, pool in pools.items()}
    assert limits == {
        "topic_list_heap": 2 * MIB, "topic_list_direct": 100 * MIB, "topic_list_parts": 16 * MIB, "publish": 64 * MIB,
        "reads": 0, "lookups": 7, "topic_loads": 8, "bodies": 64 * MIB, "attachments": 6,
        "open_entries": 16 * MIB,
    }  # fmt: skip
    assert pools["topic_list_heap"].queue_max == 9


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"proc/meminfo": "MemTotal:       4096 kB\nMemFree: 1 kB\n"}, 4 * MIB),
        ({"proc/meminfo": "MemTotal:       4096 kB\n", "sys/fs/cgroup/memory.max": "1048576\n"}, MIB),
        ({"proc/meminfo": "MemTotal:       4096 kB\n", "sys/fs/cgroup/memory.max": "max\n"}, 4 * MIB),
        ({}, 2048 * MIB),
    ],
)
def test_the_memory_of_the_machine_is_what_it_or_its_container_has(tmp_path: Path, files: dict[str, str], found: int):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert machine_memory(tmp_path) == found
