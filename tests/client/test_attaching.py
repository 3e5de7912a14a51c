"""What attachments do about connections that were lost half-way, and about segments that went away meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from engine.client import MessageId
from engine.client.client import AsyncClient
from engine.client.net.link import LinkState
from engine.errors import AlreadyClosedError, FencedError, NotOwnerError
from engine.testing.loop import run_virtual
from engine.wire.commands import Command
from tests.kit.fake_broker import FakeBroker, FakeConnection


def end_consumers(broker: FakeBroker) -> None:
    """The broker lets go of every consumer, as one that is closing does."""
    error = NotOwnerError("the broker is closing")
    for ident in [*broker.last.consumers, broker.last.registered]:
        broker.last.consumers.pop(ident, None)
        closing = {"consumer_id": ident, "code": error.code, "message": str(error)}
        broker.last.stream.send(Command.CLOSE_CONSUMER, closing)


async def test_an_id_that_ended_on_an_earlier_connection_means_nothing_on_the_next(broker: FakeBroker):
    """Ids repeat from connection to connection: a consumer attaches once, not a second time against itself."""
    broker.publish(0, [b"a"])
    async with (
        broker.client() as client,
        await client.stream_consumer("t", "s") as consumer,
        await client.producer("t", access_mode="exclusive") as producer,
    ):
        await consumer.receive()
        broker.seen.clear()
        broker.cut()
        await producer.send(b"b")
        assert (await consumer.receive()).value == b"a"  # type: ignore[union-attr]
        await asyncio.sleep(0.1)
        for command in (Command.SUBSCRIBE, Command.SCALABLE_TOPIC_SUBSCRIBE, Command.PRODUCER):
            assert len(broker.of(command)) == 1


async def test_a_registration_that_ends_with_its_connection_is_made_again_once(broker: FakeBroker, client: AsyncClient):
    async with await client.stream_consumer("t", "s"):
        for _ in range(3):
            broker.seen.clear()
            end_consumers(broker)  # and the answer to the next attempt is lost
            broker.cut()
            await broker.until(lambda: broker.last.lost)
            await asyncio.sleep(0.1)
            assert len(broker.of(Command.SCALABLE_TOPIC_SUBSCRIBE)) <= 2
            assert len({id(c) for c in broker.connections if not c.lost}) == 1


async def test_closing_while_it_attaches_tells_the_broker(broker: FakeBroker, client: AsyncClient):
    """Or the broker would hold the segment for nobody."""
    consumer = await client.stream_consumer("t", "s")
    end_consumers(broker)
    attachment = consumer.attachments[0]
    await broker.until(lambda: attachment._opening is not None and attachment._opening.state is LinkState.OPENING)
    ident = attachment._opening.ident  # type: ignore[union-attr]
    await consumer.close()
    await broker.settle()
    assert ident in [h["consumer_id"] for h in broker.of(Command.CLOSE_CONSUMER)]
    assert not broker.last.consumers


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)


async def test_a_consumer_whose_connection_ends_right_behind_the_answer_attaches_again(broker: FakeBroker):
    broker.publish(0, [b"a"])
    async with broker.client() as client, await client.stream_consumer("t", "s") as consumer:
        await consumer.receive()
        broker.hang_up_after = Command.SUBSCRIBE
        broker.cut()
        message = await consumer.receive(timeout=5)
        assert message is not None
        await asyncio.wait_for(consumer.acknowledge_cumulative(message), 60)
        assert broker.hang_up_after is None


async def test_a_producer_whose_connection_ends_right_behind_the_answer_attaches_again(broker: FakeBroker):
    """Also the first time: without the answer it would not know which numbers it has used."""
    broker.log[0] = [(0, 5)]
    broker.hang_up_after = Command.PRODUCER
    async with broker.client() as client, await client.producer("t", name="p") as producer:
        assert broker.last.producers
        for sequence in (5, 6):
            await asyncio.wait_for(producer.send(b"x"), 60)
            assert broker.log[0][-1] == (sequence, 1)
            broker.hang_up_after = Command.PRODUCER
            broker.cut()


@pytest.mark.parametrize("again", [False, True])
async def test_a_registration_whose_connection_ends_right_behind_the_answer_is_made_again(
    broker: FakeBroker, again: bool
):
    """Or the controller would count the consumer as lost and give its share to others."""
    broker.hang_up_after = None if again else Command.SCALABLE_TOPIC_SUBSCRIBE
    async with broker.client() as client, await client.stream_consumer("t", "s"):
        if again:
            broker.hang_up_after = Command.SCALABLE_TOPIC_SUBSCRIBE
            broker.cut()
        await eventually(lambda: broker.hang_up_after is None and not broker.last.lost and broker.last.registered > 0)


async def test_an_ack_that_was_lost_goes_before_messages_are_asked_for(broker: FakeBroker):
    """C2, O2: they would be delivered once more."""
    broker.publish(0, [b"a", b"b"])
    async with broker.client() as client, await client.stream_consumer("t", "s") as consumer:
        batch = await consumer.receive_batch()
        broker.confirming = False
        ack = asyncio.ensure_future(consumer.acknowledge_cumulative(batch))
        await eventually(lambda: bool(broker.of(Command.ACK)))
        broker.seen.clear()
        broker.confirming = True
        broker.cut()
        await asyncio.wait_for(ack, 60)
        await eventually(lambda: bool(broker.of(Command.FLOW)))
        seen = [command for command, _ in broker.seen if command in (Command.ACK, Command.FLOW)]
        assert seen[0] is Command.ACK


async def two_segments() -> FakeBroker:
    broker = FakeBroker(segments=2)
    broker.publish(0, [b"a0", b"a1"])
    broker.publish(1, [b"b0", b"b1"])
    return broker


async def test_an_ack_that_is_refused_for_now_is_sent_again_with_pauses(broker: FakeBroker):
    broker.publish(0, [b"a"])
    async with broker.client() as client, await client.stream_consumer("t", "s") as consumer:
        batch = await consumer.receive_batch()
        broker.refuse_acks = NotOwnerError("the lease may be over")
        ack = asyncio.ensure_future(consumer.acknowledge_cumulative(batch))
        await eventually(lambda: bool(broker.of(Command.ACK)))
        for _ in range(10):
            await broker.settle()
        assert len(broker.of(Command.ACK)) <= 3
        broker.refuse_acks = None
        await asyncio.wait_for(ack, 60)
        assert broker.cursors == {0: 1}


async def test_a_cumulative_ack_that_cannot_be_saved_says_so_and_saves_the_rest():
    """Semantics 12: never remembered optimistically. Repeatable with the same outcome."""
    broker = await two_segments()
    async with broker.client() as client, await client.stream_consumer("t", "s") as consumer:
        while len(batch := await consumer.receive_batch()) < 2 or len(batch.positions) < 2:
            pass
        broker.assigned = [1]
        broker.cut()  # and segment 0 goes to somebody else meanwhile
        await broker.until(lambda: 0 not in consumer.attachments)
        for _ in range(2):
            with pytest.raises(FencedError, match=r"segments \[0\]"):
                await consumer.acknowledge_cumulative(batch)
        assert broker.cursors == {0: 0, 1: 2}


async def test_what_was_confirmed_before_a_segment_moved_is_no_error():
    broker = await two_segments()
    async with broker.client() as client, await client.stream_consumer("t", "s") as consumer:
        while len(batch := await consumer.receive_batch()) < 2 or len(batch.positions) < 2:
            pass
        await consumer.acknowledge_cumulative(batch)
        broker.assigned = [1]
        broker.last.assign()
        await broker.until(lambda: 0 not in consumer.attachments)
        await consumer.acknowledge_cumulative(batch)
        with pytest.raises(FencedError, match=r"segments \[0\]"):
            await consumer.acknowledge_cumulative(MessageId(0, 99))
        broker.assigned = [0, 1]
        broker.last.assign()
        await broker.until(lambda: 0 in consumer.attachments and consumer.attachments[0].connected)
        await consumer.acknowledge_cumulative(batch)


async def test_an_ack_under_way_when_its_segment_moves_says_so():
    broker = await two_segments()
    async with broker.client() as client, await client.stream_consumer("t", "s") as consumer:
        while len(batch := await consumer.receive_batch()) < 2 or len(batch.positions) < 2:
            pass
        broker.confirming = False
        ack = asyncio.ensure_future(consumer.acknowledge_cumulative(batch))
        await broker.settle()
        broker.assigned, broker.confirming = [1], True
        broker.cut()
        with pytest.raises(FencedError, match=r"segments \[0\]"):
            await asyncio.wait_for(ack, 60)
        assert broker.cursors[1] == 2


@pytest.mark.parametrize("kind", ["stream", "queue"])
async def test_an_ack_under_way_when_its_consumer_closes_says_so(broker: FakeBroker, kind: str):
    broker.publish(0, [b"a"])
    async with broker.client() as client:
        make = client.stream_consumer if kind == "stream" else client.queue_consumer
        consumer = await make("t", "s")
        message = await consumer.receive()
        broker.confirming = False
        acknowledge = getattr(consumer, "acknowledge_cumulative" if kind == "stream" else "acknowledge")
        ack = asyncio.ensure_future(acknowledge(message))
        await broker.settle()
        broker.reachable = False
        broker.cut()
        await broker.settle()
        await consumer.close()
        with pytest.raises(AlreadyClosedError):
            await asyncio.wait_for(ack, 60)


async def test_who_closes_second_waits_for_the_first(broker: FakeBroker):
    """A client that closes while a producer flushes does not pull the connection from under it."""
    client = broker.client()
    producer = await client.producer("t")
    broker.holding = True
    producer.send_nowait(b"x")
    first = asyncio.ensure_future(producer.close())
    await broker.settle()
    others = [asyncio.ensure_future(close()) for close in (client.close, client.close, producer.close)]
    await broker.settle()
    assert not any(close.done() for close in (first, *others))
    broker.release()
    await asyncio.gather(first, *others)
    assert broker.log[0] == [(0, 1)]


def test_a_broker_that_drops_the_connection_instead_of_an_answer_is_not_stormed(monkeypatch: pytest.MonkeyPatch):
    """Each attempt is followed by a longer pause, however fast connections are made."""
    attempts = 0

    def drop(connection: FakeConnection, header: dict[str, object], payload: memoryview) -> None:
        nonlocal attempts
        attempts += 1
        connection.stream.abort()

    async def body() -> None:
        broker = FakeBroker()
        async with broker.client() as client:
            producer = await client.producer("t", send_timeout=60)
            with pytest.raises(TimeoutError):
                await producer.send(b"v")

    monkeypatch.setattr(FakeConnection, "producer", drop)
    run_virtual(body())
    assert 10 < attempts < 200
