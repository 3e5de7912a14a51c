"""`TableColumns`: the columns of a topic that is read as a table, and batches of messages as record batches.

The columns of messages point into their entries where these were not compressed. Values with a schema are decoded, and
copied into columns of their fields.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from engine._native.consume.batch import MessageBatch
from engine.client.base.schema import Schema
from engine.client.ranges.arrow_types import ArrowForm, form_of, json_text
from engine.errors import InvalidArgumentError, SchemaError, UnsupportedError
from engine.model.schema import SchemaType

VALUE = "value"
ORIGIN = ("producer_name", "sequence_id")  # columns of which a table has those that are named
ROWS_MIN = 1024  # in a record batch; entries with fewer messages are copied into one


def import_arrow(asker: str) -> Any:
    """pyarrow. Raises UnsupportedError, which names `asker`, when it is missing or too old."""
    try:
        import pyarrow
    except ImportError:
        raise UnsupportedError(f"{asker} needs pyarrow 17 or later: pip install pyarrow") from None
    return pyarrow


class TableColumns:
    """What a table of a topic looks like. Never changed; from any thread.

    Without a schema, the columns are those of `MessageBatch.to_arrow()`. With one, `value` has the type of the values;
    where these are records, columns of their fields are in its place, and a field with the name of another column is
    called "value.NAME". `columns`: names of those that are wanted, in order; None: all of these. Those of ORIGIN can be
    named besides, where the values have no field that is called so.

    Raises InvalidArgumentError for a name that is no column, UnsupportedError without pyarrow.
    """

    def __init__(self, schema: Schema[Any], columns: Iterable[str] | None) -> None:
        self._arrow = import_arrow("a table")
        self._schema = schema
        self._form = _form_of_values(self._arrow, schema)
        base = MessageBatch("", [], {}, lambda *_: None).to_arrow(include_sequence_ids=True).schema
        known = {field.name: field for field in base if field.name not in ORIGIN}
        self._fields: dict[str, str] = {}  # column: field of the values' record
        if self._form is not None and self._arrow.types.is_struct(self._form.type):
            known = self._with_fields(known, self._form.type)
        elif self._form is not None:
            known[VALUE] = self._arrow.field(VALUE, self._form.type)
        origin = {name: base.field(name) for name in ORIGIN if name not in known}
        every = list(known)
        known |= origin
        names = every if columns is None else _checked(columns, known)
        self._origin = not origin.keys().isdisjoint(names)
        self.schema = self._arrow.schema([known[name] for name in names])
        self._plain = [name for name in names if name not in self._fields and (name != VALUE or self._form is None)]
        self._typed = len(self._plain) < len(names)

    def _with_fields(self, known: dict[str, Any], struct: Any) -> dict[str, Any]:
        found = {}
        for name, column in known.items():
            if name != VALUE:
                found[name] = column
                continue
            for field in struct:
                called = f"{VALUE}.{field.name}" if field.name in known and field.name != VALUE else field.name
                self._fields[called] = field.name
                found[called] = field.with_name(called)
        return found

    @property
    def decodes(self) -> bool:
        """Whether values are decoded, which takes about a microsecond for each field."""
        return self._typed

    def record_batches(self, batch: MessageBatch) -> list[Any]:
        """The messages of `batch` as record batches of `schema`. Raises SchemaError, CorruptionError."""
        table = batch.to_arrow(include_sequence_ids=self._origin)
        if self._typed:
            return self._decoded(batch, table)
        table = table.select(self.schema.names)
        if len(batch) < ROWS_MIN * table.column(0).num_chunks:
            table = table.combine_chunks()
        found: list[Any] = table.to_batches()
        return found

    def _decoded(self, batch: MessageBatch, table: Any) -> list[Any]:
        made = {name: table.column(name).combine_chunks() for name in self._plain}
        try:
            made |= self._columns_of(self._values(batch, table))
        except SchemaError:
            raise
        except Exception as e:  # pyarrow and converters raise many things for values of other types
            raise SchemaError(f"the values of {batch!r} do not fit the columns of their schema: {e}") from e
        return [self._arrow.RecordBatch.from_arrays([made[name] for name in self.schema.names], schema=self.schema)]

    def _values(self, batch: MessageBatch, table: Any) -> list[Any]:
        schema, found = self._schema, []
        for value in batch.values:
            try:
                found.append(schema.to_plain(schema.decode(value)))
            except (SchemaError, RecursionError) as e:
                at = len(found)
                segment, offset = table.column("segment")[at], table.column("offset")[at]
                raise SchemaError(f"segment {segment}, offset {offset} of {batch.topic}: {e}") from e
        return found

    def _columns_of(self, values: list[Any]) -> dict[str, Any]:
        assert self._form is not None
        convert = self._form.convert
        rows = values if convert is None else [convert(value) for value in values]
        if not self._fields:
            return {VALUE: self._arrow.array(rows, self._form.type)}
        return {
            column: self._arrow.array([row[field] for row in rows], self.schema.field(column).type)
            for column, field in self._fields.items()
            if column in self.schema.names
        }


def _form_of_values(arrow: Any, schema: Schema[Any]) -> ArrowForm | None:
    """None for bytes. Values without a declared form are JSON text."""
    if schema.facts is None:
        return None
    if schema.facts.type is SchemaType.STRING:
        return ArrowForm(arrow.string())
    return form_of(schema.facts.definition) if schema.facts.definition else ArrowForm(arrow.string(), json_text)


def _checked(columns: object, known: dict[str, Any]) -> list[str]:
    if isinstance(columns, str) or not isinstance(columns, Iterable):
        raise InvalidArgumentError(f"columns must be a list of names, got {columns!r:.80}")
    names = list(columns)
    if not names or len(set(map(str, names))) < len(names):
        raise InvalidArgumentError(f"columns must be different names, one or more, got {names!r:.200}")
    for name in names:
        if name not in known:
            raise InvalidArgumentError(f"columns must be of {', '.join(known)}; got {name!r:.80}")
    return names
