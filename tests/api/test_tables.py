"""Topics as tables: what lies between two places, in columns, for whatever reads Arrow; and tables as messages."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from collections.abc import Iterable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import engine
from engine.client.ranges.topic_reader import plan_between

MESSAGE_COLUMNS = ["key", "value", "segment", "offset", "publish_time", "event_time", "properties"]
NOON = datetime(2024, 2, 29, 12, 0, 0, 123456, tzinfo=UTC)


@dataclasses.dataclass
class Order:
    number: int
    customer: str
    paid: bool = False
    at: datetime | None = None
    lines: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Place:
    street: str
    numbers: dict[str, int]


@dataclasses.dataclass
class Odd:
    key: str
    either: int | str
    place: Place
    blob: bytes
    day: date
    again: Odd | None = None


async def fill(client: engine.AsyncClient, topic: str, values: Iterable[bytes]) -> None:
    """Values with one of five keys each."""
    async with await client.producer(topic) as producer:
        for n, value in enumerate(values):
            producer.send_nowait(value, key=b"k%d" % (n % 5))


def values_of(table: pa.Table) -> list[bytes]:
    return table.column("value").to_pylist()


# -- what is read ------------------------------------------------------------------------------------------------


async def test_a_table_has_every_message_once_and_in_order_through_splits_and_merges(client: engine.AsyncClient):
    await client.admin.create_topic("t", segments=2)
    await fill(client, "t", (b"%d" % n for n in range(100)))
    await client.admin.split_segment("t", 0)
    await fill(client, "t", (b"%d" % n for n in range(100, 200)))
    await client.admin.merge_segments("t", 2, 3)
    await fill(client, "t", (b"%d" % n for n in range(200, 300)))
    table = await client.table("t")
    assert table.column_names == MESSAGE_COLUMNS
    assert sorted(map(int, values_of(table))) == list(range(300))
    for key in {row["key"] for row in table.to_pylist()}:
        numbers = [int(row["value"]) for row in table.to_pylist() if row["key"] == key]
        assert numbers == sorted(numbers)


async def test_a_reader_ends_where_the_topic_ended_and_reads_the_same_again(client: engine.AsyncClient):
    await fill(client, "t", [b"1", b"2"])
    reader = await client.reader("t")
    await fill(client, "t", [b"3"])
    assert values_of(await reader.to_table()) == [b"1", b"2"]
    assert values_of(await reader.to_table()) == [b"1", b"2"]
    again = engine.Checkpoint.from_bytes(reader.end.to_bytes())
    await client.admin.split_segment("t", 0)
    await fill(client, "t", [b"4"])
    assert sorted(values_of(await client.table("t", start=again))) == [b"3", b"4"]
    assert values_of(await client.table("t", end=again)) == [b"1", b"2"]
    assert values_of(await client.table("t", start="latest")) == []
    assert values_of(await client.table("t", start=again, end="earliest")) == []


async def test_times_are_the_publish_times(client: engine.AsyncClient):
    for n in range(5):
        await fill(client, "t", [b"%d" % n])
    rows = (await client.table("t")).to_pylist()
    for at in {row["publish_time"] for row in rows}:
        behind = [row["value"] for row in rows if row["publish_time"] >= at]
        assert values_of(await client.table("t", start=at)) == behind
        assert values_of(await client.table("t", end=at)) == [b"%d" % n for n in range(5 - len(behind))]
    late = rows[-1]["publish_time"] + timedelta(days=1)
    assert values_of(await client.table("t", start=late)) == []
    assert len(await client.table("t", end=late)) == 5


async def test_what_no_transaction_has_committed_is_not_there(client: engine.AsyncClient):
    async with await client.producer("t") as producer:
        await producer.send(b"before")
        aborted = await client.transaction()
        await producer.send(b"aborted", transaction=aborted)
        await aborted.abort()
        await producer.send(b"between")
        pending = await client.transaction()
        await producer.send(b"open", transaction=pending)
        reader = await client.reader("t")
        await pending.commit()
    assert values_of(await reader.to_table()) == [b"before", b"between"]
    assert values_of(await client.table("t")) == [b"before", b"between", b"open"]


async def test_a_reader_does_not_go_on_in_another_topic_of_the_name(client: engine.AsyncClient):
    await fill(client, "t", [b"old"])
    reader = await client.reader("t")
    await client.admin.delete_topic("t")
    with pytest.raises(engine.NotFoundError):
        await client.reader("t")
    assert not await client.topic_exists("t")
    await fill(client, "t", [b"new", b"newer"])
    with pytest.raises(engine.NotFoundError, match="another of its name"):
        await reader.to_table()
    with pytest.raises(engine.InvalidArgumentError, match="an earlier one"):
        await client.reader("t", start=reader.end)


class View:
    """A topic's view, as far as plans are made with it. Retention has deleted 10 messages of 20."""

    async def segments(self, *, exact: bool) -> engine.TopicSegments:
        here = engine.Segment(0, 0, 65535, True, (), (), (65535,), first=10, end=20, settled=False)
        return engine.TopicSegments("topic://public/default/t", 0, 1, "xxh64", {0: here})

    async def resolve(self, place: engine.Checkpoint) -> engine.Checkpoint:
        return place


async def test_a_start_that_retention_has_passed_is_an_error_and_the_earliest_is_none():
    def at(n: int) -> engine.Checkpoint:
        return engine.Checkpoint({0: n}, epoch=0)

    latest: Any = engine.Checkpoint.latest()
    view: Any = View()
    with pytest.raises(engine.NotFoundError, match="messages 3 to 9 of segment 0"):
        await plan_between(view, at(3), latest)
    assert (await plan_between(view, engine.Checkpoint.earliest(), latest)).ranges == {0: (10, 20)}
    assert (await plan_between(view, at(12), at(15))).ranges == {0: (12, 15)}
    assert (await plan_between(view, at(15), at(12))).ranges == {}
    assert (await plan_between(view, at(12), at(99))).ranges == {0: (12, 20)}
    assert (await plan_between(view, engine.Checkpoint({}, epoch=0), latest)).ranges == {0: (10, 20)}
    assert (await plan_between(view, at(12), engine.Checkpoint({}, epoch=0))).ranges == {}


async def test_columns_are_chosen_by_name_and_order(client: engine.AsyncClient):
    async with await client.producer("t") as producer:
        await producer.send(b"v", key="k", properties={"a": "b"}, event_time=NOON)
        await producer.send(b"w")
    rows = (await client.table("t", columns=["properties", "event_time", "key"])).to_pylist()
    whole = NOON.replace(microsecond=123000)
    assert rows[0] == {"properties": [("a", "b")], "event_time": whole, "key": b"k"}
    assert list(rows[1].items()) == [("properties", []), ("event_time", None), ("key", None)]


@pytest.mark.parametrize("compression", ["none", "lz4"])
async def test_producers_and_sequence_ids_are_columns_that_are_named(client: engine.AsyncClient, compression: Any):
    async with await client.producer("t", name="writer", compression=compression) as producer:
        await asyncio.gather(*(producer.send(b"%d" % n, key="k", sequence_id=5 * n) for n in range(4)))
    assert (await client.table("t")).column_names == MESSAGE_COLUMNS
    table = await client.table("t", columns=["sequence_id", "value", "producer_name"])
    assert table.schema.types == [pa.int64(), pa.binary(), pa.string()]
    assert table.to_pydict() == {
        "sequence_id": [0, 5, 10, 15],
        "value": [b"0", b"1", b"2", b"3"],
        "producer_name": ["writer"] * 4,
    }


@dataclasses.dataclass
class Numbered:
    sequence_id: str
    note: str


async def test_a_field_of_that_name_is_the_column(client: engine.AsyncClient):
    async with await client.producer("t", name="writer", schema=Numbered) as producer:
        await producer.send(Numbered("s-1", "n"), sequence_id=7)
    table = await client.table("t", schema=Numbered, columns=["sequence_id", "producer_name", "note"])
    assert table.to_pylist() == [{"sequence_id": "s-1", "producer_name": "writer", "note": "n"}]
    assert "producer_name" not in (await client.table("t", schema=Numbered)).column_names


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"columns": ["nothing"]}, "columns must be of key, value, .*; got 'nothing'"),
        ({"columns": []}, "one or more"),
        ({"columns": ["key", "key"]}, "different names"),
        ({"columns": "key"}, "columns must be a list of names, got 'key'"),
        ({"columns": 3}, "columns must be a list of names, got 3"),
        ({"start": 0}, "start must be an engine.Checkpoint, an aware datetime, 'earliest' or 'latest', got 0"),
        ({"end": "first"}, "end must be .* got 'first'"),
        ({"end": datetime(2024, 1, 1)}, "aware datetime"),
        ({"on_corrupt": "ignore"}, "on_corrupt must be"),
        ({"schema": 3}, "schema must be"),
    ],
)
def test_wrong_options_are_refused(blocking: engine.Client, options: dict[str, Any], text: str):
    blocking.admin.create_topic("t")
    with pytest.raises(engine.InvalidArgumentError, match=text):
        blocking.reader("t", **options)


def test_without_pyarrow_it_says_so(blocking: engine.Client, monkeypatch: pytest.MonkeyPatch):
    with blocking.producer("t") as producer:
        producer.send(b"v")
        table = pa.table({"value": [b"v"]})
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        for use in (lambda: blocking.table("t"), lambda: producer.send_table(table)):
            with pytest.raises(engine.UnsupportedError, match="pip install pyarrow"):
                use()


def test_entries_of_few_messages_come_together(blocking: engine.Client):
    with blocking.producer("t", batching=engine.Batching(max_messages=1)) as producer:
        for n in range(300):
            producer.send_nowait(b"%d" % n)
    table = blocking.table("t", columns=["value"])
    assert values_of(table) == [b"%d" % n for n in range(300)]
    assert table.column(0).num_chunks < 30


# -- schemas -----------------------------------------------------------------------------------------------------

ORDERS = [
    Order(1, "ada"),
    Order(2, "ben", True, NOON, ["tea"]),
]


@pytest.mark.parametrize("make", [engine.Schema.json, engine.Schema.msgpack, engine.Schema.avro])
async def test_fields_of_records_are_columns(client: engine.AsyncClient, make: Any):
    schema = make(Order)
    async with await client.producer("t", schema=schema) as producer:
        for order in ORDERS:
            await producer.send(order, key=order.customer)
    table = await client.table("t", schema=schema)
    fields = ["number", "customer", "paid", "at", "lines"]
    assert table.column_names == ["key", *fields, *MESSAGE_COLUMNS[2:]]
    types = [pa.int64(), pa.string(), pa.bool_(), pa.timestamp("us", "UTC"), pa.list_(pa.string())]
    assert table.schema.types[1:6] == types
    assert table.select(fields).to_pylist() == [dataclasses.asdict(order) for order in ORDERS]
    some = await client.table("t", schema=schema, columns=["paid", "key"])
    assert some.to_pydict() == {"paid": [False, True], "key": [b"ada", b"ben"]}
    assert (await client.table("t", schema=schema, columns=["offset"])).to_pydict() == {"offset": [0, 1]}


async def test_what_arrow_has_no_type_for_is_json_and_a_taken_name_is_qualified(client: engine.AsyncClient):
    inner = Odd("i", "x", Place("High", {"a": 1}), b"\0", NOON.date())
    async with await client.producer("t", schema=Odd) as producer:
        await producer.send(Odd("o", 7, Place("Low", {"b": 2}), b"\xff", NOON.date(), inner), key="k")
    table = await client.table("t", schema=Odd)
    assert table.schema.field("place").type == pa.struct(
        [("street", pa.string()), ("numbers", pa.map_(pa.string(), pa.int64()))]
    )
    (row,) = table.to_pylist()
    assert (row["key"], row["value.key"], row["either"], row["blob"], row["day"]) == (
        b"k",
        "o",
        "7",
        b"\xff",
        NOON.date(),
    )
    assert row["place"] == {"street": "Low", "numbers": [("b", 2)]}
    assert row["again"].startswith('{"key":"i","either":"x","place":{"street":"High"')


AVRO = {
    "type": "record",
    "name": "shop.Sale",
    "fields": [
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
        {"name": "clock", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "size", "type": {"type": "enum", "name": "Size", "symbols": ["S", "L"]}},
        {"name": "other", "type": ["null", "Size"], "default": None},
        {"name": "small", "type": ["float", "null"]},
        {"name": "code", "type": {"type": "fixed", "name": "Code", "size": 2}},
        {"name": "pairs", "type": {"type": "map", "values": {"type": "array", "items": "int"}}},
        {"name": "next", "type": ["null", "Sale"], "default": None},
    ],
}
SALE = {
    "price": Decimal("12.30"),
    "id": UUID(int=5),
    "at": NOON.replace(microsecond=123000),
    "local": datetime(2024, 2, 29),
    "clock": time(1, 2, 3),
    "size": "S",
    "other": "L",
    "small": 0.5,
    "code": b"ab",
    "pairs": {"p": [1, 2]},
    "next": None,
}


async def test_avro_types_are_arrow_types(client: engine.AsyncClient):
    schema = engine.Schema.avro(AVRO)
    async with await client.producer("t", schema=schema) as producer:
        await producer.send(SALE | {"next": SALE})
    table = await client.table("t", schema=schema, columns=list(SALE))
    assert table.schema.types == [
        pa.decimal128(9, 2), pa.string(), pa.timestamp("ms", "UTC"), pa.timestamp("us"), pa.time32("ms"), pa.string(),
        pa.string(), pa.float32(), pa.binary(2), pa.map_(pa.string(), pa.list_(pa.int32())), pa.string(),
    ]  # fmt: skip
    (row,) = table.to_pylist()
    assert row.pop("next").startswith('{"price":"12.30"')
    assert row == {k: v for k, v in SALE.items() if k != "next"} | {"id": str(SALE["id"]), "pairs": [("p", [1, 2])]}


@pytest.mark.parametrize(
    ("schema", "value", "type_", "column"),
    [
        (str, "größer", pa.string(), "größer"),
        (engine.Schema.json(), {"a": [1]}, pa.string(), '{"a":[1]}'),
        (engine.Schema.json(list[int]), [1, 2], pa.list_(pa.int64()), [1, 2]),
        (engine.Schema.avro('"long"'), 7, pa.int64(), 7),
    ],
)
def test_values_that_are_no_records_are_a_typed_column(
    blocking: engine.Client, schema: Any, value: Any, type_: Any, column: Any
):
    with blocking.producer("t", schema=schema) as producer:
        producer.send(value)
    table = blocking.table("t", schema=schema)
    assert table.column_names == MESSAGE_COLUMNS
    assert table.column("value").type == type_
    assert table.column("value").to_pylist() == [column]


async def test_values_of_an_earlier_schema_have_the_defaults(client: engine.AsyncClient):
    def version(*fields: Any) -> engine.Schema:
        return engine.Schema.avro({"type": "record", "name": "R", "fields": list(fields)})

    a, b = {"name": "a", "type": "int"}, {"name": "b", "type": "string", "default": "none"}
    async with await client.producer("t", schema=version(a)) as producer:
        await producer.send({"a": 1})
    async with await client.producer("t", schema=version(a, b)) as producer:
        await producer.send({"a": 2, "b": "two"})
    table = await client.table("t", schema=version(a, b), columns=["a", "b"])
    assert table.to_pylist() == [{"a": 1, "b": "none"}, {"a": 2, "b": "two"}]
    assert (await client.table("t", schema=version(a), columns=["a"])).to_pydict() == {"a": [1, 2]}


async def test_a_schema_is_checked_and_not_recorded(client: engine.AsyncClient):
    await fill(client, "plain", [b'{"number":1,"customer":"ada"}', b"no JSON"])
    with pytest.raises(engine.SchemaError, match="segment 0, offset 1 of topic://public/default/plain"):
        await client.table("plain", schema=Order)
    async with await client.producer("plain", schema=str) as producer:  # had Order been recorded, it would be refused
        await producer.send("text")
    with pytest.raises(engine.SchemaError, match="version 1 of the topic's"):
        await client.reader("plain", schema=Order)
    async with await client.producer("big", schema=engine.Schema.json()) as producer:
        await producer.send({"number": 2**70, "customer": "x"})
    with pytest.raises(engine.SchemaError, match="do not fit"):
        await client.table("big", schema=Order)


# -- the libraries that read Arrow -------------------------------------------------------------------------------


@pytest.fixture
def reader(blocking: engine.Client) -> Any:
    """A thousand orders of ten customers."""
    with blocking.producer("orders", schema=Order) as producer:
        producer.send_batch([Order(n, f"c{n % 10}") for n in range(1000)])
        producer.flush()
    return blocking.reader("orders", schema=Order, columns=["number", "customer", "offset"])


def test_polars_reads_a_reader(reader: Any):
    frame = pl.DataFrame(reader)
    assert frame.schema == {"number": pl.Int64, "customer": pl.String, "offset": pl.Int64}
    sums = dict(frame.group_by("customer").agg(pl.col("number").sum()).iter_rows())
    assert sums == {f"c{n}": sum(range(n, 1000, 10)) for n in range(10)}


def test_duckdb_reads_a_reader_as_often_as_it_wants(reader: Any):
    for _ in range(2):
        assert duckdb.sql("select sum(number), count(distinct customer) from reader").fetchall() == [(499500, 10)]
    joined = "select count(*) from reader a join reader b on a.number = b.number"
    assert duckdb.sql(joined).fetchall() == [(1000,)]
    assert len(duckdb.sql("select * from reader limit 3").fetchall()) == 3


def test_pandas_reads_a_reader(reader: Any):
    frame = reader.to_table().to_pandas()
    assert frame.groupby("customer")["number"].sum()["c3"] == sum(range(3, 1000, 10))


def test_a_stream_reads_as_it_is_read_and_can_be_left(reader: Any, blocking: engine.Client):
    assert pa.schema(reader) == reader.schema
    stream = pa.RecordBatchReader.from_stream(reader)
    assert stream.read_next_batch().num_rows > 0
    del stream
    batches = reader.record_batches()
    next(batches)
    batches.close()
    assert len(pa.table(reader)) == 1000


def test_what_fails_while_it_is_read_is_the_error_of_the_stream(blocking: engine.Client):
    with blocking.producer("t") as producer:
        producer.send(b"\xff")
    broken = blocking.reader("t", schema=str)
    with pytest.raises(engine.SchemaError, match="segment 0, offset 0"):
        list(broken.record_batches())
    with pytest.raises(Exception, match="segment 0, offset 0"):
        pl.DataFrame(broken)
    with pytest.raises(Exception, match="segment 0, offset 0"):
        duckdb.sql("select * from broken").fetchall()


# -- tables as messages ------------------------------------------------------------------------------------------

COLUMNS: dict[str, list[Any]] = {
    "id": ["a", "b", None],
    "body": ["one", "two", "three"],
    "when": [NOON.replace(microsecond=0)] * 3,
}


def tables() -> list[Any]:
    relation = duckdb.sql("select * from (values ('a','one'),('b','two'),(null,'three')) as t(id, body)")
    chunked = pa.concat_tables([pa.table(COLUMNS).slice(0, 1), pa.table(COLUMNS).slice(1)])
    categories = pd.DataFrame(COLUMNS).astype({"id": "category", "body": "category"})
    return [
        chunked,
        pd.DataFrame(COLUMNS),
        categories,
        pl.DataFrame(COLUMNS),
        pl.DataFrame(COLUMNS).lazy().collect(),
        relation,
    ]


@pytest.mark.parametrize("number", range(6))
def test_whatever_has_an_arrow_stream_is_sent(blocking: engine.Client, number: int):
    table = tables()[number]
    when = "when" if number < 5 else None
    with blocking.producer("t") as producer:
        producer.send_table(table, key="id", value="body", event_time=when)
        producer.flush()
    rows = blocking.table("t", columns=["key", "value", "event_time"]).to_pylist()
    assert [(row["key"], row["value"]) for row in rows] == [(b"a", b"one"), (b"b", b"two"), (None, b"three")]
    assert {row["event_time"] for row in rows} == {None if when is None else COLUMNS["when"][0]}


async def test_a_table_goes_to_another_topic_as_it_is(client: engine.AsyncClient):
    async with await client.producer("t") as producer:
        await producer.send(b"v", key="k", properties={"a": "b"}, event_time=NOON)
        await producer.send(b"w")
    columns = ["key", "value", "event_time", "properties"]
    before = await client.table("t", columns=columns)
    async with await client.producer("copy") as producer:
        await producer.send_table(before, key="key", event_time="event_time", properties="properties")
        await producer.send_table(before.slice(0, 0))
    assert (await client.table("copy", columns=columns)).to_pylist() == before.to_pylist()


@pytest.mark.parametrize("make", [engine.Schema.json, engine.Schema.avro])
async def test_rows_become_records(client: engine.AsyncClient, make: Any):
    schema = make(Order)
    table = pa.table({"number": [1, 2], "customer": ["ada", "ben"], "at": [NOON, None], "more": [True, False]})
    async with await client.producer("t", schema=schema) as producer:
        await producer.send_table(table, key="number")
    read = await client.table("t", schema=schema)
    assert read.select(["key", "number", "customer", "paid", "at"]).to_pylist() == [
        {"key": b"1", "number": 1, "customer": "ada", "paid": False, "at": NOON},
        {"key": b"2", "number": 2, "customer": "ben", "paid": False, "at": None},
    ]
    async with await client.producer("copy", schema=schema) as producer:
        await producer.send_table(read, key="key")
    copied = await client.table("copy", schema=schema)
    assert copied.drop(["publish_time"]).to_pylist() == read.drop(["publish_time"]).to_pylist()


def test_values_of_other_schemas_come_from_one_column_or_from_all(blocking: engine.Client):
    orders = [dataclasses.asdict(order) for order in ORDERS]
    with blocking.producer("structs", schema=Order) as producer:
        producer.send_table(pa.table({"value": orders}))
    assert blocking.table("structs", schema=Order, columns=["lines"]).to_pydict() == {"lines": [[], ["tea"]]}
    with blocking.producer("maps", schema=Odd) as producer:
        odd = Odd("o", 7, Place("Low", {"b": 2}), b"\xff", NOON.date())
        producer.send(odd)
        rows = blocking.table("maps", schema=Odd, columns=["value.key", "place", "blob", "day"])
        with pytest.raises(engine.SchemaError, match=r"row 0: .*either"):
            producer.send_table(rows)
        producer.send_table(rows.append_column("either", pa.array([7])))
    with blocking.checkpoint_consumer("maps", start=engine.Checkpoint.earliest(), schema=Odd) as consumer:
        assert [consumer.receive(timeout=30).value for _ in range(2)] == [odd, odd]
    with blocking.producer("any", schema=engine.Schema.json()) as producer:
        producer.send_table(pa.table({"k": ["x"], "a": [1], "b": [None]}), key="k")
    assert blocking.table("any", columns=["key", "value"]).to_pylist() == [{"key": b"x", "value": b'{"a":1,"b":null}'}]
    with blocking.producer("texts", schema=str) as producer:
        producer.send_table(pl.DataFrame({"value": ["a"]}))
    assert values_of(blocking.table("texts", schema=str)) == ["a"]


@pytest.mark.parametrize(
    ("table", "options", "text"),
    [
        ([1], {}, "table must have __arrow_c_stream__, .* got list"),
        (pa.table({"v": [b""]}), {}, "value must be the name of a column, got 'value'; there are v"),
        (pa.table({"value": [b""]}), {"key": "id"}, "key must be the name of a column, got 'id'; there are value"),
        (pa.table({"value": [1.5]}), {}, "cast it to binary"),
        (pa.table({"value": [b""], "k": [1.5]}), {"key": "k"}, "keys must be"),
        (pa.table({"value": [b"", None]}), {}, r"values\[1\] is null"),
        (pa.table({"value": [b""], "e": ["x"]}), {"event_time": "e"}, "event times must be"),
    ],
)
def test_tables_that_cannot_be_sent_are_refused(blocking: engine.Client, table: Any, options: Any, text: str):
    with blocking.producer("t") as producer, pytest.raises(engine.InvalidArgumentError, match=text):
        producer.send_table(table, **options)
    assert len(blocking.table("t")) == 0


def test_rows_of_a_transaction_come_with_its_commit_or_not_at_all(blocking: engine.Client):
    table = pa.table({"number": [1, None], "customer": ["ada", "ben"]})
    with blocking.producer("t", schema=Order) as producer:
        aborted = blocking.transaction()
        producer.send_table(table.slice(0, 1), transaction=aborted)
        with pytest.raises(engine.SchemaError, match="row 1"):
            producer.send_table(table, transaction=aborted)
        aborted.abort()
        with blocking.transaction() as committed:
            producer.send_table(table.slice(0, 1), transaction=committed)
    assert blocking.table("t", schema=Order, columns=["customer"]).to_pydict() == {"customer": ["ada"]}
