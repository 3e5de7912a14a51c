"""Schemas that Apache Pulsar's clients declare: values, versions, and what does not go together."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import _pulsar
import pulsar
import pytest
from pulsar.schema import AvroSchema, Integer, JsonSchema, Record, Schema, String, StringSchema

import engine
from engine.cli.main import main
from engine.pulsar import server_errors
from tests.model.test_protobuf import definition
from tests.pulsar.conftest import EARLIEST, WAIT_MS, connect, service_url
from tests.pulsar.raw import Raw, greeted


class Order(Record):
    name = String()
    count = Integer()


class WiderOrder(Record):
    name = String()
    count = Integer()
    note = String(default="none", required_default=True)


WiderOrder._avro_name = "Order"


class OtherOrder(Record):
    name = Integer(required=True)


@pytest.mark.parametrize("schema", [JsonSchema, AvroSchema])
def test_records_come_through(client, topic, schema):
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST, schema=schema(Order))
    producer = client.create_producer(topic, schema=schema(Order))
    producer.send(Order(name="a", count=3))
    found = consumer.receive(WAIT_MS).value()
    assert (found.name, found.count) == ("a", 3)


def test_a_native_consumer_reads_the_values_of_a_json_schema(served, client, topic):
    client.create_producer(topic, schema=JsonSchema(Order)).send(Order(name="a", count=3))
    with served.stream_consumer(topic, "n", initial_position="earliest") as consumer:
        assert json.loads(consumer.receive(10.0).value) == {"name": "a", "count": 3}


def test_text(client, topic):
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST, schema=StringSchema())
    client.create_producer(topic, schema=StringSchema()).send("ünïcödé")
    assert consumer.receive(WAIT_MS).value() == "ünïcödé"


def test_an_incompatible_schema_is_refused(served, client, topic):
    client.create_producer(topic, schema=AvroSchema(Order)).send(Order(name="a", count=1))
    other = connect(service_url(served))
    with pytest.raises(pulsar.IncompatibleSchema):
        other.create_producer(topic, schema=AvroSchema(OtherOrder))
    with pytest.raises(pulsar.IncompatibleSchema):
        other.create_producer(topic, schema=JsonSchema(Order))
    other.close()


async def test_protobuf_native_is_declared_given_back_and_compared() -> None:
    """By the client of Python in test_records.py, by that of Java in `make interop`."""
    topic, kind = "persistent://public/default/typed", 20
    async with engine.open_async(":memory:", listen="127.0.0.1:0") as served, Raw(served) as raw:
        await served.admin.create_topic(topic)
        await greeted(raw)
        await raw.say_command("get_or_create_schema", topic=topic, request=0, schema={"type": kind, "data": b"{}"})
        assert "fileDescriptorSet" in (await raw.heard("get_or_create_schema_response")).message
        for number, specs in enumerate([[(1, "int64")], [(1, "int32"), (2, "string")], [(1, "string")]]):
            data = definition(*specs).encode()
            await raw.say_command(
                "get_or_create_schema", topic=topic, request=number, schema={"name": "s", "type": kind, "data": data}
            )
            answer = await raw.heard("get_or_create_schema_response")
            if number == 2:
                assert answer.error == server_errors.INCOMPATIBLE_SCHEMA
                assert "the field 1 (f1) of shop.Order is a string, and a int64 where" in answer.message
                continue
            assert int.from_bytes(answer.version, "big") == number
            await raw.say_command("get_schema", topic=topic, request=9, version=answer.version)
            given = (await raw.heard("get_schema_response")).schema
            assert (given.type, given.data) == (kind, data)


PRIMITIVES = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16, 17, 18, 19]  # a truth value, numbers, times


async def test_a_primitive_is_declared_given_back_and_goes_with_its_own_type_alone() -> None:
    """The client of Python declares none of them; that of Java is in `make interop`."""
    async with engine.open_async(":memory:", listen="127.0.0.1:0") as served, Raw(served) as raw:
        await greeted(raw)
        for kind in PRIMITIVES:
            topic = f"persistent://public/default/of-{kind}"
            await served.admin.create_topic(topic)
            for other in (kind, kind, *(one for one in (1, 2, *PRIMITIVES) if one != kind)):
                schema = {"name": "s", "type": other, "data": b'"int"' if other == 2 else b"ignored"}
                await raw.say_command("get_or_create_schema", topic=topic, request=1, schema=schema)
                answer = await raw.heard("get_or_create_schema_response")
                assert answer.error == (0 if other == kind else server_errors.INCOMPATIBLE_SCHEMA), (kind, other)
            await raw.say_command("get_schema", topic=topic, request=2)
            answer = await raw.heard("get_schema_response")
            assert (answer.schema.type, answer.schema.data, answer.version) == (kind, b"", bytes(8))


@pytest.mark.parametrize("kind", [3, 21])  # Protobuf by Avro, whatever the topic has
async def test_a_schema_of_another_type_is_refused(kind: int) -> None:
    topic = "persistent://public/default/refused"
    async with engine.open_async(":memory:", listen="127.0.0.1:0") as served, Raw(served) as raw:
        await served.admin.create_topic(topic)
        await greeted(raw)
        await raw.say_command("get_or_create_schema", topic=topic, request=1, schema={"type": kind, "data": b"{}"})
        answer = await raw.heard("get_or_create_schema_response")
        assert (answer.error, f"got the type {kind}" in answer.message) == (server_errors.NOT_ALLOWED, True)


RECORD = b'{"type":"record","name":"R","fields":[{"name":"n","type":"int"}]}'
WIDER = b'{"type":"record","name":"R","fields":[{"name":"n","type":"int"},{"name":"m","type":"int","default":0}]}'
OTHER = b'{"type":"record","name":"R","fields":[{"name":"n","type":"string"}]}'


def pair(
    key: tuple[str, bytes], value: tuple[str, bytes], encoding: str | None = "SEPARATED", more: bytes = b""
) -> Any:
    """A schema of pairs as the client of Java writes it."""
    said = {"key.schema.type": key[0], "value.schema.type": value[0], "key.schema.name": "k"}
    said |= {} if encoding is None else {"kv.encoding.type": encoding}
    data = b"".join(len(one).to_bytes(4, "big") + one for _, one in (key, value)) + more
    return {"name": "s", "type": 15, "data": data, "properties": [{"key": k, "value": v} for k, v in said.items()]}


async def declared(raw: Raw, topic: str, schema: Any) -> Any:
    await raw.say_command("get_or_create_schema", topic=topic, request=1, schema=schema)
    return await raw.heard("get_or_create_schema_response")


async def test_pairs_are_declared_given_back_and_compared(served, topic) -> None:
    """The client of Python has none; that of Java is in `make interop`."""
    served.admin.create_topic(topic)
    async with Raw(served) as raw:
        await greeted(raw)
        for number, value in enumerate((RECORD, WIDER)):
            asked = pair(("INT32", b"ignored"), ("AVRO", value))
            for _ in range(2):
                answer = await declared(raw, topic, asked)
                assert (answer.message, int.from_bytes(answer.version, "big")) == ("", number)
            await raw.say_command("get_schema", topic=topic, request=2, version=answer.version)
            given = (await raw.heard("get_schema_response")).schema
            assert (given.type, given.data) == (15, bytes(4) + len(value).to_bytes(4, "big") + value)
            said = {one.key: one.value for one in given.properties}
            assert said["kv.encoding.type"] == "SEPARATED"
            assert (said["key.schema.type"], said["value.schema.type"]) == ("INT32", "AVRO")
        for other, why in (
            (pair(("INT32", b""), ("AVRO", RECORD), "INLINE"), "the other has it in the message's key"),
            (pair(("INT64", b""), ("AVRO", RECORD)), "of the key: it reads int64 values"),
            (pair(("BYTES", b""), ("AVRO", RECORD)), "of the key: one is bytes"),
            (pair(("INT32", b""), ("AVRO", OTHER)), "of the value: "),
            (pair(("INT32", b""), ("JSON", RECORD)), "of the value: it reads json values"),
            ({"name": "s", "type": 4, "data": RECORD}, "it reads plain-avro values, and these are pair"),
        ):
            answer = await declared(raw, topic, other)
            assert answer.error == server_errors.INCOMPATIBLE_SCHEMA, other
            assert why in answer.message


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (pair(("KEY_VALUE", b""), ("AVRO", RECORD)), "a pair with the key 'KEY_VALUE'"),
        (pair(("INT32", b""), ("PROTOBUF", RECORD)), "a pair with the value 'PROTOBUF'"),
        (pair(("INT32", b""), ("AVRO", RECORD), "OTHER"), "kv.encoding.type must be one of INLINE, SEPARATED"),
        (pair(("INT32", b""), ("AVRO", b"")), "must have a definition"),
        (pair(("INT32", b""), ("AVRO", b"{")), "definition must be"),
        (pair(("INT32", b""), ("AVRO", RECORD), more=b"x"), "got 1 bytes behind them"),
        (pair(("INT32", b""), ("AVRO", RECORD)) | {"data": b""}, "the definition of a pair's key must be behind"),
        (
            pair(("INT32", b""), ("AVRO", RECORD)) | {"data": bytes(7)},
            "the definition of a pair's value must be behind",
        ),
        (pair(("JSON", b"{}"), ("AVRO", b"x" * 20_000)), "at most 16384 bytes"),
    ],
)
async def test_what_is_no_schema_of_pairs_is_refused(served, topic, schema, why) -> None:
    served.admin.create_topic(topic)
    async with Raw(served) as raw:
        await greeted(raw)
        answer = await declared(raw, topic, schema)
        assert answer.error
        assert why in answer.message, answer.message


async def test_a_pair_without_more_is_of_bytes_in_the_value(served, topic) -> None:
    served.admin.create_topic(topic)
    async with Raw(served) as raw:
        await greeted(raw)
        absent = b"\xff" * 4  # as the client writes what is null
        assert not (await declared(raw, topic, {"name": "s", "type": 15, "data": absent * 2})).message
        await raw.say_command("get_schema", topic=topic, request=2)
        given = (await raw.heard("get_schema_response")).schema
        assert given.data == bytes(8)
        said = {one.key: one.value for one in given.properties}
        assert [said[f"{part}.schema.type"] for part in ("key", "value")] == ["BYTES", "BYTES"]
        assert said["kv.encoding.type"] == "INLINE"


class Int32Schema(Schema):
    def __init__(self):
        super().__init__(int, _pulsar.SchemaType.INT32, None, "INT32")

    def encode(self, value):
        return value.to_bytes(4, "big", signed=True)

    def decode(self, data):
        return int.from_bytes(data, "big", signed=True)


async def test_numbers_come_through(tmp_path, capfd):
    """What the client of Java declares, the client of Python reads, as do clients of Engine."""
    topic, data = "persistent://public/default/numbers", tmp_path / "o.jsonl"
    async with engine.open_async(":memory:", listen="127.0.0.1:0") as served, Raw(served) as raw:
        await served.admin.create_topic(topic)
        await greeted(raw)
        await raw.say_command("producer", topic=topic, producer=1, request=1, schema={"name": "INT32", "type": 8})
        assert (await raw.heard("producer_success")).schema_version == bytes(8)
        await asyncio.to_thread(numbers_through, served, topic, data)
        assert json.loads(data.read_text())["value"] == "\x00\x00\x01\x00", capfd.readouterr().err


def numbers_through(served, topic, data) -> None:
    client = connect(service_url(served))
    try:
        client.create_producer(topic, schema=Int32Schema()).send(256)
        consumer = client.subscribe(topic, "s", initial_position=EARLIEST, schema=Int32Schema())
        assert consumer.receive(WAIT_MS).value() == 256
    finally:
        client.close()
    assert main(["export", topic, str(data), "--url", served.service_url]) == 0


def test_an_export_gives_values_of_plain_avro_as_bytes(served, client, topic, tmp_path, capfd):
    client.create_producer(topic, schema=AvroSchema(Order)).send(Order(name="a", count=1))
    assert main(["export", topic, str(tmp_path / "o.jsonl"), "--url", served.service_url]) == 0, capfd.readouterr().err
    (row,) = map(json.loads, (tmp_path / "o.jsonl").read_text().splitlines())
    assert row["value"] == "\x02\x02a\x02\x02"


async def test_a_producer_that_asks_for_the_version_of_plain_bytes_is_told_that_there_is_none(served, topic):
    """Java's client does so for dead letters, and asks again for ever where that fails."""
    async with Raw(served) as raw:
        await greeted(raw)
        plain = {"name": "s", "data": b"", "type": 0}
        await raw.say_command("get_or_create_schema", request=1, topic=topic, schema=plain)
        found = await raw.heard("get_or_create_schema_response")
        assert (found.request, found.HasField("error"), found.version) == (1, False, b"")
