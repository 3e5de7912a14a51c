"""The columns of a topic, in Spark's types; and batches of messages as record batches of these types.

A query that gives a schema of its own gets just those columns, in that order: what it does not name is never made. Keys
and values are bytes; as STRING they are read as UTF-8.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

import engine

_PROPERTIES = MapType(StringType(), StringType())
_COLUMNS = (
    StructField("key", BinaryType()),
    StructField("value", BinaryType(), nullable=False),
    StructField("topic", StringType(), nullable=False),
    StructField("segment", IntegerType(), nullable=False),
    StructField("offset", LongType(), nullable=False),
    StructField("publish_time", TimestampType(), nullable=False),
    StructField("event_time", TimestampType()),
    StructField("properties", _PROPERTIES),
    StructField("producer_name", StringType(), nullable=False),
    StructField("sequence_id", LongType(), nullable=False),
)
_HEADERS = frozenset(("properties",))
_SEQUENCE_IDS = frozenset(("producer_name", "sequence_id"))
NEVER_NULL = frozenset(field.name for field in _COLUMNS if not field.nullable)

_JOINED = ("key", "value")  # which are made from batches at once; the others from a table of all columns

# What a schema of the user's may say instead of the type above.
_ALLOWED: dict[str, tuple[DataType, ...]] = {
    "key": (BinaryType(), StringType()),
    "value": (BinaryType(), StringType()),
    "segment": (IntegerType(), LongType()),
}

# Early versions of Spark know no other zone than UTC there.
_IN_UTC: dict[str, Any] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}


def table_schema(*, include_headers: bool, include_sequence_ids: bool) -> StructType:
    """All columns; `properties` only with the headers, the producer's name with the sequence ids."""
    without = (frozenset() if include_headers else _HEADERS) | (frozenset() if include_sequence_ids else _SEQUENCE_IDS)
    return StructType([f for f in _COLUMNS if f.name not in without])


def check_schema(schema: StructType) -> None:
    """Raise ValueError for a column that topics do not have, or not of this type."""
    types = {field.name: _ALLOWED.get(field.name, (field.dataType,)) for field in _COLUMNS}
    if not schema.fields:
        raise ValueError(f"a schema must have one of the columns {', '.join(types)}, got none")
    for field in schema.fields:
        if field.name not in types:
            raise ValueError(f"a column must be one of {', '.join(types)}, got {field.name!r}")
        if not any(_is_like(field.dataType, right) for right in types[field.name]):
            right = " or ".join(t.simpleString().upper() for t in types[field.name])
            raise ValueError(f"the column {field.name} must be {right}, got {field.dataType.simpleString().upper()}")


def _is_like(given: DataType, right: DataType) -> bool:
    """Whether it is this type; what may be null in it does not matter."""
    if isinstance(given, MapType) and isinstance(right, MapType):
        return _is_like(given.keyType, right.keyType) and _is_like(given.valueType, right.valueType)
    return type(given) is type(right)


def check_written(schema: StructType, topic: str | None) -> None:
    """Raise ValueError for rows that cannot be messages: a missing or unknown column, or one of another type.

    What broker and producer decide, `segment`, `offset`, `publish_time`, `producer_name` and `sequence_id`, may be
    there: rows that were read have it.

    `topic`: the one that all rows go to; None: the column says it.
    """
    check_schema(schema)
    names = schema.fieldNames()
    if "value" not in names:
        raise ValueError(f"the rows must have a column value, got {', '.join(names)}")
    if topic is None and "topic" not in names:
        raise ValueError("a topic must be given, as the option topic or as a column topic, got none")
    if len(set(names)) < len(names):
        raise ValueError(f"the names of columns must be different, got {', '.join(names)}")


def arrow_schema(schema: StructType) -> pa.Schema:
    """As Spark expects record batches."""
    found: pa.Schema = to_arrow_schema(schema, **_IN_UTC)
    return found


def converter(schema: StructType) -> Callable[[Sequence[engine.MessageBatch]], pa.RecordBatch]:
    """What makes one record batch of batches of messages of a topic: columns, and only those that are asked for."""
    target = arrow_schema(schema)
    wanted = {field.name for field in target}
    joined, numbered = wanted <= {"topic", *_JOINED}, not wanted.isdisjoint(_SEQUENCE_IDS)
    names: dict[str, Any] = {}  # the longest column of a topic's name so far: others are its beginning

    def name(topic: str, count: int, field: Any) -> Any:
        found = names.get(topic)
        if found is None or len(found) < count:
            found = names[topic] = pa.repeat(pa.scalar(topic, field.type), count)
        return found[:count]

    def convert(batches: Sequence[engine.MessageBatch]) -> pa.RecordBatch:
        tables = () if joined else [batch.to_arrow(include_sequence_ids=numbered) for batch in batches]
        table = None if joined else pa.concat_tables(tables)
        count = sum(map(len, batches))
        columns = [
            name(batches[0].topic, count, field)
            if field.name == "topic"
            else _cast(_column(batches, table, field.name), field)
            for field in target
        ]
        return pa.RecordBatch.from_arrays(columns, schema=target)

    return convert


def _column(batches: Sequence[engine.MessageBatch], table: Any, name: str) -> Any:
    if name in _JOINED:
        return engine.MessageBatch.join_arrow(batches, name)
    column = table.column(name).combine_chunks()
    return pa.array([], column.type) if isinstance(column, pa.ChunkedArray) else column  # of no chunk at all


def _cast(column: Any, field: Any) -> Any:
    if column.type == field.type:
        return column
    try:
        return column.cast(field.type)
    except pa.ArrowInvalid as e:
        if pa.types.is_timestamp(field.type):
            text = (
                f"the column {field.name} has a time that TIMESTAMP cannot hold, about 290,000 years from now or more"
            )
            raise ValueError(f"{text}: leave the column out, with a schema of your own") from e
        if not pa.types.is_string(field.type):
            raise
        raise ValueError(f"a {field.name} is not UTF-8: read the column as BINARY") from e
