"""What a queue gives up goes to another topic: once, with where it is from (semantics 21)."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial

import pytest

import engine
from tests.api.queues import everything, publish, received

M = 3


async def test_21_m_redeliveries_mean_m_plus_1_deliveries_then_the_dead_letter_topic(client: engine.AsyncClient):
    await publish(client, 2)
    policy = engine.DeadLetter(max_redeliveries=M)
    async with (
        await client.queue_consumer("t", "s", initial_position="earliest", nack_backoff=0, dead_letter=policy) as one,
        await client.queue_consumer("t-DLQ", "watch", initial_position="earliest") as dead,
    ):
        seen = 0
        kept = None
        while seen < M + 1:
            message = await received(one)
            if message.value == b"0":
                kept = message
                continue
            assert message.redelivery_count == seen
            seen += 1
            last = message
            await one.negative_acknowledge(message)
        letter = await received(dead)
        assert (letter.value, letter.key, letter.event_time_ms) == (b"1", b"k", 1001)
        assert letter.properties == {
            "n": "1",
            "origin-topic": "topic://public/default/t",
            "origin-message": f"{last.segment_id}:{last.offset}",
            "origin-message-id": engine.MessageId(last.segment_id, last.offset, topic=last.topic).to_bytes().hex(),
            "origin-subscription": "s",
            "origin-redelivery-count": str(M + 1),
            "origin-producer": last.producer_name,
            "origin-sequence-id": str(last.sequence_id),
            "origin-publish-time": last.publish_time.isoformat(),
        }
        while one.statistics().dead_lettered < 1:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)
        assert await one.receive(0.05) is None, "it is acknowledged"
        assert await dead.receive(0.05) is None, "once"
        assert kept is not None
        await one.acknowledge(kept)
        assert one.statistics().acknowledged == 1


async def test_no_redelivery_allowed_means_one_delivery(client: engine.AsyncClient):
    await publish(client, 30, max_messages=10)
    policy = engine.DeadLetter(0, topic="graves")
    async with (
        await client.queue_consumer("t", "s", initial_position="earliest", nack_backoff=0, dead_letter=policy) as one,
        await client.queue_consumer("graves", "watch", initial_position="earliest") as dead,
    ):
        messages = await everything(one, 30)
        await one.negative_acknowledge(messages[::2])
        await one.acknowledge(messages[1::2])
        letters = await everything(dead, 15)
        assert Counter(m.value for m in letters) == Counter(m.value for m in messages[::2])
        assert await one.receive(0.05) is None


async def test_a_dead_letter_is_not_doubled_when_its_acknowledgement_is_lost(client: engine.AsyncClient):
    """A crash between publishing and acknowledging: whoever gets the message next finds it published."""
    await publish(client, 3)
    policy = engine.DeadLetter(0)
    first = await client.queue_consumer("t", "s", initial_position="earliest", nack_backoff=0, dead_letter=policy)
    lost = asyncio.Event()

    async def crash(segment_id: int, offset: int) -> None:
        lost.set()
        await asyncio.Event().wait()

    first._dead_letters._acknowledge = crash  # type: ignore[union-attr]
    messages = await everything(first, 3)
    await first.negative_acknowledge(messages[1])
    await lost.wait()
    for worker in first._dead_letters._workers:  # type: ignore[union-attr]
        worker.cancel()
    await first.close()
    async with (
        await client.queue_consumer("t", "s", nack_backoff=0, dead_letter=policy) as second,
        await client.queue_consumer("t-DLQ", "watch", initial_position="earliest") as dead,
    ):
        # the other two were received once before
        while second.statistics().dead_lettered < 3:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)
        letters = await everything(dead, 3)
        assert sorted(m.value for m in letters) == [b"0", b"1", b"2"]
        assert await dead.receive(0.05) is None


async def test_41_receives_end_at_once_although_dead_letters_are_on_their_way(client: engine.AsyncClient):
    await publish(client, 2)
    policy = engine.DeadLetter(0)
    consumer = await client.queue_consumer("t", "s", initial_position="earliest", nack_backoff=0, dead_letter=policy)
    on_its_way, may_end = asyncio.Event(), asyncio.Event()

    async def publish_slowly(message: engine.Message, failure: object) -> None:
        on_its_way.set()
        await may_end.wait()

    consumer._dead_letters._publish = publish_slowly  # type: ignore[union-attr,method-assign]
    messages = await everything(consumer, 2)
    await consumer.negative_acknowledge(messages[0])
    await on_its_way.wait()
    receiving = asyncio.ensure_future(consumer.receive())
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(consumer.close())
    with pytest.raises(engine.AlreadyClosedError):
        await receiving
    assert not closing.done()
    with pytest.raises(engine.AlreadyClosedError):
        await consumer.receive()
    with pytest.raises(engine.AlreadyClosedError):
        await consumer.acknowledge(messages[1])
    may_end.set()
    await closing
    async with await client.queue_consumer("t", "s") as other:
        again = await received(other)
        assert (again.value, again.redelivery_count) == (messages[1].value, 1)


async def test_dead_letters_keep_the_form_of_their_values(client: engine.AsyncClient):
    schema = engine.Schema.avro({"type": "record", "name": "Job", "fields": [{"name": "number", "type": "long"}]})
    policy = engine.DeadLetter(0)
    make = partial(client.queue_consumer, initial_position="earliest", nack_backoff=0, schema=schema)
    async with (
        await client.producer("t", schema=schema) as producer,
        await make("t", "s", dead_letter=policy) as consumer,
        await make("t-DLQ", "s") as dead,
    ):
        await producer.send({"number": 7})
        await consumer.negative_acknowledge(await received(consumer))
        assert (await received(dead)).value == {"number": 7}


async def test_dead_letters_survive_a_changed_shape_of_their_topic(client: engine.AsyncClient):
    await publish(client, 4)
    policy = engine.DeadLetter(0)
    async with await client.queue_consumer(
        "t", "s", initial_position="earliest", nack_backoff=0, dead_letter=policy
    ) as one:
        messages = await everything(one, 4)
        await one.negative_acknowledge(messages[0])
        while one.statistics().dead_lettered < 1:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)
        await client.admin.split_segment("t-DLQ", 0)
        name = f"{messages[0].segment_id}-{messages[0].offset}"
        async with await client.queue_consumer("t-DLQ", "watch", initial_position="earliest") as dead:
            letter = await received(dead)
            assert letter.producer_name.endswith(name)
        async with await client.producer("t-DLQ", name=letter.producer_name) as again:
            assert again.last_sequence_id == 0, "what was published is known to the children"
        await one.negative_acknowledge(messages[1:])
        while one.statistics().dead_lettered < 4:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)
