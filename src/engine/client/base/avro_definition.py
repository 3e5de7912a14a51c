"""The Avro schema that says what a type of values says: its fields, their types and their defaults.

msgspec tells what dataclasses, TypedDicts, Structs and containers of them consist of, and a pydantic model its fields.
"""

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
_LITERALS = {str: "string", int: "long", type(None): "null"}
_RECORDS = (kinds.DataclassType, kinds.StructType, kinds.TypedDictType, kinds.NamedTupleType)
_SEQUENCES = (kinds.ListType, kinds.VarTupleType, kinds.SetType, kinds.FrozenSetType)


def definition_of(form: Any, *, name: str | None = None, models: bool = False) -> str:
    """As JSON text; `name`: what the outermost record is called, None: as the class. `models`: those of pydantic are
    records, and not refused.

    Raises InvalidArgumentError, naming the field, for a type that Avro has no word for.
    """
    definition = _Definition(name, models).of(_info(form), getattr(form, "__name__", str(form)))
    return json.dumps(definition, separators=(",", ":"), ensure_ascii=False)


class _Definition:
    """One schema in the making; a class that was described before is named only, so that it may contain itself."""

    def __init__(self, outermost: str | None, models: bool) -> None:
        self._outermost = outermost
        self._models = models
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
        if isinstance(info, kinds.LiteralType):
            return self._one_of([_LITERALS[type(value)] for value in info.values])
        if isinstance(info, kinds.UnionType):
            return [self.of(one, where) for one in info.types]
        if self._models and isinstance(info, kinds.CustomType) and hasattr(info.cls, "model_fields"):
            return self._model(info.cls, where)
        said = info.cls.__name__ if isinstance(info, kinds.CustomType) else type(info).__name__.removesuffix("Type")
        raise InvalidArgumentError(
            f"{where} must be a number, text, bytes, a time, an enumeration of text, another dataclass, or a list, a "
            f"dict by text or a union of these, got {said}"
        )

    def _record(self, info: Any, where: str) -> Any:
        _check_by_name(info, where)
        if (known := self._names.get(info.cls)) is not None:
            return known
        name = self._name(info.cls)
        fields = [self._field(f, where) for f in info.fields]
        if (tag := getattr(info, "tag_field", None)) is not None:
            fields.insert(0, {"name": tag, "type": _LITERALS[type(info.tag)]})
        return {"type": "record", "name": name, "fields": fields}

    def _one_of(self, words: list[str]) -> Any:
        different = list(dict.fromkeys(words))
        return different[0] if len(different) == 1 else different

    def _model(self, cls: Any, where: str) -> Any:
        """A model of pydantic, whose annotations are resolved. One with a root is written as that."""
        if (known := self._names.get(cls)) is not None:
            return known
        if getattr(cls, "__pydantic_root_model__", False):
            return self.of(_info(cls.model_fields["root"].annotation), where)
        name = self._name(cls)
        fields = []
        for key, field in cls.model_fields.items():
            called = field.serialization_alias or field.alias or key
            kind = self.of(_info(field.annotation), f"{where}.{key}")
            made = [] if field.is_required() else [field.get_default(call_default_factory=True)]
            fields.append(_field_of(called, kind, *made))
        return {"type": "record", "name": name, "fields": fields}

    def _field(self, field: kinds.Field, where: str) -> dict[str, Any]:
        kind = self.of(field.type, f"{where}.{field.name}")
        if field.required:
            return _field_of(field.encode_name, kind)
        if field.default is msgspec.NODEFAULT and field.default_factory is msgspec.NODEFAULT:
            raise InvalidArgumentError(
                f"{where}.{field.name} must be there: a key of a TypedDict that may be missing has no form in a schema"
            )
        made = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        return _field_of(field.encode_name, kind, made)

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


def _info(form: Any) -> kinds.Type:
    try:
        return kinds.type_info(form)
    except (TypeError, NameError) as e:
        raise InvalidArgumentError(f"{form!r:.80} cannot be a schema: {e}") from e


def _field_of(name: str, kind: Any, *made: Any) -> dict[str, Any]:
    """A field of a record; `made`: its default, if it has one."""
    if not made:
        return {"name": name, "type": kind}
    default = _plain_default(made[0])
    if isinstance(kind, list):  # a union's default is of its first type
        kind = sorted(kind, key=lambda one: not _takes(one, default))
    return {"name": name, "type": kind, "default": default}


def _check_by_name(info: Any, where: str) -> None:
    """Raise InvalidArgumentError for a class whose fields are not all written under their names.

    Schemas are compared by the names of fields, so that readers find those that are there.
    """
    config = getattr(info.cls, "__struct_config__", None)
    if isinstance(info, kinds.NamedTupleType) or getattr(info, "array_like", False):
        raise InvalidArgumentError(
            f"{where} must have fields that are written by name, got {info.cls.__name__}, which is written as a list: "
            "use a dataclass or a Struct"
        )
    if config is not None and config.omit_defaults:
        raise InvalidArgumentError(f"{where} must write its defaults, got {info.cls.__name__} with omit_defaults")


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
    if hasattr(value, "model_dump"):
        return _plain_default(value.model_dump(by_alias=True))
    if isinstance(value, msgspec.Struct):
        names = zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True)
        tag = msgspec.to_builtins(value) if value.__struct_config__.tag is not None else {}
        shown = {encoded: _plain_default(getattr(value, name)) for name, encoded in names}
        return {name: item for name, item in tag.items() if name not in shown} | shown
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
