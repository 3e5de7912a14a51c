"""Calls that start when they are made, factories that are awaited or entered, and what comes of a forgotten await."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

import engine

NUMBER = 20
PATIENCE_S = 30.0


async def received(client: engine.AsyncClient, topic: str = "t") -> list[bytes]:
    async with client.stream_consumer(topic, "check", initial_position="earliest") as consumer:
        return [message.value for message in await consumer.receive_batch(timeout=PATIENCE_S)]


async def backlog(client: engine.AsyncClient, subscription: str) -> int:
    return (await client.admin.get_stats("t"))["subscriptions"][subscription]["backlog"]


# -- sends -----------------------------------------------------------------------------------------------------------


async def test_flush_waits_for_sends_that_nothing_awaits(client: engine.AsyncClient):
    async with client.producer("t") as producer:
        sends = [asyncio.ensure_future(producer.send(b"%d" % n)) for n in range(NUMBER)]
        await producer.flush()
        assert all(send.done() for send in sends)
        producer.send(b"left alone")
    assert len(await received(client)) == NUMBER + 1


async def test_a_flush_that_nothing_awaits_sends(client: engine.AsyncClient):
    async with client.producer("t", batching=engine.Batching(max_delay=60)) as producer:
        sent = producer.submit(b"first")
        behind = producer.submit(b"second")
        producer.flush()
        assert (await asyncio.wait_for(sent, PATIENCE_S)).offset == 0
        assert (await asyncio.wait_for(behind, PATIENCE_S)).offset == 1


async def ways(call: Callable[[], Coroutine[Any, Any, Any]]) -> list[Any]:
    """The result of a call by every way in which asyncio awaits a coroutine."""
    loop = asyncio.get_running_loop()
    async with asyncio.TaskGroup() as group:
        in_group = group.create_task(call())
    twice = call()
    assert asyncio.iscoroutine(twice)
    off_loop = lambda: asyncio.run_coroutine_threadsafe(call(), loop).result(PATIENCE_S)  # noqa: E731
    return [
        in_group.result(),
        await twice,
        await twice,
        await asyncio.create_task(call()),
        await asyncio.wait_for(call(), PATIENCE_S),
        await asyncio.shield(call()),
        *await asyncio.gather(call(), call()),
        *[await each for each in asyncio.as_completed([call(), call()])],
        await asyncio.to_thread(off_loop),
    ]


async def test_a_send_is_awaited_in_every_way(client: engine.AsyncClient):
    async with client.producer("t") as producer:
        ids = await ways(lambda: producer.send(b"x"))
    assert sorted({ident.offset for ident in ids}) == list(range(len(ids) - 1))  # one was awaited twice


async def test_flush_acknowledgements_and_factories_are_awaited_in_every_way(client: engine.AsyncClient):
    async with client.producer("t") as producer, client.queue_consumer("t", "q") as consumer:
        await ways(producer.flush)
        await producer.send(b"x")
        message = await consumer.receive()
        await ways(lambda: consumer.acknowledge(message))
        await ways(lambda: consumer.negative_acknowledge(message))
        await ways(consumer.flush)
    loop = asyncio.get_running_loop()
    async with asyncio.TaskGroup() as group:
        made = group.create_task(client.producer("t"))
    off_loop = lambda: asyncio.run_coroutine_threadsafe(client.producer("t"), loop).result(PATIENCE_S)  # noqa: E731
    for producer in (
        made.result(),
        await asyncio.create_task(client.producer("t")),
        await asyncio.wait_for(client.producer("t"), PATIENCE_S),
        *await asyncio.gather(client.producer("t"), client.producer("t")),
        await asyncio.to_thread(off_loop),
    ):
        assert isinstance(producer, engine.AsyncProducer)
        await producer.close()


async def test_made_on_another_thread_a_send_starts_when_it_is_awaited(client: engine.AsyncClient):
    async with client.producer("t") as producer:
        call = await asyncio.to_thread(lambda: producer.send(b"x"))
        await producer.flush()
        assert producer.statistics().messages_sent == 0
        assert (await call).offset == 0


async def test_sends_that_wait_for_room_keep_their_order(client: engine.AsyncClient):
    """Awaited or not, and whatever fits in between; a flush behind them waits for them."""
    value = bytes(1 << 20)
    async with client.producer("t", max_pending_bytes=6 << 20) as producer:
        sends = [producer.send(value, key=b"k") for _ in range(NUMBER)]
        small = producer.send(b"small", key=b"k")
        batch = producer.send_batch([b"a", b"b"], keys=[b"k", b"k"])
        with pytest.raises(engine.QueueFullError):
            producer.send_nowait(b"not before them", key=b"k")
        with pytest.raises(engine.QueueFullError):
            producer.submit(b"not before them", key=b"k")
        await producer.flush()
        await producer.writable()
        producer.send_nowait(b"last", key=b"k")
        await batch
        ids = [await send for send in (*sends, small)]
        assert [ident.offset for ident in ids] == list(range(NUMBER + 1))
        await producer.flush()
    values = []
    async with client.stream_consumer("t", "check", initial_position="earliest") as consumer:
        while len(values) < NUMBER + 4:
            values += (await consumer.receive_batch(timeout=PATIENCE_S)).values
    assert values[NUMBER:] == [b"small", b"a", b"b", b"last"]


async def test_close_sends_what_waits_for_room(client: engine.AsyncClient):
    value = bytes(1 << 20)
    producer = await client.producer("t", max_pending_bytes=6 << 20)
    sends = [producer.send(value) for _ in range(NUMBER)]
    await producer.close()
    assert [(await send).segment_id for send in sends] == [0] * NUMBER


async def test_a_failure_that_is_never_retrieved_is_reported_by_the_loop(client: engine.AsyncClient):
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))
    async with client.producer("t") as producer:
        producer.send("text")  # type: ignore[arg-type]
    gc.collect()
    assert [type(context["exception"]) for context in told] == [engine.InvalidArgumentError]


async def test_submitted_messages(client: engine.AsyncClient):
    async with client.producer("t") as producer:
        futures = [producer.submit(b"%d" % n) for n in range(NUMBER)]
        assert [ident.offset for ident in await asyncio.gather(*futures)] == list(range(NUMBER))
        with pytest.raises(engine.InvalidArgumentError):
            producer.submit("text")  # type: ignore[arg-type]


def test_submitted_messages_of_the_blocking_client(blocking: engine.Client):
    with blocking.producer("t") as producer:
        futures = [producer.submit(b"%d" % n) for n in range(NUMBER)]
        assert [future.result(PATIENCE_S).offset for future in futures] == list(range(NUMBER))
        assert not producer.submit(b"x").cancel()
    with pytest.raises(engine.AlreadyClosedError):
        producer.submit(b"x")


# -- acknowledgements ------------------------------------------------------------------------------------------------


async def test_acknowledgements_that_nothing_awaits_are_made(client: engine.AsyncClient):
    async with client.producer("t") as producer:
        await producer.send_batch([b"%d" % n for n in range(NUMBER)])
    async with client.queue_consumer("t", "q", initial_position="earliest") as consumer:
        for _ in range(NUMBER):
            consumer.acknowledge(await consumer.receive())
    async with client.stream_consumer("t", "s", initial_position="earliest") as ordered:
        batch = await ordered.receive_batch()
        ordered.acknowledge_cumulative(batch)
    assert await backlog(client, "q") == 0
    assert await backlog(client, "s") == 0


async def test_an_acknowledgement_that_nothing_awaits_is_in_the_transaction(client: engine.AsyncClient):
    async with client.producer("t") as producer:
        await producer.send_batch([b"1", b"2"])
    async with client.queue_consumer("t", "q", initial_position="earliest") as consumer:
        async with client.transaction() as transaction:
            for _ in range(2):
                consumer.acknowledge(await consumer.receive(), transaction=transaction)
        assert await backlog(client, "q") == 0


@pytest.mark.parametrize("topics", ["t", ["t", "other"]])
async def test_unconfirmed_acknowledgements(client: engine.AsyncClient, topics: Any):
    """More than are under way at a time, so that some are merged; flush() and close() confirm them."""
    await client.admin.create_topic("other")
    async with client.producer("t") as producer:
        await producer.send_batch([b"%d" % n for n in range(100)])
    consumer: Any = await client.queue_consumer(topics, "q", initial_position="earliest")
    for _ in range(100):
        consumer.acknowledge_nowait(await consumer.receive())
    await consumer.flush()
    assert consumer.statistics().acknowledged == 100
    assert await backlog(client, "q") == 0
    ordered: Any = await client.stream_consumer(topics, "s", initial_position="earliest")
    for _ in range(100):
        ordered.acknowledge_cumulative_nowait(await ordered.receive())
    await ordered.close()
    assert await backlog(client, "s") == 0
    for one in (consumer, ordered):
        with pytest.raises(engine.InvalidArgumentError):
            (one.acknowledge_nowait if one is consumer else one.acknowledge_cumulative_nowait)(object())
    await consumer.close()
    with pytest.raises(engine.AlreadyClosedError):
        consumer.acknowledge_nowait([])


def test_unconfirmed_acknowledgements_of_the_blocking_client(blocking: engine.Client):
    with blocking.producer("t") as producer:
        producer.send_batch([b"%d" % n for n in range(100)])
        producer.flush()
    with blocking.queue_consumer("t", "q", initial_position="earliest") as consumer:
        for _ in range(100):
            consumer.acknowledge_nowait(consumer.receive())
        consumer.flush()
        statistics = consumer.statistics()
        assert (statistics.acknowledged, statistics.unacknowledged) == (100, 0)
        with pytest.raises(engine.InvalidArgumentError):
            consumer.acknowledge_nowait(3)  # type: ignore[arg-type]
    with blocking.stream_consumer("t", "s", initial_position="earliest") as ordered:
        for _ in range(100):
            ordered.acknowledge_cumulative_nowait(ordered.receive())
    assert blocking.admin.get_stats("t")["subscriptions"]["s"]["backlog"] == 0


async def test_close_raises_what_became_of_an_unconfirmed_acknowledgement(client: engine.AsyncClient):
    async with client.producer("t") as producer:
        ident = await producer.send(b"x")
    consumer = await client.queue_consumer("t", "q")
    consumer.acknowledge_nowait(engine.MessageId(7, 0, {7: 1}, ident.topic))
    with pytest.raises(engine.NotFoundError, match="no segment 7"):
        await consumer.close()
    await consumer.close()


# -- what was not awaited --------------------------------------------------------------------------------------------


async def test_what_was_not_awaited_says_so(client: engine.AsyncClient):
    for made in (client.producer("t"), client.stream_consumer("t", "s"), client.transaction()):
        uses: list[Callable[[], object]] = [
            lambda made=made: made.statistics(),
            lambda made=made: made.send(b"x", key=b"k"),
            lambda made=made: made.receive(),
            lambda made=made: iter(made),
            lambda made=made: aiter(made),
            lambda made=made: made.__enter__(),
            lambda made=made: made.close(),
        ]
        for use in uses:
            with pytest.raises(TypeError, match="must be awaited or entered") as told:
                use()
            assert isinstance(told.value, AttributeError)
        made.drop()  # else Python warns that it was never awaited


async def test_nothing_is_made_before_it_is_awaited(client: engine.AsyncClient):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        client.producer("t")  # what Python says of any coroutine that is forgotten
        gc.collect()
    assert any("never awaited" in str(warning.message) for warning in told)
    assert not await client.topic_exists("t")


async def test_a_factory_is_used_once_and_again_after_a_failure(client: engine.AsyncClient):
    making = client.producer("t")
    async with making as producer:
        with pytest.raises(engine.InvalidArgumentError, match="awaited or entered before"):
            await making
    with pytest.raises(engine.AlreadyClosedError):
        await producer.send(b"x")
    with pytest.raises(TypeError):
        client.producer("t", wrong=1)  # type: ignore[call-overload]
    async with client.producer("t", access_mode="exclusive") as alone:
        waits = client.producer("t", access_mode="exclusive")
        with pytest.raises(engine.ProducerBusyError):
            await waits
        await alone.close()
        async with waits:
            pass
