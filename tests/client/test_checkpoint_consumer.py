"""What a checkpoint consumer does about positions, parents and children, and topics that are gone."""

from __future__ import annotations

import asyncio

import pytest
from fake_broker import FakeBroker

from engine.client import Checkpoint
from engine.errors import InvalidArgumentError, NotFoundError
from engine.wire.commands import Command


async def test_latest_is_resolved_at_creation_for_every_segment():
    """SEMANTICS 27."""
    broker = FakeBroker(segments=2)
    broker.publish(0, [b"old"] * 3)
    async with broker.client() as client, await client.checkpoint_consumer("t") as consumer:
        assert dict((await consumer.checkpoint()).positions) == {0: 3, 1: 0}
        broker.publish(0, [b"new"])
        assert (await consumer.receive()).value == b"new"  # type: ignore[union-attr]


async def test_a_checkpoint_restored_yields_exactly_what_follows():
    """C3."""
    broker = FakeBroker(segments=2)
    broker.publish(0, [b"0", b"1", b"2"])
    broker.publish(1, [b"3", b"4"])
    async with broker.client() as client:
        async with await client.checkpoint_consumer("t", start=Checkpoint.earliest()) as consumer:
            seen = [(await consumer.receive()).value for _ in range(2)]  # type: ignore[union-attr]
            kept = (await consumer.checkpoint()).to_bytes()
        async with await client.checkpoint_consumer("t", start=Checkpoint.from_bytes(kept)) as consumer:
            seen += [(await consumer.receive()).value for _ in range(3)]  # type: ignore[union-attr]
            assert sorted(seen) == [b"0", b"1", b"2", b"3", b"4"]
            await consumer.seek(Checkpoint.earliest())
            again = [(await consumer.receive()).value for _ in range(5)]  # type: ignore[union-attr]
            assert sorted(again) == sorted(seen)
            with pytest.raises(InvalidArgumentError):
                await consumer.seek(Checkpoint({}, epoch=0, topic="topic://a/b/c"))


async def test_a_reader_goes_on_where_it_stands_after_a_reconnect(broker: FakeBroker):
    broker.publish(0, [b"0", b"1"])
    broker.publish(0, [b"2"])
    async with broker.client() as client:
        consumer = await client.checkpoint_consumer("t", start=Checkpoint.earliest())
        assert (await consumer.receive()).value == b"0"  # type: ignore[union-attr]
        broker.cut()
        await asyncio.sleep(0.05)
        assert [(await consumer.receive()).value for _ in range(2)] == [b"1", b"2"]  # type: ignore[union-attr]


class Family(FakeBroker):
    """Segments 0 and 1 were merged into 2; then sealed[...] says where they ended."""

    def dag(self):
        dag = super().dag()
        dag["segments"][2]["parentIds"] = [0, 1]
        dag["segments"][0]["childIds"] = dag["segments"][1]["childIds"] = [2]
        return dag


async def test_a_child_comes_after_all_its_parents():
    """SEMANTICS 10: also when a parent is caught up first and sealed later, with no further message."""
    broker = Family(segments=3)
    broker.publish(0, [b"a", b"b"])
    broker.publish(2, [b"child"])
    broker.sealed = {1: 0}
    async with broker.client() as client:
        consumer = await client.checkpoint_consumer("t", start=Checkpoint.earliest())
        assert (await consumer.receive_batch()).values == [b"a", b"b"]
        assert await consumer.receive(timeout=0.01) is None
        broker.sealed[0] = 2
        broker.last.feed()
        assert (await consumer.receive()).value == b"child"  # type: ignore[union-attr]
        assert dict((await consumer.checkpoint()).positions) == {0: 2, 1: 0, 2: 1}


async def test_a_segment_deleted_by_retention_is_skipped():
    """SEMANTICS 28."""
    broker = Family(segments=3)
    broker.sealed = {0: 5, 1: 0}
    del broker.blocks[0]
    broker.publish(2, [b"child"])
    async with broker.client() as client:
        consumer = await client.checkpoint_consumer("t", start=Checkpoint.earliest())
        assert (await consumer.receive()).value == b"child"  # type: ignore[union-attr]


async def test_a_deleted_topic_ends_its_consumers_and_producers(broker: FakeBroker):
    async with broker.client() as client:
        consumer = await client.checkpoint_consumer("t")
        producer = await client.producer("t")
        waiting = asyncio.ensure_future(consumer.receive())
        await broker.settle()
        for session in broker.last.sessions:
            broker.last.stream.send(
                Command.ERROR, {"request_id": 0, "session_id": session, "code": 2, "message": "the topic was deleted"}
            )
        with pytest.raises(NotFoundError):
            await waiting
        with pytest.raises(NotFoundError):
            await producer.send(b"x")
        with pytest.raises(NotFoundError):
            producer.send_nowait(b"x")
