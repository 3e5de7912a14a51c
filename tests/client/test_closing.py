"""A client, producer or consumer that is closed in the middle of whatever: every call ends, and says why."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from engine.client.client import AsyncClient
from engine.errors import AlreadyClosedError, ConnectError, NotFoundError
from engine.model.positions import Checkpoint
from engine.wire.commands import Command
from tests.kit.fake_broker import FakeBroker

WAIT_S = 30.0
MOMENTS = 40  # more frames than any of these calls has

Call = Callable[[AsyncClient], Awaitable[object]]


async def send(client: AsyncClient) -> None:
    producer = await client.producer("t", name="mine")
    await producer.send(b"v")
    producer.send_nowait(b"v")
    await producer.flush()
    await producer.send_batch([b"v", b"w"])
    await producer.close()


async def stream(client: AsyncClient) -> None:
    consumer = await client.stream_consumer("t", "s")
    message = await consumer.receive()
    assert message is not None
    await consumer.acknowledge_cumulative(message)
    await consumer.close()


async def queue(client: AsyncClient) -> None:
    consumer = await client.queue_consumer("t", "s")
    message = await consumer.receive()
    assert message is not None
    await consumer.acknowledge(message)
    await consumer.close()


async def checkpoint(client: AsyncClient) -> None:
    consumer = await client.checkpoint_consumer("t", start=Checkpoint.earliest(), group="g")
    await consumer.receive()
    await consumer.seek(await consumer.checkpoint())
    await consumer.close()


async def ranges(client: AsyncClient) -> None:
    reader = await client.range_reader("t", {0: (0, 1)})
    async for _ in reader:
        pass
    await reader.close()


async def view(client: AsyncClient) -> None:
    found = await client.topic_view("t")
    await found.segments(exact=True)
    await found.resolve(Checkpoint.latest())
    await found.close()


async def exists(client: AsyncClient) -> None:
    assert await client.topic_exists("t")


async def transaction(client: AsyncClient) -> None:
    producer = await client.producer("t")
    async with client.transaction() as begun:
        await producer.send(b"v", transaction=begun)
    begun = await client.transaction()
    producer.send_nowait(b"v", transaction=begun)
    await begun.abort()


CALLS: dict[str, Call] = {
    "send": send,
    "stream": stream,
    "queue": queue,
    "checkpoint": checkpoint,
    "ranges": ranges,
    "view": view,
    "exists": exists,
    "transaction": transaction,
    "connect": AsyncClient.connect,
}


class Moment(list[Any]):
    """What the broker has seen; calls `act` when it has seen so much."""

    def __init__(self, count: int, act: Callable[[], object]) -> None:
        super().__init__()
        self._count, self._act = count, act

    def append(self, item: Any) -> None:
        super().append(item)
        if len(self) == self._count:
            self._act()


async def outcome_when_closed(call: Call, moment: int, *, answers: bool) -> BaseException | None:
    """What becomes of a call when the client is closed as the broker gets its so many-th frame."""
    broker = FakeBroker()
    broker.publish(0, [b"0"])
    client = broker.client()
    closing: list[asyncio.Task[None]] = []

    def close() -> None:
        closing.append(asyncio.ensure_future(client.close()))
        if not answers:
            broker.cut()

    broker.seen = Moment(moment, close)
    async with asyncio.timeout(WAIT_S):
        (outcome,) = await asyncio.gather(call(client), return_exceptions=True)
        await asyncio.gather(client.close(), *closing)
    return outcome


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("answers", [True, False])
async def test_a_client_closed_at_any_moment_of_a_call(name: str, answers: bool):
    """Also when the connection is lost at that moment."""
    ended = 0
    for moment in range(1, MOMENTS):
        outcome = await outcome_when_closed(CALLS[name], moment, answers=answers)
        assert outcome is None or isinstance(outcome, AlreadyClosedError), (moment, repr(outcome))
        ended += outcome is not None
    assert 1 <= ended < MOMENTS - 5, "some moments are inside of the call, and the last ones behind it"


@pytest.mark.parametrize("name", CALLS)
async def test_every_call_of_a_closed_client_says_so(broker: FakeBroker, name: str):
    client = broker.client()
    await client.connect()
    await client.close()
    with pytest.raises(AlreadyClosedError):
        await CALLS[name](client)


@pytest.mark.parametrize("name", CALLS)
async def test_a_client_that_closes_while_it_connects(broker: FakeBroker, name: str):
    broker.open_door.clear()
    client = broker.client()
    calling = asyncio.ensure_future(CALLS[name](client))
    await broker.settle()
    await client.close()
    with pytest.raises(AlreadyClosedError):
        await calling


@pytest.mark.parametrize("name", [name for name in CALLS if name != "connect"])
async def test_a_client_that_closes_while_its_broker_is_away(broker: FakeBroker, name: str):
    client = broker.client()
    await client.connect()
    broker.reachable = False
    broker.cut()
    calling = asyncio.ensure_future(CALLS[name](client))
    await broker.settle()
    await client.close()
    with pytest.raises(AlreadyClosedError):
        await calling


async def test_what_is_made_while_its_client_closes_is_closed(broker: FakeBroker):
    """The closing waits for a flush; whatever is asked for meanwhile is refused at once."""
    client = broker.client()
    producer = await client.producer("t")
    broker.holding = True
    sending = asyncio.ensure_future(producer.send(b"v"))
    await broker.until(lambda: bool(broker.of(Command.SEND)))
    closing = asyncio.ensure_future(client.close())
    await broker.settle()
    for call in CALLS.values():
        if call is not AsyncClient.connect:
            with pytest.raises(AlreadyClosedError):
                await call(client)
    with pytest.raises(AlreadyClosedError):
        await producer.send(b"w")
    with pytest.raises(AlreadyClosedError):
        producer.send_nowait(b"w")
    with pytest.raises(AlreadyClosedError):
        await producer.send_batch([b"w"])
    broker.release()
    await sending
    await closing
    assert broker.log[0] == [(0, 1)]


async def test_a_start_that_is_cancelled_by_its_caller_is_cancelled(broker: FakeBroker):
    broker.open_door.clear()
    client = broker.client()
    making = asyncio.ensure_future(client.producer("t"))
    await broker.settle()
    making.cancel()
    with pytest.raises(asyncio.CancelledError):
        await making
    broker.open_door.set()
    await client.close()


async def test_a_start_that_fails_by_itself_says_why(broker: FakeBroker):
    client = broker.client()
    broker.refuse_attach = lambda name: NotFoundError("there is none")
    with pytest.raises(NotFoundError):
        await client.producer("t", name="mine")
    broker.reachable = False
    with pytest.raises(ConnectError):
        await broker.client().producer("t")
    await client.close()


@pytest.mark.parametrize("moment", range(1, 12))
async def test_a_producer_closed_in_the_middle_loses_nothing_it_has_taken(moment: int):
    """What was taken before close() is stored and answered; what comes behind is refused, and not stored."""
    broker = FakeBroker()
    client = broker.client()
    producer = await client.producer("t")
    taken: list[asyncio.Future[Any]] = []
    refused = 0
    for number in range(12):
        if number == moment:
            closing = asyncio.ensure_future(producer.close())
            await asyncio.sleep(0)
        send = asyncio.ensure_future(producer.send(b"%d" % number))
        await asyncio.sleep(0)
        taken.append(send)
    outcomes = await asyncio.gather(*taken, return_exceptions=True)
    await closing
    refused = sum(isinstance(outcome, AlreadyClosedError) for outcome in outcomes)
    assert refused == 12 - moment
    assert sum(count for _, count in broker.log[0]) == moment
    await client.close()
