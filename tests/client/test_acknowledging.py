"""One ACK of a queue consumer: ended by its answer, sent again after a loss, late, refused, cancelled, dropped."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engine.client.client import AsyncClient
from engine.errors import InvalidArgumentError, NotOwnerError, TimeoutError
from engine.wire.commands import Command
from tests.kit.fake_broker import FakeBroker


async def received(broker: FakeBroker, client: AsyncClient) -> tuple[Any, Any]:
    """A queue consumer, and its message."""
    broker.publish(0, [b"a", b"b"])
    consumer = await client.queue_consumer("t", "s")
    return consumer, await consumer.receive()


async def test_no_task_waits_for_an_answer(broker: FakeBroker, client: AsyncClient):
    consumer, message = await received(broker, client)
    before = asyncio.all_tasks()
    ack = consumer.acknowledge(message)
    assert asyncio.all_tasks() == before
    await ack
    assert (consumer.statistics().acknowledged, consumer.statistics().unacknowledged) == (1, 0)


async def test_it_ends_in_the_step_that_receives_its_answer(broker: FakeBroker, client: AsyncClient):
    consumer, message = await received(broker, client)
    broker.confirming = False
    ack = consumer.acknowledge(message)
    await broker.until(lambda: broker.of(Command.ACK))
    (header,) = broker.of(Command.ACK)
    assert not ack.done()
    broker.last.answer(header)
    await broker.until(lambda: consumer.statistics().acknowledged)
    assert ack.done()


async def test_after_a_loss_it_is_sent_again_before_messages_are_asked_for(broker: FakeBroker, client: AsyncClient):
    """C2, O2: they would be delivered once more."""
    consumer, message = await received(broker, client)
    broker.confirming = False
    ack = consumer.acknowledge(message)
    await broker.until(lambda: broker.of(Command.ACK))
    broker.seen.clear()
    broker.confirming = True
    broker.cut()
    await asyncio.wait_for(ack, 60)
    await broker.until(lambda: broker.of(Command.FLOW))
    seen = [command for command, _ in broker.seen if command in (Command.ACK, Command.FLOW)]
    assert seen[0] is Command.ACK
    assert consumer.statistics().acknowledged == 1


async def test_one_that_is_refused_for_now_is_sent_again(broker: FakeBroker, client: AsyncClient):
    consumer, message = await received(broker, client)
    broker.refuse_acks = NotOwnerError("the lease may be over")
    ack = consumer.acknowledge(message)
    await broker.until(lambda: len(broker.of(Command.ACK)) > 1)
    assert not ack.done()
    broker.refuse_acks = None
    await asyncio.wait_for(ack, 60)


async def test_one_that_is_refused_raises_and_the_message_is_held_again(broker: FakeBroker, client: AsyncClient):
    consumer, message = await received(broker, client)
    broker.refuse_acks = InvalidArgumentError("no such offset")
    with pytest.raises(InvalidArgumentError, match="no such offset"):
        await consumer.acknowledge(message)
    assert (consumer.statistics().acknowledged, consumer.statistics().unacknowledged) == (0, 1)
    await consumer.negative_acknowledge(message, delay=0)
    await broker.until(lambda: broker.of(Command.REDELIVER))


async def test_one_that_is_not_answered_in_time_raises_and_the_message_is_held_again(broker: FakeBroker):
    async with broker.client(operation_timeout=0.05) as client:
        consumer, message = await received(broker, client)
        broker.confirming = False
        with pytest.raises(TimeoutError, match="an acknowledgement was not confirmed within"):
            await consumer.acknowledge(message)
        assert consumer.statistics().unacknowledged == 1
        (header,) = broker.of(Command.ACK)
        broker.last.answer(header)  # too late: nothing comes of it
        await broker.settle()
        assert consumer.statistics().acknowledged == 0
        broker.confirming = True


async def test_one_that_is_lost_and_not_sent_in_time_raises(broker: FakeBroker):
    async with broker.client(operation_timeout=0.05) as client:
        consumer, message = await received(broker, client)
        broker.confirming = False
        ack = consumer.acknowledge(message)
        await broker.until(lambda: broker.of(Command.ACK))
        broker.reachable = False
        broker.cut()
        with pytest.raises(TimeoutError, match="not confirmed"):
            await ack
        broker.reachable = True


@pytest.mark.parametrize("cancelled", [True, False])
async def test_the_answer_counts_when_nothing_waits_for_it(broker: FakeBroker, client: AsyncClient, cancelled: bool):
    consumer, message = await received(broker, client)
    broker.confirming = False
    if cancelled:
        waiting = asyncio.ensure_future(asyncio.wait_for(consumer.acknowledge(message), 60))
        await broker.until(lambda: broker.of(Command.ACK))
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    else:
        consumer.acknowledge(message)
        await broker.until(lambda: broker.of(Command.ACK))
    (header,) = broker.of(Command.ACK)
    broker.last.answer(header)
    await broker.until(lambda: consumer.statistics().acknowledged == 1)
