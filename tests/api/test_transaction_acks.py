"""Acknowledgements in transactions, and the loop that takes messages from one topic to another exactly once."""

from __future__ import annotations

import asyncio

import pytest

import engine
from engine.client.client import AsyncClient
from tests.kit.peer import until

IN_TIME = 20.0  # for what comes at once, on a busy machine too


async def published(client: AsyncClient, topic: str, count: int, keys: int = 8) -> None:
    async with await client.producer(topic) as producer:
        await producer.send_batch([b"%d" % i for i in range(count)], [b"k%d" % (i % keys) for i in range(count)])


async def stream(client: AsyncClient, topic: str = "t", subscription: str = "s") -> engine.AsyncStreamConsumer:
    found = await client.stream_consumer(topic, subscription, initial_position="earliest")
    assert isinstance(found, engine.AsyncStreamConsumer)
    return found


async def queue(client: AsyncClient, topic: str = "t", subscription: str = "q") -> engine.AsyncQueueConsumer:
    found = await client.queue_consumer(topic, subscription, initial_position="earliest")
    assert isinstance(found, engine.AsyncQueueConsumer)
    return found


async def taken(consumer: engine.AsyncStreamConsumer | engine.AsyncQueueConsumer, count: int) -> list[engine.Message]:
    found: list[engine.Message] = []
    while len(found) < count:
        batch = await consumer.receive_batch(max_messages=count - len(found), timeout=IN_TIME)
        assert len(batch), f"only {[message.value for message in found]} came"
        found += batch
    return found


def read(messages: list[engine.Message]) -> list[bytes]:
    return sorted((message.value for message in messages), key=int)


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % i for i in range(first, last)]


# What a consumer refuses.


@pytest.mark.parametrize("kind", [stream, queue])
async def test_t1_nothing_is_committed_without_an_acknowledgement_that_was_refused(client: AsyncClient, kind):
    """Also where the program catches the refusal: else what it made of these messages would be made twice."""
    await published(client, "t", 3)
    await client.admin.create_topic("made", segments=1)
    consumer = await kind(client)
    found = await taken(consumer, 3)
    async with await client.producer("made") as producer:
        transaction = await client.transaction()
        await producer.send(b"of these", transaction=transaction)
        await consumer.close()
        acknowledge = getattr(consumer, "acknowledge_cumulative", None) or consumer.acknowledge
        with pytest.raises(engine.AlreadyClosedError):
            await acknowledge(found[-1], transaction=transaction)
        with pytest.raises(engine.AlreadyClosedError):
            await transaction.commit()
        assert transaction.state == "ABORTED"
    async with await stream(client, "made") as made:
        assert await made.receive(timeout=0.05) is None


# Streams.


async def test_a_stream_goes_on_behind_what_was_committed(client: AsyncClient):
    await client.admin.create_topic("t", segments=2)
    await published(client, "t", 40)
    async with await stream(client) as consumer:
        async with client.transaction() as transaction:
            found = await taken(consumer, 40)
            await consumer.acknowledge_cumulative(found[-1], transaction=transaction)
        await published(client, "t", 10)
    async with await stream(client) as consumer:
        assert read(await taken(consumer, 10)) == numbers(0, 10)
        assert await consumer.receive(timeout=0.05) is None


async def test_a_stream_goes_back_after_an_abort(client: AsyncClient):
    await client.admin.create_topic("t", segments=2)
    await published(client, "t", 40)
    async with await stream(client) as consumer:
        found = await taken(consumer, 20)
        async with client.transaction() as transaction:
            await consumer.acknowledge_cumulative(found[-1], transaction=transaction)
            await transaction.abort()
        again = await taken(consumer, 40)
        assert read(again) == numbers(0, 40)
        await consumer.acknowledge_cumulative(again[-1])
        assert await consumer.receive(timeout=0.05) is None


async def test_what_is_delivered_after_an_abort_covers_nothing_before_it(client: AsyncClient):
    """A position vector of a later message must not acknowledge what was given back."""
    await client.admin.create_topic("t", segments=2)
    await published(client, "t", 40)
    async with await stream(client) as consumer:
        found = await taken(consumer, 40)
        transaction = await client.transaction()
        await consumer.acknowledge_cumulative(found[-1], transaction=transaction)
        await transaction.abort()
        one = (await taken(consumer, 1))[0]
        await consumer.acknowledge_cumulative(one)
    async with await stream(client) as consumer:
        assert len(await taken(consumer, 39)) == 39


async def test_a_stream_learns_how_a_joined_transaction_ended(client: AsyncClient):
    await published(client, "t", 10, keys=1)
    async with await stream(client) as consumer:
        found = await taken(consumer, 5)
        job = await client.transaction()
        async with client.join_transaction(job.id, "first") as part:
            await consumer.acknowledge_cumulative(found[-1], transaction=part)
        await job.commit(accepted=["other"])
        again: list[engine.Message] = []
        while [message.value for message in again[-10:]] != numbers(0, 10):  # what follows them may come before them
            again += await taken(consumer, 1)
        async with client.join_transaction((job := await client.transaction()).id, "second") as part:
            await consumer.acknowledge_cumulative(again[-1], transaction=part)
        await job.commit(accepted=["second"])
    async with await stream(client) as consumer:
        assert await consumer.receive(timeout=0.05) is None


async def test_a_stream_takes_over_only_what_is_settled(client: AsyncClient):
    """A segment moves to another consumer when what was acknowledged of it has taken effect."""
    await client.admin.create_topic("t", segments=2)
    await published(client, "t", 40)
    one = await stream(client)
    found = await taken(one, 40)
    transaction = await client.transaction()
    await one.acknowledge_cumulative(found[-1], transaction=transaction)
    other = await stream(client)
    assert await other.receive(timeout=0.05) is None
    await transaction.commit()
    # What `one` receives of a segment before it lets it go, and does not acknowledge, is delivered to `other` again.
    await until(lambda: [[a.connected for a in c.attachments.values()] for c in (one, other)] == [[True], [True]])
    await published(client, "t", 40)
    came: list[engine.Message] = []

    async def collect(consumer: engine.AsyncStreamConsumer) -> None:
        async for message in consumer:
            came.append(message)
            if len(came) == 40:
                done.set()

    done = asyncio.Event()
    tasks = [asyncio.ensure_future(collect(consumer)) for consumer in (one, other)]
    async with asyncio.timeout(IN_TIME):
        await done.wait()
    await one.close()
    await other.close()
    await asyncio.gather(*tasks)
    assert read(came) == numbers(0, 40)


async def test_what_is_acknowledged_already_is_a_conflict(client: AsyncClient):
    """Whoever did that has taken what follows from it elsewhere: here it must not be done once more."""
    await published(client, "t", 4)
    async with await stream(client) as consumer, await queue(client) as other:
        found, theirs = await taken(consumer, 4), await taken(other, 4)
        await consumer.acknowledge_cumulative(found[-1])
        await other.acknowledge(theirs[0])
        transaction = await client.transaction()
        with pytest.raises(engine.TransactionConflictError):
            await consumer.acknowledge_cumulative(found[-1], transaction=transaction)
        with pytest.raises(engine.TransactionConflictError):
            await transaction.commit()
        transaction = await client.transaction()
        with pytest.raises(engine.TransactionConflictError):
            await other.acknowledge(theirs[0], transaction=transaction)
        with pytest.raises(engine.TransactionConflictError):
            await transaction.commit()
        assert transaction.state == "ABORTED"


# Queues.


async def test_a_queue_forgets_what_was_committed(client: AsyncClient):
    await published(client, "t", 10)
    async with await queue(client) as consumer:
        found = await taken(consumer, 10)
        async with client.transaction() as transaction:
            await consumer.acknowledge(found[:3], transaction=transaction)
            await consumer.acknowledge(found[3], transaction=transaction)
            await consumer.acknowledge(found[3], transaction=transaction)
    async with await queue(client) as consumer:
        left = await taken(consumer, 6)
        assert read(left) == read(found[4:])
        assert await consumer.receive(timeout=0.05) is None


async def test_a_queue_delivers_again_what_was_aborted(client: AsyncClient):
    await published(client, "t", 10)
    async with await queue(client) as consumer:
        found = await taken(consumer, 10)
        transaction = await client.transaction()
        await consumer.acknowledge(found[:4], transaction=transaction)
        assert await consumer.receive(timeout=0.05) is None
        await transaction.abort()
        again = await taken(consumer, 4)
        assert read(again) == read(found[:4])
        assert {message.redelivery_count for message in again} == {1}
        await consumer.acknowledge(again)
        await consumer.acknowledge(found[4:])
    async with await queue(client) as consumer:
        assert await consumer.receive(timeout=0.05) is None


async def test_two_open_transactions_do_not_take_one_message(client: AsyncClient):
    await published(client, "t", 2)
    async with await queue(client) as consumer:
        found = await taken(consumer, 2)
        one, other = await client.transaction(), await client.transaction()
        await consumer.acknowledge(found[0], transaction=one)
        with pytest.raises(engine.TransactionConflictError):
            await consumer.acknowledge(found[0], transaction=other)
        with pytest.raises(engine.TransactionConflictError):
            await consumer.acknowledge(found[0])
        with pytest.raises(engine.TransactionConflictError):
            await other.commit()  # what failed in it was part of it
        await one.commit()
        await consumer.acknowledge(found[1])
    async with await queue(client) as consumer:
        assert await consumer.receive(timeout=0.05) is None


async def test_a_consumer_of_several_topics(client: AsyncClient):
    await published(client, "t", 5)
    await published(client, "u", 5)
    consumer = await client.queue_consumer(["t", "u"], "q", initial_position="earliest")
    ordered = await client.stream_consumer(["t", "u"], "s", initial_position="earliest")
    assert isinstance(consumer, engine.AsyncMultiQueueConsumer)
    assert isinstance(ordered, engine.AsyncMultiStreamConsumer)
    async with consumer, ordered:
        first = [m for _ in range(10) if (m := await consumer.receive(timeout=IN_TIME))]
        second = [m for _ in range(10) if (m := await ordered.receive(timeout=IN_TIME))]
        async with client.transaction() as transaction:
            await consumer.acknowledge(first, transaction=transaction)
            await ordered.acknowledge_cumulative(second[-1], transaction=transaction)
    for topic in ("t", "u"):
        async with await queue(client, topic) as left, await stream(client, topic) as behind:
            assert await left.receive(timeout=0.05) is None
            assert await behind.receive(timeout=0.05) is None


# Exactly once.


async def transform(client: AsyncClient, upto: int, fail: set[int]) -> None:
    """From `t` to `u`, a transaction for each batch; at some of the batches it fails once everything is written."""
    consumer = await client.stream_consumer("t", "job", initial_position="earliest")
    batches = 0
    async with consumer, await client.producer("u") as producer:
        while upto:
            batch = await consumer.receive_batch(max_messages=7, timeout=IN_TIME)
            assert len(batch)
            batches += 1
            try:
                async with client.transaction() as transaction:
                    await consumer.acknowledge_cumulative(batch, transaction=transaction)
                    for message in batch:
                        value = b"%d" % (10 * int(message.value))
                        producer.send_nowait(value, key=message.key, transaction=transaction)
                    if batches in fail:
                        await transaction.flush()
                        raise RuntimeError("something came in between")
            except RuntimeError:
                continue
            upto -= len(batch)


@pytest.mark.parametrize("segments", [1, 3])
async def test_from_one_topic_to_another_exactly_once(client: AsyncClient, segments: int):
    await client.admin.create_topic("t", segments=segments)
    await client.admin.create_topic("u", segments=2)
    await published(client, "t", 60)
    await transform(client, 60, {1, 3, 4, 8})
    async with await stream(client, "u") as result:
        found = await taken(result, 60)
        assert read(found) == [b"%d" % (10 * i) for i in range(60)]
        for key in {message.key for message in found}:
            of_key = [int(message.value) for message in found if message.key == key]
            assert of_key == sorted(of_key)
        assert await result.receive(timeout=0.05) is None


@pytest.mark.parametrize("action", ["commit", "abort", "time out"])
async def test_what_a_dead_transaction_holds_is_waited_for(client: AsyncClient, action: str):
    """Who takes over meanwhile is given nothing behind it; after an abort it gets everything, in order."""
    await published(client, "t", 10, keys=1)
    consumer = await stream(client)
    last = (await taken(consumer, 4))[-1]
    dead = await client.transaction(timeout=3.0 if action == "time out" else 60.0)
    await consumer.acknowledge_cumulative(last, transaction=dead)
    await consumer.close()
    async with await stream(client) as consumer:
        assert await consumer.receive(timeout=0.05) is None
        if action == "commit":
            await dead.commit()
        elif action == "abort":
            await dead.abort()
        first = 4 if action == "commit" else 0
        found = await taken(consumer, 10 - first)
        assert [message.value for message in found] == numbers(first, 10)
        async with client.transaction() as transaction:
            await consumer.acknowledge_cumulative(found[-1], transaction=transaction)
    async with await stream(client) as consumer:
        assert await consumer.receive(timeout=0.05) is None


async def test_what_came_behind_a_dead_transaction_covers_nothing_outside_of_one_either(client: AsyncClient):
    await published(client, "t", 10, keys=1)
    dead = await client.transaction()
    consumer = await stream(client)
    await consumer.acknowledge_cumulative((await taken(consumer, 4))[-1], transaction=dead)
    await consumer.close()
    async with await stream(client) as consumer:
        await dead.abort()
        found = await taken(consumer, 1)
        assert read(found) == numbers(0, 1)
        await consumer.acknowledge_cumulative(found[-1])
    async with await stream(client) as consumer:
        assert read(await taken(consumer, 9)) == numbers(1, 10)


async def test_what_was_received_before_an_abort_covers_nothing_that_is_due_again(client: AsyncClient):
    await published(client, "t", 10, keys=1)
    async with await stream(client) as consumer:
        first, second = await taken(consumer, 4), await taken(consumer, 6)
        transaction = await client.transaction()
        await consumer.acknowledge_cumulative(first[-1], transaction=transaction)
        await transaction.abort()
        with pytest.raises(engine.TransactionConflictError, match="due again"):
            async with client.transaction() as transaction:
                await consumer.acknowledge_cumulative(second[-1], transaction=transaction)
        assert read(await taken(consumer, 10)) == numbers(0, 10)
