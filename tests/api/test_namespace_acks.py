"""Acknowledgements over all topics of a namespace, and over those of a list."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

import engine
from tests.api.namespaces import NS, full, left_over, make, send, stream, take


async def test_semantics_11_one_acknowledgement_covers_what_was_delivered_before_it_in_all_topics(
    client: engine.AsyncClient,
):
    await make(client, "a", "b", "c")
    names = ["a", "b", "a", "c", "b", "c", "a"]
    async with await stream(client) as consumer:
        got: list[engine.Message] = []
        for i, name in enumerate(names):
            await send(client, name, [b"%d" % i])
            got += await take(consumer, 1)
        await consumer.acknowledge_cumulative(got[4])
    assert await left_over(client) == {"c": [b"5"], "a": [b"6"]}


async def test_semantics_11_never_beyond_what_was_delivered(client: engine.AsyncClient):
    """Whatever the order in which topics have their turns, and whatever is fetched ahead."""
    await make(client, *"abc")
    for name in "abc":
        await send(client, name, [b"%d" % i for i in range(300)])
    async with await stream(client) as consumer:
        got = await take(consumer, 150)
        batch = await consumer.receive_batch(max_messages=33)
        more = await take(consumer, 200)
        await consumer.acknowledge_cumulative(more[40])
        counts = Counter(m.topic[-1] for m in [*got, *batch, *more[:41]])
    rest = await left_over(client)
    assert {name: rest[name] for name in "abc"} == {
        name: [b"%d" % i for i in range(counts[name], 300)] for name in "abc"
    }


async def test_ids_keep_everything_as_bytes(client: engine.AsyncClient):
    """Another consumer object of the subscription can use them."""
    await make(client, "a", "b")
    await send(client, "a", [b"a0", b"a1"])
    await send(client, "b", [b"b0", b"b1"])
    async with await stream(client) as consumer:
        got = await take(consumer, 3)
        kept = got[2].id.to_bytes()
    async with await stream(client) as consumer:
        await consumer.acknowledge_cumulative(engine.MessageId.from_bytes(kept))
    assert sum(len(values) for values in (await left_over(client)).values()) == 1


async def test_a_batch_is_acknowledged_with_what_came_before_it(client: engine.AsyncClient):
    await make(client, "a", "b")
    await send(client, "a", [b"a"] * 10)
    await send(client, "b", [b"b"] * 10)
    async with await stream(client) as consumer:
        await consumer.receive_batch(max_messages=10)
        second = await consumer.receive_batch(max_messages=4)
        await consumer.acknowledge_cumulative(second)
        await consumer.acknowledge_cumulative(second[:0])
        await consumer.acknowledge_cumulative(second[2])  # acknowledged before: no error
    (rest,) = (await left_over(client)).values()
    assert len(rest) == 6


async def test_semantics_12_after_a_seek_an_old_id_counts_again(client: engine.AsyncClient):
    await make(client, "a", "b")
    await send(client, "a", [b"a0"])
    await send(client, "b", [b"b0"])
    async with await stream(client) as consumer:
        got = await take(consumer, 2)
        await consumer.acknowledge_cumulative(got[1])
        for topic in full("a", "b"):
            await client.admin.seek_subscription(topic, "s", "earliest")
        again = await take(consumer, 1)
        await consumer.acknowledge_cumulative(again[0])
        covered = again[0].topic
        (other,) = await take(consumer, 1)
        assert other.topic != covered
    assert list(await left_over(client)) == [other.topic[-1]]


async def test_what_is_of_no_topic_here_is_refused(client: engine.AsyncClient):
    await make(client, "a")
    async with (
        await stream(client) as consumer,
        await client.queue_consumer(full("a"), "q") as queue,
        await client.producer("elsewhere") as producer,
    ):
        receipt = await producer.send(b"1")
        for acknowledge in (consumer.acknowledge_cumulative, queue.acknowledge, queue.negative_acknowledge):
            for wrong in (receipt, engine.MessageId.latest, engine.MessageId(0, 0), b"1", None):
                with pytest.raises(engine.InvalidArgumentError):
                    await acknowledge(wrong)  # type: ignore[operator]


async def test_queue_acknowledgements_find_their_topic(client: engine.AsyncClient):
    await make(client, "a", "b")
    async with await client.queue_consumer(None, "q", namespace=NS, initial_position="earliest") as queue:
        for name in "ab":
            await send(client, name, [f"{name}{i}".encode() for i in range(4)])
        got = {m.value: m for m in await take(queue, 8)}
        await queue.acknowledge(got[b"a1"])
        await queue.acknowledge(got[b"b2"].id)
        await queue.negative_acknowledge(got[b"a3"])
        (again,) = await take(queue, 1)
        assert (again.value, again.redelivery_count) == (b"a3", 1)
    async with await client.queue_consumer(None, "q", namespace=NS) as queue:
        rest = {m.value for m in await take(queue, 6)}
        assert rest == {*got} - {b"a1", b"b2"}
        assert await queue.receive(timeout=0.1) is None


async def test_several_messages_of_several_topics_are_acknowledged_at_once(client: engine.AsyncClient):
    await make(client, "a", "b")
    options = {"namespace": NS, "initial_position": "earliest", "nack_backoff": 1000}
    async with await client.queue_consumer(None, "q", **options) as queue:
        for name in "ab":
            await send(client, name, [f"{name}{i}".encode() for i in range(4)])
        got = {m.value: m for m in await take(queue, 8)}
        await queue.acknowledge([got[b"a1"], got[b"b2"].id, got[b"a0"]])
        await queue.negative_acknowledge([got[b"b1"], got[b"a3"].id], delay=0)
        again = {(m.value, m.redelivery_count) for m in await take(queue, 2)}
        assert again == {(b"a3", 1), (b"b1", 1)}
        statistics = queue.statistics()
        assert isinstance(statistics, engine.MultiQueueConsumerStatistics)
        assert (statistics.acknowledged, statistics.negatively_acknowledged, statistics.unacknowledged) == (3, 2, 5)
        for wrong in ([got[b"a2"], b"1"], [None], b"", "", [await queue.receive_batch(timeout=0)]):
            with pytest.raises(engine.InvalidArgumentError):
                await queue.acknowledge(wrong)  # type: ignore[arg-type]
        await client.admin.delete_topic(full("a")[0])
        while queue.topics != full("b"):
            await queue.receive(timeout=0.05)
        await queue.acknowledge([got[b"a2"], got[b"b0"]])  # nothing in the one that has left
        assert queue.statistics().acknowledged == 4
    async with await client.queue_consumer(None, "q", namespace=NS) as queue:
        assert {m.value for m in await take(queue, 2)} == {b"b1", b"b3"}


async def test_statistics_count_what_was_received_and_not_what_was_fetched_ahead(client: engine.AsyncClient):
    """While it receives, when a topic leaves, and when it is closed."""
    await make(client, "a", "b", "c")
    for name in "abc":
        await send(client, name, [b"%d" % i for i in range(50)])
    queue = await client.queue_consumer(None, "q", namespace=NS, initial_position="earliest", receive_queue_size=90)
    got = [*await take(queue, 7), *await queue.receive_batch(max_messages=5)]
    now = queue.statistics()
    assert (now.messages_received, now.unacknowledged) == (len(got), len(got))
    await client.admin.delete_topic(full("c")[0])
    while queue.topics != full("a", "b"):  # noqa: ASYNC110 - a receive would take messages
        await asyncio.sleep(0)
    kept = sum(m.topic != full("c")[0] for m in got)
    now = queue.statistics()
    assert (now.messages_received, now.unacknowledged) == (len(got), kept)
    await queue.close()
    now = queue.statistics()
    assert (now.messages_received, now.messages_queued, now.unacknowledged) == (len(got), 0, 0)
    seen = {(m.topic, m.value) for m in got}
    async with await client.queue_consumer(None, "q", namespace=NS) as queue:
        again = await take(queue, 100)
    assert {(m.topic, m.value): m.redelivery_count for m in again} == {
        (m.topic, m.value): int((m.topic, m.value) in seen) for m in again
    }


async def test_what_was_received_of_an_earlier_topic_acknowledges_nothing_in_a_later_one(client: engine.AsyncClient):
    await make(client, "a")
    async with await client.queue_consumer(None, "q", namespace=NS, initial_position="earliest") as queue:
        await send(client, "a", [b"old"])
        (old,) = await take(queue, 1)
        kept = engine.MessageId.from_bytes(old.id.to_bytes())
        await client.admin.delete_topic(full("a")[0])
        await make(client, "a")
        await send(client, "a", [b"new"])
        (new,) = await take(queue, 1)
        assert (new.value, new.id) == (b"new", old.id)
        await queue.acknowledge(old)
        await queue.acknowledge([kept])
        await queue.negative_acknowledge(old)
        assert queue.statistics().unacknowledged == 1
    async with await client.queue_consumer(None, "q", namespace=NS) as queue:
        (again,) = await take(queue, 1)
        assert again.value == b"new"


async def test_dead_letters_do_not_come_back(client: engine.AsyncClient):
    await make(client, "a", "a-DLQ")
    policy = engine.DeadLetter(max_redeliveries=0)
    async with await client.queue_consumer(None, "q", namespace=NS, dead_letter=policy) as queue:
        assert queue.topics == full("a")
    named = engine.DeadLetter(max_redeliveries=0, topic=full("a")[0])
    async with await client.queue_consumer(None, "r", namespace=NS, dead_letter=named) as queue:
        assert queue.topics == full("a-DLQ")
