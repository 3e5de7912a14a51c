"""The Avro schema that says what a dataclass says: its fields, their types and their defaults."""

from __future__ import annotations

import dataclasses
import datetime
import json
from typing import Any

import msgspec
from msgspec import inspect as kinds

from engine.errors import InvalidArgumentError

# What Avro's logical types carry as they are; the rest becomes numbers, text, lists and dicts first.
NATIVE_TYPES = (bytes, datetime.datetime, datetime.date)

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_PLAIN: dict[type, Any] = {
    kinds.NoneType: "null",
    kinds.BoolType: "boolean",
    kinds.IntType: "long",
    kinds.FloatType: "double",
    kinds.StrType: "string",
    kinds.DecimalType: "string",
    kinds.BytesType: "bytes",
    kinds.DateTimeType: {"type": "long", "logicalType": "timestamp-micros"},
    kinds.DateType: {"type": "int", "logicalType": "date"},
    kinds.UUIDType: "string",
}
_RECORDS = (kinds.DataclassType, kinds.StructType, kinds.TypedDictType, kinds.NamedTupleType)
_SEQUENCES = (kinds.ListType, kinds.VarTupleType, kinds.SetType, kinds.FrozenSetType)


def definition_of(form: type, *, name: str | None = None) -> str:
    """As JSON text; `name`: what the outermost record is called, None: as the class.

    Raises InvalidArgumentError, naming the field, for a type that Avro has no word for.
    """
    try:
        info = kinds.type_info(form)
    except (TypeError, NameError) as e:
        raise InvalidArgumentError(f"{form!r:.80} cannot be a schema: {e}") from e
    definition = _Definition(name).of(info, form.__name__)
    return json.dumps(definition, separators=(",", ":"), ensure_ascii=False)


class _Definition:
    """One schema in the making; a class that was described before is named only, so that it may contain itself."""

    def __init__(self, outermost: str | None) -> None:
        self._outermost = outermost
        self._names: dict[type, str] = {}

    def of(self, info: kinds.Type, where: str) -> Any:
        if (plain := _PLAIN.get(type(info))) is not None:
            return plain
        if isinstance(info, _RECORDS):
            return self._record(info, where)
        if isinstance(info, _SEQUENCES):
            return {"type": "array", "items": self.of(info.item_type, where)}
        if isinstance(info, kinds.DictType) and isinstance(info.key_type, kinds.StrType):
            return {"type": "map", "values": self.of(info.value_type, where)}
        if isinstance(info, kinds.EnumType):
            return self._enum(info.cls, where)
        if isinstance(info, kinds.UnionType):
            return [self.of(one, where) for one in info.types]
        said = info.cls.__name__ if isinstance(info, kinds.CustomType) else type(info).__name__.removesuffix("Type")
        raise InvalidArgumentError(
            f"{where} must be a number, text, bytes, a time, an enumeration of text, another dataclass, or a list, a "
            f"dict by text or a union of these, got {said}"
        )

    def _record(self, info: Any, where: str) -> Any:
        if (known := self._names.get(info.cls)) is not None:
            return known
        name = self._name(info.cls)
        return {"type": "record", "name": name, "fields": [self._field(f, where) for f in info.fields]}

    def _field(self, field: kinds.Field, where: str) -> dict[str, Any]:
        kind = self.of(field.type, f"{where}.{field.name}")
        if field.required:
            return {"name": field.encode_name, "type": kind}
        made = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        default = _plain_default(made)
        if isinstance(kind, list):  # a union's default is of its first type
            kind = sorted(kind, key=lambda one: not _takes(one, default))
        return {"name": field.encode_name, "type": kind, "default": default}

    def _enum(self, cls: Any, where: str) -> Any:
        values = [member.value for member in cls]
        if all(isinstance(value, int) for value in values):
            return "long"
        if not all(isinstance(value, str) and value.isidentifier() and value.isascii() for value in values):
            raise InvalidArgumentError(f"{where} must have words or whole numbers as values, got {values!r:.80}")
        if (known := self._names.get(cls)) is not None:
            return known
        return {"type": "enum", "name": self._name(cls), "symbols": values}

    def _name(self, cls: type) -> str:
        name = self._outermost if self._outermost and not self._names else cls.__name__
        taken = set(self._names.values())
        unique = next(n for i in range(len(taken) + 1) if (n := f"{name}_{i}" if i else name) not in taken)
        self._names[cls] = unique
        return unique


def _plain_default(value: Any) -> Any:
    """A default as Avro's JSON spells it."""
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, datetime.datetime):
        return (value.astimezone(datetime.UTC) - _EPOCH) // datetime.timedelta(microseconds=1)
    if isinstance(value, datetime.date):
        return value.toordinal() - _EPOCH.toordinal()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {f.name: _plain_default(getattr(value, f.name)) for f in fields}
    if isinstance(value, dict):
        return {key: _plain_default(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain_default(item) for item in value]
    return msgspec.to_builtins(value)


def _takes(kind: Any, default: Any) -> bool:
    """Whether a default is of this branch of a union."""
    base = kind.get("type") if isinstance(kind, dict) else kind
    words: dict[type, tuple[str, ...]] = {
        type(None): ("null",),
        bool: ("boolean",),
        int: ("long", "int"),
        float: ("double",),
        str: ("string", "bytes", "enum"),
        list: ("array",),
        dict: ("map", "record"),
    }
    return base in words.get(type(default), ()) or (isinstance(default, dict) and base not in _WORDS)


_WORDS = {"null", "boolean", "long", "int", "double", "string", "bytes", "array"}
