"""Schemas from the classes that programs have: Structs, TypedDicts, NamedTuples, models, and containers of them."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import json
import uuid
from typing import Any, Literal, NamedTuple, TypedDict

import msgspec
import pydantic
import pytest

from engine.client.base.schema import Schema
from engine.errors import InvalidArgumentError, SchemaError
from engine.model.schema import SchemaHistory

NOON = datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.UTC)


class Size(enum.Enum):
    SMALL = "S"
    LARGE = "L"


class Point(NamedTuple):
    x: int
    y: int = 0


class Path(NamedTuple):
    name: str
    points: list[Point] = []  # noqa: RUF012 - of a tuple
    end: Point | None = None


class Row(TypedDict):
    number: int
    at: datetime.datetime
    tags: list[str]


class Item(msgspec.Struct, rename="camel"):
    item_name: str
    count: int = 1
    kind: Literal["a", "b"] = "a"
    note: Literal["x", None] = None


class Cat(msgspec.Struct, tag=True, frozen=True):
    lives: int


class Dog(msgspec.Struct, tag=True):
    age: int


class Owner(msgspec.Struct):
    pet: Cat | Dog
    first: Cat = Cat(9)


@dataclasses.dataclass
class Choice:
    answer: Literal["yes", "no"]
    number: Literal[1, 2]
    either: Literal["one", 1]
    some: list[Literal["q"]] = dataclasses.field(default_factory=list)


class Line(pydantic.BaseModel):
    text: str
    size: Size = Size.SMALL


class Names(pydantic.RootModel[list[str]]):
    pass


class Invoice(pydantic.BaseModel):
    number: int = pydantic.Field(gt=0)
    at: datetime.datetime
    id: uuid.UUID
    kind: Literal["paid", "open"] = "open"
    price: decimal.Decimal = decimal.Decimal("1.50")
    first: Line = Line(text="first")
    lines: list[Line] = pydantic.Field(default_factory=list)
    by_name: dict[str, Line] = {}
    before: Invoice | None = None
    other: int = pydantic.Field(default=1, alias="otherName")


INVOICE = Invoice(number=2, at=NOON, id=uuid.UUID(int=7), lines=[Line(text="a", size=Size.LARGE)], otherName=5)
VALUES: list[tuple[Any, Any]] = [
    (Point, Point(1, 2)),
    (Path, Path("p", [Point(1), Point(2, 3)], Point(4))),
    (list[Point], [Point(1), Point(2)]),
    (dict[str, Point | None], {"a": Point(1), "b": None}),
    (Row, {"number": 1, "at": NOON, "tags": ["x"]}),
    (list[Row], [{"number": 1, "at": NOON, "tags": []}]),
    (Item, Item("n", 2, "b", "x")),
    (dict[str, Item], {"a": Item("n")}),
    (Item | None, None),
    (Owner, Owner(Dog(3), Cat(1))),
    (Choice, Choice("yes", 2, 1, ["q"])),
    (list[Choice], [Choice("no", 1, "one")]),
    (Invoice, INVOICE.model_copy(update={"before": INVOICE, "by_name": {"l": Line(text="b")}})),
    (list[Invoice], [INVOICE]),
    (Names, Names(["a"])),
    (dict[str, Line], {"a": Line(text="c")}),
]


@pytest.mark.parametrize("make", [Schema.json, Schema.msgpack, Schema.avro])
@pytest.mark.parametrize(("form", "value"), VALUES, ids=[str(form) for form, _ in VALUES])
def test_values_come_back_as_they_were(form: Any, value: Any, make: Any):
    schema = make(form)
    decoded = schema.decode(schema.encode(value))
    assert decoded == value
    assert type(decoded) is type(value)
    assert schema.from_plain(schema.to_plain(value)) == value
    assert SchemaHistory(1).declared(schema.facts, producer=True).declared(schema.facts, producer=False)


@pytest.mark.parametrize("form", [form for form, _ in VALUES], ids=str)
def test_the_class_alone_is_a_json_schema(form: Any):
    assert Schema.of(form).facts == Schema.json(form).facts


def test_definitions_say_fields_types_and_defaults():
    def fields(form: Any) -> dict[str, Any]:
        return {field["name"]: field["type"] for field in json.loads(Schema.json(form).facts.definition)["fields"]}

    assert fields(Point) == {"x": "long", "y": "long"}
    assert fields(Item) == {"itemName": "string", "count": "long", "kind": "string", "note": ["null", "string"]}
    choice = fields(Choice)
    assert (choice["answer"], choice["number"], sorted(choice["either"])) == ("string", "long", ["long", "string"])
    invoice = fields(Invoice)
    assert invoice["at"] == {"type": "long", "logicalType": "timestamp-micros"}
    assert invoice["before"] == ["null", "value"], "a default of null is of the first type, and it holds itself"
    assert invoice["otherName"] == "long"
    assert json.loads(Schema.avro(Invoice).facts.definition)["name"] == "Invoice"


@pytest.mark.parametrize(
    ("form", "value"),
    [
        (Point, Point("one", 2)),  # type: ignore[arg-type]
        (Point, (1, 2)),
        (Row, {"number": 1}),
        (Row, [1]),
        (Item, Item("n", kind="c")),  # type: ignore[arg-type]
        (Choice, Choice("maybe", 1, 1)),  # type: ignore[arg-type]
        (list[Choice], [Choice("no", 3, 1)]),  # type: ignore[arg-type]
        (Invoice, Line(text="x")),
        (Invoice, INVOICE.model_copy(update={"number": -1})),
        (Invoice, INVOICE.model_copy(update={"lines": [5]})),
        (list[Invoice], [Line(text="x")]),
    ],
)
def test_values_of_other_types_are_refused_before_they_are_sent(form: Any, value: Any):
    with pytest.raises(SchemaError):
        Schema.json(form).encode(value)


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b'{"number":"x"}'])
@pytest.mark.parametrize("form", [Point, Row, Item, Invoice])
def test_bytes_of_other_values_are_refused(form: Any, data: bytes):
    for make in (Schema.json, Schema.msgpack):
        with pytest.raises(SchemaError):
            make(form).decode(data)


def test_versions_are_compared_by_the_names_of_fields():
    class Wide(NamedTuple):
        new: int = 5
        x: int = 0
        y: int = 0

    narrow, wide = Schema.json(Point), Schema.json(Wide)
    history = SchemaHistory(1).declared(narrow.facts, producer=True).declared(wide.facts, producer=True)
    assert len(history.versions) == 2
    assert wide.decode(narrow.encode(Point(1, 2))) == Wide(5, 1, 2)
    assert narrow.decode(wide.encode(Wide(1, 2, 3))) == Point(2, 3)


class Missing(TypedDict, total=False):
    number: int


class Positional(msgspec.Struct, array_like=True):
    number: int


class Omitting(msgspec.Struct, omit_defaults=True):
    number: int = 1


@dataclasses.dataclass
class HoldsTuple:
    point: Point


class Node(NamedTuple):
    children: list[Node]


class Linked(pydantic.BaseModel):
    url: pydantic.HttpUrl


@dataclasses.dataclass
class HoldsModel:
    line: Line


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (Missing, r"Missing\.number must be there"),
        (Positional, "Positional, which is written as a list"),
        (Omitting, "Omitting with omit_defaults"),
        (HoldsTuple, "Point, which is written as a list"),
        (Node, "Node must not hold itself"),
        (Linked, r"Linked\.url must be .*, got HttpUrl"),
        (HoldsModel, r"HoldsModel\.line must be .*, got Line"),
    ],
)
def test_what_cannot_be_compared_by_name_is_refused(form: Any, text: str):
    for make in (Schema.json, Schema.avro):
        with pytest.raises(InvalidArgumentError, match=text):
            make(form)
