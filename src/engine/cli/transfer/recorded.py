"""The schema that a topic has recorded, as a Schema: a command knows no class of the values."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NotRequired, TypedDict, Union

import msgspec

from engine.client.base.schema import Schema
from engine.errors import SchemaError
from engine.model.schema import AS_BYTES, SchemaType, TopicSchema

_NATIVE = (bytes, datetime.datetime, datetime.date)
_PLAIN: dict[str, Any] = {
    "null": None,
    "boolean": bool,
    "int": int,
    "long": int,
    "float": float,
    "double": float,
    "bytes": bytes,
    "string": str,
    "enum": str,
    "fixed": bytes,
}
_LOGICAL: dict[str, Any] = {
    "timestamp-millis": datetime.datetime,
    "timestamp-micros": datetime.datetime,
    "date": datetime.date,
}


def schema_of(versions: Sequence[TopicSchema]) -> Schema[Any]:
    """By which the values of a topic with these schemas, the oldest first, are read and written: by the newest.

    Values of Apache Pulsar's clients that a consumer of ours reads as bytes are bytes here, too.
    """
    if not versions or versions[-1].type in AS_BYTES:
        return Schema.bytes()
    facts = versions[-1]
    if facts.type is SchemaType.STRING:
        return Schema.string()
    if facts.type is SchemaType.AVRO:
        schema = _RecordedAvro(facts)
        schema.learn(versions)
        return schema
    return _Recorded(facts)


class _Recorded(Schema[Any]):
    """JSON or MessagePack, whose values are dicts, lists and plain values, as the recorded definition has them."""

    def __init__(self, facts: TopicSchema) -> None:
        self.facts = facts
        definition = json.loads(facts.definition) if facts.definition else None
        form = Any if definition is None else _form_of(definition)
        self._defaults = _defaults_of(definition)
        self._form = form
        module: Any = msgspec.json if facts.type is SchemaType.JSON else msgspec.msgpack
        self._encode: Callable[[Any], bytes] = module.Encoder().encode
        self._decode: Callable[[Any], Any] = module.Decoder(form).decode

    def encode(self, value: Any) -> bytes:
        try:
            written = self._encode(value)
        except (TypeError, ValueError, OverflowError, RecursionError) as e:
            raise SchemaError(f"the value cannot be written by the schema: {e}") from e
        self.decode(written)  # what no consumer could read is not sent
        return written

    def decode(self, data: Any) -> Any:
        try:
            return self._decode(data)
        except (msgspec.MsgspecError, ValueError, RecursionError) as e:
            raise SchemaError(f"the value is not what the schema says: {e}") from e

    def to_plain(self, value: Any) -> Any:
        plain = msgspec.to_builtins(value, builtin_types=_NATIVE)
        return {**self._defaults, **plain} if self._defaults and isinstance(plain, dict) else plain

    def from_plain(self, value: Any) -> Any:
        """A cell without a value is a field without one: its default, where it has one and may not be null."""
        if self._defaults and isinstance(value, dict):
            value = {name: cell for name, cell in value.items() if cell is not None or name not in self._defaults}
        return _converted(value, self._form)


class _RecordedAvro(Schema[Any]):
    """Avro, whose values may come out of text: times as ISO 8601, bytes in base64."""

    def __init__(self, facts: TopicSchema) -> None:
        self.facts = facts
        self._schema = Schema.avro(facts.definition)
        self._form = _form_of(json.loads(facts.definition))

    @property
    def evolves(self) -> bool:
        return self._schema.evolves

    def encode(self, value: Any) -> Any:
        return self._schema.encode(value)

    def decode(self, data: Any) -> Any:
        return self._schema.decode(data)

    def to_plain(self, value: Any) -> Any:
        return self._schema.to_plain(value)

    def from_plain(self, value: Any) -> Any:
        return _converted(value, self._form)

    def learn(self, versions: Iterable[TopicSchema]) -> None:
        self._schema.learn(versions)

    def unknown(self, data: Any) -> bool:
        return self._schema.unknown(data)


def _converted(value: Any, form: Any) -> Any:
    """A plain value as the form has it. Raises SchemaError."""
    try:
        return msgspec.convert(msgspec.to_builtins(value), form)
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as e:
        raise SchemaError(f"the value is not what the schema says: {e}") from e


def _defaults_of(definition: Any) -> dict[str, Any]:
    if not isinstance(definition, dict) or definition.get("type") != "record":
        return {}
    return {field["name"]: field["default"] for field in definition["fields"] if "default" in field}


def _form_of(kind: Any) -> Any:
    """The type whose values msgspec reads. A type that was described elsewhere, or holds itself, may be anything."""
    if isinstance(kind, list):
        return Union[tuple(_form_of(one) for one in kind)]  # noqa: UP007 - of a tuple made here
    if isinstance(kind, str):
        return _PLAIN.get(kind, Any)
    base = kind["type"]
    if not isinstance(base, str):
        return _form_of(base)
    if base == "array":
        return list[_form_of(kind["items"])]  # type: ignore[misc]
    if base == "map":
        return dict[str, _form_of(kind["values"])]  # type: ignore[misc]
    if base == "record":
        fields = {field["name"]: _form_of(field["type"]) for field in kind["fields"]}
        optional = {field["name"] for field in kind["fields"] if "default" in field}
        total = {name: NotRequired[form] if name in optional else form for name, form in fields.items()}
        return TypedDict(kind["name"].rpartition(".")[2], total)  # type: ignore[operator]
    return _LOGICAL.get(kind.get("logicalType", ""), _PLAIN.get(base, Any))
