"""`TopicSchema`: what a topic's values are, and whether one who reads by one schema understands what another wrote.

Definitions are Avro schemas, also those of JSON and MessagePack values: they say which fields there are, of which types
and with which defaults, and the rules of who can read what are Avro's (Avro 1.12, "Schema Resolution").
"""

from __future__ import annotations

import contextlib
import enum
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from engine.errors import CorruptionError, InvalidArgumentError, SchemaError
from engine.limits import SCHEMA_SIZE_MAX, SCHEMA_VERSIONS_MAX
from engine.model.fields import Fields, dump

if TYPE_CHECKING:
    from avro.schema import Schema as AvroSchema


class SchemaType(enum.StrEnum):
    """How values are written. The names stand in metadata and on the wire: do not change."""

    STRING = "string"  # UTF-8
    JSON = "json"
    MSGPACK = "msgpack"
    AVRO = "avro"  # each value in Avro's single-object encoding


@dataclass(frozen=True, slots=True)
class TopicSchema:
    """One schema. `definition`: an Avro schema as JSON text, "" for values without a declared form.

    Raises InvalidArgumentError for an unknown type, a definition that is no Avro schema, or one that is too large.
    """

    type: SchemaType
    definition: str = ""

    def __post_init__(self) -> None:
        if self.type not in SchemaType.__members__.values():
            raise InvalidArgumentError(f"schema type {self.type!r:.80}; one of {', '.join(SchemaType)} is right")
        try:
            size = len(self.definition.encode())
        except UnicodeEncodeError as e:
            raise InvalidArgumentError(f"the schema's definition is no Unicode text: {e.reason}") from e
        if size > SCHEMA_SIZE_MAX:
            raise InvalidArgumentError(f"the schema's definition has {size} bytes; at most {SCHEMA_SIZE_MAX} are right")
        if self.type is SchemaType.STRING and self.definition:
            raise InvalidArgumentError("a string schema has no definition")
        if self.type is SchemaType.AVRO and not self.definition:
            raise InvalidArgumentError("an Avro schema needs a definition")
        if self.definition:
            _parsed(self.definition)

    def why_unreadable(self, writer: TopicSchema) -> str | None:
        """Why one who has this schema cannot read what was written with `writer`; None when it can."""
        if self.type is not writer.type:
            return f"it reads {self.type} values, and these are {writer.type}"
        if not (self.definition and writer.definition) or self.definition == writer.definition:
            return None  # without a declared form, whatever is read is taken as it comes
        return _why_unresolvable(_parsed(self.definition), _parsed(writer.definition))

    def to_mapping(self) -> dict[str, str]:
        """As it stands on the wire and in metadata."""
        return {"type": str(self.type), "definition": self.definition}

    @classmethod
    def of(cls, mapping: object) -> TopicSchema:
        """Undo to_mapping(). Raises InvalidArgumentError."""
        fields = mapping if isinstance(mapping, dict) else {}
        kind, definition = fields.get("type"), fields.get("definition", "")
        if not isinstance(kind, str) or kind not in set(SchemaType) or not isinstance(definition, str):
            raise InvalidArgumentError(f'schema {mapping!r:.80}; {{"type": …, "definition": Avro as text}} is right')
        return cls(SchemaType(kind), definition)


@dataclass(frozen=True, slots=True)
class SchemaHistory:
    """The schemas that a topic's messages may have been written with, oldest first.

    `topic_created_ms` tells the topic from another one that had its name.
    """

    topic_created_ms: int
    versions: tuple[TopicSchema, ...] = ()

    def declared_by_producer(self, schema: TopicSchema) -> SchemaHistory:
        """With `schema`, which may be a new version. Raises SchemaError.

        Every reader that is there goes on, and the new ones read what is there: each version can read each other.
        """
        if schema in self.versions:
            return self
        for number, known in enumerate(self.versions, 1):
            _refuse(schema.why_unreadable(known), "cannot be used to read", number, known)
            _refuse(known.why_unreadable(schema), "writes what cannot be read with", number, known)
        if len(self.versions) == SCHEMA_VERSIONS_MAX:
            raise SchemaError(f"the topic has {SCHEMA_VERSIONS_MAX} versions of its schema, and takes no more")
        return replace(self, versions=(*self.versions, schema))

    def declared_by_consumer(self, schema: TopicSchema) -> SchemaHistory:
        """With `schema` if it is the first; else it has to read all there are. Raises SchemaError."""
        for number, known in enumerate(self.versions, 1):
            _refuse(schema.why_unreadable(known), "cannot be used to read", number, known)
        return self if self.versions else replace(self, versions=(schema,))

    def to_json(self) -> bytes:
        """The record's value."""
        versions = [schema.to_mapping() for schema in self.versions]
        return dump({"topicCreatedAt": self.topic_created_ms, "versions": versions})

    @classmethod
    def from_json(cls, value: bytes) -> SchemaHistory:
        """Undo to_json(). Raises CorruptionError."""
        fields = Fields.parse("schema record", value)
        try:
            versions = tuple(TopicSchema.of(item.values) for item in fields.objects("versions"))
        except InvalidArgumentError as e:
            raise CorruptionError(f"schema record: {e}") from e
        return cls(fields.number("topicCreatedAt"), versions)


def _refuse(problem: str | None, relation: str, number: int, known: TopicSchema) -> None:
    if problem is not None:
        raise SchemaError(f"the schema {relation} version {number} of the topic's ({known.type}): {problem}")


@lru_cache(256)
def _parsed(definition: str) -> AvroSchema:
    import avro.errors  # slow to load, and not needed by most
    import avro.schema

    try:
        return avro.schema.parse(definition)
    except (avro.errors.AvroException, ValueError, TypeError, RecursionError) as e:
        raise InvalidArgumentError(f"the definition is no Avro schema: {e}") from e


def _why_unresolvable(reader: AvroSchema, writer: AvroSchema) -> str | None:
    from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType

    checker = ReaderWriterCompatibilityChecker()  # type: ignore[no-untyped-call]
    found = checker.get_compatibility(reader, writer)
    if found.compatibility is SchemaCompatibilityType.compatible:
        return None
    kinds = (str(kind).rpartition(".")[2].replace("_", " ") for kind in found.incompatibilities)
    return f"{_listed(kinds)} at {_listed(found.locations)} ({_listed(found.messages)})"


def _listed(items: Iterable[Any]) -> str:
    return ", ".join(sorted({str(item) for item in items}))


def canonical(definition: object) -> str:
    """An Avro schema, given as JSON text or as what JSON text spells, in one spelling. Raises InvalidArgumentError."""
    if isinstance(definition, str):
        with contextlib.suppress(ValueError):  # the bare name of a type
            definition = json.loads(definition)
    try:
        text = json.dumps(definition, separators=(",", ":"), ensure_ascii=False)
    except (TypeError, ValueError) as e:
        raise InvalidArgumentError(f"the definition is no Avro schema: {e}") from e
    _parsed(text)
    return text
