"""What a consumer says of its subscription and does with it: backlog, pauses, seeks, its end."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import engine

KINDS = ["stream", "queue"]
TOPICS = [["t"], ["t", "u"]]


async def consumer_of(client: engine.AsyncClient, kind: str, topics: list[str], **options: Any) -> Any:
    make: Any = getattr(client, f"{kind}_consumer")
    return await make(topics[0] if len(topics) == 1 else topics, "s", **{"initial_position": "earliest", **options})


async def acknowledge(consumer: Any, message: Any) -> None:
    cumulative = hasattr(consumer, "acknowledge_cumulative")
    await (consumer.acknowledge_cumulative if cumulative else consumer.acknowledge)(message)


async def fill(client: engine.AsyncClient, topics: list[str], count: int = 5) -> None:
    for topic in topics:
        async with await client.producer(topic) as producer:
            for n in range(count):
                await producer.send(b"%d" % n, key="k")


async def received(consumer: Any, count: int) -> list[Any]:
    return [await consumer.receive(timeout=30) for _ in range(count)]


@pytest.mark.parametrize("topics", TOPICS)
@pytest.mark.parametrize("kind", KINDS)
async def test_the_lag_is_what_is_not_acknowledged(client: engine.AsyncClient, kind: str, topics: list[str]):
    await fill(client, topics)
    total = 5 * len(topics)
    async with await consumer_of(client, kind, topics) as consumer:
        assert (consumer.subscription, await consumer.lag()) == ("s", total)
        messages = await received(consumer, total)
        assert await consumer.lag() == total
        await acknowledge(consumer, messages[0])
        assert await consumer.lag() == total - 1
        if kind == "queue":
            await consumer.acknowledge(messages[2])
            assert await consumer.lag() == total - 2
        for message in messages:
            await acknowledge(consumer, message)
        assert await consumer.lag() == 0
    with pytest.raises(engine.AlreadyClosedError):
        await consumer.lag()


async def test_the_lag_of_a_position_is_what_follows_it(client: engine.AsyncClient):
    await client.admin.create_topic("t", segments=2)
    async with await client.producer("t") as producer:
        for n in range(20):
            await producer.send(b"v", key=f"k{n}")
    async with await client.checkpoint_consumer("t", start=engine.Checkpoint.earliest()) as consumer:
        assert await consumer.lag() == 20
        await received(consumer, 8)
        assert await consumer.lag() == 12
        await client.admin.split_segment("t", 0)
        assert await consumer.lag() == 12
        await consumer.seek(engine.Checkpoint.latest())
        assert await consumer.lag() == 0


@pytest.mark.parametrize("topics", TOPICS)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_paused_consumer_delivers_nothing_until_it_resumes(
    client: engine.AsyncClient, kind: str, topics: list[str]
):
    await fill(client, topics)
    async with await consumer_of(client, kind, topics) as consumer:
        first = await consumer.receive(timeout=30)
        consumer.pause()
        consumer.pause()
        assert consumer.paused
        assert await consumer.receive(timeout=0) is None
        assert len(await consumer.receive_batch(timeout=0)) == 0
        assert consumer.take_now() is None
        waiting = [consumer.receive(timeout=30) for _ in range(5 * len(topics) - 1)]
        consumer.resume()
        assert not consumer.paused
        rest = [await one for one in waiting]
        assert sorted(m.value for m in [first, *rest]) == sorted([b"%d" % n for n in range(5)] * len(topics))


async def test_resuming_wakes_a_receive_that_waits(client: engine.AsyncClient):
    await fill(client, ["t"], 1)
    async with await consumer_of(client, "stream", ["t"]) as consumer:
        consumer.pause()
        waiting = asyncio.ensure_future(consumer.receive(timeout=30))
        await asyncio.sleep(0)
        assert not waiting.done()
        consumer.resume()
        assert (await waiting).value == b"0"


@pytest.mark.parametrize("topics", TOPICS)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_seek_moves_the_subscription_and_drops_what_was_fetched(
    client: engine.AsyncClient, kind: str, topics: list[str]
):
    await fill(client, topics)
    total = 5 * len(topics)
    async with await consumer_of(client, kind, topics) as consumer:
        messages = await received(consumer, total)
        for message in messages:
            await acknowledge(consumer, message)
        await consumer.seek("earliest")
        assert await consumer.lag() == total
        again = await received(consumer, total)
        assert sorted(m.value for m in again) == sorted(m.value for m in messages)
        await consumer.seek("earliest")
        await consumer.receive(timeout=30)  # the others are fetched, and not received
        await consumer.seek("latest")
        assert await consumer.lag() == 0
        assert await consumer.receive(timeout=0) is None
        at = messages[-1].publish_time
        await consumer.seek(at)
        assert await consumer.lag() == sum(m.publish_time >= at for m in messages)
        for wrong in ("middle", 3, at.replace(tzinfo=None)):
            with pytest.raises(engine.InvalidArgumentError):
                await consumer.seek(wrong)


@pytest.mark.parametrize("topics", TOPICS)
@pytest.mark.parametrize("kind", KINDS)
async def test_an_unsubscribed_subscription_is_gone(client: engine.AsyncClient, kind: str, topics: list[str]):
    await fill(client, topics)
    consumer = await consumer_of(client, kind, topics)
    await consumer.unsubscribe()
    for topic in topics:
        with pytest.raises(engine.NotFoundError):
            await client.admin.seek_subscription(topic, "s", "latest")
    with pytest.raises(engine.AlreadyClosedError):
        await consumer.receive(timeout=30)
    async with await consumer_of(client, kind, topics, initial_position="latest") as later:
        assert await later.lag() == 0, "it is another subscription"


async def test_unsubscribing_ends_the_other_consumers(client: engine.AsyncClient):
    await fill(client, ["t"], 1)
    one = await consumer_of(client, "queue", ["t"])
    other = await consumer_of(client, "queue", ["t"])
    await one.unsubscribe()
    with pytest.raises(engine.NotFoundError):
        await received(other, 2)
    with pytest.raises(engine.NotFoundError):
        await one.unsubscribe()


def test_the_blocking_forms_do_the_same(tmp_path: Path):
    with engine.open(tmp_path / "data", listen="127.0.0.1:0") as served, engine.Client(served.service_url) as client:
        assert served.admin_url is None, "nothing here needs the admin API"
        with client.producer("t") as producer:
            for n in range(3):
                producer.send(b"%d" % n)
        for make in (client.stream_consumer, client.queue_consumer):
            with make("t", make.__name__, initial_position="earliest") as consumer:
                assert (consumer.subscription, consumer.lag()) == (make.__name__, 3)
                consumer.pause()
                assert consumer.paused
                assert consumer.receive(timeout=0) is None
                consumer.resume()
                message = consumer.receive(timeout=30)
                assert message is not None
                assert message.value == b"0"
                consumer.seek("latest")
                assert consumer.lag() == 0
                consumer.unsubscribe()
        with client.checkpoint_consumer("t", start=engine.Checkpoint.earliest()) as reader:
            reader.pause()
            assert (reader.lag(), reader.paused, reader.receive(timeout=0)) == (3, True, None)
            reader.resume()
            assert reader.receive(timeout=30) is not None


def test_an_engine_says_where_it_is_reached(tmp_path: Path):
    with engine.open(tmp_path / "data", listen="127.0.0.1:0", admin="127.0.0.1:0") as served:
        assert served.admin_url is not None
        for url, scheme in ((served.service_url, "engine"), (served.admin_url, "http")):
            kind, _, address = url.partition("://")
            host, _, port = address.partition(":")
            assert (kind, host) == (scheme, "127.0.0.1")
            assert 0 < int(port.rstrip("/")) < 65536
