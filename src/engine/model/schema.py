"""`TopicSchema`: what a topic's values are, and whether one who reads by one schema understands what another wrote.

Definitions are Avro schemas, also those of JSON and MessagePack values: they say which fields there are, of which types
and with which defaults, and the rules of who can read what are Avro's (Avro 1.12, "Schema Resolution").
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
from engine.model.resolution import why_unresolvable


class SchemaType(enum.StrEnum):
    """How values are written. The names stand in metadata and on the wire: do not change."""

    STRING = "string"  # UTF-8
    JSON = "json"
    MSGPACK = "msgpack"
    AVRO = "avro"  # each value in Avro's single-object encoding


@dataclass(frozen=True, slots=True)
class TopicSchema:
    """One schema. `definition`: an Avro schema as JSON text, "" for values without a declared form.

    `checked=False` is for one that was recorded: a topic stays usable by those that have it when a limit is lowered.

    Raises InvalidArgumentError for an unknown type, a definition that is no Avro schema, or one beyond a limit.
    """

    type: SchemaType
    definition: str = ""
    checked: InitVar[bool] = True

    def __post_init__(self, checked: bool) -> None:
        if self.type not in SchemaType.__members__.values():
            raise InvalidArgumentError(f"schema type {self.type!r:.80}; one of {', '.join(SchemaType)} is right")
        try:
            size = len(self.definition.encode())
        except UnicodeEncodeError as e:
            raise InvalidArgumentError(f"the schema's definition is no Unicode text: {e.reason}") from e
        if size > SCHEMA_SIZE_MAX:
            raise _too_large(f"{size} bytes")
        if self.type is SchemaType.STRING and self.definition:
            raise InvalidArgumentError("a string schema has no definition")
        if self.type is SchemaType.AVRO and not self.definition:
            raise InvalidArgumentError("an Avro schema needs a definition")
        if self.definition and checked:
            self.check()

    def check(self) -> None:
        """Raise InvalidArgumentError for a definition that is no Avro schema or beyond a limit."""
        form = parse_definition(self.definition)
        if self.type is SchemaType.AVRO:
            check_values(form)

    def why_unreadable(self, writer: TopicSchema) -> str | None:
        """Why a reader with this schema cannot read what was written with `writer`; None when it can.

        Raises InvalidArgumentError for a recorded definition that is beyond a limit, SchemaError when the two take too
        many steps to compare.
        """
        if self.type is not writer.type:
            return f"it reads {self.type} values, and these are {writer.type}"
        if not (self.definition and writer.definition) or self.definition == writer.definition:
            return None  # without a declared form, whatever is read is taken as it comes
        return why_unresolvable(parse_definition(self.definition), parse_definition(writer.definition))

    def to_mapping(self) -> dict[str, str]:
        """As it stands on the wire and in metadata."""
        return {"type": str(self.type), "definition": self.definition}

    @classmethod
    def of(cls, mapping: object, *, checked: bool = True) -> TopicSchema:
        """Undo to_mapping(). Raises InvalidArgumentError. `checked`: as of the class."""
        fields = mapping if isinstance(mapping, dict) else {}
        kind, definition = fields.get("type"), fields.get("definition", "")
        if not isinstance(kind, str) or kind not in set(SchemaType) or not isinstance(definition, str):
            raise InvalidArgumentError(f'schema {mapping!r:.80}; {{"type": …, "definition": Avro as text}} is right')
        return cls(SchemaType(kind), definition, checked)


@dataclass(frozen=True, slots=True)
class SchemaHistory:
    """The schemas that a topic's messages may have been written with, oldest first.

    `topic_created_ms` tells the topic from another one that had its name.
    """

    topic_created_ms: int
    versions: tuple[TopicSchema, ...] = ()

    def declared(self, schema: TopicSchema, *, producer: bool) -> SchemaHistory:
        """With `schema`, which a producer may add as a version, and a consumer as the first. Raises SchemaError.

        All comparisons at once; a caller with other work goes through comparisons() and then calls extended().
        """
        for _ in self.comparisons(schema, producer=producer):
            pass
        return self.extended(schema, producer=producer)

    def comparisons(self, schema: TopicSchema, *, producer: bool) -> Iterator[None]:
        """Hold `schema` against each version in turn, two comparisons or one for each step. Raises SchemaError.

        A consumer has to read all there are. With a producer every reader that is there goes on, and the new ones read
        what is there: each version can read each other.
        """
        if schema in self.versions and producer:
            return
        for number, known in enumerate(self.versions, 1):
            _refuse(schema, known, f"the schema cannot be used to read version {number}", known)
            if producer:
                _refuse(known, schema, f"the schema writes what cannot be read with version {number}", known)
            yield

    def extended(self, schema: TopicSchema, *, producer: bool) -> SchemaHistory:
        """With `schema`, which comparisons() has let pass. Raises SchemaError: there are too many."""
        if schema in self.versions or (self.versions and not producer):
            return self
        if len(self.versions) == SCHEMA_VERSIONS_MAX:
            raise SchemaError(f"the topic has {SCHEMA_VERSIONS_MAX} versions of its schema, and takes no more")
        return replace(self, versions=(*self.versions, schema))

    def to_json(self) -> bytes:
        """The record's value."""
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
    """An Avro schema, given as JSON text or as what JSON text spells, in one spelling. Raises InvalidArgumentError."""
    if isinstance(definition, str):
        with contextlib.suppress(ValueError):  # the bare name of a type
            definition = json.loads(definition)
    try:
        text = json.dumps(definition, separators=(",", ":"), ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as e:
        raise InvalidArgumentError(f"the definition is no Avro schema: {e}") from e
    if len(text) > SCHEMA_SIZE_MAX:  # before it is parsed
        raise _too_large(f"{len(text)} characters")
    parse_definition(text)
    return text
