"""What consumers keep of segments they have left, and what they do when one comes back before it was let go."""

from __future__ import annotations

import asyncio

import pytest

from engine.client import Checkpoint, MessageId
from engine.client.client import AsyncClient
from engine.errors import FencedError, NotFoundError, NotOwnerError
from engine.wire.commands import Command
from tests.kit.fake_broker import FakeBroker

CHANGES = 20


async def take(consumer, count: int) -> list[bytes]:
    """The next values, however they come."""
    values: list[bytes] = []
    async with asyncio.timeout(10):
        while len(values) < count:
            values += (await consumer.receive_batch(count - len(values))).values
    return values


async def share(broker: FakeBroker, segments: list[int]) -> None:
    """The controller gives these to whoever is registered."""
    broker.assigned = segments
    broker.last.assign()
    await broker.settle()


# -- position vectors --------------------------------------------------------------------------------------------


async def test_an_id_of_a_stream_names_no_segment_that_was_left_acknowledged(broker: FakeBroker):
    """However often the topic changes; and retention need not have taken anything."""
    parent = 0
    async with broker.client() as client, await client.stream_consumer("t", "s") as consumer:
        first = None
        for _ in range(CHANGES):
            broker.publish(parent, [b"a", b"b"])
            batch = await consumer.receive_batch(2)
            first = first or batch.last_id
            await consumer.acknowledge_cumulative(batch)
            (parent,) = broker.reshape([parent], 1)
            await share(broker, [parent])
        broker.publish(parent, [b"c"])
        last = await consumer.receive()
        assert last is not None
        assert dict(last.id.positions) == {parent: 1}
        assert len(last.id.to_bytes()) == len(first.to_bytes())
        assert consumer._queue.positions == {parent: 1}
        await consumer.acknowledge_cumulative(last)
        await consumer.acknowledge_cumulative(first)  # kept from before: no error
        assert broker.cursors == {**dict.fromkeys(range(parent), 2), parent: 1}


async def test_semantics_11_what_was_left_unacknowledged_is_named_until_it_is_acknowledged():
    """Whoever does it."""
    broker = FakeBroker(segments=2)
    broker.publish(0, [b"a", b"b"])
    async with broker.client() as client, await client.stream_consumer("t", "s") as consumer:
        await take(consumer, 2)
        broker.assigned = [1]
        broker.cut()  # it goes to somebody else while the connection is lost
        await broker.until(lambda: 0 not in consumer.attachments)
        broker.publish(1, [b"c"])
        message = await consumer.receive()
        assert message is not None
        assert dict(message.id.positions) == {0: 2, 1: 1}
        with pytest.raises(FencedError, match=r"segments \[0\]"):
            await consumer.acknowledge_cumulative(message)
        broker.cursors[0] = 2
        await consumer.acknowledge_cumulative(message)
        broker.publish(1, [b"d"])
        message = await consumer.receive()
        assert message is not None
        assert dict(message.id.positions) == {1: 2}


@pytest.mark.parametrize("kind", ["stream", "queue", "checkpoint"])
async def test_pruned_segments_are_in_no_id_and_no_checkpoint(broker: FakeBroker, kind: str, client: AsyncClient):
    if kind == "checkpoint":
        consumer = await client.checkpoint_consumer("t", start=Checkpoint.earliest())
    else:
        consumer = await (client.stream_consumer if kind == "stream" else client.queue_consumer)("t", "s")
    broker.publish(0, [b"a", b"b"])
    batch = await consumer.receive_batch(2)
    if kind == "stream":
        await consumer.acknowledge_cumulative(batch)
    elif kind == "queue":
        await consumer.acknowledge(batch)
    left, right = broker.reshape([0], 2)
    await share(broker, [left, right])
    broker.publish(left, [b"c"])
    message = await consumer.receive()
    if kind == "checkpoint":  # semantics 27: what is sealed is kept
        assert dict(message.id.positions) == {0: 2, left: 1}
        assert dict((await consumer.checkpoint()).positions) == {0: 2, left: 1, right: 0}
    broker.prune(0)
    broker.publish(right, [b"d"])
    message = await consumer.receive()
    assert dict(message.id.positions) == {left: 1, right: 1}
    if kind == "checkpoint":
        assert dict((await consumer.checkpoint()).positions) == {left: 1, right: 1}
        assert not consumer._started.keys() & {0}


# -- who is asked whether it is acknowledged ---------------------------------------------------------------------


async def test_a_subscription_that_is_gone_is_no_acknowledgement():
    """Unlike a segment that is gone: its messages were acknowledged by everybody before."""
    broker = FakeBroker(segments=2)
    broker.assigned = [1]
    async with broker.client() as client, await client.stream_consumer("t", "s") as consumer:
        blocks = broker.blocks.pop(0)  # NotFoundError from now on
        with pytest.raises(NotFoundError):
            await consumer.acknowledge_cumulative(MessageId(0, 0))
        broker.blocks[0] = blocks
        broker.reshape([0], 1)
        broker.prune(0)
        asked = len(broker.of(Command.SEGMENT_OFFSET))
        await consumer.acknowledge_cumulative(MessageId(0, 0))
        assert len(broker.of(Command.SEGMENT_OFFSET)) == asked


# -- coming back -------------------------------------------------------------------------------------------------


async def test_semantics_18_a_segment_that_comes_back_before_it_was_let_go_is_delivered_on():
    """Nothing is skipped, nothing comes twice, and no acknowledgement is needed for it."""
    broker = FakeBroker(segments=2)
    values = [b"%d" % n for n in range(8)]
    broker.publish(0, values[:2])
    broker.publish(0, values[2:4])
    async with broker.client() as client, await client.stream_consumer("t", "s") as consumer:
        await broker.until(lambda: consumer._queue.messages == 4)
        delivered = await take(consumer, 1)
        for turn in range(2):
            await share(broker, [1])
            assert await consumer.receive(timeout=0) is None
            assert consumer.statistics().messages_queued == 0
            broker.publish(0, values[4 + turn : 5 + turn])  # what still comes has its turn, too
            await broker.settle()
            assert await consumer.receive(timeout=0) is None
            await share(broker, [1])  # said twice
            await share(broker, [0, 1])
            delivered += await take(consumer, 1)
        broker.publish(0, values[6:])
        batch = await consumer.receive_batch()
        while len(delivered) + len(batch) < len(values):
            delivered += batch.values
            batch = await consumer.receive_batch()
        assert delivered + batch.values == values
        assert len([h for h in broker.of(Command.SUBSCRIBE) if h["topic"].endswith("-0")]) == 1
        assert not broker.of(Command.ACK)
        await consumer.acknowledge_cumulative(batch)
        assert broker.cursors == {0: 8, 1: 0}


async def test_credit_survives_a_segment_that_leaves_and_comes_back():
    """Delivery does not stall, and nobody holds more than before."""
    broker = FakeBroker(segments=2)
    values = [b"%d" % n for n in range(400)]
    for n in range(0, 400, 10):
        broker.publish(0, values[n : n + 10])
    delivered: list[bytes] = []
    async with broker.client() as client, await client.stream_consumer("t", "s", receive_queue_size=40) as consumer:
        while len(delivered) < 400:
            delivered += await take(consumer, min(7, 400 - len(delivered)))
            await share(broker, [1])
            await share(broker, [0, 1])
            assert consumer._queue.messages <= 60
        assert delivered == values
        await broker.settle()
        assert consumer._pushed_messages - consumer._credited_messages == consumer._queue.messages == 0
        granted = sum(h["messages"] for h in broker.of(Command.FLOW))
        assert 400 <= granted <= 480


async def test_what_waited_is_the_next_owners_when_the_segment_goes_for_good():
    broker = FakeBroker(segments=2)
    broker.publish(0, [b"a", b"b", b"c"])
    async with broker.client() as client, await client.stream_consumer("t", "s") as consumer:
        message = await consumer.receive()
        await share(broker, [1])
        await consumer.acknowledge_cumulative(message)  # type: ignore[arg-type]
        await broker.until(lambda: 0 not in consumer.attachments)
        await share(broker, [0, 1])
        assert await take(consumer, 2) == [b"b", b"c"]


async def test_a_draining_segment_that_is_lost_and_comes_back_is_attached_anew():
    broker = FakeBroker(segments=2)
    broker.publish(0, [b"a", b"b"])
    async with broker.client() as client, await client.stream_consumer("t", "s") as consumer:
        await consumer.receive()
        await share(broker, [1])
        assert consumer.attachments[0].draining
        broker.last.end_consumers(0, NotOwnerError("it was moved"))
        await broker.until(lambda: 0 not in consumer.attachments)
        await share(broker, [0, 1])
        assert await take(consumer, 2) == [b"a", b"b"]  # nothing was acknowledged: O2


# -- windows -----------------------------------------------------------------------------------------------------


async def test_who_stays_gets_the_room_of_those_who_have_gone():
    """What may be sent ahead, and how seldom the broker is told, is as if the others had never been there."""
    broker = FakeBroker(segments=8)
    async with broker.client() as client, await client.stream_consumer("t", "s", receive_queue_size=80) as consumer:
        await broker.until(lambda: all(a.window for a in consumer.attachments.values()))
        smallest = consumer._window_messages
        assert smallest == 10
        await share(broker, [0])
        await broker.until(lambda: len(broker.last.consumers) == 1)
        broker.publish(0, [b"a"] * 10)
        await take(consumer, 10)
        await broker.settle()
        assert consumer.attachments[0].window == consumer._budget.whole
        assert (consumer._window_messages, consumer._window_bytes) == consumer._budget.whole
        ident = next(iter(broker.last.consumers))
        assert broker.last.credit[ident][0] == 80
        told = len(broker.of(Command.FLOW))
        broker.publish(0, [b"b"] * 19)
        await take(consumer, 19)
        await broker.settle()
        assert len(broker.of(Command.FLOW)) == told
        broker.publish(0, [b"c"])
        await take(consumer, 1)
        await broker.until(lambda: broker.last.credit[ident][0] == 80)
        await share(broker, list(range(8)))  # and as they come, less is granted again
        await broker.until(lambda: len(broker.last.consumers) == 8)
        assert consumer._window_messages == smallest
