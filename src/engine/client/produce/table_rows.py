"""`TableRows`: the rows of an Arrow table, as the columns of messages that a producer sends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from engine._native.produce.arguments import MessageColumns
from engine.client.base.schema import Schema
from engine.errors import InvalidArgumentError, SchemaError, UnsupportedError

CheckedColumns = MessageColumns  # what rooms above call it
ROWS_MAX = 65_536  # encoded at once: they are Python objects meanwhile


class TableRows:
    """Iterate it for MessageColumns, one or more for each record batch of `table`.

    `table`: an object with `__arrow_c_stream__`. `key`, `value`, `event_time`, `properties`: names of columns. With a
    schema of records, the fields are columns of their names, or those of the struct `value`.

    Raises InvalidArgumentError, SchemaError, UnsupportedError without pyarrow.
    """

    def __init__(
        self,
        table: Any,
        schema: Schema[Any],
        *,
        value: str,
        key: str | None = None,
        event_time: str | None = None,
        properties: str | None = None,
    ) -> None:
        try:
            import pyarrow
        except ImportError:
            raise UnsupportedError("send_table() needs pyarrow 17 or later: pip install pyarrow") from None
        if not hasattr(table, "__arrow_c_stream__"):
            raise InvalidArgumentError(
                "table must have __arrow_c_stream__, as those of pyarrow, pandas, Polars and DuckDB have, "
                f"got {type(table).__name__}"
            )
        self._arrow = pyarrow
        self._encoding = schema
        self._stream = pyarrow.RecordBatchReader.from_stream(table)
        self._columns: list[str] = self._stream.schema.names
        self._key = self._index("key", key)
        self._event_time = self._index("event_time", event_time)
        self._properties = self._index("properties", properties)
        self._fields = self._record_fields(value, {key, event_time, properties})
        self._value = None if self._fields is not None else self._index("value", value)
        self._done = 0  # rows

    def _index(self, argument: str, name: str | None) -> int | None:
        if name is None:
            return None
        if self._columns.count(name) != 1:
            found = ", ".join(self._columns) or "none"
            raise InvalidArgumentError(f"{argument} must be the name of a column, got {name!r:.80}; there are {found}")
        return self._columns.index(name)

    def _record_fields(self, value: str, used: set[str | None]) -> dict[str, int] | None:
        """{field: index of its column} when values are made of several columns; None: of the column `value`."""
        names = self._encoding.field_names
        if names is None:
            if self._encoding.facts is None or self._encoding.facts.definition or value in self._columns:
                return None
            names = [name for name in self._columns if name not in used]  # a JSON value may have any fields
        elif value in self._columns and self._arrow.types.is_struct(self._stream.schema.field(value).type):
            return None
        columns = {n: next((c for c in (f"{value}.{n}", n) if c in self._columns), None) for n in names}
        found = {name: i for name, column in columns.items() if (i := self._index("value", column)) is not None}
        if not found:
            raise InvalidArgumentError(
                f"table must have the column {value!r}, or columns of the fields {', '.join(names)}; "
                f"got {', '.join(self._columns)}"
            )
        return found

    def __iter__(self) -> Iterator[MessageColumns]:
        for batch in self._stream:
            if self._encoding.raw:
                yield self._columns_of(batch)
                continue
            for start in range(0, batch.num_rows, ROWS_MAX):
                yield self._columns_of(batch.slice(start, ROWS_MAX))

    def _columns_of(self, batch: Any) -> MessageColumns:
        values = _plain_text(batch.column(self._value)) if self._encoding.raw else self._encoded(batch)
        keys = None if self._key is None else self._keys(batch.column(self._key))
        times = None if self._event_time is None else batch.column(self._event_time)
        maps = None if self._properties is None else batch.column(self._properties)
        self._done += batch.num_rows
        return MessageColumns(values, keys, times, maps)

    def _keys(self, column: Any) -> Any:
        """Text and binary as they are, whole numbers as their decimal digits."""
        column, types = _plain_text(column), self._arrow.types
        return column.cast(self._arrow.string()) if types.is_integer(column.type) else column

    def _encoded(self, batch: Any) -> list[Any]:
        schema = self._encoding
        if self._fields is None:
            rows = self._objects(batch.column(self._value))
        else:
            columns = [self._objects(batch.column(i)) for i in self._fields.values()]
            rows = [dict(zip(self._fields, row, strict=True)) for row in zip(*columns, strict=True)]
        encoded: list[Any] = []
        for row in rows:
            try:
                encoded.append(schema.encode(schema.from_plain(row)))
            except SchemaError as e:
                raise SchemaError(f"row {self._done + len(encoded)}: {e}") from e
        return encoded

    def _objects(self, column: Any) -> list[Any]:
        """The column as Python objects. datetime has microseconds."""
        types, more = self._arrow.types, {}
        try:
            if types.is_timestamp(column.type) and column.type.unit == "ns":
                column = column.cast(self._arrow.timestamp("us", column.type.tz))
            if "map<" in str(column.type):
                more["maps_as_pydicts"] = "strict"
            found: list[Any] = column.to_pylist(**more)
        except (ValueError, TypeError, self._arrow.ArrowException) as e:
            raise InvalidArgumentError(f"a column of {column.type} cannot be sent: {e}") from e
        return found


def _plain_text(column: Any) -> Any:
    """Categories as what they stand for."""
    return column.dictionary_decode() if hasattr(column, "dictionary_decode") else column
