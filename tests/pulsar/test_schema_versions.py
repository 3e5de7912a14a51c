"""Messages of several versions of a topic's schema: each comes with the one that it was written with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pulsar
import pytest
from pulsar.schema import AvroSchema, Integer, JsonSchema, Record, String

import engine
from engine.pulsar import server_errors
from tests.pulsar.conftest import EARLIEST, WAIT_MS, connect, is_quiet, service_url, take
from tests.pulsar.raw import Raw, framed_send, greeted
from tests.reference.pulsar_reference import PulsarMessage

NAME = "pulsar.schema-version"
FIRST, SECOND = bytes(8), bytes(7) + b"\x01"
DEFINITIONS = [
    b'{"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]}',
    b'{"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}, {"name": "m", "type": "int", '
    b'"default": 0}]}',
]


class Order(Record):
    name = String()


class NotedOrder(Record):
    name = String()
    note = String(default="none", required_default=True)


NotedOrder._avro_name = "Order"
SCHEMAS = pytest.mark.parametrize("schema", [AvroSchema, JsonSchema])


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


def facts(message: Any) -> tuple[Any, ...]:
    value = message.value()
    return value.name, getattr(value, "note", "-"), message.schema_version()


AS_NEW = [
    ("n0", "none", str(FIRST)),
    ("n1", "new", str(SECOND)),
    ("n2", "none", str(FIRST)),
    ("n3", "new", str(SECOND)),
]


def as_read(form: type, schema: Any) -> list[tuple[Any, ...]]:
    """What a reader of that form finds."""
    return []


@SCHEMAS
@pytest.mark.parametrize("batching", [False, True])
def test_each_message_is_read_by_its_own_version(clients, topic, schema, batching):
    send_both(clients, topic, schema, batching_enabled=batching)
    found = []
    for form in (NotedOrder, Order):
        consumer = clients[0].subscribe(topic, form.__name__, initial_position=EARLIEST, schema=schema(form))
        found.append([facts(message) for message in take(consumer, 4)])
        consumer.close()
    assert found[0] == [("n0", "none", 0), ("n1", "new", 1)]
