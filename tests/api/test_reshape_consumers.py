"""Stream and queue consumers while the topic splits and merges under them."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Awaitable, Callable

import pytest

import engine
from engine.errors import FencedError
from tests.api.reshaping import KEYS, Publisher, Reader, active, assert_in_order, reshape, until


@pytest.fixture
async def one(client: engine.AsyncClient) -> engine.AsyncClient:
    """A topic of one segment."""
    await client.admin.create_topic("t", segments=1)
    return client


# -- stream ------------------------------------------------------------------------------------------------------


async def test_stream_consumers_get_each_message_once_and_in_order(one: engine.AsyncClient):
    """Semantics 7 to 9, O1, O2: over splits and merges, the order of a key holds from consumer to consumer."""
    values: list[bytes] = []
    names = ["a", "b", "c"]
    async with contextlib.AsyncExitStack() as stack, Publisher(one) as publisher:
        for name in names:
            consumer = await one.stream_consumer("t", "s", name=name, initial_position="earliest")
            await stack.enter_async_context(Reader(consumer, values, consumer.acknowledge_cumulative))
        await reshape(one, publisher)
        await publisher.stop()
        await until(lambda: len(values) >= KEYS * publisher.sent)
        assert not publisher.missing(values)
        assert_in_order(values)


async def test_children_wait_until_their_parent_is_acknowledged(one: engine.AsyncClient):
    """Semantics 7, 9, 11: delivered is not enough; acknowledging a child's message covers its parents."""
    async with await one.stream_consumer("t", "s") as consumer, await one.producer("t") as producer:
        await producer.send(b"parent")
        message = await consumer.receive()
        assert message is not None
        await one.admin.split_segment("t", 0)
        await producer.send(b"child", key=b"k")
        assert await consumer.receive(timeout=0.2) is None
        await consumer.acknowledge_cumulative(message)
        child = await consumer.receive(timeout=10)
        assert child is not None
        assert list(child.id.positions) == [child.segment_id]  # the parent was left, all of it acknowledged
        await consumer.acknowledge_cumulative(child)
        await until(lambda: 0 not in consumer.attachments)
        await consumer.acknowledge_cumulative(message)  # acknowledged before: no error


async def test_an_id_from_before_changes_is_acknowledged_by_another_consumer_object(one: engine.AsyncClient):
    """Semantics 12."""
    async with await one.producer("t") as producer:
        async with await one.stream_consumer("t", "s", initial_position="earliest") as earlier:
            await producer.send(b"0")
            first = await earlier.receive()
            await producer.send(b"1")
            second = await earlier.receive()
            assert first is not None
            assert second is not None
            kept = [engine.MessageId.from_bytes(m.id.to_bytes()) for m in (first, second)]
        left, right = [s for s in (await one.admin.split_segment("t", 0))["segments"] if s != "0"]
        await producer.send(b"2", key=b"k")
        async with await one.stream_consumer("t", "s") as later:
            assert (await later.receive(timeout=10)).value == b"0"  # type: ignore[union-attr]
            await later.acknowledge_cumulative(kept[0])
            await later.acknowledge_cumulative(kept[1])
            child = await later.receive(timeout=10)
            assert child is not None
            assert child.value == b"2"
            await later.acknowledge_cumulative(child)
            last = engine.MessageId.from_bytes(child.id.to_bytes())
            assert str(last.segment_id) in (left, right)
        async with (
            await one.stream_consumer("t", "s", name="a") as a,
            await one.stream_consumer("t", "s", name="b") as b,
        ):
            for consumer in (a, b):  # one of them has the segment, and it is acknowledged for both
                for ident in (*kept, last):
                    await consumer.acknowledge_cumulative(ident)


async def test_what_another_consumer_has_now_is_fenced(client: engine.AsyncClient):
    """Semantics 12: never a silent no-op."""
    await client.admin.create_topic("t", segments=2)
    async with await client.producer("t") as producer:
        async with await client.stream_consumer("t", "s", name="x") as earlier:
            await asyncio.gather(*(producer.send(b"v", key=b"%d" % k) for k in range(20)))
            got = 0
            while got < 20:
                batch = await earlier.receive_batch()
                got += len(batch)
            kept = batch.last_id
        async with (
            await client.stream_consumer("t", "s", name="a") as a,
            await client.stream_consumer("t", "s", name="b") as b,
        ):
            await until(lambda: len(a.attachments) == len(b.attachments) == 1)
            with pytest.raises(FencedError):
                await a.acknowledge_cumulative(kept)
            await b.acknowledge_cumulative(kept)  # a has saved its part
            await a.acknowledge_cumulative(kept)


async def test_a_consumer_that_comes_and_goes_stops_nobody_who_acknowledges_seldom(client: engine.AsyncClient):
    """Semantics 18: what comes back before it was let go is delivered on, without an acknowledgement."""
    await client.admin.create_topic("t", segments=2)
    async with (
        await client.producer("t") as producer,
        await client.stream_consumer("t", "s", name="a", receive_queue_size=50) as a,
    ):
        for n in range(50):
            await asyncio.gather(*(producer.send(b"%d:%d" % (k, n), key=b"%d" % k) for k in range(KEYS)))
        values: list[bytes] = []
        while len(values) < 10 * KEYS:
            values += (await a.receive_batch(10 * KEYS - len(values), timeout=10)).values
        async with await client.stream_consumer("t", "s", name="b"):
            await until(lambda: any(attachment.draining for attachment in a.attachments.values()))
        while len(values) < 50 * KEYS:
            batch = await a.receive_batch(timeout=10)
            assert len(batch)
            values += batch.values
        assert len(set(values)) == len(values) == 50 * KEYS
        assert_in_order(values)
        await a.acknowledge_cumulative(batch)


async def test_after_a_seek_everything_comes_again_parents_first(one: engine.AsyncClient):
    """Semantics 7, 11, 38: acknowledging one of it acknowledges no more than what came before."""
    async with await one.stream_consumer("t", "s") as consumer, await one.producer("t") as producer:
        for counter in range(2):
            await asyncio.gather(*(producer.send(b"%d:%d" % (k, counter), key=b"%d" % k) for k in range(KEYS)))
            if not counter:
                await one.admin.split_segment("t", 0)
        for _ in range(2):
            values: list[bytes] = []
            while len(values) < 2 * KEYS:
                batch = await consumer.receive_batch(10, timeout=10)
                values += batch.values
                await consumer.acknowledge_cumulative(batch)
            assert_in_order(values)
            assert await consumer.receive(timeout=0.05) is None
            await one.admin.seek_subscription("t", "s", "earliest")


async def test_an_idle_consumer_gets_its_share_at_the_split(client: engine.AsyncClient):
    """Semantics 15."""
    await client.admin.create_topic("t", entry_buckets=1)
    async with (
        await client.stream_consumer("t", "s", name="a") as a,
        await client.stream_consumer("t", "s", name="b") as b,
    ):
        assert (len(a.attachments), len(b.attachments)) == (1, 0)
        await client.admin.split_segment("t", 0)
        await until(lambda: (len(a.attachments), len(b.attachments)) == (1, 1))
        assert not a.attachments.keys() & b.attachments.keys()


async def test_a_consumer_whose_connection_is_lost_leaves_at_once_all_the_same(client: engine.AsyncClient):
    """Semantics 13: no consumer waits for the end of a grace period; an old one evicts no newer one of its name."""
    await client.admin.create_topic("t", segments=2)
    a, b = [await client.stream_consumer("t", "s", name=name) for name in ("a", "b")]
    await until(lambda: (len(a.attachments), len(b.attachments)) == (1, 1))
    for connection in client.pool.connections:
        connection.stream.abort()
    await a.close()
    await until(lambda: len(b.attachments) == 2)
    again = await client.stream_consumer("t", "s", name="b")
    for connection in client.pool.connections:
        connection.stream.abort()
    await b.close()
    await until(lambda: sum(x.connected for x in again.attachments.values()) == 2)
    await again.close()


async def test_connections_lost_in_the_middle_keep_the_share(one: engine.AsyncClient):
    """Semantics 14, O2: what comes again after a loss begins at or before the last confirmed acknowledgement + 1."""
    values: list[bytes] = []
    async with contextlib.AsyncExitStack() as stack, Publisher(one) as publisher:
        for name in ("a", "b"):
            consumer = await one.stream_consumer("t", "s", name=name, initial_position="earliest")
            await stack.enter_async_context(Reader(consumer, values, _tolerant(consumer)))
        changes = asyncio.create_task(reshape(one, publisher, 1))
        for _ in range(3):
            await publisher.until(2)
            for connection in one.pool.connections:
                connection.stream.abort()
        await changes
        await publisher.stop()
        await until(lambda: not publisher.missing(values))
        following: dict[bytes, int] = defaultdict(int)
        for value in values:  # again, but never with a gap
            key, _, counter = value.partition(b":")
            assert int(counter) <= following[key]
            following[key] = max(following[key], int(counter) + 1)


def _tolerant(consumer: engine.AsyncStreamConsumer) -> Callable[..., Awaitable[None]]:
    async def acknowledge(batch: engine.MessageBatch) -> None:
        with contextlib.suppress(FencedError):
            await consumer.acknowledge_cumulative(batch)

    return acknowledge


# -- queue -------------------------------------------------------------------------------------------------------


async def test_queue_consumers_follow_and_drop_what_is_drained(one: engine.AsyncClient):
    """Semantics 10, C2: attached to all segments; a message that was acknowledged never comes again."""
    values: list[bytes] = []
    async with contextlib.AsyncExitStack() as stack, Publisher(one) as publisher:
        consumers = [await one.queue_consumer("t", "q", initial_position="earliest") for _ in range(2)]
        for consumer in consumers:
            await stack.enter_async_context(Reader(consumer, values, consumer.acknowledge))
        await reshape(one, publisher)
        await publisher.stop()
        await until(lambda: len(values) >= KEYS * publisher.sent)
        assert not publisher.missing(values)
        assert len(values) == len(set(values))
        present = await active(one)
        await until(lambda: all(sorted(c.attachments) == sorted(present) for c in consumers))


async def test_queue_ids_stay_valid_when_their_segment_is_sealed(one: engine.AsyncClient):
    """Semantics 12."""
    async with await one.queue_consumer("t", "q") as consumer, await one.producer("t") as producer:
        await producer.send(b"0")
        await producer.send(b"1")
        first, second = [await consumer.receive(timeout=10) for _ in range(2)]
        assert first is not None
        assert second is not None
        await one.admin.split_segment("t", 0)
        await consumer.acknowledge(first.id)
        await consumer.negative_acknowledge(second, delay=0)
        again = await consumer.receive(timeout=10)
        assert again is not None
        assert (again.value, again.redelivery_count) == (b"1", 1)
        await consumer.acknowledge(again)
        await until(lambda: 0 not in consumer.attachments)
        await consumer.acknowledge(second)


async def test_after_a_seek_queue_consumers_get_what_they_had_finished(one: engine.AsyncClient):
    """Semantics 10, 38: also from sealed segments that nobody was attached to any more."""
    async with await one.queue_consumer("t", "q") as consumer, await one.producer("t") as producer:
        await producer.send(b"parent", key=b"k")
        await one.admin.split_segment("t", 0)
        await producer.send(b"child", key=b"k")
        for _ in range(2):
            messages = [await consumer.receive(timeout=10) for _ in range(2)]
            assert {m.value for m in messages if m is not None} == {b"parent", b"child"}
            for message in messages:
                assert message is not None
                await consumer.acknowledge(message)
            await until(lambda: 0 not in consumer.attachments)
            await one.admin.seek_subscription("t", "q", "earliest")
