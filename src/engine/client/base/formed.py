"""Schemas of typed values: JSON and MessagePack by msgspec, Avro by fastavro. Loaded with the first such schema."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import struct
import types
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from json import loads
from typing import Any, get_args, get_origin, is_typeddict

import msgspec

from engine.client.base.avro_definition import NATIVE_TYPES, definition_of
from engine.client.base.avro_values import AvroDepth
from engine.client.base.named_tuples import NamedTupleCodec, has_named_tuples, is_named_tuple
from engine.client.base.pydantic_values import ModelCodec, has_models
from engine.client.base.schema import Schema
from engine.errors import InvalidArgumentError, SchemaError
from engine.model.avro import parse_definition
from engine.model.schema import SchemaType, TopicSchema, canonical

Codec = ModelCodec | NamedTupleCodec

# Avro's single-object encoding: a marker, the CRC-64-AVRO of the writer's schema, the value (Avro 1.12).
_SINGLE_OBJECT = struct.Struct("<2sQ")
_MARKER = b"\xc3\x01"


def json(form: Any) -> Schema[Any]:
    """See Schema.json."""
    if (codec := _codec_of(form)) is not None:
        return _Packed(SchemaType.JSON, form, codec.to_json, codec.from_json, codec)
    return _Packed(SchemaType.JSON, form, msgspec.json.Encoder().encode, _json_decoder(form))


def msgpack(form: Any) -> Schema[Any]:
    """See Schema.msgpack."""
    if (codec := _codec_of(form)) is not None:
        return _Packed(SchemaType.MSGPACK, form, codec.to_msgpack, codec.from_msgpack, codec)
    return _Packed(SchemaType.MSGPACK, form, msgspec.msgpack.Encoder().encode, _msgpack_decoder(form))


def avro(definition: Any) -> Schema[Any]:
    """See Schema.avro."""
    if not isinstance(definition, str | Mapping | list):
        codec = _codec_of(definition)
        return _Avro(_definition(definition, codec, None), definition, codec)
    return _Avro(canonical(definition), None)


def is_form(schema: object) -> bool:
    """Whether it is a type of values that json() takes."""
    return bool(get_args(schema)) or has_models(schema) or _is_record(schema)


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

    @property
    def evolves(self) -> bool:
        return True

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
        parsed = parse_schema(_unhinted(loads(definition)))
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
