"""A subscription that is deleted ends its consumers, and only a fresh consumer makes one of its name."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import engine
from tests.api import shared_segment

WAIT_S = 30.0
NAMES = ("one", "two")


async def subscriptions(client: engine.AsyncClient, topic: str = "t") -> list[str]:
    return sorted((await client.admin.get_stats(topic))["subscriptions"])


async def ends(consumer: Any) -> None:
    """The consumer raises NotFoundError within a generous time, however much it has received ahead."""
    with pytest.raises(engine.NotFoundError, match="delete"):
        await drain(consumer)


async def drain(consumer: Any) -> None:
    async with asyncio.timeout(WAIT_S):
        while True:
            await consumer.receive()


async def publish(client: engine.AsyncClient, topic: str = "t", count: int = 20) -> None:
    async with await client.producer(topic) as producer:
        await producer.send_batch([b"%d" % i for i in range(count)], [b"k%d" % i for i in range(count)])


async def of_kind(client: engine.AsyncClient, kind: str) -> list[Any]:
    """Consumers of the subscription "s" of "t", which has several segments, sealed ones among them."""
    if kind == "shared":
        await shared_segment.make_topic(client)
        made = await shared_segment.join(client, "one", "two")
        await shared_segment.settled("shared", *made)
        return made
    await client.admin.create_topic("t", segments=3)
    await client.admin.create_subscription("t", "s", initial_position="earliest")
    await publish(client)
    await client.admin.split_segment("t", 0)
    make = client.queue_consumer if kind == "queue" else client.stream_consumer
    return [await make("t", "s", name=name, initial_position="earliest") for name in NAMES]


@pytest.mark.parametrize("kind", ["stream", "queue", "shared"])
async def test_deletion_ends_every_consumer_and_nothing_brings_the_subscription_back(
    client: engine.AsyncClient, kind: str
):
    consumers = await of_kind(client, kind)
    await client.admin.delete_subscription("t", "s")
    await asyncio.gather(*map(ends, consumers))
    assert await subscriptions(client) == []
    for consumer in consumers:
        assert not any(a.connected for a in consumer.attachments.values())
        with pytest.raises(engine.NotFoundError):
            await consumer.receive(0)
        await consumer.close()
    assert await subscriptions(client) == []
    async with await client.queue_consumer("t", "s", initial_position="earliest"):
        assert await subscriptions(client) == ["s"], "a fresh consumer makes one"


@pytest.mark.parametrize("kind", ["stream", "queue"])
async def test_acknowledging_to_a_deleted_subscription_says_so(client: engine.AsyncClient, kind: str):
    consumers = await of_kind(client, kind)
    async with asyncio.timeout(WAIT_S):
        message = await next(m for m in asyncio.as_completed([c.receive() for c in consumers]))
    await client.admin.delete_subscription("t", "s")
    await asyncio.gather(*map(ends, consumers))
    for consumer in consumers:
        with pytest.raises(engine.NotFoundError):
            await (consumer.acknowledge if kind == "queue" else consumer.acknowledge_cumulative)(message)


@pytest.mark.parametrize("kind", ["stream", "queue"])
async def test_a_subscription_made_anew_is_another_one(client: engine.AsyncClient, kind: str):
    """Also for consumers that did not hear of the deletion, as their connection was lost meanwhile."""
    consumers = await of_kind(client, kind)
    door = _Door(client)
    await door.shut()
    await door.admin.delete_subscription("t", "s")
    await door.admin.create_subscription("t", "s", initial_position="latest")
    door.open()
    await asyncio.gather(*map(ends, consumers))
    stats = await client.admin.get_stats("t")
    assert stats["subscriptions"]["s"]["backlog"] == 0, "the new one begins at the latest, and has no consumers"


@pytest.mark.parametrize("kind", ["stream", "queue"])
async def test_nobody_who_comes_back_makes_it_again(client: engine.AsyncClient, kind: str):
    consumers = await of_kind(client, kind)
    door = _Door(client)
    await door.shut()
    await door.admin.delete_subscription("t", "s")
    door.open()
    await asyncio.gather(*map(ends, consumers))
    assert await subscriptions(client) == []


class _Door:
    """Keeps a client from connecting. `admin` does not go by its connections."""

    def __init__(self, client: engine.AsyncClient) -> None:
        self._client = client
        self.admin = client.admin
        self._opened = asyncio.Event()

    async def shut(self) -> None:
        await self.admin.get_metadata("t")  # where the admin API is
        options = self._client._options
        connect = options.connector.connect

        async def wait(*args: Any) -> Any:
            await self._opened.wait()
            return await connect(*args)

        object.__setattr__(options, "connector", _Connector(wait))
        for connection in self._client.pool.connections:
            connection.stream.abort()
            await connection.ended

    def open(self) -> None:
        self._opened.set()


class _Connector:
    def __init__(self, connect: Any) -> None:
        self.connect = connect


@pytest.mark.parametrize("kind", ["stream", "queue"])
@pytest.mark.parametrize("topics", ["named", "namespace"])
async def test_consumers_of_many_topics_say_it_once_and_go_on_with_the_others(
    client: engine.AsyncClient, kind: str, topics: str
):
    for topic in NAMES:
        await client.admin.create_topic(f"topic://shop/eu/{topic}")
    full = [f"topic://shop/eu/{topic}" for topic in NAMES]
    make = client.queue_consumer if kind == "queue" else client.stream_consumer
    which: dict[str, Any] = {"namespace": "shop/eu"} if topics == "namespace" else {}
    async with await make(full if topics == "named" else None, "s", initial_position="earliest", **which) as consumer:
        await client.admin.delete_subscription(full[0], "s")
        await ends(consumer)
        assert consumer.statistics().failed == (full[0],)
        await publish(client, full[1], 3)
        assert [(await consumer.receive(WAIT_S)).topic for _ in range(3)] == [full[1]] * 3
        assert await subscriptions(client, full[0]) == []


@pytest.mark.parametrize("kind", ["stream", "queue", "shared"])
async def test_a_topic_that_is_deleted_and_made_anew_gets_no_subscription(client: engine.AsyncClient, kind: str):
    consumers = await of_kind(client, kind)
    await client.admin.delete_topic("t")
    await client.admin.create_topic("t", segments=3)
    await asyncio.gather(*map(ends, consumers))
    assert await subscriptions(client) == []


@pytest.mark.parametrize("kind", ["stream", "queue"])
async def test_deletion_in_the_middle_of_splits(client: engine.AsyncClient, kind: str):
    consumers = await of_kind(client, kind)
    active = [s for s in (await client.admin.get_metadata("t"))["segments"].values() if s["state"] == "ACTIVE"]
    splits = [client.admin.split_segment("t", s["segmentId"]) for s in active]
    await asyncio.gather(*splits[:2], client.admin.delete_subscription("t", "s"), *splits[2:])
    await asyncio.gather(*map(ends, consumers))
    assert await subscriptions(client) == []


@pytest.mark.parametrize("kind", ["stream", "queue"])
@pytest.mark.parametrize("commits", [True, False])
async def test_deletion_with_acknowledgements_in_an_open_transaction(
    client: engine.AsyncClient, kind: str, commits: bool
):
    consumers = await of_kind(client, kind)
    async with asyncio.timeout(WAIT_S):
        consumer, message = await next(
            found for found in asyncio.as_completed([_received(consumer) for consumer in consumers])
        )
    transaction = await client.transaction()
    acknowledge = consumer.acknowledge if kind == "queue" else consumer.acknowledge_cumulative
    await acknowledge(message, transaction=transaction)
    await client.admin.delete_subscription("t", "s")
    await asyncio.gather(*map(ends, consumers))
    await (transaction.commit() if commits else transaction.abort())
    assert await subscriptions(client) == []
    async with await client.queue_consumer("t", "s", initial_position="earliest") as fresh:
        found = [await fresh.receive(WAIT_S) for _ in range(20)]
        assert sorted(int(m.value) for m in found) == list(range(20)), "nothing of it counts in the new one"


async def _received(consumer: Any) -> tuple[Any, engine.Message]:
    return consumer, await consumer.receive()


async def test_a_group_of_readers_of_that_name_reads_on(client: engine.AsyncClient):
    """Checkpoint groups have no subscription."""
    await client.admin.create_topic("t")
    await client.admin.create_subscription("t", "s")
    async with await client.checkpoint_consumer("t", group="s", start=engine.Checkpoint.earliest()) as consumer:
        await client.admin.delete_subscription("t", "s")
        await publish(client, count=3)
        assert [(await consumer.receive(WAIT_S)).value for _ in range(3)] == [b"0", b"1", b"2"]
