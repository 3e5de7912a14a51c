"""Delayed delivery: a queue withholds what is not due, and nobody else waits for it. On virtual time."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from pyroaring import BitMap64

from engine._native.format.crc32c import crc32c
from engine._native.produce.batcher import Batcher
from engine.broker.delivery.delayed import TICK_MS, Delays
from engine.broker.delivery.redelivery import range_set
from engine.broker.metrics.catalogue import metrics_text
from engine.client.base.options import Batching
from engine.client.client import AsyncClient
from engine.client.consume.queue_consumer import AsyncQueueConsumer
from engine.errors import CorruptionError
from engine.model.redelivery import Backoff
from engine.testing.clock import LoopClock
from engine.testing.cluster import SimCluster, simulate
from engine.testing.loop import run_virtual
from engine.wire.commands import Command
from tests.kit.peer import Peer

Scenario = Callable[[SimCluster], Coroutine[Any, Any, None]]
LATE_S = TICK_MS / 1000 + 0.5  # a tick, and the way from client to client


def entry_of(offset: int, times: list[int | None]) -> memoryview:
    """An entry as the segment's owner has stamped it: entries of a batcher begin at offset 0."""
    batcher = Batcher(b"p")
    batcher.set_layout([0], [0], [[65535]])
    for time in times:
        batcher.add(b"", b"k", deliver_at=time)
    batcher.seal_all()
    (sealed,) = batcher.take()
    image = bytearray(sealed.data)
    image[88:96] = offset.to_bytes(8, "little")
    return memoryview(bytes(image))


# -- the index ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_every_message_is_released_within_a_tick_of_its_time(seed: int):
    """Against a plain table of times, with acknowledgements in between and a wall clock that jumps back once."""
    rng = random.Random(seed)

    async def body() -> None:
        loop = asyncio.get_running_loop()
        clock = LoopClock(loop)
        entries: dict[int, memoryview] = {}
        due = {offset: clock.time_ms() + rng.choice([500, 20_000, 3_600_000, 10**9]) + rng.randrange(999)
               for offset in range(200)}  # fmt: skip
        given: dict[int, int] = {}
        acknowledged: set[int] = set()

        def released(offsets: BitMap64) -> None:
            for offset in offsets:
                if not delays.withhold(entries[offset], range_set(offset, offset)):
                    given[offset] = clock.time_ms()

        delays = Delays(clock.time_ms, released)
        for offset, time in due.items():
            entries[offset] = entry_of(offset, [time])
            released(range_set(offset, offset))
        assert len(delays) == 200
        assert delays.times <= 200
        for offset in rng.sample(range(200), 40):
            if offset not in given:
                delays.forget(BitMap64([offset]))
                acknowledged.add(offset)
        clock.skew_ms = -100_000
        await asyncio.sleep(2 * 10**6)
        assert not delays
        assert set(given) == set(due) - acknowledged
        for offset, time in given.items():
            assert 0 <= time - due[offset] <= TICK_MS

    run_virtual(body(), 10**8)


def test_withheld_messages_cost_little():
    async def body() -> None:
        delays = Delays(lambda: 10**12, lambda _: None)
        rng = random.Random(1)
        for first in range(0, 200_000, 1000):
            time = 10**12 + rng.randrange(1, 30 * 24 * 3600 * 1000)
            delays.withhold(entry_of(first, [time] * 1000), range_set(first, first + 999))
        assert len(delays) == 200_000
        assert delays.times <= 64 * 40
        size = sum(len(offsets.serialize()) for offsets in delays._sets.values())
        assert size < 2 * 200_000
        delays.close()

    run_virtual(body())


# -- the queue ---------------------------------------------------------------------------------------------------------


def virtual(scenario: Scenario) -> Callable[[], None]:
    """A test that runs a cluster on virtual time."""

    def test() -> None:
        simulate(scenario.__name__, scenario, time_limit=10**6)

    test.__name__ = scenario.__name__
    return test


async def started(cluster: SimCluster) -> AsyncClient:
    await cluster.start("b1")
    return cluster.client("c1")


async def values(consumer: AsyncQueueConsumer, timeout: float) -> list[bytes]:
    """What comes within a time."""
    found: list[bytes] = []
    loop = asyncio.get_running_loop()
    end = loop.time() + timeout
    while (left := end - loop.time()) > 0 and (message := await consumer.receive(timeout=left)) is not None:
        found.append(message.value)
    return found


@virtual
async def test_a_delayed_message_comes_in_time_and_holds_up_nobody(cluster: SimCluster) -> None:
    client, loop = await started(cluster), asyncio.get_running_loop()
    consumer = await client.queue_consumer("t", "s", initial_position="earliest")
    producer = await client.producer("t")
    begin = loop.time()
    await producer.send(b"late", key="k", deliver_after=30.0)
    await producer.send(b"at", key="k", deliver_at=cluster.clock.time_ms() + 60_000)
    await producer.send(b"past", key="k", deliver_at=cluster.clock.time_ms() - 60_000)
    for i in range(20):
        await producer.send(b"%d" % i, key="k")
    assert await values(consumer, 10) == [b"past", *(b"%d" % i for i in range(20))]
    message = await consumer.receive(timeout=60)
    assert message is not None
    assert (message.value, message.redelivery_count) == (b"late", 0)
    assert 30 <= loop.time() - begin <= 30 + LATE_S
    assert await values(consumer, 28) == []
    assert (await consumer.receive(timeout=60)).value == b"at"
    assert 60 <= loop.time() - begin <= 60 + LATE_S + 0.5


@pytest.mark.parametrize("step_s", [-86_400, -5, 5, 86_400])
def test_what_is_handed_back_comes_after_its_backoff_however_the_clock_is_set(step_s: int):
    async def body(cluster: SimCluster) -> None:
        client, loop = await started(cluster), asyncio.get_running_loop()
        backoff = Backoff(20.0, 20.0)
        consumer = await client.queue_consumer("t", "s", initial_position="earliest", nack_backoff=backoff)
        producer = await client.producer("t")
        await producer.send(b"again")
        message = await consumer.receive(timeout=10)
        assert message is not None
        begin = loop.time()
        await consumer.negative_acknowledge(message)
        await asyncio.sleep(1)
        cluster.clock.skew_ms += step_s * 1000
        message = await consumer.receive(timeout=1000)
        assert message is not None
        assert (message.value, message.redelivery_count) == (b"again", 1)
        assert 20 <= loop.time() - begin <= 20 + LATE_S + 0.5

    simulate(step_s, body, time_limit=10**6)


@virtual
async def test_statistics_tell_how_many_messages_are_delayed(cluster: SimCluster) -> None:
    client = await started(cluster)
    consumer = await client.queue_consumer("t", "s", initial_position="earliest")
    producer = await client.producer("t")
    for delay in (5, 5, 50, 0):
        await producer.send(b"v", deliver_after=delay)
    broker = cluster.brokers["b1"].broker
    assert broker is not None

    async def delayed() -> list[float]:
        """In the statistics, and the sum in the metrics."""
        subscription = (await broker.admin.get_stats("t"))["subscriptions"]["s"]
        lines = [line for line in metrics_text(broker).splitlines() if line.startswith("engine_subscription_delayed{")]
        return [subscription["backlog"], subscription["delayed"], sum(float(line.split()[-1]) for line in lines)]

    assert len(await values(consumer, 1)) == 1
    assert await delayed() == [4, 3, 3]
    await values(consumer, 10)
    assert await delayed() == [4, 1, 1]
    await consumer.close()
    assert await delayed() == [4, 0, 0], "nobody is withheld anything"


@virtual
async def test_delayed_messages_are_shared_between_consumers_and_redelivered(cluster: SimCluster) -> None:
    client = await started(cluster)
    first = await client.queue_consumer("t", "s", initial_position="earliest", name="first")
    second = await client.queue_consumer("t", "s", name="second")
    producer = await client.producer("t", batching=Batching(max_messages=1))
    for i in range(40):
        producer.send_nowait(b"%d" % i, deliver_after=5 + i % 3)
    await producer.flush()
    assert await values(first, 4) + await values(second, 0.1) == []
    a, b = await asyncio.gather(values(first, 10), values(second, 10))
    assert sorted(a + b) == sorted(b"%d" % i for i in range(40))
    assert a
    assert b
    await first.close()
    again = await values(second, 10)
    assert sorted(again) == sorted(a), "what was delivered and not acknowledged comes back, without another delay"


@virtual
async def test_a_restart_withholds_again_what_is_not_due(cluster: SimCluster) -> None:
    client = await started(cluster)
    consumer = await client.queue_consumer("t", "s", initial_position="earliest")
    producer = await client.producer("t")
    begin = asyncio.get_running_loop().time()
    await producer.send(b"late", deliver_after=100)
    await producer.send(b"later", deliver_after=2000)
    await producer.send(b"now")
    message = await consumer.receive(timeout=10)
    assert message is not None
    await consumer.acknowledge(message)
    await cluster.brokers["b1"].kill()
    await cluster.brokers["b1"].start()
    assert await values(consumer, 50) == []
    message = await consumer.receive(timeout=100)
    assert message is not None
    assert message.value == b"late"
    assert 100 <= asyncio.get_running_loop().time() - begin <= 100 + LATE_S + 0.5
    await consumer.acknowledge(message)
    await client.close()
    other = await cluster.client("c2").queue_consumer("t", "s")
    assert await values(other, 1800) == []
    assert await values(other, 200) == [b"later"]


@virtual
async def test_a_sealed_segment_with_withheld_messages_is_not_drained(cluster: SimCluster) -> None:
    client = await started(cluster)
    broker = cluster.brokers["b1"].broker
    assert broker is not None
    consumer = await client.queue_consumer("t", "s", initial_position="earliest")
    producer = await client.producer("t")
    await asyncio.gather(*[producer.send(b"late", key=f"{i}", deliver_after=1000) for i in range(20)])
    await broker.admin.split_segment("topic://public/default/t", 0)
    await producer.send(b"now", key="k")
    assert await values(consumer, 20) == [b"now"]
    sealed = next(hosted for hosted in broker.segments if hosted.segment.sealed)
    subscription = sealed.subscriptions["s"]
    assert subscription.backlog == sealed.segment.next_offset > 0
    assert not subscription.drained
    found = [await consumer.receive(timeout=2000) for _ in range(20)]
    assert [m.value for m in found if m is not None] == [b"late"] * 20
    await asyncio.gather(*[consumer.acknowledge(m) for m in found if m is not None])
    assert subscription.drained


@virtual
async def test_what_is_on_its_way_to_a_sealed_segment_keeps_its_time(cluster: SimCluster) -> None:
    """Entries that are split anew for the children carry the column along (semantics 23)."""
    client = await started(cluster)
    broker = cluster.brokers["b1"].broker
    assert broker is not None
    consumer = await client.queue_consumer("t", "s", initial_position="earliest")
    producer = await client.producer("t", compression="zstd")
    await producer.send(b"first")
    split = asyncio.ensure_future(broker.admin.split_segment("topic://public/default/t", 0))
    sends = []
    while not split.done():
        sends.append(asyncio.ensure_future(producer.send(b"late" * 50, key=f"{len(sends)}", deliver_after=500)))
        await asyncio.sleep(0.002)
    await split
    await asyncio.gather(*sends)
    assert sends
    assert await values(consumer, 400) == [b"first"]
    assert await values(consumer, 200) == [b"late" * 50] * len(sends)


@virtual
async def test_ordered_consumers_get_delayed_messages_at_once_in_their_place(cluster: SimCluster) -> None:
    client = await started(cluster)
    stream = await client.stream_consumer("t", "s", initial_position="earliest")
    reader = await client.checkpoint_consumer("t")
    producer = await client.producer("t")
    for i in range(10):
        await producer.send(b"%d" % i, key="k", deliver_after=1000 * (i % 2))
    for consumer in (stream, reader):
        got = [await consumer.receive(timeout=5) for _ in range(10)]
        assert [m.value for m in got if m is not None] == [b"%d" % i for i in range(10)]


@virtual
async def test_acknowledged_and_sought_messages_are_not_withheld_any_more(cluster: SimCluster) -> None:
    client = await started(cluster)
    broker = cluster.brokers["b1"].broker
    assert broker is not None
    consumer = await client.queue_consumer("t", "s", initial_position="earliest")
    producer = await client.producer("t")
    # In one segment, which is not let go while the second one waits.
    mid = await producer.send(b"late", key=b"k", deliver_after=1000)
    await producer.send(b"later", key=b"k", deliver_after=1500)
    assert await values(consumer, 5) == []
    await consumer.acknowledge(mid)
    assert await values(consumer, 1490) == []
    assert await values(consumer, 20) == [b"later"]


async def test_a_compressed_entry_with_delays_is_refused(peer: Peer):
    """The broker could not read its times, and would deliver all of it at once."""
    producer = await peer.producer(await peer.segment("t"))
    entry = bytearray(entry_of(0, [2**40]))
    entry[18] = 1  # lz4
    struct.pack_into("<I", entry, 8, crc32c(entry[12:80]))
    peer.publish(producer, [bytes(entry)])
    _, refusal, _ = await peer.take(Command.SEND_ERROR, producer_id=producer)
    assert refusal["code"] == CorruptionError.code
