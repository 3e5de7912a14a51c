"""Values become bytes and come back, and what is not of the schema is refused by name."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import json
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.client.base.schema import Schema
from engine.errors import InvalidArgumentError, SchemaError
from engine.model.schema import SchemaType, TopicSchema


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


@dataclasses.dataclass
class Order:
    number: int
    note: str | None = None
    price: float = 0.0
    points: list[Point] = dataclasses.field(default_factory=list)
    named: dict[str, Point] = dataclasses.field(default_factory=dict)
    at: datetime.datetime | None = None
    day: datetime.date | None = None
    colour: Colour = Colour.RED
    ident: uuid.UUID | None = None
    amount: decimal.Decimal | None = None
    data: bytes = b""
    more: tuple[int, ...] = ()
    parent: Order | None = None


FORMS = {"json": Schema.json, "msgpack": Schema.msgpack, "avro": Schema.avro}

whole = st.integers(-(2**62), 2**62)
points = st.builds(Point, whole, whole)
times = st.datetimes(datetime.datetime(1970, 1, 1), datetime.datetime(2200, 1, 1), timezones=st.just(datetime.UTC))
orders = st.builds(
    Order,
    number=whole,
    note=st.none() | st.text(),
    price=st.floats(allow_nan=False, allow_infinity=False),
    points=st.lists(points, max_size=3),
    named=st.dictionaries(st.text(max_size=5), points, max_size=3),
    at=st.none() | times,
    day=st.none() | st.dates(datetime.date(1970, 1, 1)),
    colour=st.sampled_from(Colour),
    ident=st.none() | st.uuids(),
    amount=st.none() | st.decimals(allow_nan=False, allow_infinity=False),
    data=st.binary(max_size=20),
    more=st.lists(whole, max_size=3).map(tuple),
)


@pytest.mark.parametrize("form", FORMS)
@given(order=orders, parent=st.none() | orders)
def test_dataclasses_come_back_as_they_were(form: str, order: Order, parent: Order | None) -> None:
    order.parent = parent
    schema = FORMS[form](Order)
    assert schema.decode(schema.encode(order)) == order


@pytest.mark.parametrize("form", ["json", "msgpack"])
@given(
    value=st.recursive(
        st.none() | st.booleans() | whole | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_any_value_without_a_declared_form(form: str, value: Any) -> None:
    schema = FORMS[form]()  # type: ignore[call-arg]
    assert schema.decode(schema.encode(value)) == value


@given(st.text(st.characters(codec="utf-8")))
def test_text(text: str) -> None:
    schema = Schema.of(str)
    assert schema.encode(text) == text.encode()
    assert schema.decode(memoryview(text.encode())) == text


def test_bytes_stay_what_they_are() -> None:
    schema = Schema.of(None)
    assert schema.raw
    assert schema is Schema.of(bytes) is Schema.bytes()
    assert schema.decode(schema.encode(b"\xff")) == b"\xff"


def test_a_dataclass_means_json() -> None:
    assert json.loads(Schema.of(Point).encode(Point(1, 2))) == {"x": 1, "y": 2}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (Schema.string(), b"bytes"),
        (Schema.string(), "\ud800"),
        (Schema.json(Point), {"x": 1}),
        (Schema.json(), object()),
        (Schema.msgpack(), 2**70),
        (Schema.avro(Point), {"x": 1, "y": 2}),
        (Schema.avro(Point), Point("one")),  # type: ignore[arg-type]
        (Schema.avro('{"type":"record","name":"p","fields":[{"name":"x","type":"long"}]}'), {"z": 1}),
    ],
)
def test_values_that_are_not_of_the_schema_are_refused(schema: Schema, value: Any) -> None:
    with pytest.raises(SchemaError):
        schema.encode(value)


@pytest.mark.parametrize(
    ("schema", "data"),
    [
        (Schema.string(), b"\xff"),
        (Schema.json(Point), b'{"x":"one"}'),
        (Schema.json(Point), b'{"y":1}'),
        (Schema.json(), b"{"),
        (Schema.msgpack(), b"\xc1"),
        (Schema.avro(Point), b""),
        (Schema.avro(Point), b"plain bytes that no schema wrote"),
        (Schema.avro(Point), Schema.avro(Point).encode(Point(1, 2))[:11]),
    ],
)
def test_bytes_that_are_not_of_the_schema_are_refused(schema: Schema, data: bytes) -> None:
    with pytest.raises(SchemaError):
        schema.decode(data)


unchecked: Any = Order  # Python lets fields hold what their types do not say


@pytest.mark.parametrize("make", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize(
    "value",
    [unchecked("one"), unchecked(1, points=[5]), unchecked(1, price="cheap"), unchecked(1, parent=unchecked(None))],
    ids=["text for a number", "a number for a record", "text for a float", "nothing for a number, deep inside"],
)
def test_an_instance_whose_fields_are_not_of_the_schema_is_refused(make: Any, value: Order) -> None:
    with pytest.raises(SchemaError):
        make(Order).encode(value)


@pytest.mark.parametrize("make", [Schema.json, Schema.msgpack])
def test_the_field_that_is_not_of_the_schema_is_named(make: Any) -> None:
    with pytest.raises(SchemaError, match=r"Expected `int`, got `str` - at `\$\.parent\.number`"):
        make(Order).encode(unchecked(1, parent=unchecked("one")))


@pytest.mark.parametrize("form", [Order(1), "json", 5, int, dict])
def test_what_is_no_schema_is_refused(form: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"engine\.Schema\.json"):
        Schema.of(form)


@dataclasses.dataclass
class Loose:
    known: int
    anything: Any


class Words(enum.Enum):
    TWO = "two words"


@dataclasses.dataclass
class Spaced:
    kind: Colour | None
    words: Words = Words.TWO


@pytest.mark.parametrize("make", [Schema.json, Schema.msgpack, Schema.avro])
def test_a_field_that_a_schema_cannot_say_is_named(make: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"Loose\.anything must be a number, .* got Any"):
        make(Loose)
    with pytest.raises(InvalidArgumentError, match=r"Spaced\.words"):
        make(Spaced)


def test_avro_says_the_writer_of_each_value() -> None:
    """A reader resolves what was written by an older schema of the topic, once it knows that."""
    old = Schema.avro({"type": "record", "name": "Point", "fields": [{"name": "x", "type": "long"}]})
    new = Schema.avro(Point)
    written = old.encode({"x": 5})
    assert new.unknown(written)
    with pytest.raises(SchemaError):
        new.decode(written)
    assert old.facts is not None
    new.learn([old.facts])
    assert not new.unknown(written)
    assert new.decode(written) == Point(5, 0)


NODE = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}


def chain(nodes: int) -> dict[str, Any]:
    found: dict[str, Any] = {"next": None}
    for _ in range(nodes - 1):
        found = {"next": found}
    return found


def test_a_value_nested_deeper_than_the_stack_is_refused_by_those_who_write_and_read_it() -> None:
    """The library follows it until the process ends."""
    schema = Schema.avro(NODE)
    written = schema.encode(chain(400))
    head = written[:10]
    assert schema.decode(written) == chain(400)
    for nodes in (600, 100_000):
        with pytest.raises(SchemaError, match="types inside each other"):
            schema.encode(chain(nodes))
        with pytest.raises(SchemaError, match="types inside each other"):
            schema.decode(head + b"\x02" * nodes + b"\x00")


@dataclasses.dataclass
class Tree:
    name: str
    weights: dict[str, float]
    parts: list[Tree]
    data: bytes = b""
    colour: Colour = Colour.RED
    other: Tree | None = None


def test_long_values_of_types_that_hold_themselves_pass() -> None:
    schema = Schema.avro(Tree)
    leaf = Tree("leaf", {"a": 1.0, "b": -2.5}, [], b"x" * 100)
    tree = Tree("tree", {}, [leaf] * 50, b"", Colour.BLUE, Tree("other", {"c": 0.0}, [leaf]))
    written = schema.encode(tree)
    assert schema.decode(written) == tree
    for end in range(1_000, len(written), 97):
        with pytest.raises(SchemaError, match="is not what the schema says"):
            schema.decode(written[:end])


def test_a_refused_version_of_the_topic_s_leaves_the_others_readable() -> None:
    new = Schema.avro(Point)
    old = Schema.avro({"type": "record", "name": "Point", "fields": [{"name": "x", "type": "long"}]})
    assert old.facts is not None
    endless = TopicSchema(SchemaType.AVRO, '{"type":"array","items":"null"}', checked=False)
    unparsed = TopicSchema(SchemaType.AVRO, "[" * 8_000 + "]" * 8_000, checked=False)
    hinted = TopicSchema(SchemaType.AVRO, '{"type":"int","__fastavro_parsed":true,"__named_schemas":5}', checked=False)
    new.learn([endless, unparsed, hinted, old.facts])
    assert new.decode(old.encode({"x": 5})) == Point(5, 0)
    with pytest.raises(InvalidArgumentError, match="must be an Avro schema"):
        Schema.avro(endless_list())


def endless_list() -> list[Any]:
    found: list[Any] = []
    for _ in range(100_000):
        found = [found]
    return found
