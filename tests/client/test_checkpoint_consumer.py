"""What a checkpoint consumer does about positions, parents and children, and topics that are gone."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from engine.client import Checkpoint
from engine.client.client import AsyncClient
from engine.errors import InvalidArgumentError, NotFoundError
from engine.wire.commands import Command
from tests.kit.fake_broker import FakeBroker


async def test_latest_is_resolved_at_creation_for_every_segment():
    """Semantics 27."""
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
    """Semantics 10: also when a parent is caught up first and sealed later, with no further message."""
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
    """Semantics 28."""
    broker = Family(segments=3)
    broker.sealed = {0: 5, 1: 0}
    del broker.blocks[0]
    broker.publish(2, [b"child"])
    async with broker.client() as client:
        consumer = await client.checkpoint_consumer("t", start=Checkpoint.earliest())
        assert (await consumer.receive()).value == b"child"  # type: ignore[union-attr]


async def test_a_deleted_topic_ends_its_consumers_and_producers(broker: FakeBroker, client: AsyncClient):
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


# -- layout changes ----------------------------------------------------------------------------------------------


async def take(consumer, count: int) -> list[bytes]:
    """The next values, however they come."""
    values: list[bytes] = []
    async with asyncio.timeout(10):
        while len(values) < count:
            values += (await consumer.receive_batch(count - len(values))).values
    return values


async def test_children_are_read_when_their_parents_are_delivered(broker: FakeBroker, client: AsyncClient):
    """Semantics 10: for a merge both, through generations, and when the parent was caught up before it was sealed."""
    async with await client.checkpoint_consumer("t", start=Checkpoint.earliest()) as consumer:
        broker.publish(0, [b"a"])
        assert await take(consumer, 1) == [b"a"]
        left, right = broker.reshape([0], 2)
        broker.publish(left, [b"b"])
        broker.publish(right, [b"c"])
        await broker.until(lambda: sorted(consumer.attachments) == [left, right])
        (merged,) = broker.reshape([left, right], 1)
        broker.publish(merged, [b"d"])
        assert sorted(await take(consumer, 2)) == [b"b", b"c"]
        assert await take(consumer, 1) == [b"d"]
        assert dict((await consumer.checkpoint()).positions) == {0: 1, left: 1, right: 1, merged: 1}
        assert list(consumer.attachments) == [merged]


async def test_the_end_of_a_segment_that_is_here_needs_no_broker_any_more(broker: FakeBroker):
    """Semantics 28: retention takes what is not delivered yet; it was fetched before."""
    broker.publish(0, [b"a", b"b", b"c"])
    async with (
        broker.client() as client,
        await client.checkpoint_consumer("t", start=Checkpoint.earliest()) as consumer,
    ):
        assert await take(consumer, 1) == [b"a"]
        left, _ = broker.reshape([0], 2)
        await broker.until(lambda: consumer.attachments[0].end == 3)
        broker.publish(left, [b"d"])
        broker.prune(0)
        broker.cut()
        assert await take(consumer, 3) == [b"b", b"c", b"d"]
        assert 0 not in (await consumer.checkpoint()).positions


async def test_a_checkpoint_restored_after_changes_yields_exactly_what_follows(broker: FakeBroker):
    """Semantics 27, C3: what was silent is carried forward, what was born later is read from its start."""
    broker.publish(0, [b"a", b"b"])
    async with broker.client() as client:
        async with await client.checkpoint_consumer("t", start=Checkpoint.earliest()) as consumer:
            await take(consumer, 1)
            before = await consumer.checkpoint()
        left, right = broker.reshape([0], 2)
        broker.publish(left, [b"c", b"d"])
        async with await client.checkpoint_consumer("t", start=before) as consumer:
            assert await take(consumer, 2) == [b"b", b"c"]
            between = await consumer.checkpoint()
            assert dict(between.positions) == {0: 2, left: 1, right: 0}
        async with await client.checkpoint_consumer("t", start=between) as consumer:
            assert dict((await consumer.checkpoint()).positions) == dict(between.positions)  # nothing delivered yet
            assert await take(consumer, 1) == [b"d"]
            broker.prune(0)
            broker.publish(right, [b"e"])
            assert await take(consumer, 1) == [b"e"]
            await consumer.seek(before)  # of a segment that is gone, and of none of those there are
            assert sorted(await take(consumer, 3)) == [b"c", b"d", b"e"]


async def test_latest_covers_sealed_segments(broker: FakeBroker):
    """Semantics 27."""
    broker.publish(0, [b"a"] * 3)
    left, right = broker.reshape([0], 2)
    broker.publish(right, [b"b"])
    async with broker.client() as client, await client.checkpoint_consumer("t") as consumer:
        assert dict((await consumer.checkpoint()).positions) == {0: 3, left: 0, right: 1}
        broker.publish(left, [b"c"])
        assert await take(consumer, 1) == [b"c"]


async def test_a_seek_that_fails_changes_nothing(broker: FakeBroker):
    broker.publish(0, [b"a", b"b"])
    async with (
        broker.client() as client,
        await client.checkpoint_consumer("t", start=Checkpoint.earliest()) as consumer,
    ):
        assert await take(consumer, 1) == [b"a"]
        with pytest.raises(InvalidArgumentError, match="later layout"):
            await consumer.seek(Checkpoint({0: 0}, epoch=9))
        assert await take(consumer, 1) == [b"b"]


async def test_a_layout_that_a_checkpoint_is_of_is_waited_for(broker: FakeBroker, client: AsyncClient):
    """A broker whose watch is held up would send the reader back to segments that are done with."""
    async with await client.checkpoint_consumer("t") as consumer:
        connections, broker.connections = broker.connections, []
        left, right = broker.reshape([0], 2)
        broker.connections = connections
        broker.publish(left, [b"a", b"b"])
        await consumer.seek(Checkpoint({0: 0, left: 1, right: 0}, epoch=1))
        assert await take(consumer, 1) == [b"b"]


# -- groups ------------------------------------------------------------------------------------------------------


async def test_a_group_member_reads_its_share_and_parents_first():
    """Semantics 10, 29: it registers as a reader, and what is not in its share is not waited for."""
    broker = FakeBroker(segments=2)
    broker.publish(0, [b"a"])
    broker.publish(1, [b"b"])
    left, right = broker.reshape([0], 2)
    broker.publish(left, [b"c"])
    broker.publish(right, [b"d"])
    broker.assigned = [0, left]
    async with (
        broker.client() as client,
        await client.checkpoint_consumer("t", start=Checkpoint.earliest(), group="g", name="me") as consumer,
    ):
        registered = broker.of(Command.SCALABLE_TOPIC_SUBSCRIBE)[0]
        assert (registered["kind"], registered["subscription"], registered["consumer_name"]) == (
            "checkpoint",
            "g",
            "me",
        )
        assert await take(consumer, 2) == [b"a", b"c"]
        broker.assigned = [right]
        broker.last.assign()
        assert await take(consumer, 1) == [b"d"]
        assert list(consumer.attachments) == [right]
        assert not broker.of(Command.ACK)
    assert broker.of(Command.SCALABLE_TOPIC_UNSUBSCRIBE)


async def test_a_segment_that_comes_to_a_member_is_read_from_its_start_checkpoint_or_where_it_left_off():
    broker = FakeBroker(segments=3)
    for segment in range(3):
        broker.publish(segment, [b"%d%d" % (segment, n) for n in range(4)])
    broker.assigned = [0]
    start = Checkpoint({0: 1, 1: 2, 2: 4}, epoch=0)
    async with broker.client() as client:
        consumer = await client.checkpoint_consumer("t", start=start, group="g")
        assert await take(consumer, 2) == [b"01", b"02"]
        broker.assigned = [1]
        broker.last.assign()
        await broker.settle()
        assert await take(consumer, 2) == [b"12", b"13"]  # what was fetched of 0 is the next owner's
        assert dict((await consumer.checkpoint()).positions) == {0: 3, 1: 4, 2: 4}
        broker.assigned = [0, 2]
        broker.last.assign()
        assert await take(consumer, 1) == [b"03"]
        broker.publish(2, [b"24"])
        assert await take(consumer, 1) == [b"24"]
        await consumer.seek(Checkpoint.earliest())
        assert sorted(await take(consumer, 9)) == [b"00", b"01", b"02", b"03", b"20", b"21", b"22", b"23", b"24"]


async def test_an_idle_member_waits_for_its_share_and_latest_is_of_its_creation():
    """Semantics 15, 27."""
    broker = FakeBroker(segments=2)
    broker.publish(1, [b"old"])
    broker.assigned = []
    async with broker.client() as client, await client.checkpoint_consumer("t", group="g") as consumer:
        assert await consumer.receive(timeout=0.01) is None
        broker.publish(1, [b"new"])
        broker.assigned = [1]
        broker.last.assign()
        assert await take(consumer, 1) == [b"new"]


async def test_a_share_names_segments_that_this_member_has_not_heard_of_yet(broker: FakeBroker, client: AsyncClient):
    async with await client.checkpoint_consumer("t", start=Checkpoint.earliest(), group="g") as consumer:
        connections, broker.connections = broker.connections, []
        left, right = broker.reshape([0], 2)
        broker.connections = connections
        broker.publish(right, [b"a"])
        broker.assigned = [0, left, right]
        broker.last.assign()
        await broker.settle()
        assert not {left, right} & consumer.attachments.keys()
        broker.push()
        assert await take(consumer, 1) == [b"a"]
        broker.epoch, broker.assigned = 0, [0]  # somebody who led before
        broker.last.assign()
        await broker.settle()
        assert sorted(consumer.attachments) == [left, right]


@pytest.mark.parametrize("place", [Checkpoint.latest(), Checkpoint.at_timestamp(datetime.now(UTC))])
async def test_a_seek_to_a_place_goes_by_the_layout_of_now(broker: FakeBroker, place: Checkpoint, client: AsyncClient):
    """A change that nobody has told of yet does not bring back what is in its children."""
    async with await client.checkpoint_consumer("t") as consumer:
        connections, broker.connections = broker.connections, []
        left, right = broker.reshape([0], 2)  # and the news of it are held up
        broker.publish(left, [b"before"])
        broker.connections = connections
        await consumer.seek(place)
        broker.publish(right, [b"behind"])
        assert await take(consumer, 1) == [b"behind"]
        assert await consumer.receive(timeout=0.01) is None
