"""What consumers do about order, credit, acknowledgements, lost connections and the end of segments."""

from __future__ import annotations

import asyncio

import pytest

from engine.client import Checkpoint, MessageId
from engine.client.client import AsyncClient
from engine.client.topic.session import TopicSession
from engine.errors import (
    AlreadyClosedError,
    CorruptionError,
    InvalidArgumentError,
    NotFoundError,
    TimeoutError,
)
from engine.wire.commands import Command
from tests.kit.fake_broker import FakeBroker

# -- receiving ---------------------------------------------------------------------------------------------------


async def test_receive_and_receive_batch(broker: FakeBroker):
    broker.publish(0, [b"a", b"b", b"c"])
    async with broker.client() as client, await client.stream_consumer("t", "s") as consumer:
        message = await consumer.receive()
        assert message is not None
        assert (message.value, message.offset, message.topic) == (b"a", 0, "topic://public/default/t")
        batch = await consumer.receive_batch(max_messages=10)
        assert batch.values == [b"b", b"c"]
        assert await consumer.receive(timeout=0) is None
        assert await consumer.receive(timeout=0.01) is None
        assert len(await consumer.receive_batch(timeout=0.01)) == 0


async def test_receive_order_is_first_come_first_served(broker: FakeBroker, client: AsyncClient):
    """Semantics 41."""
    async with await client.stream_consumer("t", "s") as consumer:
        receives = [asyncio.ensure_future(consumer.receive()) for _ in range(3)]
        await broker.settle()
        broker.publish(0, [b"0", b"1", b"2"])
        messages = await asyncio.gather(*receives)
        assert [m.value for m in messages if m] == [b"0", b"1", b"2"]


@pytest.mark.parametrize("kind", ["queue", "checkpoint"])
async def test_a_consumer_that_closes_attaches_to_nothing_new(broker: FakeBroker, kind: str, client: AsyncClient):
    """A layout that comes while it says goodbye."""
    consumer = await (client.queue_consumer("t", "s") if kind == "queue" else client.checkpoint_consumer("t"))
    closing = asyncio.ensure_future(consumer.close())
    with pytest.raises(AlreadyClosedError):
        await consumer.receive()
    broker.reshape([0], 2)
    consumer.layout_changed(await TopicSession(consumer.pool, consumer.session.topic).open(create=False))
    await closing
    await broker.settle()
    assert all(attachment.closed for attachment in consumer.attachments.values())


async def test_a_cancelled_receive_consumes_nothing(broker: FakeBroker, client: AsyncClient):
    """Semantics 41, also when the message is there and the receive has been woken but has not run."""
    async with await client.stream_consumer("t", "s") as consumer:
        receives = [asyncio.ensure_future(consumer.receive()) for _ in range(3)]
        await broker.settle()
        receives[1].cancel()
        broker.publish(0, [b"0", b"1"])
        await broker.until(lambda: consumer._queue.messages == 2)
        receives[0].cancel()  # woken by now
        last = await receives[2]
        assert last is not None
        assert last.value == b"0"
        following = await consumer.receive()
        assert following is not None
        assert following.value == b"1"


async def test_a_receive_that_comes_later_does_not_overtake(broker: FakeBroker, client: AsyncClient):
    async with await client.stream_consumer("t", "s") as consumer:
        first = asyncio.ensure_future(consumer.receive())
        await broker.settle()
        broker.publish(0, [b"0", b"1"])
        await broker.until(lambda: consumer._queue.messages == 2)
        second = await consumer.receive()
        assert second is not None
        assert second.value == b"1"
        assert (await first).value == b"0"  # type: ignore[union-attr]


async def test_close_fails_receives_that_wait(broker: FakeBroker, client: AsyncClient):
    """Semantics 41; and everything after it, iteration ends."""
    consumer = await client.stream_consumer("t", "s")
    waiting = asyncio.ensure_future(consumer.receive())
    iterating = asyncio.ensure_future(_collect(consumer))
    await broker.settle()
    await consumer.close()
    await consumer.close()
    with pytest.raises(AlreadyClosedError):
        await waiting
    assert await iterating == []
    with pytest.raises(AlreadyClosedError):
        await consumer.receive()
    with pytest.raises(AlreadyClosedError):
        await consumer.receive_batch(timeout=0)


async def _collect(consumer) -> list[bytes]:
    return [message.value async for message in consumer]


async def test_credit_is_returned_as_messages_are_taken(broker: FakeBroker):
    for n in range(40):
        broker.publish(0, [b"%d" % n] * 10)
    async with broker.client() as client, await client.stream_consumer("t", "s", receive_queue_size=40) as consumer:
        await broker.settle()
        assert 40 <= consumer.statistics().messages_queued <= 50
        values = [(await consumer.receive()).value for _ in range(400)]  # type: ignore[union-attr]
        assert values == [b"%d" % n for n in range(40) for _ in range(10)]
        granted = sum(h["messages"] for h in broker.of(Command.FLOW))
        assert 400 <= granted <= 440
        assert len(broker.of(Command.FLOW)) <= 45


async def test_damaged_data_is_an_error_and_never_a_message(broker: FakeBroker):
    """D6."""
    broker.publish(0, [b"good"])
    broker.publish(0, [b"value"])
    first, count, data = broker.blocks[0][1]
    broken = bytearray(data)
    broken[data.index(b"value")] ^= 1
    broker.blocks[0][1] = (first, count, bytes(broken))
    async with broker.client() as client:
        consumer = await client.checkpoint_consumer("t", start=Checkpoint.earliest())
        assert (await consumer.receive()).value == b"good"  # type: ignore[union-attr]
        with pytest.raises(CorruptionError, match="segment 0, offsets 1"):
            await consumer.receive()


# -- stream ------------------------------------------------------------------------------------------------------


async def test_a_cumulative_ack_is_the_position_vector_of_its_message():
    """Semantics 11: every segment advances to what had been delivered by then, never beyond."""
    broker = FakeBroker(segments=2)
    async with broker.client() as client, await client.stream_consumer("t", "s") as consumer:
        broker.publish(0, [b"a0", b"a1"])
        a0 = await consumer.receive()
        broker.publish(1, [b"b0", b"b1"])
        a1 = await consumer.receive()
        b0 = await consumer.receive()
        await consumer.receive()
        assert (a0.value, a1.value, b0.value) == (b"a0", b"a1", b"b0")  # type: ignore[union-attr]
        await consumer.acknowledge_cumulative(a1)
        assert broker.cursors == {0: 2, 1: 0}
        await consumer.acknowledge_cumulative(b0.id)  # type: ignore[union-attr]
        assert broker.cursors == {0: 2, 1: 1}
        await consumer.acknowledge_cumulative(a0)  # older: no harm
        assert broker.cursors == {0: 2, 1: 1}


async def test_acknowledging_a_batch_acknowledges_its_last_message():
    broker = FakeBroker(segments=2)
    broker.publish(0, [b"a"] * 3)
    broker.publish(1, [b"b"] * 3)
    async with broker.client() as client, await client.stream_consumer("t", "s") as consumer:
        got = 0
        while got < 5:
            batch = await consumer.receive_batch(max_messages=5 - got)
            got += len(batch)
        await consumer.acknowledge_cumulative(batch)
        assert sum(broker.cursors.values()) == 5
        await consumer.acknowledge_cumulative(batch[:0])  # nothing in it: nothing done


async def test_an_ack_is_remembered_only_when_confirmed(broker: FakeBroker):
    """Semantics 12: an ack lost with its connection is sent again, an id from before stays valid."""
    broker.publish(0, [b"a", b"b"])
    async with broker.client() as client, await client.stream_consumer("t", "s") as consumer:
        batch = await consumer.receive_batch()
        broker.confirming = False
        ack = asyncio.ensure_future(consumer.acknowledge_cumulative(batch[0]))
        await broker.settle()
        assert not ack.done()
        broker.confirming = True
        broker.cut()
        await asyncio.wait_for(ack, 60)
        assert broker.cursors == {0: 1}
        again = await consumer.receive()
        assert again is not None
        assert again.value == b"b"  # the ack came before the credit of the new attachment
        kept = MessageId.from_bytes(batch.last_id.to_bytes())
        await consumer.acknowledge_cumulative(kept)
        assert broker.cursors == {0: 2}


async def test_reconnect_restarts_behind_the_last_confirmed_ack(broker: FakeBroker):
    """O2."""
    broker.publish(0, [b"%d" % n for n in range(6)])
    async with broker.client() as client, await client.stream_consumer("t", "s") as consumer:
        batch = await consumer.receive_batch(max_messages=4)
        await consumer.acknowledge_cumulative(batch[1])
        broker.cut()
        await asyncio.sleep(0.05)
        assert (await consumer.receive_batch()).values == [b"2", b"3", b"4", b"5"]


async def test_what_is_acknowledged_after_a_reconnect_is_not_delivered_once_more(broker: FakeBroker):
    broker.publish(0, [b"%d" % n for n in range(6)])
    async with broker.client() as client, await client.stream_consumer("t", "s") as consumer:
        batch = await consumer.receive_batch(max_messages=4)
        broker.cut()
        await broker.until(lambda: len(broker.connections) == 2)
        await broker.until(lambda: consumer._queue.messages == 6)
        await consumer.acknowledge_cumulative(batch)
        assert (await consumer.receive_batch()).values == [b"4", b"5"]


async def test_closing_acknowledges_nothing_and_leaves_by_instance(broker: FakeBroker):
    """Semantics 13."""
    broker.publish(0, [b"a"])
    async with broker.client() as client:
        consumer = await client.stream_consumer("t", "s", name="me")
        await consumer.receive()
        await consumer.close()
    assert not broker.of(Command.ACK)
    registered = broker.of(Command.SCALABLE_TOPIC_SUBSCRIBE)[0]
    left = broker.of(Command.SCALABLE_TOPIC_UNSUBSCRIBE)[0]
    assert registered["instance"] == left["instance"]
    assert registered["consumer_name"] == "me"


async def test_a_segment_that_moves_away_is_released_when_its_delivered_messages_are_acknowledged():
    """Semantics 18."""
    broker = FakeBroker(segments=2)
    broker.publish(0, [b"a", b"b"])
    async with broker.client() as client, await client.stream_consumer("t", "s") as consumer:
        message = await consumer.receive()
        broker.assigned = [1]
        broker.last.assign()
        await broker.settle()
        assert len(broker.last.consumers) == 2
        assert await consumer.receive(timeout=0) is None  # b is the next owner's
        await consumer.acknowledge_cumulative(message)
        await broker.settle()
        assert [segment for segment, _ in broker.last.consumers.values()] == [1]
        assert broker.cursors[0] == 1
        broker.assigned = [0, 1]
        broker.last.assign()
        again = await consumer.receive()
        assert again is not None
        assert again.value == b"b"


async def test_a_segment_with_nothing_delivered_moves_at_once():
    broker = FakeBroker(segments=2)
    broker.publish(0, [b"a"])
    async with broker.client() as client, await client.stream_consumer("t", "s"):
        broker.assigned = [1]
        broker.last.assign()
        await broker.settle()
        assert [segment for segment, _ in broker.last.consumers.values()] == [1]


async def test_an_idle_consumer_is_registered_and_assigned_nothing(broker: FakeBroker):
    """Semantics 15."""
    broker.assigned = []
    async with broker.client() as client, await client.stream_consumer("t", "s") as consumer:
        assert await consumer.receive(timeout=0.01) is None
        broker.publish(0, [b"a"])
        broker.assigned = [0]
        broker.last.assign()
        assert (await consumer.receive()).value == b"a"  # type: ignore[union-attr]


async def test_what_cannot_be_acknowledged(broker: FakeBroker):
    broker.publish(0, [b"a"])
    async with broker.client() as client, await client.stream_consumer("t", "s") as consumer:
        for wrong in (b"x", 3, None, MessageId.latest, MessageId.earliest, MessageId(0, 0, {}, "topic://a/b/c")):
            with pytest.raises(InvalidArgumentError):
                await consumer.acknowledge_cumulative(wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError):
            await consumer.acknowledge_cumulative(MessageId(0, 0), transaction=object())  # type: ignore[arg-type]


async def test_an_ack_that_nobody_confirms_runs_out_of_time(broker: FakeBroker):
    broker.publish(0, [b"a"])
    async with broker.client(operation_timeout=0.05) as client:
        consumer = await client.stream_consumer("t", "s")
        broker.confirming = False
        with pytest.raises(TimeoutError):
            await consumer.acknowledge_cumulative(await consumer.receive())  # type: ignore[arg-type]
        await consumer.close()


# -- queue -------------------------------------------------------------------------------------------------------


async def test_a_queue_consumer_attaches_to_every_segment():
    """Semantics 10: active and sealed."""
    broker = FakeBroker(segments=3)
    broker.sealed[0] = 1
    broker.publish(0, [b"old"])
    broker.publish(2, [b"new"])
    async with broker.client() as client, await client.queue_consumer("t", "s") as consumer:
        values = {(await consumer.receive()).value for _ in range(2)}  # type: ignore[union-attr]
        assert values == {b"old", b"new"}
        assert {h["mode"] for h in broker.of(Command.SUBSCRIBE)} == {"queue"}


async def test_a_queue_consumer_acknowledges_ranges():
    broker = FakeBroker(segments=1)
    broker.publish(0, [b"a", b"b"])
    broker.publish(0, [b"c", b"d", b"e"])
    async with broker.client() as client, await client.queue_consumer("t", "s") as consumer:
        await broker.settle()
        await consumer.acknowledge(await consumer.receive())  # type: ignore[arg-type]
        await consumer.acknowledge(await consumer.receive_batch(max_messages=3))
        last = await consumer.receive()
        await consumer.negative_acknowledge(last.id, delay=0)  # type: ignore[union-attr]
        await broker.until(lambda: broker.of(Command.REDELIVER))
        assert [h["ranges"] for h in broker.of(Command.ACK)] == [[[0, 0]], [[1, 3]]]
        assert [h["ranges"] for h in broker.of(Command.REDELIVER)] == [[[4, 4]]]


async def test_c2_a_message_acknowledged_after_a_reconnect_is_not_delivered_once_more():
    broker = FakeBroker()
    broker.publish(0, [b"a", b"b", b"c"])
    async with broker.client() as client, await client.queue_consumer("t", "s") as consumer:
        batch = await consumer.receive_batch()
        broker.cut()
        await broker.until(lambda: len(broker.connections) == 2)
        await broker.until(lambda: consumer._queue.messages == 3)
        await consumer.acknowledge(batch[1])
        assert (await consumer.receive_batch()).values == [b"a", b"c"]


async def test_a_queue_consumer_lets_a_sealed_segment_go_when_it_is_drained():
    broker = FakeBroker(segments=2)
    broker.publish(0, [b"a"])
    async with broker.client() as client, await client.queue_consumer("t", "s") as consumer:
        message = await consumer.receive()
        assert message is not None
        await consumer.acknowledge(message)
        broker.sealed[0] = 1
        broker.last.feed()
        await broker.settle()
        assert consumer.statistics().segments == 1
        await consumer.acknowledge(message)  # acknowledged before: no harm
        with pytest.raises(NotFoundError):
            await consumer.acknowledge(MessageId(77, 0))


async def test_options_of_later_versions_are_refused_by_name(client: AsyncClient):
    for name, value in {"ack_timeout": 0, "nack_backoff": "1", "dead_letter": 1, "priority": -1}.items():
        with pytest.raises(InvalidArgumentError, match=name):
            await client.queue_consumer("t", "s", **{name: value})  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="namespace"):
        await client.stream_consumer("t", "s", namespace="a/b")
    with pytest.raises(InvalidArgumentError, match="initial_position"):
        await client.stream_consumer("t", "s", initial_position="middle")
    with pytest.raises(InvalidArgumentError):
        await client.checkpoint_consumer("t", start=3)  # type: ignore[arg-type]
