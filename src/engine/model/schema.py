"""`TopicSchema`: the form of a topic's values, and whether a reader's schema can read what a writer's wrote.

Definitions are Avro schemas, also those of JSON and MessagePack values: they declare fields, types and defaults, and
compatibility is that of Avro (Avro 1.12, "Schema Resolution"). Those of Protobuf values are Protobuf's (protobuf.py).
"""

from __future__ import annotations

import contextlib
import enum
import json
from collections.abc import Iterator
from dataclasses import InitVar, dataclass, replace

from engine.errors import CorruptionError, InvalidArgumentError, SchemaError
from engine.limits import SCHEMA_SIZE_MAX, SCHEMA_VERSIONS_MAX
from engine.model.avro import check_values, parse_definition
from engine.model.fields import Fields, dump
from engine.model.protobuf import parse_protobuf, why_unreadable
from engine.model.resolution import why_unresolvable


class SchemaType(enum.StrEnum):
    """The encoding of values. The names are in metadata and on the wire: do not change."""

    STRING = "string"  # UTF-8
    JSON = "json"
    MSGPACK = "msgpack"
    AVRO = "avro"  # each value in Avro's single-object encoding
    PLAIN_AVRO = "plain-avro"  # each value in Avro's binary encoding alone, as clients of Apache Pulsar write it
    PROTOBUF = "protobuf"  # each value in Protobuf's binary encoding, as clients of Apache Pulsar write it
    # One number, truth value or time each, as clients of Apache Pulsar write it: big-endian.
    BOOL = "bool"
    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    FLOAT = "float"
    DOUBLE = "double"
    DATE = "date"
    TIME = "time"
    TIMESTAMP = "timestamp"
    INSTANT = "instant"
    LOCAL_DATE = "local-date"
    LOCAL_TIME = "local-time"
    LOCAL_DATE_TIME = "local-date-time"
    PAIR = "pair"  # a key and a value, each of a schema of its own, as clients of Apache Pulsar write them


_MUST_BE_DEFINED = frozenset((SchemaType.AVRO, SchemaType.PLAIN_AVRO, SchemaType.PROTOBUF, SchemaType.PAIR))
DEFINED = _MUST_BE_DEFINED | {SchemaType.JSON, SchemaType.MSGPACK}
"""The types whose schemas have a definition, or may have one."""

AS_BYTES = frozenset(SchemaType) - {SchemaType.STRING, SchemaType.JSON, SchemaType.MSGPACK, SchemaType.AVRO}
"""The types that only clients of Apache Pulsar declare: clients of Engine read such values as bytes."""

_IN_PAIRS = sorted({SchemaType.STRING, SchemaType.JSON, *AS_BYTES} - {SchemaType.PAIR})


@dataclass(frozen=True, slots=True)
class TopicSchema:
    """One schema. `definition`: an Avro schema as JSON text, what protobuf.py reads, or a Pair; "" for values without
    a declared form.

    `checked=False`: for a recorded one, so that a topic stays usable when a limit is lowered.

    Raises InvalidArgumentError for an unknown type, a definition that is no such schema, or one beyond a limit.
    """

    type: SchemaType
    definition: str = ""
    checked: InitVar[bool] = True

    def __post_init__(self, checked: bool) -> None:
        if self.type not in SchemaType.__members__.values():
            raise InvalidArgumentError(f"schema type must be one of {', '.join(SchemaType)}, got {self.type!r:.80}")
        try:
            size = len(self.definition.encode())
        except UnicodeEncodeError as e:
            raise InvalidArgumentError(f"the schema's definition must be Unicode text: {e.reason}") from e
        if size > SCHEMA_SIZE_MAX:
            raise _too_large(f"{size} bytes")
        if self.definition and self.type not in DEFINED:
            raise InvalidArgumentError(f"a schema of type {self.type} must have no definition")
        if self.type in _MUST_BE_DEFINED and not self.definition:
            raise InvalidArgumentError(f"a schema of type {self.type} must have a definition")
        if self.definition and checked:
            self.check()

    def check(self) -> None:
        """Raise InvalidArgumentError for a definition that is no schema of its type or beyond a limit."""
        if self.type is SchemaType.PROTOBUF:
            parse_protobuf(self.definition)
            return
        if self.type is SchemaType.PAIR:
            Pair.parse(self.definition, checked=True)
            return
        form = parse_definition(self.definition)
        if self.type in (SchemaType.AVRO, SchemaType.PLAIN_AVRO):
            check_values(form)

    def why_unreadable(self, writer: TopicSchema) -> str | None:
        """Why a reader with this schema cannot read values written with `writer`; None when it can.

        Raises InvalidArgumentError for a recorded definition beyond a limit, SchemaError when the comparison takes too
        many steps.
        """
        if self.type is not writer.type:
            return f"it reads {self.type} values, and these are {writer.type}"
        if not (self.definition and writer.definition) or self.definition == writer.definition:
            return None  # without a declared form, every value is accepted
        if self.type is SchemaType.PROTOBUF:
            return why_unreadable(parse_protobuf(self.definition), parse_protobuf(writer.definition))
        if self.type is SchemaType.PAIR:
            return Pair.parse(self.definition).why_unreadable(Pair.parse(writer.definition))
        return why_unresolvable(parse_definition(self.definition), parse_definition(writer.definition))

    def to_mapping(self) -> dict[str, str]:
        """As on the wire and in metadata."""
        return {"type": str(self.type), "definition": self.definition}

    @classmethod
    def of(cls, mapping: object, *, checked: bool = True) -> TopicSchema:
        """Undo to_mapping(). Raises InvalidArgumentError. `checked`: as of the class."""
        fields = mapping if isinstance(mapping, dict) else {}
        kind, definition = fields.get("type"), fields.get("definition", "")
        if not isinstance(kind, str) or kind not in set(SchemaType) or not isinstance(definition, str):
            raise InvalidArgumentError(f'schema must be {{"type": …, "definition": Avro as text}}, got {mapping!r:.80}')
        return cls(SchemaType(kind), definition, checked)


@dataclass(frozen=True, slots=True)
class Pair:
    """The definition of a pair: its schemas, where None stands for bytes. `separated`: the key is the message's, the
    value its value; else both are in the value, each behind its length (four bytes, big-endian).
    """

    separated: bool
    key: TopicSchema | None
    value: TopicSchema | None

    def to_text(self) -> str:
        parts = {name: one and one.to_mapping() for name, one in (("key", self.key), ("value", self.value))}
        return json.dumps({"separated": self.separated, **parts}, separators=(",", ":"), ensure_ascii=False)

    @classmethod
    def parse(cls, text: str, *, checked: bool = False) -> Pair:
        """Undo to_text(). Raises InvalidArgumentError. `checked`: its schemas, as of TopicSchema."""
        try:
            spelled = json.loads(text)
        except (ValueError, RecursionError) as e:
            raise InvalidArgumentError(f"the definition of a pair must be a JSON object: {e}") from e
        if not isinstance(spelled, dict) or set(spelled) != {"separated", "key", "value"}:
            raise InvalidArgumentError(
                f"the definition of a pair must be of separated, key and value, got {text!r:.80}"
            )
        if not isinstance(spelled["separated"], bool):
            raise InvalidArgumentError(f"separated must be true or false, got {spelled['separated']!r:.80}")
        parts = [
            None if spelled[name] is None else TopicSchema.of(spelled[name], checked=checked)
            for name in ("key", "value")
        ]
        for part in parts:
            if part is not None and part.type not in _IN_PAIRS:
                raise InvalidArgumentError(f"a part of a pair must be of type {', '.join(_IN_PAIRS)}, got {part.type}")
        return cls(spelled["separated"], *parts)

    def why_unreadable(self, writer: Pair) -> str | None:
        """Why a reader of such pairs cannot read those of another definition; None when it can. Raises as that of
        TopicSchema.
        """
        if self.separated != writer.separated:
            return "one has the key in the value, the other has it in the message's key"
        for part, reads, written in (("key", self.key, writer.key), ("value", self.value, writer.value)):
            if reads is None or written is None:
                problem = None if reads is written else "one is bytes, the other has a schema"
            else:
                problem = reads.why_unreadable(written)
            if problem is not None:
                return f"of the {part}: {problem}"
        return None


@dataclass(frozen=True, slots=True)
class SchemaHistory:
    """The schemas with which a topic's messages may have been written, oldest first.

    `topic_created_ms` tells the topic from an earlier one of its name.
    """

    topic_created_ms: int
    versions: tuple[TopicSchema, ...] = ()

    def declared(self, schema: TopicSchema, *, producer: bool) -> SchemaHistory:
        """With `schema`: a producer may add a version, a consumer only the first. Raises SchemaError.

        Makes all comparisons at once; a caller with other work iterates comparisons() and then calls extended().
        """
        for _ in self.comparisons(schema, producer=producer):
            pass
        return self.extended(schema, producer=producer)

    def comparisons(self, schema: TopicSchema, *, producer: bool) -> Iterator[None]:
        """Compare `schema` with each version in turn, one or two comparisons per step. Raises SchemaError.

        A consumer must be able to read every version. For a producer the existing readers stay, and new ones read
        existing values: each version must be able to read every other.
        """
        if schema in self.versions and producer:
            return
        for number, known in enumerate(self.versions, 1):
            _refuse(schema, known, f"the schema cannot be used to read version {number}", known)
            if producer:
                _refuse(known, schema, f"the schema writes what cannot be read with version {number}", known)
            yield

    def extended(self, schema: TopicSchema, *, producer: bool) -> SchemaHistory:
        """With `schema`, which passed comparisons(). Raises SchemaError when there are too many."""
        if schema in self.versions or (self.versions and not producer):
            return self
        if len(self.versions) == SCHEMA_VERSIONS_MAX:
            raise SchemaError(f"the topic must have at most {SCHEMA_VERSIONS_MAX} versions of its schema")
        return replace(self, versions=(*self.versions, schema))

    def to_json(self) -> bytes:
        versions = [schema.to_mapping() for schema in self.versions]
        return dump({"topicCreatedAt": self.topic_created_ms, "versions": versions})

    @classmethod
    def from_json(cls, value: bytes) -> SchemaHistory:
        """Undo to_json(). Raises CorruptionError."""
        fields = Fields.parse("schema record", value)
        try:
            versions = tuple(TopicSchema.of(item.values, checked=False) for item in fields.objects("versions"))
        except InvalidArgumentError as e:
            raise CorruptionError(f"schema record: {e}") from e
        return cls(fields.number("topicCreatedAt"), versions)


def _refuse(reader: TopicSchema, writer: TopicSchema, relation: str, known: TopicSchema) -> None:
    """Raise SchemaError when `reader` cannot read what `writer` wrote, or that cannot be decided."""
    try:
        problem = reader.why_unreadable(writer)
    except InvalidArgumentError as e:
        problem = str(e)
    if problem is not None:
        raise SchemaError(f"{relation} of the topic's ({known.type}): {problem}")


def _too_large(size: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"the schema's definition must have at most {SCHEMA_SIZE_MAX} bytes, got {size}")


def canonical(definition: object) -> str:
    """The one spelling of an Avro schema, given as JSON text or parsed JSON. Raises InvalidArgumentError."""
    if isinstance(definition, str):
        with contextlib.suppress(ValueError):  # a bare type name
            definition = json.loads(definition)
    try:
        text = json.dumps(definition, separators=(",", ":"), ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as e:
        raise InvalidArgumentError(f"the definition must be an Avro schema: {e}") from e
    if len(text) > SCHEMA_SIZE_MAX:  # before parsing
        raise _too_large(f"{len(text)} characters")
    parse_definition(text)
    return text
