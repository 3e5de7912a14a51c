"""Whole brokers in virtual time whose topics find their own size: reports, leaders, changes, clients that follow."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import defaultdict
from typing import Any

import pytest

from engine.broker.settings.config import BrokerConfig
from engine.client.client import AsyncClient
from engine.testing.cluster import DEFAULT_CONFIG, SimCluster, simulate
from tests.kit.seeds import first_of

CONFIG: BrokerConfig = dataclasses.replace(
    DEFAULT_CONFIG,
    segments=1,
    scalable_topic_split_msg_rate_in_threshold=10.0,
    scalable_topic_merge_msg_rate_in_threshold=4.0,
)


async def shape(cluster: SimCluster) -> list[int]:
    """The bucket counts of the active segments."""
    broker = cluster.brokers["b1"].broker
    assert broker is not None
    metadata = await broker.admin.get_metadata("orders")
    return [len(s["bucketBoundaries"]) for s in metadata["segments"].values() if s["state"] == "ACTIVE"]


async def send(client: AsyncClient, per_s: int, seconds: int) -> None:
    """So many messages per second, over many keys."""
    async with await client.producer("orders") as producer:
        for second in range(seconds):
            for number in range(per_s):
                producer.send_nowait(b"x", key=f"{second}-{number}")
            await producer.flush()
            await asyncio.sleep(1)


@pytest.mark.parametrize("seed", first_of([1, 2], 1))
def test_a_hot_topic_splits_by_itself_and_merges_back_when_it_is_idle(seed: int) -> None:
    """With producers alone, on two brokers: nobody else would lead it."""

    async def scenario(cluster: SimCluster) -> None:
        for name in ("b1", "b2"):
            await cluster.start(name)
        client = cluster.client("c1")
        sending = asyncio.ensure_future(send(client, 30, 420))
        await asyncio.sleep(90)
        assert len(await shape(cluster)) == 2  # within a tick
        await asyncio.sleep(300)
        grown = len(await shape(cluster))
        assert 4 <= grown <= 6  # each takes some 7 of 30 a second
        await sending
        await asyncio.sleep(3_600)
        assert await shape(cluster) == [grown_buckets(grown)]
        await client.close()

    simulate(seed, scenario, config=CONFIG, shared=True, time_limit=6_000.0)


def grown_buckets(segments: int) -> int:
    """The budget of 4, halved down to one each, is added up again."""
    return max(4, segments)


async def read(who: int, consumer: Any, seen: dict[bytes, list[tuple[int, bytes]]], done: asyncio.Event) -> None:
    async for message in consumer:
        seen[message.key].append((who, message.value))
        await consumer.acknowledge_cumulative(message)
        if sum(map(len, seen.values())) == 2_000:
            done.set()


def test_five_consumers_of_a_cold_topic_all_work_and_keys_keep_their_order() -> None:
    async def scenario(cluster: SimCluster) -> None:
        await cluster.start("b1")
        client = cluster.client("c1")
        consumers = [await client.stream_consumer("orders", "s", name=f"c{n}") for n in range(5)]
        await asyncio.sleep(5)
        assert await shape(cluster) == [8]
        seen: dict[bytes, list[tuple[int, bytes]]] = defaultdict(list)
        done = asyncio.Event()
        readers = [asyncio.ensure_future(read(i, c, seen, done)) for i, c in enumerate(consumers)]
        async with await client.producer("orders") as producer:
            for number in range(2_000):
                producer.send_nowait(b"%d" % number, key=f"key-{number % 100}")
            await producer.flush()
        await asyncio.wait_for(done.wait(), 300)
        for key, got in seen.items():
            assert len({who for who, _ in got}) == 1, f"{key!r} went to several"
            assert [int(value) for _, value in got] == sorted(int(value) for _, value in got)
        assert {who for got in seen.values() for who, _ in got} == set(range(5))
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        await client.close()

    simulate(7, scenario, config=dataclasses.replace(DEFAULT_CONFIG, segments=1))
