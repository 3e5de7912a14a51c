"""Values of a declared form, from producers to every kind of consumer; what does not go together is told at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

import engine
from engine import Schema
from engine.client.topic import declaring


@dataclasses.dataclass
class Order:
    number: int
    note: str = ""


@dataclasses.dataclass
class OlderOrder:
    """What an order was before it got a note."""

    number: int


ORDERS = [Order(n, f"note {n}") for n in range(20)]
FORMS = {
    "dataclass": Order,
    "json": Schema.json(Order),
    "msgpack": Schema.msgpack(Order),
    "avro": Schema.avro(Order),
}


@pytest.fixture(params=["embedded", "tcp"])
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[engine.Client]:
    if request.param == "embedded":
        with engine.open(tmp_path / "data") as opened:
            yield opened
        return
    with (
        engine.open(tmp_path / "data", listen="127.0.0.1:0", admin="127.0.0.1:0") as opened,
        engine.Client(opened.service_url) as client,
    ):
        yield client


def send_all(client: engine.Client, schema: object) -> None:
    """By every way to send."""
    with client.producer("orders", schema=schema) as producer:
        producer.send(ORDERS[0], key="a")
        for order in ORDERS[1:10]:
            producer.send_nowait(order, key="a")
        producer.send_batch(ORDERS[10:], keys=["a"] * 10)


@pytest.mark.parametrize("form", FORMS)
def test_every_kind_of_consumer_gets_what_was_sent(client: engine.Client, form: str) -> None:
    schema = FORMS[form]
    send_all(client, schema)
    start = engine.Checkpoint.earliest()
    consumers = (
        client.stream_consumer("orders", "stream", initial_position="earliest", schema=schema),
        client.queue_consumer("orders", "queue", initial_position="earliest", schema=schema),
        client.checkpoint_consumer("orders", start=start, schema=schema),
        client.stream_consumer(["orders"], "several", initial_position="earliest", schema=schema),
    )
    for consumer in consumers:
        with consumer:
            first = consumer.receive(timeout=5.0)
            assert first is not None
            got = [first.value]
            while len(got) < len(ORDERS):
                got += consumer.receive_batch(timeout=5.0).values
            assert got == ORDERS


def test_columns_stay_bytes(client: engine.Client) -> None:
    send_all(client, Order)
    with client.stream_consumer("orders", "s", initial_position="earliest", schema=Order) as consumer:
        batch = consumer.receive_batch(timeout=5.0)
        column = batch.to_arrow()["value"].to_pylist()
    assert [Schema.json(Order).decode(value) for value in column] == batch.values


def test_text(client: engine.Client) -> None:
    with (
        client.producer("words", schema=str) as producer,
        client.queue_consumer("words", "s", initial_position="earliest", schema=str) as consumer,
    ):
        producer.send("grüße")
        message = consumer.receive(timeout=5.0)
        assert message is not None
        assert message.value == "grüße"


def test_what_does_not_go_together_is_told_at_once(client: engine.Client) -> None:
    send_all(client, Order)
    for schema in (str, Schema.msgpack(Order), Schema.avro(Order)):
        with pytest.raises(engine.SchemaError, match="version 1 of the topic's"):
            client.producer("orders", schema=schema)
        with pytest.raises(engine.SchemaError, match="version 1 of the topic's"):
            client.stream_consumer("orders", "s", schema=schema)
        with pytest.raises(engine.SchemaError, match="version 1 of the topic's"):
            client.checkpoint_consumer("orders", schema=schema)
    with pytest.raises(engine.InvalidArgumentError, match=r"engine\.Schema"):
        client.queue_consumer("orders", "s", schema="json")


def test_who_declares_nothing_writes_and_reads_bytes(client: engine.Client) -> None:
    send_all(client, Order)
    with client.producer("orders") as producer:
        producer.send(b"plain")
    with client.queue_consumer("orders", "s", initial_position="earliest") as consumer:
        values = [m.value for _ in range(21) if (m := consumer.receive(timeout=5.0)) is not None]
    assert values[-1] == b"plain"
    with client.queue_consumer("orders", "t", initial_position="earliest", schema=Order) as consumer:
        batch = [m for _ in range(21) if (m := consumer.receive(timeout=5.0)) is not None]
    assert [message.value for message in batch[:-1]] == ORDERS
    with pytest.raises(engine.SchemaError):
        batch[-1].value  # noqa: B018 - of this message alone
    assert batch[-1].key is None


def test_a_value_that_is_not_of_the_schema_is_not_sent(client: engine.Client) -> None:
    with client.producer("orders", schema=Order) as producer:
        for method in (producer.send, producer.send_nowait):
            with pytest.raises(engine.SchemaError):
                method({"number": 1})
        with pytest.raises(engine.SchemaError):
            producer.send_batch([Order(1), 2])
    with client.checkpoint_consumer("orders", start=engine.Checkpoint.earliest()) as consumer:
        assert consumer.receive(timeout=0.1) is None


@pytest.mark.parametrize("make", [Schema.json, Schema.msgpack])
def test_a_form_that_grew_reads_the_old_and_is_read_by_the_old(client: engine.Client, make: object) -> None:
    old, new = make(OlderOrder), make(Order)  # type: ignore[operator]
    with client.producer("orders", schema=old) as producer:
        producer.send(OlderOrder(1))
    with client.producer("orders", schema=new) as producer:
        producer.send(Order(2, "new"))
    for schema, values in ((old, [OlderOrder(1), OlderOrder(2)]), (new, [Order(1), Order(2, "new")])):
        with client.checkpoint_consumer("orders", start=engine.Checkpoint.earliest(), schema=schema) as consumer:
            assert [m.value for _ in range(2) if (m := consumer.receive(timeout=5.0)) is not None] == values


@pytest.mark.parametrize("kind", ["stream", "queue", "checkpoint"])
def test_avro_of_a_producer_that_came_with_a_newer_schema_later(client: engine.Client, kind: str) -> None:
    """A consumer learns it before it hands the message out, and keeps the order."""
    old = Schema.avro({"type": "record", "name": "Order", "fields": [{"name": "number", "type": "long"}]})
    make = {
        "stream": lambda: client.stream_consumer("orders", "s", initial_position="earliest", schema=old),
        "queue": lambda: client.queue_consumer("orders", "q", initial_position="earliest", schema=old),
        "checkpoint": lambda: client.checkpoint_consumer("orders", start=engine.Checkpoint.earliest(), schema=old),
    }
    with client.producer("orders", schema=old) as first, make[kind]() as consumer:
        first.send({"number": 1}, key="a")
        seen = [consumer.receive(timeout=5.0).value]
        with client.producer("orders", schema=Schema.avro(Order)) as second:
            second.send(Order(2, "new"), key="a")
            first.send({"number": 3}, key="a")
            seen += [consumer.receive(timeout=5.0).value for _ in range(2)]
    assert seen == [{"number": 1}, {"number": 2}, {"number": 3}]


NUMBERS = {"type": "record", "name": "Order", "fields": [{"name": "number", "type": "long"}]}


@pytest.mark.parametrize("kind", ["stream", "queue"])
def test_avro_writers_are_learned_in_each_of_several_topics(client: engine.Client, kind: str) -> None:
    """In one the newer schema comes after the consumer, the other has it all the time; both go on."""
    old = Schema.avro(NUMBERS)
    with client.producer("b", schema=Schema.avro(NUMBERS)) as producer:
        producer.send({"number": 0}, key="k")
        with client.producer("b", schema=Schema.avro(Order)) as newer:
            newer.send(Order(1, "new"), key="k")
    make = client.stream_consumer if kind == "stream" else client.queue_consumer
    with (
        make(["a", "b"], "s", initial_position="earliest", schema=old) as consumer,
        client.producer("a", schema=Schema.avro(NUMBERS)) as first,
    ):
        first.send({"number": 0}, key="k")
        with client.producer("a", schema=Schema.avro(Order)) as second:
            second.send(Order(1, "new"), key="k")
            first.send({"number": 2}, key="k")
        got: dict[str, list[object]] = {"a": [], "b": []}
        for _ in range(5):
            message = consumer.receive(timeout=5.0)
            got[message.topic[-1]].append(message.value)
    numbers = [{"number": n} for n in range(3)]
    assert got == {"a": numbers, "b": numbers[:2]}


def test_avro_writers_are_learned_by_a_consumer_of_a_namespace(client: engine.Client) -> None:
    """Of a topic that joins later, from batches."""
    with client.stream_consumer(None, "s", namespace="shop/eu", schema=Schema.avro(NUMBERS)) as consumer:
        with client.producer("topic://shop/eu/a", schema=Schema.avro(NUMBERS)) as producer:
            producer.send({"number": 0}, key="k")
        with client.producer("topic://shop/eu/a", schema=Schema.avro(Order)) as producer:
            producer.send(Order(1, "new"), key="k")
        values: list[object] = []
        while len(values) < 2:
            batch = consumer.receive_batch(timeout=5.0)
            assert len(batch)
            values += batch.values
        consumer.acknowledge_cumulative(batch)
    assert values == [{"number": 0}, {"number": 1}]


def test_a_topic_of_another_schema_among_several_is_told(client: engine.Client) -> None:
    send_all(client, Order)
    with client.producer("words", schema=str):
        pass
    for make in (client.stream_consumer, client.queue_consumer):
        with pytest.raises(engine.SchemaError):
            make(["orders", "words"], "s", schema=Order)
    with client.queue_consumer(None, "s", namespace="shop/eu", schema=Order) as consumer:
        with client.producer("topic://shop/eu/words", schema=str):
            pass
        with pytest.raises(engine.SchemaError) as caught:
            consumer.receive(timeout=5.0)
        assert "topic://shop/eu/words" in str(caught.value.__notes__)


def test_schemas_that_cannot_be_learned_yet_are_asked_for_again(
    client: engine.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that is away for long does not end a consumer."""
    errors = [engine.ConnectError("away"), engine.TimeoutError("away")]
    ask = declaring._ask

    async def away(session: object, schema: object, declared: object, producer: bool) -> None:
        if declared is None and errors:
            raise errors.pop()
        await ask(session, schema, declared, producer)  # type: ignore[arg-type]

    monkeypatch.setattr(declaring, "_ask", away)
    with client.producer("orders", schema=Schema.avro(NUMBERS)):
        pass
    with client.queue_consumer("orders", "s", schema=Schema.avro(NUMBERS)) as consumer:
        with client.producer("orders", schema=Schema.avro(Order)) as producer:
            producer.send(Order(1, "new"))
        message = consumer.receive(timeout=5.0)
    assert message is not None
    assert message.value == {"number": 1}
    assert not errors


def test_schemas_outlive_a_restart_and_go_with_their_topic(tmp_path: Path) -> None:
    with engine.open(tmp_path / "data") as opened, opened.producer("orders", schema=Order) as producer:
        producer.send(Order(1))
    with engine.open(tmp_path / "data") as opened:
        with pytest.raises(engine.SchemaError):
            opened.producer("orders", schema=str)
        opened.admin.delete_topic("orders")
        with opened.producer("orders", schema=str) as producer:
            producer.send("now it is text")
