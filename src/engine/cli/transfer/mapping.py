"""Which columns of a file become which part of a message."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from engine.cli.records import Records
from engine.cli.transfer.formats import DECODERS
from engine.cli.transfer.readers import Fault, Rows
from engine.client.base.schema import Schema
from engine.client.produce.table_rows import CheckedColumns
from engine.errors import EngineError, InvalidArgumentError, SchemaError

VALUE_FORMS = ["column", "json", "schema"]


@dataclass(frozen=True, slots=True)
class Columns:
    """Names of columns; None: messages have none of it. `fields`: {field of the schema: column}, or all of the row's.

    `form`: one of VALUE_FORMS: `value` is a column, the whole row is an object of JSON, or a value of the schema.
    """

    form: str
    value: str | None = None
    key: str | None = None
    event_time: str | None = None
    properties: str | None = None
    fields: tuple[tuple[str, str], ...] = ()

    @property
    def used(self) -> list[str]:
        """Those that are read, once each."""
        names = [self.value, self.key, self.event_time, self.properties, *(column for _, column in self.fields)]
        return list(dict.fromkeys(name for name in names if name is not None))


class Mapping:
    """Rows as messages. `encoding`: how bytes stand in text, None in Parquet. `lines`: rows are objects of JSON."""

    def __init__(self, columns: Columns, schema: Schema[Any], encoding: str | None, *, lines: bool) -> None:
        import pyarrow
        import pyarrow.compute

        self._arrow, self._compute = pyarrow, pyarrow.compute
        self._columns, self._schema, self._lines = columns, schema, lines
        self._decode = None if encoding is None else DECODERS.get(encoding)
        self._text = encoding is not None
        self._encode = msgspec.json.Encoder(enc_hook=str).encode

    def messages(self, rows: Rows) -> Iterator[tuple[Rows, Records, CheckedColumns] | Fault]:
        """The rows in stretches, each as messages that were checked, with the bad ones between them.

        All at once if they are good, and else halves of them, and so on: one bad row costs little.
        """
        if not rows.count:
            return
        try:
            found = self._records(rows)
            yield rows, found, CheckedColumns(found.values, found.keys, found.event_times, found.properties)
        except (EngineError, ValueError, TypeError, OverflowError, RecursionError, self._arrow.ArrowException) as e:
            if rows.count == 1:
                yield Fault(rows.first, _reason(e))
                return
            middle = rows.count // 2
            yield from self.messages(rows.part(0, middle))
            yield from self.messages(rows.part(middle, rows.count))

    def _records(self, rows: Rows) -> Records:
        columns = self._columns
        return Records(
            self._values(rows),
            None if columns.key is None else self._keys(rows.columns[columns.key]),
            None if columns.event_time is None else self._times(rows.columns[columns.event_time]),
            None if columns.properties is None else self._properties(rows.columns[columns.properties]),
            first=rows.first,
        )

    # -- values ------------------------------------------------------------------------------------------------

    def _values(self, rows: Rows) -> Any:
        columns = self._columns
        if columns.form == "json":
            return rows.columns[""] if self._lines else [self._encode(row) for row in self._objects(rows, None)]
        if columns.form == "schema":
            if columns.value is not None:
                plain = _pylist(rows.columns[columns.value])
                return [self._schema.encode(self._schema.from_plain(one)) for one in plain]
            named = self._objects(rows, dict(columns.fields))
            return [self._schema.encode(self._schema.from_plain(row)) for row in named]
        assert columns.value is not None
        return self._bytes(rows.columns[columns.value], "value")

    def _objects(self, rows: Rows, fields: dict[str, str] | None) -> Iterator[dict[str, Any]]:
        """Rows as dicts: of these {field: column}, or of all columns; text of CSV is text."""
        fields = {name: name for name in rows.columns} if fields is None else fields
        cells = [_pylist(rows.columns[column]) for column in fields.values()]
        for row in zip(*cells, strict=True):
            yield {
                name: cell.decode() if self._text and isinstance(cell, bytes) else cell
                for name, cell in zip(fields, row, strict=True)
            }

    def _bytes(self, column: Any, what: str) -> Any:
        """A column of bytes, out of text where the file is text. Numbers and objects of JSON lines are their JSON."""
        types = self._arrow.types
        if isinstance(column, list):
            if self._decode is None and all(type(one) is str for one in column):
                return self._arrow.array(column, self._arrow.string())
            return [self._of_json(one, what) for one in column]
        if hasattr(column, "dictionary_decode"):
            if self._is_sent_coded(column.type):
                return column
            column = column.dictionary_decode()
        if self._decode is not None:
            return [None if one is None else self._decoded(one, what) for one in column.to_pylist()]
        if types.is_integer(column.type) and what == "key":
            return column.cast(self._arrow.string())
        if types.is_fixed_size_binary(column.type):
            column = column.cast(self._arrow.binary())
        if hasattr(types, "is_string_view") and (
            types.is_string_view(column.type) or types.is_binary_view(column.type)
        ):
            column = column.cast(self._arrow.binary())
        if not any(of(column.type) for of in (types.is_string, types.is_large_string, types.is_binary,
                                              types.is_large_binary)):  # fmt: skip
            raise InvalidArgumentError(
                f"the {what} must be text or bytes, got {column.type}; see --value and --key-column"
            )
        return column

    def _is_sent_coded(self, kind: Any) -> bool:
        """Whether a producer takes such a dictionary as it is."""
        types = self._arrow.types
        return (
            self._decode is None
            and types.is_int32(kind.index_type)
            and (types.is_string(kind.value_type) or types.is_binary(kind.value_type))
        )

    def _decoded(self, cell: Any, what: str) -> bytes:
        assert self._decode is not None
        try:
            return self._decode(cell.encode() if isinstance(cell, str) else cell)
        except ValueError as e:
            raise InvalidArgumentError(f"the {what} is not in the --encoding: {e}") from e

    def _of_json(self, cell: Any, what: str) -> Any:
        if isinstance(cell, str):
            return cell if what == "key" and self._decode is None else self._text_bytes(cell, what)
        if cell is None:
            return None
        if what == "key" and (isinstance(cell, bool) or not isinstance(cell, int)):
            raise InvalidArgumentError(f"a key must be text or a whole number, got {type(cell).__name__}")
        return self._encode(cell)

    def _text_bytes(self, cell: str, what: str) -> bytes:
        return cell.encode() if self._decode is None else self._decoded(cell, what)

    def _keys(self, column: Any) -> Any:
        return self._bytes(column, "key")

    # -- event times and properties ------------------------------------------------------------------------------

    def _times(self, column: Any) -> Any:
        """Milliseconds since 1970; null: none."""
        arrow = self._arrow
        if isinstance(column, list):
            if not all(one is None or type(one) is str for one in column):
                return arrow.array([None if one is None else _milliseconds(one) for one in column], arrow.int64())
            column = arrow.array(column, arrow.string())
        if arrow.types.is_timestamp(column.type):
            kind = arrow.timestamp("ms", column.type.tz)
            return column if column.type == kind else column.cast(kind, safe=False)
        if arrow.types.is_date(column.type):
            return column.cast(arrow.timestamp("ms"))
        if arrow.types.is_integer(column.type):
            return column
        if column.null_count == len(column):
            return arrow.nulls(len(column), arrow.int64())
        return self._parsed(column)

    def _parsed(self, column: Any) -> Any:
        """Times in text: at once where all are numbers, or all have a zone; else one by one."""
        arrow = self._arrow
        example = _as_text(column.drop_null()[0].as_py())
        try:
            kind = arrow.int64() if example.lstrip("-").isdecimal() else arrow.timestamp("ms", "UTC")
            # Without a look at whether bytes are UTF-8: what stands for a time is of digits and signs only.
            text = column.view(arrow.string()) if arrow.types.is_binary(column.type) else column.cast(arrow.string())
            return text.cast(kind)
        except arrow.ArrowInvalid:
            pass
        found = [None if one is None else _milliseconds(_as_text(one)) for one in column.to_pylist()]
        return arrow.array(found, arrow.int64())

    def _properties(self, column: Any) -> Any:
        arrow = self._arrow
        if not isinstance(column, list) and arrow.types.is_map(column.type):
            return column
        if not isinstance(column, list) and column.null_count == len(column):
            return None
        cells = _pylist(column)
        return [None if one is None else _texts(one) for one in cells]


def _pylist(column: Any) -> list[Any]:
    if isinstance(column, list):
        return column
    kind = str(column.type)
    if kind.startswith("timestamp[ns"):
        import pyarrow

        column = column.cast(pyarrow.timestamp("us", column.type.tz), safe=False)
    found: list[Any] = column.to_pylist(**({"maps_as_pydicts": "strict"} if "map<" in kind else {}))
    return found


def _as_text(cell: Any) -> str:
    return cell.decode() if isinstance(cell, bytes) else str(cell)


def _milliseconds(cell: Any) -> int:
    """An event time: ISO 8601, UTC where it says no zone, or milliseconds since 1970."""
    if isinstance(cell, int) and not isinstance(cell, bool):
        return cell
    if not isinstance(cell, str):
        raise InvalidArgumentError(f"an event time must be ISO 8601 or milliseconds since 1970, got {cell!r:.80}")
    try:
        return int(cell)
    except ValueError:
        pass
    try:
        found = datetime.datetime.fromisoformat(cell)
    except ValueError:
        raise InvalidArgumentError(
            f"an event time must be ISO 8601 or milliseconds since 1970, got {cell!r:.80}"
        ) from None
    found = found if found.tzinfo else found.replace(tzinfo=datetime.UTC)
    return (found - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)) // datetime.timedelta(milliseconds=1)


_TEXTS: Callable[[Any], dict[str, str]] = msgspec.json.Decoder(dict[str, str]).decode


def _texts(cell: Any) -> dict[str, str]:
    """Properties: a mapping, or an object of JSON, of text to text."""
    try:
        if isinstance(cell, str | bytes):
            return _TEXTS(cell)
        return msgspec.convert(cell, dict[str, str])
    except (msgspec.MsgspecError, UnicodeDecodeError) as e:
        raise InvalidArgumentError(f"properties must be an object of text to text: {e}") from e


def _reason(error: Exception) -> str:
    """Without the place in a batch of one, which says nothing."""
    text = " ".join(str(error).split()) or type(error).__name__
    for name in ("values", "keys", "properties"):
        text = text.replace(f"{name}[0]", f"the {name.removesuffix('s') if name != 'properties' else name}")
    text = text.removesuffix("; nothing was sent")
    return text if isinstance(error, EngineError | SchemaError) else f"{type(error).__name__}: {text}"
