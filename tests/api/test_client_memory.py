"""`memory_limit` is the client's: what all its producers and consumers hold together, decompressed or not."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

import engine
from engine.limits import MIB, RECEIVE_QUEUE_BYTES

LIMIT = 16 * MIB


def limited(served: engine.AsyncEngine, limit: int = LIMIT) -> engine.AsyncClient:
    return engine.AsyncClient(served.service_url, memory_limit=limit)


async def zeros(client: engine.AsyncClient, topic: str, entries: int, each: int = 1, size: int = MIB) -> None:
    """Entries of messages of zeros, compressed a thousand times."""
    batching = engine.Batching(max_bytes=8 * MIB, max_messages=each)
    async with await client.producer(topic, compression="zstd", batching=batching) as producer:
        for _ in range(entries):
            for _ in range(each):
                producer.send_nowait(bytes(size))
            await producer.flush()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - no event announces it
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("kind", ["stream", "queue"])
async def test_what_compresses_well_is_decompressed_when_it_is_received(served: engine.AsyncEngine, kind: str):
    count = 100
    await zeros(served, "t", count)
    async with limited(served) as client:
        make = client.stream_consumer if kind == "stream" else client.queue_consumer
        async with await make("t", "s", initial_position="earliest", receive_queue_size=1000) as consumer:
            await until(lambda: consumer.statistics().messages_queued == count)
            assert consumer.statistics().bytes_queued < MIB
            tracemalloc.start()
            try:
                for _ in range(count):
                    message = await consumer.receive(timeout=20)
                    assert message is not None
                    assert message.size == MIB
                assert tracemalloc.get_traced_memory()[1] < LIMIT
            finally:
                tracemalloc.stop()


async def test_a_batch_becomes_no_more_than_is_fetched_ahead(served: engine.AsyncEngine):
    await zeros(served, "t", 10, each=7)
    async with (
        limited(served) as client,
        await client.stream_consumer("t", "s", initial_position="earliest") as consumer,
    ):
        await until(lambda: consumer.statistics().messages_queued == 70)
        counts = []
        while sum(counts) < 70:
            batch = await consumer.receive_batch()
            assert batch.size <= RECEIVE_QUEUE_BYTES
            counts.append(len(batch))
        assert counts == [28, 28, 14]


async def test_what_was_decompressed_for_many_consumers_is_bounded(served: engine.AsyncEngine):
    """Those that were received from longest ago decompress theirs once more."""
    await zeros(served, "t", 2, each=3)
    async with limited(served) as client:
        consumers: list[Any] = []
        for n in range(10):
            consumers.append(await client.stream_consumer("t", f"s{n}", initial_position="earliest"))
        memory = client.pool.memory
        for _ in range(5):
            for consumer in consumers:
                message = await consumer.receive(timeout=20)
                assert message.value == bytes(MIB)
                assert memory.opened_bytes <= LIMIT // 2
        offsets = [(await consumer.receive(timeout=20)).offset for consumer in consumers]
        assert offsets == [5] * 10
        for consumer in consumers:
            await consumer.close()
        assert memory.opened_bytes == 0


async def test_producers_share_one_limit_and_one_message_always_passes(served: engine.AsyncEngine):
    async with limited(served) as client:
        one, two = await client.producer("t"), await client.producer("u")
        for _ in range(LIMIT // MIB * 3 // 4):  # the rest is for those that have nothing pending
            one.send_nowait(bytes(MIB))
        with pytest.raises(engine.QueueFullError, match="client's producers"):
            one.send_nowait(b"")
        two.send_nowait(bytes(MIB))
        with pytest.raises(engine.QueueFullError, match="client's producers"):
            two.send_nowait(b"")
        assert not two.has_room
        await two.writable()
        two.send_nowait(b"")
        await asyncio.gather(one.flush(), two.flush())
        assert client.pool.memory.sending.used == 0
        await asyncio.gather(one.close(), two.close())


async def test_a_send_that_waits_for_others_has_begun_and_close_waits_for_it(served: engine.AsyncEngine):
    async with limited(served) as client:
        one, two = await client.producer("t"), await client.producer("u")
        client.pool.memory.sending.limit = 1  # and something is pending
        one.send_nowait(bytes(MIB))
        waiting = asyncio.ensure_future(two.send(b""))
        await asyncio.sleep(0)
        assert client.pool.memory.waiting
        async with asyncio.timeout(60):
            await two.close()
        assert waiting.done()
        assert (await waiting).offset == 0
        with pytest.raises(engine.AlreadyClosedError):
            await two.send(b"")
        await one.close()


async def test_a_producer_that_waits_is_woken_by_what_others_have_sent(served: engine.AsyncEngine):
    async with limited(served) as client:
        producers = [await client.producer(f"t{n}") for n in range(4)]
        sends = [asyncio.ensure_future(p.send(bytes(3 * MIB))) for p in producers for _ in range(6)]
        async with asyncio.timeout(60):
            await asyncio.gather(*sends)
        assert client.pool.memory.sending.used == 0
        await asyncio.gather(*(p.close() for p in producers))


async def test_many_producers_and_consumers_of_one_client_get_on(served: engine.AsyncEngine):
    async with limited(served, 8 * MIB) as client:
        consumers = [await client.stream_consumer("t", f"s{n}", initial_position="earliest") for n in range(5)]
        producers = [await client.producer("t") for _ in range(60)]
        memory = client.pool.memory
        assert memory.sending.limit == 4 * MIB
        most = 0

        async def produce(producer: engine.AsyncProducer) -> None:
            nonlocal most
            for _ in range(5):
                await producer.send(bytes(100_000))
                most = max(most, memory.sending.used)

        async def consume(consumer: Any) -> None:
            for _ in range(300):
                message = await consumer.receive(timeout=60)
                assert message is not None
            await consumer.acknowledge_cumulative(message)

        await asyncio.gather(*map(produce, producers), *map(consume, consumers))
        assert 0 < most <= 4 * MIB + 110_000
        await asyncio.gather(*(each.close() for each in (*producers, *consumers)))
        assert (memory.sending.used, memory.sending.limit) == (0, 8 * MIB)


def test_a_blocking_send_waits_for_others(tmp_path: Any):
    with (
        engine.open(tmp_path / "data", listen="127.0.0.1:0") as served,
        engine.Client(served.service_url, memory_limit=LIMIT) as client,
        client.producer("t") as one,
        client.producer("u") as two,
    ):
        for _ in range(40):
            one.send_nowait(bytes(MIB))
            two.send(bytes(MIB))
        one.flush()
