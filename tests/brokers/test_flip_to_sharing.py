"""A segment that comes to be shared: keys move once at most, however slow the line of its first consumer is
(semantics 18).
"""

from __future__ import annotations

import asyncio
from itertools import groupby
from typing import Any

import pytest

from engine.testing.cluster import SimCluster, simulate

KEYS = [f"key-{i}" for i in range(16)]
ROUNDS = 40
Taken = list[tuple[str, str]]  # (key, the consumer's name), in the order in which they were received


async def read(consumer: Any, name: str, taken: Taken, done: asyncio.Event) -> None:
    while True:
        message = await consumer.receive()
        taken.append((message.key.decode(), name))
        if len(taken) == ROUNDS * len(KEYS):
            done.set()
        await consumer.acknowledge_cumulative(message)


def readers_of(key: str, taken: Taken) -> list[str]:
    """The consumers that had a key, one after the other."""
    return [name for name, _ in groupby(name for found, name in taken if found == key)]


@pytest.mark.parametrize("slow_s", [0.0, 0.5])
@pytest.mark.parametrize("leaves", [True, False])
def test_semantics_18_a_key_moves_once_when_a_second_consumer_comes(slow_s: float, leaves: bool) -> None:
    """And once again, to the first consumer, when the second one leaves."""

    async def body(cluster: SimCluster) -> None:
        await cluster.start()
        broker = cluster.brokers["b1"].broker
        assert broker is not None
        await broker.admin.create_topic("t", segments=1, entry_buckets=16)
        cluster.network.slow_s["a"] = slow_s
        taken: Taken = []
        done = asyncio.Event()
        first = await cluster.client("a").stream_consumer("t", "s", name="a", receive_queue_size=16)
        reading = [asyncio.ensure_future(read(first, "a", taken, done))]
        producer = await cluster.client("p").producer("t")
        for number in range(ROUNDS):
            for key in KEYS:
                await producer.send(b"x", key=key)
            await asyncio.sleep(0.5)
            if number == ROUNDS // 4:
                second = await cluster.client("b").stream_consumer("t", "s", name="b", receive_queue_size=16)
                reading.append(asyncio.ensure_future(read(second, "b", taken, done)))
            elif number == ROUNDS // 2 and leaves:
                reading.pop().cancel()
                await second.close()
        await done.wait()
        for task in reading:
            task.cancel()
        paths = ["".join(readers_of(key, taken)) for key in KEYS]
        kept, moved = ({"a"}, {"aba", "ba"}) if leaves else ({"a"}, {"ab", "b"})  # some had none before "b" came
        assert {path for path in paths if path not in kept | moved} == set()
        assert kept & set(paths)
        assert moved & set(paths)

    simulate(1, body)
