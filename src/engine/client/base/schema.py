"""`Schema`: how the values of a topic become bytes and bytes become values again, on the user's side."""

from __future__ import annotations

import builtins
from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from engine.errors import InvalidArgumentError, SchemaError

if TYPE_CHECKING:
    from engine.model.schema import TopicSchema

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
        from engine.client.base import formed

        return formed.json(form)

    @overload
    @staticmethod
    def msgpack(form: type[S]) -> Schema[S]: ...
    @overload
    @staticmethod
    def msgpack(form: Any = None) -> Schema[Any]: ...
    @staticmethod
    def msgpack(form: Any = None) -> Schema[Any]:
        """MessagePack; `form` as for json()."""
        from engine.client.base import formed

        return formed.msgpack(form)

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
        from engine.client.base import formed

        return formed.avro(definition)

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
        from engine.client.base import formed

        if formed.is_form(schema):
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
        if not self.facts or not self.facts.definition:
            return None
        from engine.model.avro import parse_definition

        kind = parse_definition(self.facts.definition)
        return None if kind.kind != "record" else [field.name for field in kind.fields]

    @property
    def evolves(self) -> bool:
        """Whether a value can only be read with the schema that it was written with."""
        return False

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


class _Bytes(Schema[bytes]):
    def encode(self, value: Any) -> Any:
        return value

    def decode(self, data: Any) -> Any:
        return data


class _String(Schema[str]):
    @cached_property
    def facts(self) -> TopicSchema:  # type: ignore[override]
        """Made when it is asked for: few topics have a schema."""
        from engine.model.schema import SchemaType, TopicSchema

        return TopicSchema(SchemaType.STRING)

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


_BYTES = _Bytes()
_STRING = _String()
