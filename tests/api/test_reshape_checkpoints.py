"""Checkpoint consumers, alone and in groups, while the topic splits and merges under them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import engine
from tests.api.reshaping import KEYS, Publisher, Reader, active, assert_in_order, reshape, until


@pytest.fixture
async def one(client: engine.AsyncClient) -> engine.AsyncClient:
    """A topic of one segment."""
    await client.admin.create_topic("t", segments=1)
    return client


# -- checkpoint --------------------------------------------------------------------------------------------------


async def test_a_checkpoint_consumer_reads_parents_first_and_to_the_end(one: engine.AsyncClient):
    """Semantics 10, O1."""
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
    """Semantics 27, C3: restored by consumer after consumer, across changes, each message comes once."""
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
    """C3, semantics 38."""
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
    """Semantics 29."""
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
    """Semantics 27, 29: with members in place and no moves, a group restored goes on where it stood."""
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


# -- retention ---------------------------------------------------------------------------------------------------


@pytest.fixture
async def pruned(tmp_path: Path) -> AsyncIterator[tuple[engine.AsyncClient, engine.Checkpoint, list[engine.MessageId]]]:
    """A topic whose first segment was split and is gone since; a checkpoint and ids from before."""
    async with engine.open_async(tmp_path / "data", shared=False) as client:
        await client.admin.create_topic("t", segments=1)
        ids = []
        async with (
            await client.producer("t") as producer,
            await client.stream_consumer("t", "s") as stream,
            await client.queue_consumer("t", "q") as queue,
            await client.checkpoint_consumer("t") as reader,
        ):
            await producer.send(b"0", key=b"k")
            for consumer in (stream, queue, reader):
                message = await consumer.receive(timeout=10)
                assert message is not None
                ids.append(message.id)
            kept = await reader.checkpoint()
            await producer.send(b"1", key=b"k")
            await client.admin.split_segment("t", 0)
            await producer.send(b"2", key=b"k")
            await stream.acknowledge_cumulative((await stream.receive_batch(timeout=10)).last_id)
            await queue.acknowledge(ids[1])
            await until(lambda: any(i in stream.attachments for i in (1, 2)))
            while 0 in queue.attachments:
                await queue.acknowledge(await queue.receive_batch(timeout=10))
                await asyncio.sleep(0.01)
            assert await client.broker.service.prune_segment("t", 0)
            await until(lambda: 0 not in reader.session.layout.segments)
            await queue.acknowledge(ids[1])  # acknowledged before: no error
            await stream.acknowledge_cumulative(ids[0])
        yield client, kept, ids


async def test_what_retention_took_is_no_error_to_anybody(pruned: Any):
    """Semantics 12, 27, 28: ids and checkpoints from before keep their meaning."""
    client, kept, ids = pruned
    async with await client.checkpoint_consumer("t", start=kept) as reader:
        assert (await reader.receive(timeout=10)).value == b"2"  # "1" is gone with its segment
        assert sorted((await reader.checkpoint()).positions) == [1, 2]
    async with await client.stream_consumer("t", "s") as stream, await client.queue_consumer("t", "q") as queue:
        await stream.acknowledge_cumulative(ids[0])
        await queue.acknowledge(ids[1])


async def test_a_checkpoint_of_a_topic_that_was_made_anew_is_refused(one: engine.AsyncClient):
    """Its epoch is no later, and its positions mean other messages."""
    async with await one.producer("t") as producer:
        await producer.send(b"old")
    async with await one.checkpoint_consumer("t", start=engine.Checkpoint.earliest()) as consumer:
        await consumer.receive(timeout=10)
        kept = engine.Checkpoint.from_bytes((await consumer.checkpoint()).to_bytes())
    created_ms = (await one.admin.get_metadata("t"))["createdAtMs"]
    assert kept.topic_created_ms == created_ms
    await one.admin.delete_topic("t")
    while (await remade(one, "t")) == created_ms:  # within the same millisecond
        await one.admin.delete_topic("t")
    with pytest.raises(engine.InvalidArgumentError, match="was created at"):
        await one.checkpoint_consumer("t", start=kept)
    without = engine.Checkpoint(kept.positions, epoch=kept.epoch, topic=kept.topic)
    async with await one.checkpoint_consumer("t", start=without) as consumer:
        with pytest.raises(engine.InvalidArgumentError, match="was created at"):
            await consumer.seek(kept)


async def remade(client: engine.AsyncClient, topic: str) -> int:
    """Make the topic; when that was, in milliseconds."""
    await client.admin.create_topic(topic)
    return int((await client.admin.get_metadata(topic))["createdAtMs"])
