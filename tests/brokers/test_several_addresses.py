"""A client that knows three addresses: one broker after the other dies, freezes, or loses the metadata store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from engine.client import AsyncClient
from engine.errors import ConnectError, UnknownOutcomeError
from engine.model.positions import Checkpoint
from engine.testing.cluster import SimBroker, SimCluster
from tests.brokers.test_shared_store import NAMES, TOPIC, everything, receive, run

Fault = Callable[[SimBroker], Any]
ADDRESSES = "engine://" + ",".join(f"{name}:6650" for name in NAMES)


@dataclass
class Letter:
    """A value with a schema."""

    text: str


async def killed(broker: SimBroker) -> None:
    await broker.kill()


async def frozen(broker: SimBroker) -> None:
    broker.suspend()


async def isolated(broker: SimBroker) -> None:
    """From the metadata store and from the other brokers; the client still reaches it."""
    broker.isolate()


async def cured(broker: SimBroker, fault: Fault) -> None:
    if fault is killed:
        await broker.start()
    elif fault is frozen:
        broker.resume()
    else:
        broker.rejoin()


def in_use(cluster: SimCluster, client: AsyncClient) -> SimBroker:
    """The broker that the client asks what any broker can answer."""
    return next(b for b in cluster.brokers.values() if b.url == client._pool.home.url)


async def everything_new(client: AsyncClient, turn: int) -> None:
    """Uses of a client that begin with a broker that it has to choose."""
    letters = f"letters-{turn}"
    writer = await client.producer(letters, schema=Letter)
    await writer.send(Letter("first"), key="k")
    assert f"topic://public/default/{letters}" in await client.list_topics()
    assert await client.topic_exists(letters)
    async with client.transaction(timeout=120.0) as txn:
        await writer.send(Letter("second"), key="k", transaction=txn)
    consumer = await client.stream_consumer(letters, "s", schema=Letter, initial_position="earliest")
    got = [await consumer.receive(timeout=120.0) for _ in range(2)]
    assert [m and m.value for m in got] == [Letter("first"), Letter("second")]
    async with await client.topic_view(letters) as view:
        found = await view.segments()
    ranges = {i: (s.first, s.end) for i, s in found.segments.items()}
    async with await client.range_reader(letters, ranges) as reader:
        assert len([message async for message in reader]) == 2
    many = await client.queue_consumer(
        None, "q", namespace="public/default", pattern=letters, initial_position="earliest"
    )
    assert await many.receive(timeout=120.0) is not None
    for one in (writer, consumer, many):
        await one.close()


@pytest.mark.parametrize("fault", [killed, frozen, isolated])
def test_everything_goes_on_when_the_broker_in_use_fails(fault: Fault) -> None:
    async def body(cluster: SimCluster) -> None:
        client = cluster.client("c", url=ADDRESSES)
        producer = await client.producer(str(TOPIC), send_timeout=120.0)
        stream = await client.stream_consumer(str(TOPIC), "stream", initial_position="earliest")
        watch = await client.watch_topics()
        left: list[str] = []
        for turn in range(3):
            victim = in_use(cluster, client)
            left.append(victim.name)
            await fault(victim)
            await everything_new(client, turn)
            assert in_use(cluster, client) is not victim, "it was left"
            numbers = range(20 * turn, 20 * turn + 20)
            async with client.transaction(timeout=120.0) as txn:
                for i in numbers:
                    producer.send_nowait(str(i).encode(), key=f"key-{i}", transaction=txn)
            assert await receive(stream, 20) == set(numbers)
            await cured(victim, fault)
        assert len(set(left)) > 1
        while len(watch.topics) < 4:
            await watch.next_change()
        assert await everything(cluster, "reader") == list(range(60)), "each commit took effect once"

    run(body)


@pytest.mark.parametrize("seed", range(2))
def test_brokers_die_at_any_moment(seed: int) -> None:
    """One at a time, while the client works."""

    async def body(cluster: SimCluster) -> None:
        rng = cluster.rng("deaths")
        client = cluster.client("c", url=ADDRESSES)
        producer = await client.producer(str(TOPIC), name="named", send_timeout=300.0)

        async def die() -> None:
            for _ in range(5):
                await asyncio.sleep(rng.uniform(0.0, 3.0))
                victim = cluster.brokers[rng.choice(NAMES)]
                await victim.kill()
                await asyncio.sleep(rng.uniform(0.0, 15.0))
                await victim.start()

        dying = asyncio.ensure_future(die())
        committed: list[int] = []
        turn = 0
        while not dying.done():
            turn += 1
            await asyncio.sleep(rng.uniform(0.0, 5.0))
            await everything_new(client, turn)
            values = list(range(10 * turn, 10 * turn + 10))
            try:
                async with client.transaction(timeout=600.0) as txn:
                    for i in values:
                        await producer.send(str(i).encode(), key=f"key-{i}", transaction=txn)
            except UnknownOutcomeError:
                await txn.commit()  # asks again
            committed += values
        await dying
        assert await everything(cluster, "reader") == committed

    run(body, seed)


async def connected_to_one(cluster: SimCluster) -> tuple[AsyncClient, str, SimBroker]:
    """A client, a topic, and the broker that serves both and is the only one that the client is connected to."""
    for i in range(100):
        topic, client = f"single-{i}", cluster.client(f"c{i}", url=ADDRESSES)
        await cluster.brokers["b1"].broker.admin.create_topic(topic, segments=1)
        producer = await client.producer(topic)
        await producer.send(b"before")
        await producer.close()
        (url, *others) = client._pool.connected_brokers()
        if not others:
            return client, topic, next(b for b in cluster.brokers.values() if b.url == url)
    raise AssertionError("each client is connected to two brokers")


@pytest.mark.parametrize("fault", [killed, frozen, isolated])
@pytest.mark.parametrize("flushed", [True, False])
def test_a_commit_goes_over_an_address_that_was_not_connected(fault: Fault, flushed: bool) -> None:
    async def body(cluster: SimCluster) -> None:
        client, topic, home = await connected_to_one(cluster)
        producer = await client.producer(topic, send_timeout=300.0)
        txn = await client.transaction(timeout=600.0)
        for i in range(20):
            producer.send_nowait(b"%d" % i, transaction=txn)
        if flushed:
            await txn.flush()
        await fault(home)
        await txn.commit()
        assert txn.state == "COMMITTED"
        assert in_use(cluster, client) is not home
        await cured(home, fault)
        reader = await cluster.client("reader").checkpoint_consumer(topic, start=Checkpoint.earliest())
        found: list[bytes] = []
        while len(batch := await reader.receive_batch(timeout=30)):
            found += [m.value for m in batch]
        assert found == [b"before", *(b"%d" % i for i in range(20))]

    run(body)


@pytest.mark.parametrize("seed", range(3))
def test_the_first_address_is_any_of_those_that_answer(seed: int) -> None:
    async def body(cluster: SimCluster) -> None:
        chosen = set()
        for i in range(12):
            client = cluster.client(f"c{i}", url=ADDRESSES)
            await client.connect()
            chosen.add(in_use(cluster, client).name)
        assert len(chosen) > 1
        await cluster.brokers["b1"].kill()
        await cluster.brokers["b3"].kill()
        started = cluster.loop.time()
        for i in range(8):
            client = cluster.client(f"later {i}", url=ADDRESSES)
            await client.connect()
            assert in_use(cluster, client).name == "b2"
        assert cluster.loop.time() - started < 1, "a refusal delays nothing"

    run(body, seed)


def test_a_machine_that_is_gone_delays_the_next_address_little() -> None:
    async def body(cluster: SimCluster) -> None:
        for i in range(6):
            for gone in ("b1", "b3"):
                cluster.network.partition(f"c{i}", gone)
            client = cluster.client(f"c{i}", url=ADDRESSES)
            started = cluster.loop.time()
            await client.connect()
            assert in_use(cluster, client).name == "b2"
            assert cluster.loop.time() - started < 3
        cluster.network.heal()

    run(body)


def test_when_none_answers_each_is_named_with_its_reason() -> None:
    async def body(cluster: SimCluster) -> None:
        for broker in cluster.brokers.values():
            await broker.kill()
        client = cluster.client("c", url=ADDRESSES, token="s3cret")
        with pytest.raises(ConnectError) as refused:
            await client.connect()
        for name in NAMES:
            assert f"engine://{name}:6650: connection refused" in str(refused.value)
        assert "s3cret" not in str(refused.value)

    run(body)


def test_one_that_comes_back_is_used_when_the_others_are_gone() -> None:
    async def body(cluster: SimCluster) -> None:
        client = cluster.client("c", url=ADDRESSES)
        await client.connect()
        for broker in cluster.brokers.values():
            await broker.kill()
        listing = asyncio.ensure_future(client.list_topics())
        await asyncio.sleep(5)
        await cluster.brokers["b3"].start()
        assert await listing == [str(TOPIC)]
        assert in_use(cluster, client).name == "b3"

    run(body)


def test_a_broker_learned_from_the_cluster_stands_in_for_the_only_address() -> None:
    async def body(cluster: SimCluster) -> None:
        client = cluster.client("c", cluster.brokers["b1"])
        producer = await client.producer(str(TOPIC), send_timeout=120.0)
        for i in range(30):
            await producer.send(b"x", key=f"key-{i}")
        assert len(client._pool.connected_brokers()) > 1
        await cluster.brokers["b1"].kill()
        await everything_new(client, 0)
        assert in_use(cluster, client).name != "b1"

    run(body)
