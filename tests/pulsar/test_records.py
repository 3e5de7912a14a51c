"""Records of Python's client with fields of every kind, in JSON and Avro, and messages of Protobuf."""

from __future__ import annotations

import enum
import json
from typing import Any

import pulsar
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from pulsar.schema import (
    Array,
    AvroSchema,
    Boolean,
    Bytes,
    BytesSchema,
    CustomEnum,
    Double,
    Float,
    Integer,
    JsonSchema,
    Long,
    Map,
    ProtobufNativeSchema,
    Record,
    String,
    StringSchema,
)

from tests.model.test_protobuf import Spec, file_of
from tests.pulsar.conftest import EARLIEST, WAIT_MS, connect, service_url


class Colour(enum.Enum):
    RED = 1
    GREEN = 2


class Line(Record):
    name = String()
    price = Double()


class Everything(Record):
    _avro_namespace = "shop"
    text = String()
    small = Integer(default=3, required_default=True)
    large = Long()
    single = Float()
    truth = Boolean()
    raw = Bytes()
    colour = CustomEnum(Colour)
    words = Array(String())
    lines = Array(Line())
    numbers = Map(Integer())
    by_name = Map(Line())
    line = Line()


def full() -> Everything:
    return Everything(
        text="ünïcödé", small=-1, large=1 << 40, single=0.5, truth=True, raw=b"raw", colour=Colour.GREEN,
        words=["a", "b"], lines=[Line(name="l", price=1.5)], numbers={"n": 7}, by_name={"x": Line(name="y", price=2.5)},
        line=Line(name="z", price=0.25),
    )  # fmt: skip


@pytest.mark.parametrize("schema", [JsonSchema, AvroSchema])
@pytest.mark.parametrize("make", [full, Everything], ids=["full", "empty"])
def test_a_record_comes_through_with_all_its_fields(served, client, topic, schema, make):
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST, schema=schema(Everything))
    client.create_producer(topic, schema=schema(Everything)).send(make())
    assert consumer.receive(WAIT_MS).value() == make()
    other = connect(service_url(served))  # which asks for the definition, as it has none of its own
    reader = other.create_reader(topic, pulsar.MessageId.earliest, schema=schema(Everything))
    assert reader.read_next(WAIT_MS).value() == make()
    other.close()


def test_a_client_of_ours_reads_each_field_of_a_json_record(served, client, topic):
    client.create_producer(topic, schema=JsonSchema(Everything)).send(full())
    with served.stream_consumer(topic, "n", initial_position="earliest") as consumer:
        found = json.loads(consumer.receive(60.0).value)
    assert found["lines"] == [{"name": "l", "price": 1.5}]
    assert found["by_name"] == {"x": {"name": "y", "price": 2.5}}
    assert (found["large"], found["colour"], found["numbers"]) == (1 << 40, Colour.GREEN.value, {"n": 7})


def test_bytes_need_no_schema_and_text_is_not_a_record(served, client, topic):
    client.create_producer(topic, schema=StringSchema()).send("text")
    reader = client.create_reader(topic, pulsar.MessageId.earliest, schema=BytesSchema())
    assert reader.read_next(WAIT_MS).value() == b"text"
    other = connect(service_url(served))
    with pytest.raises(pulsar.IncompatibleSchema):
        other.subscribe(topic, "s", schema=JsonSchema(Everything))
    other.close()


def message_class(*fields: Spec) -> Any:
    file: FileDescriptorProto = file_of({"Order": list(fields)})
    pool = DescriptorPool()
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


def test_messages_of_protobuf_come_through_and_are_compared(served, client, topic):
    order = message_class((1, "int64"), (2, "string"))
    schema = ProtobufNativeSchema(order)
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST, schema=schema)
    client.create_producer(topic, schema=schema).send(order(f1=1 << 40, f2="ünïcödé"))
    assert consumer.receive(WAIT_MS).value() == order(f1=1 << 40, f2="ünïcödé")
    with served.stream_consumer(topic, "n", initial_position="earliest") as native:
        assert order.FromString(native.receive(60.0).value) == order(f1=1 << 40, f2="ünïcödé")
    other = connect(service_url(served))
    wider, another = message_class((1, "int64"), (2, "string"), (3, "bool")), message_class((1, "string"))
    other.create_producer(topic, schema=ProtobufNativeSchema(wider)).send(wider(f1=2, f3=True))
    assert consumer.receive(WAIT_MS).value().f1 == 2
    for refused in (ProtobufNativeSchema(another), StringSchema()):
        with pytest.raises(pulsar.IncompatibleSchema):
            other.create_producer(topic, schema=refused)
    other.close()
