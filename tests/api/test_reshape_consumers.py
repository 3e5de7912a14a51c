"""Consumers of every kind while the topic splits and merges under them."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest

import engine
from engine.errors import AlreadyClosedError, FencedError

KEYS = 40


class Publisher:
    """Sends values "key:counter" as long as it runs; the counters of each key rise by one."""

    def __init__(self, client: engine.AsyncClient, topic: str = "t") -> None:
        self.client = client
        self.topic = topic
        self.sent = 0

    async def __aenter__(self) -> Publisher:
        self._producer = await self.client.producer(self.topic)
        self._task = asyncio.create_task(self._run())
        return self

    async def _run(self) -> None:
        while True:
            await self.some()
            await asyncio.sleep(0.002)

    async def some(self) -> None:
        """One of each key."""
        sends = [self._producer.send(b"%d:%d" % (k, self.sent), key=b"%d" % k) for k in range(KEYS)]
        self.sent += 1
        await asyncio.gather(*sends)

    async def until(self, more: int) -> None:
        """Wait until so much more was sent."""
        enough = self.sent + more
        while self.sent < enough:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.002)

    async def stop(self) -> None:
        """Nothing follows; all of it is stored."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        await self._producer.flush()

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()
        await self._producer.close()

    def missing(self, values: Iterable[bytes]) -> set[bytes]:
        """What was sent and is not among these."""
        return {b"%d:%d" % (k, n) for k in range(KEYS) for n in range(self.sent)} - set(values)


def assert_in_order(values: Iterable[bytes]) -> None:
    """Per key rising by one: nothing twice, nothing left out."""
    following: dict[bytes, int] = defaultdict(int)
    for value in values:
        key, _, counter = value.partition(b":")
        assert int(counter) == following[key], f"{value!r} came where {following[key]} was due"
        following[key] += 1


class Reader:
    """Receives in the background, in the order it comes, and acknowledges each batch."""

    def __init__(self, consumer: Any, values: list[bytes], acknowledge: Callable[..., Awaitable[None]] | None) -> None:
        self.consumer = consumer
        self.values = values
        self._acknowledge = acknowledge
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            batch = await self.consumer.receive_batch(50)
            self.values += batch.values
            if self._acknowledge is not None:
                await self._acknowledge(batch)

    async def __aenter__(self) -> Reader:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError, AlreadyClosedError):
            await self.task


async def reshape(client: engine.AsyncClient, publisher: Publisher, rounds: int = 2) -> None:
    """1 → 2 → 3 → 2 → 1 segments, again and again, while it is published."""
    for _ in range(rounds):
        (only,) = await active(client)
        await client.admin.split_segment("t", only)
        await publisher.until(3)
        left, right = await active(client)
        await client.admin.split_segment("t", right)
        await publisher.until(3)
        left, middle, right = await active(client)
        await client.admin.merge_segments("t", left, middle)
        await publisher.until(3)
        await client.admin.merge_segments("t", *await active(client))
        await publisher.until(3)


async def active(client: engine.AsyncClient) -> list[int]:
    """The ids of the active segments, by hash range."""
    segments = (await client.admin.get_metadata("t"))["segments"].values()
    found = sorted((s["hashRange"]["start"], s["segmentId"]) for s in segments if s["state"] == "ACTIVE")
    return [segment_id for _, segment_id in found]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.005)


@pytest.fixture
async def one(client: engine.AsyncClient) -> engine.AsyncClient:
    """A topic of one segment."""
    await client.admin.create_topic("t", segments=1)
    return client


# -- stream ------------------------------------------------------------------------------------------------------


async def test_stream_consumers_get_each_message_once_and_in_order(one: engine.AsyncClient):
    """SEMANTICS 7 to 9, O1, O2: over splits and merges, the order of a key holds from consumer to consumer."""
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
    """SEMANTICS 7, 9, 11: delivered is not enough; acknowledging a child's message covers its parents."""
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
        assert child.id.positions[0] == 1
        await consumer.acknowledge_cumulative(child)
        await until(lambda: 0 not in consumer.attachments)
        await consumer.acknowledge_cumulative(message)  # acknowledged before: no error


async def test_an_id_from_before_changes_is_acknowledged_by_another_consumer_object(one: engine.AsyncClient):
    """SEMANTICS 12."""
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
    """SEMANTICS 12: never a silent no-op."""
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


async def test_an_idle_consumer_gets_its_share_at_the_split(one: engine.AsyncClient):
    """SEMANTICS 15."""
    async with (
        await one.stream_consumer("t", "s", name="a") as a,
        await one.stream_consumer("t", "s", name="b") as b,
    ):
        assert (len(a.attachments), len(b.attachments)) == (1, 0)
        await one.admin.split_segment("t", 0)
        await until(lambda: (len(a.attachments), len(b.attachments)) == (1, 1))
        assert not a.attachments.keys() & b.attachments.keys()


async def test_connections_lost_in_the_middle_keep_the_share(one: engine.AsyncClient):
    """SEMANTICS 14, O2: what comes again after a loss begins at or before the last confirmed acknowledgement + 1."""
    values: list[bytes] = []
    async with contextlib.AsyncExitStack() as stack, Publisher(one) as publisher:
        for name in ("a", "b"):
            consumer = await one.stream_consumer("t", "s", name=name, initial_position="earliest")
            await stack.enter_async_context(Reader(consumer, values, _tolerant(consumer)))
        changes = asyncio.create_task(reshape(one, publisher, 1))
        for _ in range(3):
            await publisher.until(2)
            for connection in set(one._pool._connections.values()):
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
    """SEMANTICS 10, C2: attached to all segments; a message that was acknowledged never comes again."""
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
    """SEMANTICS 12."""
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


# -- checkpoint --------------------------------------------------------------------------------------------------


async def test_a_checkpoint_consumer_reads_parents_first_and_to_the_end(one: engine.AsyncClient):
    """SEMANTICS 10, O1."""
    values: list[bytes] = []
    async with Publisher(one) as publisher:
        consumer = await one.checkpoint_consumer("t", start=engine.Checkpoint.earliest())
        async with Reader(consumer, values, None):
            await reshape(one, publisher)
            await publisher.stop()
            await until(lambda: len(values) >= KEYS * publisher.sent)
        assert_in_order(values)
        async with await one.checkpoint_consumer("t", start=engine.Checkpoint.earliest()) as late:
            again: list[bytes] = []
            while len(again) < len(values):
                again += (await late.receive_batch(timeout=10)).values
            assert_in_order(again)
            assert await late.receive(timeout=0.05) is None


async def test_a_checkpoint_taken_anywhere_yields_exactly_what_follows(one: engine.AsyncClient):
    """SEMANTICS 27, C3: restored by consumer after consumer, across changes, each message comes once."""
    values: list[bytes] = []
    kept = engine.Checkpoint.earliest()
    async with Publisher(one) as publisher:
        changes = asyncio.create_task(reshape(one, publisher))
        while not changes.done() or publisher.missing(values):
            if changes.done():
                await publisher.stop()
            async with await one.checkpoint_consumer("t", start=kept) as consumer:
                for _ in range(3):
                    values += (await consumer.receive_batch(37, timeout=0.05)).values
                kept = engine.Checkpoint.from_bytes((await consumer.checkpoint()).to_bytes())
                assert kept.positions.keys() == consumer.session.layout.segments.keys()
        await changes
        assert_in_order(values)


async def test_seek_across_changes(one: engine.AsyncClient):
    """C3, SEMANTICS 38."""
    async with await one.producer("t") as producer, await one.checkpoint_consumer("t") as consumer:
        await producer.send(b"0", key=b"k")
        assert (await consumer.receive(timeout=10)).value == b"0"  # type: ignore[union-attr]
        before = await consumer.checkpoint()
        await one.admin.split_segment("t", 0)
        await producer.send(b"1", key=b"k")
        message = await consumer.receive(timeout=10)
        assert message is not None
        await one.admin.merge_segments("t", 1, 2)
        await producer.send(b"2", key=b"k")
        for place in (before, engine.Checkpoint.at_timestamp(message.publish_time)):
            await consumer.seek(place)
            values = [(await consumer.receive(timeout=10)).value for _ in range(2)]  # type: ignore[union-attr]
            assert values[-1] == b"2"
            assert values[0] in (b"0", b"1")  # two messages may have one millisecond
        await consumer.seek(engine.Checkpoint.latest())
        await producer.send(b"3", key=b"k")
        assert (await consumer.receive(timeout=10)).value == b"3"  # type: ignore[union-attr]


# -- groups ------------------------------------------------------------------------------------------------------


async def test_group_members_share_the_segments_and_have_them_all_between_them(one: engine.AsyncClient):
    """SEMANTICS 29."""
    values: list[bytes] = []
    start = engine.Checkpoint.earliest()
    async with contextlib.AsyncExitStack() as stack, Publisher(one) as publisher:
        members = [await one.checkpoint_consumer("t", group="g", name=n, start=start) for n in ("a", "b")]
        for member in members:
            await stack.enter_async_context(Reader(member, values, None))
        await reshape(one, publisher)
        await publisher.stop()
        await until(lambda: not publisher.missing(values))  # at least once
        await until(lambda: not members[0]._share & members[1]._share)  # type: ignore[operator]
        await one.admin.split_segment("t", (await active(one))[0])
        await until(lambda: all(len(m.attachments) == 1 for m in members))
        assert not members[0].attachments.keys() & members[1].attachments.keys()
        await members[0].close()
        present = await active(one)
        await until(lambda: present == sorted(members[1].attachments))


async def test_a_groups_checkpoint_is_the_largest_position_of_its_members(client: engine.AsyncClient):
    """SEMANTICS 27, 29: with members in place and no moves, a group restored goes on where it stood."""
    await client.admin.create_topic("t", segments=2)
    values: list[bytes] = []
    async with Publisher(client) as publisher:
        await publisher.until(5)
        start = engine.Checkpoint.earliest()
        members = [await client.checkpoint_consumer("t", group="g", name=n, start=start) for n in ("a", "b")]
        await until(lambda: [len(m.attachments) for m in members] == [1, 1])
        await members[0].seek(start)  # it began with both, alone
        for member in members:
            values += (await member.receive_batch(50, timeout=10)).values
        kept = [await m.checkpoint() for m in members]
        largest = {s: max(k.positions[s] for k in kept) for s in (0, 1)}
        whole = engine.Checkpoint(largest, epoch=kept[0].epoch, topic=members[0].topic)
        for member in members:
            await member.close()
        await publisher.stop()
        async with await client.checkpoint_consumer("t", start=whole) as consumer:
            while publisher.missing(values):
                values += (await consumer.receive_batch(timeout=10)).values
            assert_in_order(values)
