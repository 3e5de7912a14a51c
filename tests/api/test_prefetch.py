"""How much a consumer is sent ahead of what its program receives, through the public API, embedded and served."""

from __future__ import annotations

from typing import Any

import pytest

import engine

COUNT = 4096


async def publish(client: engine.AsyncClient, compression: str = "none", count: int = COUNT) -> list[bytes]:
    """In one entry."""
    values = [b"%0100d" % i for i in range(count)]
    batching = engine.Batching(max_messages=65_535, max_bytes=1 << 22, max_delay=0.01)
    async with await client.producer("t", batching=batching, compression=compression) as producer:
        await producer.send_batch(values, keys=[b"k"] * count)
    return values


def consumer(client: engine.AsyncClient, kind: str, **options: Any) -> Any:
    if kind == "checkpoint":
        return client.checkpoint_consumer("t", start=engine.Checkpoint.earliest(), **options)
    make = client.stream_consumer if kind == "stream" else client.queue_consumer
    return make("t", "s", initial_position="earliest", **options)


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("kind", ["stream", "checkpoint", "queue"])
async def test_with_a_window_of_one_no_more_than_one_message_is_fetched_ahead(
    client: engine.AsyncClient, kind: str, compression: str
):
    values = await publish(client, compression)
    async with await consumer(client, kind, receive_queue_size=1) as one:
        for i in range(10):
            message = await one.receive(timeout=30)
            assert message.value == values[i]
            assert one.statistics().messages_received <= i + 2
            assert one.statistics().messages_queued <= 1
            if kind == "queue":
                assert one.statistics().messages_queued == 0, "the one that it has is not acknowledged"
                await one.acknowledge(message)


@pytest.mark.parametrize("size", [3, 100, 1000])
@pytest.mark.parametrize("kind", ["stream", "checkpoint", "queue"])
async def test_a_number_fixes_the_window(client: engine.AsyncClient, kind: str, size: int):
    values = await publish(client, count=600)
    found: list[bytes] = []
    async with await consumer(client, kind, receive_queue_size=size) as some:
        while len(found) < len(values):
            batch = await some.receive_batch(timeout=30)
            assert 0 < len(batch) <= size
            found += batch.values
            if kind == "stream":
                await some.acknowledge_cumulative(batch)
            elif kind == "queue":
                await some.acknowledge(batch)
    assert found == values


@pytest.mark.parametrize("kind", ["stream", "queue"])
async def test_the_rest_of_an_entry_comes_after_a_part_of_it_was_acknowledged(client: engine.AsyncClient, kind: str):
    values = await publish(client, count=400)
    found: list[bytes] = []
    for count in (10, 300, len(values)):
        async with await consumer(client, kind, receive_queue_size=7) as part:
            while len(found) < count:
                message = await part.receive(timeout=30)
                found.append(message.value)
                if kind == "stream":
                    await part.acknowledge_cumulative(message)
                else:
                    await part.acknowledge(message)
    assert found == values


async def test_a_consumer_that_acknowledges_nothing_gets_more_when_it_asks(client: engine.AsyncClient):
    values = await publish(client, count=100)
    for options in ({}, {"receive_queue_size": 1}):
        async with await consumer(client, "queue", **options) as greedy:
            found = [await greedy.receive(timeout=30) for _ in values]
            assert sorted(message.value for message in found) == values


async def test_a_topic_that_leaves_gives_its_part_of_the_window_back(client: engine.AsyncClient):
    for topic in ("t", "u"):
        async with await client.producer(topic) as producer:
            await producer.send(b"v")
    options: Any = {"initial_position": "earliest", "receive_queue_size": 2}
    async with await client.queue_consumer(["t", "u"], "s", **options) as several:
        found = [await several.receive(timeout=30) for _ in range(2)]
        assert several.permits.held == 2
        [left] = [member for member in several._members.values() if member.topic == found[0].topic]
        await left.close()
        assert several.permits.held == 1
        await several.acknowledge(found[1])
        assert several.permits.held == 0


@pytest.mark.parametrize("size", [0, -1, 1.5, "many", None, True])
async def test_a_window_is_a_number_or_auto(client: engine.AsyncClient, size: Any):
    for kind in ("stream", "checkpoint", "queue"):
        with pytest.raises(engine.InvalidArgumentError, match="receive_queue_size must be"):
            await consumer(client, kind, receive_queue_size=size)


def test_the_blocking_form_spreads_as_well(blocking: engine.Engine):
    with blocking.producer("t", batching=engine.Batching(max_delay=0.01)) as producer:
        producer.send_batch([b"%d" % i for i in range(40)], keys=[b"k"] * 40)
    workers = [blocking.queue_consumer("t", "s", initial_position="earliest", receive_queue_size=2) for _ in range(4)]
    shares = [0] * 4
    while sum(shares) < 40:
        for i, worker in enumerate(workers):
            message = worker.receive(timeout=0.01)
            if message is not None:
                worker.acknowledge(message)
                shares[i] += 1
    assert max(shares) <= 15, shares
    for worker in workers:
        worker.close()
