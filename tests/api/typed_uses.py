"""What type checkers know of the API; `tests/tidy/test_typed_pages.py` has them read this file."""

from __future__ import annotations

import asyncio
import concurrent.futures
from dataclasses import dataclass
from typing import Any, Literal, assert_type

import engine


@dataclass
class Order:
    """A value with a schema."""

    number: int


def blocking(client: engine.Client) -> None:
    """The blocking client."""
    with client.producer("t") as producer:
        assert_type(producer.send(b"x"), engine.MessageId)
        producer.send(memoryview(b"x"))
        producer.send("text")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        assert_type(producer.submit(b"x"), concurrent.futures.Future[engine.MessageId])
        takes_bytes(producer)
    with client.stream_consumer("t", "s", initial_position="earliest") as consumer:
        assert_type(consumer, engine.StreamConsumer[bytes])
        assert_type(consumer.receive(), engine.Message[bytes])
        assert_type(consumer.receive(timeout=1.0), engine.Message[bytes] | None)
        assert_type(consumer.receive_batch().values, list[bytes])
        for message in consumer:
            assert_type(message.value, bytes)
    client.stream_consumer("t", "s", initial_position="first")  # type: ignore[call-overload]  # pyright: ignore
    assert_type(client.producer("t", schema=str), engine.Producer[str])
    assert_type(client.producer("t", schema=Order), engine.Producer[Order])
    assert_type(client.producer("t", schema=engine.Schema.avro(Order)), engine.Producer[Order])
    assert_type(client.producer("t", schema=engine.Schema.json()), engine.Producer[Any])
    assert_type(client.queue_consumer(["a", "b"], "s", schema=Order), engine.QueueConsumer[Order])
    assert_type(client.checkpoint_consumer("t", schema=str).receive().value, str)
    client.producer("t", schema=Order).send(Order(1))
    client.producer("t", schema=Order).send(b"x")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert_type(client.admin.get_metadata("t")["segments"]["0"]["state"], Literal["ACTIVE", "SEALED"])
    assert_type(client.admin.get_stats("t")["subscriptions"]["s"]["backlog"], int)


def takes_bytes(producer: engine.Producer[bytes]) -> None:
    """A producer of any buffer is one of bytes."""
    producer.send(b"x")


async def awaited(client: engine.AsyncClient) -> None:
    """The asynchronous client."""
    producer = await client.producer("t", schema=Order)
    assert_type(producer, engine.AsyncProducer[Order])
    assert_type(await producer.send(Order(1)), engine.MessageId)
    assert_type(producer.submit(Order(1)), asyncio.Future[engine.MessageId])
    assert_type(await asyncio.create_task(producer.send(Order(1))), engine.MessageId)
    await asyncio.wait_for(producer.flush(), 1.0)
    async with client.producer("t") as plain, client.queue_consumer("t", "q") as queue:
        await plain.send(b"x")
        assert_type(await queue.receive(), engine.Message[bytes])
        assert_type(await queue.receive(timeout=1.0), engine.Message[bytes] | None)
        async for message in queue:
            assert_type(message.value, bytes)
            queue.acknowledge_nowait(message)
    several = await client.stream_consumer(["a", "b"], "s", schema=str)
    assert_type(several, engine.AsyncMultiStreamConsumer[str])
    made = client.producer("t")
    made.flush()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
