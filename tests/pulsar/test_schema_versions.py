"""Messages of several versions of a topic's schema: each comes with the one that it was written with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pulsar
import pytest
from pulsar.schema import AvroSchema, JsonSchema, Record, String

import engine
from engine._native.format.entry import Entry, walk
from engine._native.pulsar.delivered import frame_of
from engine.pulsar import server_errors
from engine.pulsar.consumer import _by_version
from engine.pulsar.messages import MessageMetadata
from engine.pulsar.payloads import Routing, published
from engine.pulsar.schemas import VERSION_PROPERTY
from tests.pulsar.conftest import EARLIEST, WAIT_MS, connect, is_quiet, service_url, take
from tests.pulsar.opaque import KEYS, metadata_of, send_of
from tests.pulsar.raw import Raw, framed_send, greeted
from tests.reference.pulsar_reference import PulsarMessage, numbered, payload_of, read_frame

FIRST, SECOND = bytes(8), bytes(7) + b"\x01"
DEFINITIONS = [
    b'{"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]}',
    b'{"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}, {"name": "m", "type": "int", '
    b'"default": 0}]}',
]


def record(named: str, **fields: Any) -> Any:
    """A class of records, with the name that its definition has."""
    return type(Record)(named, (Record,), fields)


def note() -> String:
    return String(default="none", required_default=True)


Order = record("Order", name=String())
NotedOrder = record("Order", name=String(), note=note())
SCHEMAS = pytest.mark.parametrize("schema", [AvroSchema, JsonSchema])


AS_NEW = [("n0", "none", 0), ("n1", "new", 1), ("n2", "none", 0), ("n3", "new", 1)]
AS_OLD = [(name, None, version) for name, _, version in AS_NEW]
FORMS = [(Order, AS_OLD), (NotedOrder, AS_NEW)]


def facts(message: Any) -> tuple[Any, ...]:
    value = message.value()
    return value.name, getattr(value, "note", None), message._message.int_schema_version()


@pytest.fixture
def clients(served: engine.Engine) -> Iterator[tuple[pulsar.Client, pulsar.Client]]:
    made = connect(service_url(served)), connect(service_url(served))
    yield made
    for one in made:
        one.close()


def send_both(clients: tuple[pulsar.Client, pulsar.Client], topic: str, schema: Any, **options: Any) -> None:
    """Two messages of each version, in turn."""
    old = clients[0].create_producer(topic, schema=schema(Order), **options)
    new = clients[1].create_producer(topic, schema=schema(NotedOrder), **options)
    for n in (0, 2):
        old.send(Order(name=f"n{n}"))
        new.send(NotedOrder(name=f"n{n + 1}", note="new"))


@SCHEMAS
@pytest.mark.parametrize("batching", [False, True])
def test_each_message_is_read_by_its_own_version(clients, topic, schema, batching):
    send_both(clients, topic, schema, batching_enabled=batching)
    for number, (form, expected) in enumerate(FORMS):
        consumer = clients[0].subscribe(topic, f"s{number}", initial_position=EARLIEST, schema=schema(form))
        messages = take(consumer, 4)
        assert [facts(message) for message in messages] == expected
        assert all(message.properties() == {} for message in messages)
        reader = clients[1].create_reader(topic, pulsar.MessageId.earliest, schema=schema(form))
        assert [facts(reader.read_next(WAIT_MS)) for _ in range(4)] == expected


@SCHEMAS
def test_what_is_delivered_again_keeps_its_version(clients, topic, schema):
    send_both(clients, topic, schema)
    first = clients[0].subscribe(
        topic, "s", pulsar.ConsumerType.Shared, initial_position=EARLIEST, schema=schema(NotedOrder)
    )
    messages = take(first, 4)
    first.acknowledge(messages[0])
    first.close()  # the rest is due to others
    second = clients[1].subscribe(
        topic, "s", pulsar.ConsumerType.Shared, schema=schema(NotedOrder), negative_ack_redelivery_delay_ms=100
    )
    again = take(second, 3)
    assert sorted(facts(message) for message in again) == AS_NEW[1:]
    second.negative_acknowledge(again[0])
    assert facts(second.receive(WAIT_MS)) == facts(again[0])
    for message in again:
        second.acknowledge(message)
    assert is_quiet(second)


@SCHEMAS
def test_versions_outlive_a_restart(tmp_path, topic, schema):
    for attempt in range(2):
        with engine.open(tmp_path / "data", listen="127.0.0.1:0") as served:
            made = connect(service_url(served)), connect(service_url(served))
            if attempt == 0:
                send_both(made, topic, schema)
            reader = made[0].create_reader(topic, pulsar.MessageId.earliest, schema=schema(NotedOrder))
            assert [facts(reader.read_next(WAIT_MS)) for _ in range(4)] == AS_NEW
            for one in made:
                one.close()


def test_a_client_of_ours_is_told_the_version_as_a_property(served, clients, topic):
    send_both(clients, topic, JsonSchema)
    with served.stream_consumer(topic, "n", initial_position="earliest") as consumer:
        found = [(m.value, m.properties.get(VERSION_PROPERTY)) for m in (consumer.receive(10.0) for _ in range(4))]
    assert [(json.loads(value)["name"], version) for value, version in found] == [
        ("n0", None), ("n1", "1"), ("n2", None), ("n3", "1"),
    ]  # fmt: skip


@dataclass
class Native:
    name: str
    note: str = "none"


def test_values_of_ours_are_read_whatever_their_version(served, client, topic):
    """Those of JSON name their fields; the version that they come with is the first."""
    with served.producer(topic, schema=engine.Schema.json()) as producer:
        producer.send({"name": "n0"})
    with served.producer(topic, schema=Native) as producer:
        producer.send(Native("n1", "new"))
    consumer = client.subscribe(
        topic, "s", initial_position=EARLIEST, schema=JsonSchema(record("value", name=String(), note=note()))
    )
    assert [facts(message) for message in take(consumer, 2)] == [("n0", "none", 0), ("n1", "new", 0)]


def test_an_entry_of_several_versions_comes_in_order_and_is_acknowledged(served, client, topic):
    """As our client writes it, when it copies messages."""
    versions = [None, "1", "1", None, "2", None]
    numbers = [int(version or 0) for version in versions]
    client.create_producer(topic, schema=JsonSchema(Order)).close()
    attach = partial(client.subscribe, topic, "s", schema=JsonSchema(Order), batch_index_ack_enabled=True)
    consumer = attach(initial_position=EARLIEST)
    with served.producer(topic, batching=engine.Batching(max_delay=10.0)) as producer:
        for n, version in enumerate(versions):
            more = {VERSION_PROPERTY: version} if version else {}
            producer.send_nowait(b'{"name": "n%d"}' % n, properties={"n": str(n), **more})
        producer.flush()
    messages = take(consumer, len(versions))
    assert [(m.properties(), m._message.int_schema_version()) for m in messages] == [
        ({"n": str(n)}, number) for n, number in enumerate(numbers)
    ]
    assert len({m.message_id().entry_id() for m in messages}) == 1
    for message in messages:
        consumer.acknowledge(message)
    consumer.close()
    assert is_quiet(attach())


def test_many_turns_of_versions_are_not_as_many_frames():
    versions = bytes([0, 1] * 500)
    parts = _by_version(versions, range(1000))
    assert parts == [list(range(0, 1000, 2)), list(range(1, 1000, 2))]
    assert _by_version(versions, range(4)) == [[0], [1], [2], [3]]
    assert _by_version(versions, [0, 2, 3]) == [[0, 2], [3]]


async def declared(raw: Raw, topic: str, count: int) -> None:
    for definition in DEFINITIONS[:count]:
        await raw.say_command(
            "get_or_create_schema", topic=topic, request=1, schema={"name": "s", "type": 4, "data": definition}
        )
        assert not (await raw.heard("get_or_create_schema_response")).HasField("error")


@pytest.mark.parametrize(
    ("said", "known"),
    [
        (SECOND, 1),
        (FIRST, 0),
        (bytes(7) + b"\x02", 2),
        (b"\xff" * 8, 2),
        (b"\x01", 2),
        (bytes(9), 2),
        (bytes(1000), 2),
    ],
)
@pytest.mark.parametrize("encrypted", [False, True])
async def test_a_version_that_the_topic_has_not_is_refused(topic, said, known, encrypted):
    async with engine.open_async(":memory:", listen="127.0.0.1:0") as served, Raw(served) as raw:
        await served.admin.create_topic(topic)
        await greeted(raw)
        await declared(raw, topic, known)
        await raw.say_command("producer", topic=topic, producer=1, request=2)
        await raw.heard("producer_success")
        await raw.say(sent(said, encrypted))
        name, answer = await raw.hear() or ("", None)
        assert (name, answer.error) == ("send_error", server_errors.NOT_ALLOWED)
        got = int.from_bytes(said, "big") if len(said) == 8 else f"{len(said):,} bytes"
        assert answer.message.endswith(f"one of those of its topic, which are {known} from 0, got {got}")
        await raw.say(framed_send(1, [PulsarMessage(b"v")], 1, b""))  # goes on; empty is none
        assert (await raw.heard("send_receipt")).sequence == 1


def sent(version: bytes, encrypted: bool) -> bytes:
    if not encrypted:
        return framed_send(1, [PulsarMessage(b"v")], 0, version)
    return send_of(0, metadata_of(0, encryption_keys=KEYS, schema_version=version), b"secret")


async def test_a_version_that_comes_after_the_producer_may_be_said(topic):
    """By a client that declares one for a message, and a consumer that was there before any."""
    async with engine.open_async(":memory:", listen="127.0.0.1:0") as served, Raw(served) as raw:
        await greeted(raw)
        await raw.say_command("producer", topic=topic, producer=1, request=1)
        await raw.heard("producer_success")
        await raw.say_command("subscribe", topic=topic, subscription="s", consumer=1, request=2)
        await raw.heard("success")
        await raw.say_command("flow", consumer=1, permits=100)
        await raw.say(framed_send(1, [PulsarMessage(b"0")], 0))
        await raw.heard("message")
        await declared(raw, topic, 2)
        for n, version in enumerate((FIRST, SECOND, None), 1):
            await raw.say(framed_send(1, [PulsarMessage(b"%d" % n)] * n, 10 * n, version))
            await raw.heard("message")
        found = []
        for payload in raw.payloads:
            said = MessageMetadata.FromString(payload[4 : 4 + int.from_bytes(payload[:4], "big")])
            found.append(said.schema_version if said.HasField("schema_version") else None)
        assert found == [None, FIRST, SECOND, FIRST]


async def test_a_definition_is_answered_by_its_version(topic):
    async with engine.open_async(":memory:", listen="127.0.0.1:0") as served, Raw(served) as raw:
        await served.admin.create_topic(topic)
        await greeted(raw)
        await declared(raw, topic, 2)
        for version, definition in zip((FIRST, SECOND, b""), (*DEFINITIONS, DEFINITIONS[1]), strict=True):
            await raw.say_command("get_schema", topic=topic, request=1, version=version)
            answer = await raw.heard("get_schema_response")
            assert (answer.schema.data, answer.version) == (definition, version or SECOND)


async def test_a_topic_with_partitions_answers_what_these_declare(topic):
    """Java's client asks it, and not the partition that a message is of."""
    async with engine.open_async(":memory:", listen="127.0.0.1:0") as served, Raw(served) as raw:
        await served.admin.create_topic(topic, properties={"pulsar.partitions": "3"})
        await served.admin.create_topic(f"{topic}-partition-1")
        await greeted(raw)
        for count in (0, 2):
            await declared(raw, f"{topic}-partition-1", count)
            await raw.say_command("get_schema", topic=topic, request=1, version=SECOND)
            answer = await raw.heard("get_schema_response")
            assert answer.HasField("error") == (count == 0)
        assert answer.schema.data == DEFINITIONS[1]


@pytest.mark.parametrize("transactional", [False, True])
@pytest.mark.parametrize("buckets", [1, 4])
def test_every_part_of_a_batch_has_its_version(transactional, buckets):
    """Runs of keyed and keyless ones, of buckets, and those that may be stored."""
    keys = [b"k%d" % (n % 9) if n % 4 else None for n in range(40)]
    sent = numbered([PulsarMessage(b"v", key) for key in keys], 5)
    payload = payload_of(sent, sequence=5, schema_version=SECOND)
    ends = tuple((n + 1) * 65536 // buckets - 1 for n in range(buckets))
    transaction = 7 if transactional else None
    made = published(memoryview(payload), b"p", 9, Routing(buckets=ends), transaction, versions=[None, 3])
    entries = list(walk(made.entries))
    assert len(entries) > 4
    for entry in entries:
        said = read_frame(frame_of(Entry(entry.data()), 1, None) or b"").metadata
        assert said.schema_version == bytes(7) + b"\x03"
