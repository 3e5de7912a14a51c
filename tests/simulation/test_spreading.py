"""Jobs that lie in one entry spread over the workers of a queue, on virtual time, through clients and a broker.

No worker does more than 1.5 times its fair share, and what is sent is at most twice the entry.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

import engine
from engine.broker.settings.config import BrokerConfig
from engine.limits import MIB
from engine.testing.cluster import SimCluster, simulate

JOB_S = 0.05
TOPIC = "topic://public/default/jobs"
CONFIG = BrokerConfig(segments=1)


@dataclass
class Worker:
    """Does one job after the other. `done`: when it finished each."""

    name: str
    job_s: float = JOB_S
    done: list[tuple[float, bytes]] = field(default_factory=list)
    received_bytes: int = 0

    async def run(self, cluster: SimCluster, **options: Any) -> None:
        client = cluster.client(f"c-{self.name}")
        consumer = await client.queue_consumer(TOPIC, "s", initial_position="earliest", **options)
        while (message := await consumer.receive(timeout=10 * self.job_s + 5)) is not None:
            await asyncio.sleep(self.job_s)
            await consumer.acknowledge(message)
            self.done.append((cluster.loop.time(), message.value))
        self.received_bytes = consumer.statistics().bytes_received
        assert consumer.statistics().unacknowledged == 0

    def share(self, since: float = 0.0, upto: float = float("inf")) -> int:
        return sum(since <= at < upto for at, _ in self.done)


async def publish(cluster: SimCluster, values: list[bytes], **options: Any) -> int:
    """The size of the one entry that they become."""
    client = cluster.client("c-producer")
    batching = engine.Batching(max_messages=65_535, max_bytes=4 * MIB, max_delay=0.01)
    async with await client.producer(TOPIC, name="p", batching=batching, **options) as producer:
        await producer.send_batch(values, keys=[b"k"] * len(values))
        await producer.flush()
    broker = cluster.brokers["b1"].broker
    assert broker is not None
    [hosted] = broker.segments
    statistics = hosted.segment.statistics()
    assert statistics.appended_entries == 1, "all of it is one entry"
    return statistics.appended_bytes


async def spread(cluster: SimCluster, values: list[bytes], **options: Any) -> tuple[list[Worker], int, float]:
    """The workers, the last of which joins when half is done; the entry's size; when the last one has joined."""
    await cluster.start("b1")
    size = await publish(cluster, values, **options)
    workers = [Worker(f"w{i}") for i in range(5)]
    running = [asyncio.create_task(worker.run(cluster)) for worker in workers[:4]]
    while sum(len(worker.done) for worker in workers) < len(values) // 2:  # noqa: ASYNC110 - in virtual time
        await asyncio.sleep(JOB_S / 2)
    joined = cluster.loop.time()
    running.append(asyncio.create_task(workers[4].run(cluster)))
    await asyncio.gather(*running)
    return workers, size, joined


def check_spread(workers: list[Worker], values: list[bytes], joined: float) -> None:
    done = [value for worker in workers for _, value in worker.done]
    assert sorted(done) == sorted(values), "each job is done once"
    early = [worker.share(upto=joined) for worker in workers[:4]]
    late = [worker.share(since=joined) for worker in workers]
    assert max(early) <= 1.5 * sum(early) / 4, early
    assert max(late) <= 1.5 * sum(late) / 5, late
    assert min(late) > 0


@pytest.mark.parametrize(("count", "size"), [(400, 7), (400, 100), (10_000, 40)])
def test_jobs_of_one_entry_spread_over_the_workers(count: int, size: int):
    values = [b"%0*d" % (size, i) for i in range(count)]

    async def scenario(cluster: SimCluster) -> None:
        workers, entry_size, joined = await spread(cluster, values)
        check_spread(workers, values, joined)
        sent = sum(worker.received_bytes for worker in workers)
        assert sent <= 2 * entry_size, f"{sent} of {entry_size}"

    simulate(f"spread {count} {size}", scenario, config=CONFIG)


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_jobs_of_a_compressed_entry_spread_as_well(compression: str):
    """What is sent is at most twice the entry decompressed."""
    values = [b"%0100d" % i for i in range(400)]

    async def scenario(cluster: SimCluster) -> None:
        workers, entry_size, joined = await spread(cluster, values, compression=compression)
        check_spread(workers, values, joined)
        sent = sum(worker.received_bytes for worker in workers)
        assert entry_size < sum(map(len, values)), "it is compressed"
        assert sent <= 2 * sum(map(len, values))

    simulate(f"spread {compression}", scenario, config=CONFIG)


def test_a_slow_worker_leaves_the_rest_to_a_fast_one():
    """One works ten times as fast: it does about ten times as much, and both end at about the same time."""
    values = [b"%0100d" % i for i in range(600)]

    async def scenario(cluster: SimCluster) -> None:
        await cluster.start("b1")
        await publish(cluster, values)
        slow, fast = Worker("slow", 10 * JOB_S), Worker("fast")
        await asyncio.gather(slow.run(cluster), fast.run(cluster))
        assert sorted(v for w in (slow, fast) for _, v in w.done) == sorted(values)
        assert 5 * slow.share() <= fast.share()
        assert abs(slow.done[-1][0] - fast.done[-1][0]) <= 2 * slow.job_s

    simulate("fast and slow", scenario, config=CONFIG)


def test_few_long_jobs_go_to_one_worker_each():
    """Eight jobs of half a minute in one small entry: two for each of four workers."""
    values = [b"%d" % i for i in range(8)]

    async def scenario(cluster: SimCluster) -> None:
        await cluster.start("b1")
        await publish(cluster, values)
        workers = [Worker(f"w{i}", 30.0) for i in range(4)]
        await asyncio.gather(*(worker.run(cluster) for worker in workers))
        assert [worker.share() for worker in workers] == [2, 2, 2, 2]

    simulate("long jobs", scenario, config=CONFIG)


def test_a_program_that_acknowledges_at_the_end_gets_everything():
    values = [b"%0100d" % i for i in range(5000)]

    async def scenario(cluster: SimCluster) -> None:
        await cluster.start("b1")
        await publish(cluster, values)
        consumer = await cluster.client("c").queue_consumer(TOPIC, "s", initial_position="earliest")
        found = [await consumer.receive(timeout=10) for _ in values]
        assert [message.value for message in found if message] == values
        await consumer.acknowledge([message for message in found if message])

    simulate("at the end", scenario, config=CONFIG)
