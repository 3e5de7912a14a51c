"""The asyncio client of Python's wheel, whose producers batch unless told otherwise."""

from __future__ import annotations

import asyncio
from typing import Any

import pulsar
import pulsar.asyncio
import pytest
from pulsar.schema import StringSchema

from tests.pulsar.conftest import EARLIEST, service_url

WAIT_S = 60.0


@pytest.fixture
async def aclient(served):
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    made = pulsar.asyncio.Client(service_url(served), logger=quiet, operation_timeout_seconds=60)
    yield made
    await made.close()


async def take(consumer: Any, count: int) -> list[Any]:
    return [await asyncio.wait_for(consumer.receive(), WAIT_S) for _ in range(count)]


async def test_many_sends_at_once_come_in_order(aclient, topic):
    producer = await aclient.create_producer(topic, schema=StringSchema())
    consumer = await aclient.subscribe(topic, "s", schema=StringSchema(), initial_position=EARLIEST)
    ids = await asyncio.gather(*(producer.send(f"{n}", partition_key="k", properties={"n": "p"}) for n in range(100)))
    got = await take(consumer, 100)
    assert [message.value() for message in got] == [f"{n}" for n in range(100)]
    assert [str(message.message_id()) for message in got] == [str(ident) for ident in ids]
    assert len({ident.entry_id() for ident in ids}) < 100
    assert producer.last_sequence_id() == 99
    await producer.close()
    assert not producer.is_connected()


async def test_acknowledgements_redelivery_and_seek(aclient, topic):
    producer = await aclient.create_producer(topic, batching_enabled=False)
    options = {"initial_position": EARLIEST, "negative_ack_redelivery_delay_ms": 100}
    consumer = await aclient.subscribe(topic, "s", pulsar.ConsumerType.Shared, **options)
    for n in range(4):
        await producer.send(b"%d" % n)
    first, second, third, fourth = await take(consumer, 4)
    for message in (first, third, fourth):
        await consumer.acknowledge(message)
    await consumer.negative_acknowledge(second)
    (again,) = await take(consumer, 1)
    assert (again.data(), again.redelivery_count()) == (b"1", 1)
    consumer.redeliver_unacknowledged_messages()
    (again,) = await take(consumer, 1)
    await consumer.acknowledge(again)
    assert (await consumer.get_last_message_id()) == fourth.message_id()
    await consumer.seek(pulsar.MessageId.wrap(first.message_id()))
    assert [message.data() for message in await take(consumer, 3)] == [b"1", b"2", b"3"]
    await consumer.close()
    ordered = await aclient.subscribe(topic, "o", initial_position=EARLIEST)
    await ordered.acknowledge_cumulative((await take(ordered, 3))[-1])
    await ordered.close()
    ordered = await aclient.subscribe(topic, "o")
    assert [message.data() for message in await take(ordered, 1)] == [b"3"]
    await ordered.unsubscribe()


async def test_readers_and_partitions(served, aclient, topic):
    served.admin.create_topic(topic, properties={"pulsar.partitions": "2"})
    names = [f"{topic}-partition-{n}" for n in range(2)]
    assert await aclient.get_topic_partitions(topic) == names
    producer = await aclient.create_producer(topic, message_router=lambda message, count: int(message.data()) % count)
    await asyncio.gather(*(producer.send(b"%d" % n) for n in range(6)))
    reader = await aclient.create_reader(names[1], pulsar.MessageId.earliest)
    got = []
    while await reader.has_message_available():
        got.append((await asyncio.wait_for(reader.read_next(), WAIT_S)).data())
    assert got == [b"1", b"3", b"5"]
    await reader.seek(pulsar.MessageId.wrap(pulsar.MessageId.earliest))
    assert (await asyncio.wait_for(reader.read_next(), WAIT_S)).data() == b"1"


async def test_what_is_refused_is_an_exception_of_its_kind(aclient, topic):
    consumer = await aclient.subscribe(topic, "s")
    assert consumer.subscription_name() == "s"
    with pytest.raises(pulsar.asyncio.PulsarException) as busy:
        await aclient.subscribe(topic, "s")
    assert busy.value.error() == pulsar.Result.ConsumerBusy
    with pytest.raises(pulsar.asyncio.PulsarException) as refused:
        await aclient.subscribe(topic, "c", is_read_compacted=True)
    assert refused.value.error() == pulsar.Result.NotAllowedError
