"""The columns of an exported file: those of a table of the topic, and of CSV and JSON their text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.cli.transfer.formats import ENCODERS
from engine.cli.transfer.json_text import all_empty, json_cells
from engine.client import MessageBatch
from engine.client.base.schema import Schema
from engine.client.ranges.table_columns import ORIGIN, TableColumns
from engine.errors import InvalidArgumentError

PLACE = ("segment", "offset")
PRODUCER, PRODUCER_NAME = "producer", "producer_name"  # the same column


class ExportColumns:
    """Batches of messages as record batches of `schema`.

    `names`: the columns, in order; None: those of a table. `sequence_id` and `producer` are no columns of every table
    and can be named here. `keys`: only messages with one of these keys. Raises InvalidArgumentError for an unknown
    name.
    """

    def __init__(self, values: Schema[Any], names: Sequence[str] | None, keys: Sequence[bytes]) -> None:
        import pyarrow

        self._arrow = pyarrow
        every = TableColumns(values, None).schema.names
        known = [*every, *(name for name in (*ORIGIN, PRODUCER) if name not in every)]
        for name in names or ():
            if name not in known:
                raise InvalidArgumentError(f"columns must be of {', '.join(known)}; got {name!r:.80}")
        self.names = list(every if names is None else names)
        if len(set(self.names)) < len(self.names):
            raise InvalidArgumentError(f"columns must be different names, got {', '.join(self.names)}")
        self._keys = pyarrow.array(keys, pyarrow.binary()) if keys else None
        also = [name for name in (*PLACE, *(("key",) if keys else ())) if name not in self.names]
        # {column: the table's}; a field of the values may be called "producer", too.
        read = {name: name for name in (*self.names, *also)}
        if PRODUCER in read and PRODUCER not in every:
            read[PRODUCER] = PRODUCER_NAME
        self._read = read
        self._table = TableColumns(values, dict.fromkeys(read.values()))
        self._all = pyarrow.schema([self._table.schema.field(of).with_name(name) for name, of in read.items()])
        self.schema = pyarrow.schema([self._all.field(name) for name in self.names])

    def record_batches(self, batch: MessageBatch[Any]) -> list[Any]:
        """Of the wanted messages; the columns `segment` and `offset` are always there, behind the others if need be."""
        found = []
        for table in self._table.record_batches(batch):
            columns = [table.column(of) for of in self._read.values()]
            one = self._arrow.RecordBatch.from_arrays(columns, schema=self._all)
            found.append(one if self._keys is None else self._chosen(one))
        return found

    def _chosen(self, batch: Any) -> Any:
        import pyarrow.compute

        return batch.filter(pyarrow.compute.is_in(batch.column("key"), value_set=self._keys))


class TextColumns:
    """Record batches of an export, with text in place of bytes and, for CSV, of what CSV has no word for.

    `encoding`: how bytes stand in text. `nested`: whether lists, maps and structs may stay.
    """

    def __init__(self, schema: Any, encoding: str, *, nested: bool) -> None:
        import pyarrow

        self._arrow, self._encoding, self._nested = pyarrow, encoding, nested
        fields = [pyarrow.field(field.name, self._text_type(field.type)) for field in schema]
        self.schema = pyarrow.schema(fields)
        self._names = schema.names

    def _text_type(self, kind: Any) -> Any:
        types, arrow = self._arrow.types, self._arrow
        if _is_binary(types, kind) or (types.is_nested(kind) and not self._nested):
            return arrow.string()
        if types.is_decimal(kind) or types.is_time(kind):
            return arrow.string()
        return kind

    def convert(self, batch: Any, topic: str) -> Any:
        """The text of a batch that has the columns of a place. Raises InvalidArgumentError, with the place, for bytes
        that are not UTF-8.
        """
        columns = [self._column(batch, name, topic) for name in self._names]
        return self._arrow.RecordBatch.from_arrays(columns, schema=self.schema)

    def _column(self, batch: Any, name: str, topic: str) -> Any:
        column, types = batch.column(name), self._arrow.types
        if _is_binary(types, column.type):
            return self._encoded(batch, name, column, topic)
        if types.is_nested(column.type) and not self._nested:
            return self._json(column)
        if types.is_decimal(column.type) or types.is_time(column.type):
            return column.cast(self._arrow.string())
        return column

    def _encoded(self, batch: Any, name: str, column: Any, topic: str) -> Any:
        arrow = self._arrow
        if self._encoding == "utf-8":
            try:
                return column.cast(arrow.string())
            except arrow.ArrowInvalid:
                raise InvalidArgumentError(self._place_of_bytes(batch, name, column, topic)) from None
        encode = ENCODERS[self._encoding]
        return arrow.array([None if one is None else encode(one) for one in column.to_pylist()], arrow.string())

    @staticmethod
    def _place_of_bytes(batch: Any, name: str, column: Any, topic: str) -> str:
        for at, value in enumerate(column.to_pylist()):
            try:
                (value or b"").decode()
            except UnicodeDecodeError as e:
                segment, offset = batch.column("segment")[at], batch.column("offset")[at]
                where = f"segment {segment}, offset {offset} of {topic}"
                return (
                    f"{where}: the {name} is not UTF-8 ({e.reason} at byte {e.start}); --encoding base64 or hex has it"
                )
        return f"{name} is not UTF-8; --encoding base64 or hex has it"

    def _json(self, column: Any) -> Any:
        """Properties and other values of several parts as JSON; an empty map is no cell."""
        if self._arrow.types.is_map(column.type) and all_empty(column):
            return self._arrow.nulls(len(column), self._arrow.string())
        return json_cells(column, without_empty=self._arrow.types.is_map(column.type))


def _is_binary(types: Any, kind: Any) -> bool:
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind))
