"""Schemas that Apache Pulsar's clients declare: values, versions, and what does not go together."""

from __future__ import annotations

import json

import pulsar
import pytest
from pulsar.schema import AvroSchema, Integer, JsonSchema, Record, String, StringSchema

from tests.pulsar.conftest import EARLIEST, WAIT_MS, connect, service_url


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
