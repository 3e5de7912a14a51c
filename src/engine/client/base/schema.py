"""`Schema`: how the values of a topic become bytes and bytes become values again, on the user's side."""

from __future__ import annotations

import builtins
import contextlib
import dataclasses
import io
import json
import struct
import types
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, Generic, TypeVar, get_args, get_origin, is_typeddict, overload

import msgspec

from engine.client.base.avro_definition import NATIVE_TYPES, definition_of
from engine.client.base.avro_values import AvroDepth
from engine.client.base.named_tuples import NamedTupleCodec, has_named_tuples, is_named_tuple
from engine.client.base.pydantic_values import ModelCodec, has_models
from engine.errors import InvalidArgumentError, SchemaError
from engine.model.avro import parse_definition
from engine.model.schema import SchemaType, TopicSchema, canonical

Codec = ModelCodec | NamedTupleCodec

# Avro's single-object encoding: a marker, the CRC-64-AVRO of the writer's schema, the value (Avro 1.12).
_SINGLE_OBJECT = struct.Struct("<2sQ")
_MARKER = b"\xc3\x01"


T = TypeVar("T")  # of the values
S = TypeVar("S")


class Schema(ABC, Generic[T]):
    """A form of values. `encode` and `decode` may be called from any thread; both raise SchemaError.

    `facts` is what the topic records, None for plain bytes, of which nothing is recorded or checked.
    """

    facts: TopicSchema | None = None

    @staticmethod
    def bytes() -> Schema[builtins.bytes]:
        """Values as they are: any buffer in, bytes out. What holds without a schema."""
        return _BYTES

    @staticmethod
    def string() -> Schema[str]:
        """Text, as UTF-8."""
        return _STRING

    @overload
    @staticmethod
    def json(form: type[S]) -> Schema[S]: ...
    @overload
    @staticmethod
    def json(form: Any = None) -> Schema[Any]: ...
    @staticmethod
    def json(form: Any = None) -> Schema[Any]:
        """JSON. `form`: the type of the values: a dataclass, NamedTuple, TypedDict, msgspec Struct, pydantic model, or
        a container of such; None: any value that JSON can say, in dicts and lists. Raises InvalidArgumentError for a
        form without a schema.
        """
        if (codec := _codec_of(form)) is not None:
            return _Packed(SchemaType.JSON, form, codec.to_json, codec.from_json, codec)
        return _Packed(SchemaType.JSON, form, msgspec.json.Encoder().encode, _json_decoder(form))

    @overload
    @staticmethod
    def msgpack(form: type[S]) -> Schema[S]: ...
    @overload
    @staticmethod
    def msgpack(form: Any = None) -> Schema[Any]: ...
    @staticmethod
    def msgpack(form: Any = None) -> Schema[Any]:
        """MessagePack; `form` as for json()."""
        if (codec := _codec_of(form)) is not None:
            return _Packed(SchemaType.MSGPACK, form, codec.to_msgpack, codec.from_msgpack, codec)
        return _Packed(SchemaType.MSGPACK, form, msgspec.msgpack.Encoder().encode, _msgpack_decoder(form))

    @overload
    @staticmethod
    def avro(definition: type[S]) -> Schema[S]: ...
    @overload
    @staticmethod
    def avro(definition: Any) -> Schema[Any]: ...
    @staticmethod
    def avro(definition: Any) -> Schema[Any]:
        """Avro. `definition`: an Avro schema as JSON text or as dicts and lists (values are what fastavro makes of it),
        or the type of the values, as for json(). Raises InvalidArgumentError.
        """
        if not isinstance(definition, str | Mapping | list):
            codec = _codec_of(definition)
            return _Avro(_definition(definition, codec, None), definition, codec)
        return _Avro(canonical(definition), None)

    @staticmethod
    def of(schema: object) -> Schema[Any]:
        """What the argument `schema=` means: a Schema, `bytes` or None, `str`, or another type of values (see json()),
        which is Schema.json of it. Raises InvalidArgumentError.
        """
        if isinstance(schema, Schema):
            return schema
        plain: dict[object, Schema[Any]] = {None: _BYTES, bytes: _BYTES, str: _STRING}
        if schema is None or (isinstance(schema, type) and schema in plain):
            return plain[schema]
        if get_args(schema) or has_models(schema) or _is_record(schema):
            return Schema.json(schema)
        raise InvalidArgumentError(
            "schema must be bytes, str, a dataclass, NamedTuple, TypedDict, msgspec Struct, pydantic model, a "
            f"container of these, engine.Schema.json(…), .msgpack(…) or .avro(…), got {schema!r:.80}"
        )

    @property
    def raw(self) -> bool:
        """Whether values are bytes as they are."""
        return self.facts is None

    @property
    def field_names(self) -> list[str] | None:
        """The fields of its values, when these are records."""
        kind = parse_definition(self.facts.definition) if self.facts and self.facts.definition else None
        return None if kind is None or kind.kind != "record" else [field.name for field in kind.fields]

    @property
    def evolves(self) -> bool:
        """Whether a value can only be read with the schema that it was written with."""
        return self.facts is not None and self.facts.type is SchemaType.AVRO

    @abstractmethod
    def encode(self, value: Any) -> Any:
        """The bytes of a value."""

    @abstractmethod
    def decode(self, data: Any) -> Any:
        """The value of bytes."""

    def to_plain(self, value: Any) -> Any:
        """A decoded value in the types of its definition: numbers, text, bytes, times, lists and dicts."""
        return value

    def from_plain(self, value: Any) -> Any:
        """A value to encode() of such types. Raises SchemaError."""
        return value

    def learn(self, versions: Iterable[TopicSchema]) -> None:
        """These are the schemas that the topic's values may have been written with."""

    def unknown(self, data: Any) -> bool:
        """Whether `data` was written with a schema that learn() has not told yet."""
        return False

    def __repr__(self) -> str:
        return "<Schema bytes>" if self.facts is None else f"<Schema {self.facts.type} {self.facts.definition:.60}>"


class _Formed(Schema[Any]):
    """A schema whose values are of a type that msgspec knows, or `codec` encodes; plain when the form is None."""

    def __init__(self, form: Any, codec: Codec | None) -> None:
        self._form = form
        self._codec = codec
        origin = get_origin(form) or form  # list[int] is a list here; its items are checked when it is read
        checkable = isinstance(origin, type) and origin is not types.UnionType
        self._class: type | None = dict if is_typeddict(origin) else origin if checkable else None

    def _check_class(self, value: Any) -> None:
        if self._class is not None and not isinstance(value, self._class):
            raise SchemaError(f"the value is {type(value).__name__}; the schema says {self._class.__name__}")

    def to_plain(self, value: Any) -> Any:
        if self._form is None:
            return value
        if self._codec is not None:
            return self._codec.to_plain(value)
        _set_defaults(value)
        return msgspec.to_builtins(value, builtin_types=NATIVE_TYPES)

    def from_plain(self, value: Any) -> Any:
        if self._form is None:
            return value
        if self._codec is not None:
            return self._codec.from_plain(value)
        try:
            return msgspec.convert(value, self._form, builtin_types=NATIVE_TYPES)
        except msgspec.ValidationError as e:
            raise SchemaError(f"the value is not what the schema says: {e}") from e


class _Bytes(Schema[bytes]):
    def encode(self, value: Any) -> Any:
        return value

    def decode(self, data: Any) -> Any:
        return data


class _String(Schema[str]):
    facts = TopicSchema(SchemaType.STRING)

    def encode(self, value: Any) -> bytes:
        if not isinstance(value, str):
            raise SchemaError(f"the value is {type(value).__name__}; this producer's schema says str")
        try:
            return value.encode()
        except UnicodeEncodeError as e:
            raise SchemaError(f"the value is no text that UTF-8 can say: {e}") from e

    def decode(self, data: Any) -> str:
        try:
            return str(data, "utf-8")
        except UnicodeDecodeError as e:
            raise SchemaError(f"the value is not UTF-8: {e}") from e


class _Packed(_Formed):
    """JSON or MessagePack, by msgspec."""

    def __init__(
        self,
        kind: SchemaType,
        form: Any,
        encode: Callable[[Any], bytes],
        decode: Callable[[Any], Any],
        codec: Codec | None = None,
    ) -> None:
        super().__init__(form, codec)
        # The record's own name says nothing in these forms: a class may be renamed.
        self.facts = TopicSchema(kind, "" if form is None else _definition(form, codec, "value"))
        self._encode = encode
        self._decode = decode

    def encode(self, value: Any) -> bytes:
        self._check_class(value)
        try:
            written = self._encode(value)
        except (TypeError, ValueError, OverflowError, RecursionError) as e:
            raise SchemaError(f"the value cannot be written by the schema: {e}") from e
        if self._form is not None:
            self.decode(written)  # the encoder writes whatever fields hold; what no consumer could read is not sent
        return written

    def decode(self, data: Any) -> Any:
        try:
            return self._decode(data)
        except (msgspec.MsgspecError, ValueError, RecursionError) as e:
            raise SchemaError(f"the value is not what the schema says: {e}") from e


class _Avro(_Formed):
    """Values in the single-object encoding, so that each says which schema it was written with."""

    def __init__(self, definition: str, form: Any, codec: Codec | None = None) -> None:
        super().__init__(form, codec)
        self.facts = TopicSchema(SchemaType.AVRO, definition)
        self._written = _written_by(definition)
        self._head = _SINGLE_OBJECT.pack(_MARKER, self._written.fingerprint)
        self._writers = {self._written.fingerprint: self._written}
        self._learned = {definition}

    def encode(self, value: Any) -> bytes:
        from fastavro import schemaless_writer

        self._check_class(value)
        out = io.BytesIO()
        out.write(self._head)
        try:
            value = self.to_plain(value)
            self._written.depth.check_value(value)
            schemaless_writer(out, self._written.parsed, value, strict=True)
        except SchemaError:
            raise
        except Exception as e:  # whatever values of wrong types make the writer raise
            raise SchemaError(f"the value cannot be written by the schema: {type(e).__name__}: {e}") from e
        written = out.getvalue()
        self._written.depth.check_bytes(memoryview(written)[_SINGLE_OBJECT.size :])  # what no consumer would read
        return written

    def decode(self, data: Any) -> Any:
        from fastavro import schemaless_reader

        writer = self._writers.get(_fingerprint_in(data) or 0)
        if writer is None:
            raise SchemaError("the value does not name a schema of its topic that can be used to read it")
        body = memoryview(data)[_SINGLE_OBJECT.size :]
        writer.depth.check_bytes(body)
        try:
            found = schemaless_reader(io.BytesIO(body), writer.parsed, self._written.parsed)
            return self.from_plain(found)
        except SchemaError:
            raise
        except Exception as e:  # damaged or foreign bytes make the reader raise many things
            raise SchemaError(f"the value is not what the schema says: {type(e).__name__}: {e}") from e

    def learn(self, versions: Iterable[TopicSchema]) -> None:
        """A version that is refused, as one from before a limit may be, leaves the values of the others readable."""
        for version in versions:
            if version.type is SchemaType.AVRO and version.definition not in self._learned:
                with contextlib.suppress(InvalidArgumentError):
                    version.check()
                    writer = _written_by(version.definition)
                    self._writers.setdefault(writer.fingerprint, writer)
                self._learned.add(version.definition)

    def unknown(self, data: Any) -> bool:
        fingerprint = _fingerprint_in(data)
        return fingerprint is not None and fingerprint not in self._writers


_LEAVES = frozenset((str, int, float, bool, type(None), bytes))


def _set_defaults(value: Any) -> None:
    """Make defaults that msgspec has left to the class attributes of the instance: it does not write those again."""
    if hasattr(value, "__dataclass_fields__"):
        held = getattr(value, "__dict__", None)
        for name in value.__dataclass_fields__:
            inner = getattr(value, name)
            if held is not None:
                held.setdefault(name, inner)
            if type(inner) not in _LEAVES:
                _set_defaults(inner)
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            _set_defaults(getattr(value, name))
    elif isinstance(value, (list, tuple, set, frozenset, dict)):
        for inner in value.values() if isinstance(value, dict) else value:
            if type(inner) not in _LEAVES:
                _set_defaults(inner)


def _codec_of(form: object) -> Codec | None:
    """What encodes values of a form that msgspec alone does not."""
    if has_models(form):
        return ModelCodec(form)
    return NamedTupleCodec(form) if has_named_tuples(form) else None


def _definition(form: Any, codec: Codec | None, name: str | None) -> str:
    record = codec.record if isinstance(codec, NamedTupleCodec) else form
    return definition_of(record, name=name, models=isinstance(codec, ModelCodec))


def _is_record(form: object) -> bool:
    """Whether it is a class with fields that msgspec knows."""
    if not isinstance(form, type):
        return False
    return (
        dataclasses.is_dataclass(form) or is_typeddict(form) or is_named_tuple(form) or issubclass(form, msgspec.Struct)
    )


def _json_decoder(form: Any) -> Callable[[Any], Any]:
    return (msgspec.json.Decoder() if form is None else msgspec.json.Decoder(form)).decode


def _msgpack_decoder(form: Any) -> Callable[[Any], Any]:
    return (msgspec.msgpack.Decoder() if form is None else msgspec.msgpack.Decoder(form)).decode


@dataclasses.dataclass(frozen=True, slots=True)
class _Writer:
    """What it takes to read what was written with one definition."""

    fingerprint: int
    parsed: Any  # as fastavro wants it
    depth: AvroDepth


@lru_cache(64)
def _written_by(definition: str) -> _Writer:
    from fastavro import parse_schema
    from fastavro.schema import fingerprint, to_parsing_canonical_form

    try:
        parsed = parse_schema(_unhinted(json.loads(definition)))
        text = fingerprint(to_parsing_canonical_form(parsed), "CRC-64-AVRO")
    except Exception as e:  # what is no schema makes the library raise many things
        raise InvalidArgumentError(f"the definition is no Avro schema: {e!s:.400}") from e
    return _Writer(int.from_bytes(bytes.fromhex(text), "little"), parsed, AvroDepth(parse_definition(definition)))


def _unhinted(spelled: Any) -> Any:
    """Without the marks by which fastavro knows what it has parsed already, and then believes."""
    if isinstance(spelled, list):
        return [_unhinted(one) for one in spelled]
    if not isinstance(spelled, dict):
        return spelled
    return {key: value for key, value in spelled.items() if key not in ("__fastavro_parsed", "__named_schemas")}


def _fingerprint_in(data: Any) -> int | None:
    if len(data) < _SINGLE_OBJECT.size:
        return None
    marker, fingerprint = _SINGLE_OBJECT.unpack_from(data)
    return fingerprint if marker == _MARKER else None


_BYTES = _Bytes()
_STRING = _String()
