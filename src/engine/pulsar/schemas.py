"""Schemas of topics, as Apache Pulsar's clients declare them and ask for them.

Theirs are recorded with ours, so that one history is checked for both. A version is its place in the history, as eight
bytes; with a message that place is stored, unless it is 0. Values are what the client has written: those of an Avro
schema are plain Avro, without the eight bytes by which a value of ours names its schema, so they have a type of their
own there. Of a schema that has no definition, as that of a number, only the type is recorded; two go together if they
are of one type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from engine.errors import InvalidArgumentError, NotFoundError, UnsupportedError
from engine.model.names import TopicName
from engine.model.partitions import partition_count, partition_names
from engine.model.schema import DEFINED, Pair, SchemaType, TopicSchema
from engine.wire import commands

if TYPE_CHECKING:
    from engine.pulsar.session import Session

_BYTES, _NONE = -1, 0
_PARTITIONS_ASKED = 16  # clients declare a schema at all of them
TYPES = {
    1: SchemaType.STRING,
    2: SchemaType.JSON,
    4: SchemaType.PLAIN_AVRO,
    5: SchemaType.BOOL,
    6: SchemaType.INT8,
    7: SchemaType.INT16,
    8: SchemaType.INT32,
    9: SchemaType.INT64,
    10: SchemaType.FLOAT,
    11: SchemaType.DOUBLE,
    12: SchemaType.DATE,
    13: SchemaType.TIME,
    14: SchemaType.TIMESTAMP,
    15: SchemaType.PAIR,
    16: SchemaType.INSTANT,
    17: SchemaType.LOCAL_DATE,
    18: SchemaType.LOCAL_TIME,
    19: SchemaType.LOCAL_DATE_TIME,
    20: SchemaType.PROTOBUF,
}
SCHEMA_MUST = (
    "a schema must be of type bytes, string, JSON, Avro, Protobuf native, of a number or time, or a pair of these"
)
_THEIRS = {ours: theirs for theirs, ours in TYPES.items()}
# Types by their names, by which the properties of a pair's schema say those of its parts.
_NAMES = {
    -1: "BYTES",
    0: "NONE",
    1: "STRING",
    2: "JSON",
    4: "AVRO",
    5: "BOOLEAN",
    6: "INT8",
    7: "INT16",
    8: "INT32",
    9: "INT64",
    10: "FLOAT",
    11: "DOUBLE",
    12: "DATE",
    13: "TIME",
    14: "TIMESTAMP",
    16: "INSTANT",
    17: "LOCAL_DATE",
    18: "LOCAL_TIME",
    19: "LOCAL_DATE_TIME",
    20: "PROTOBUF_NATIVE",
}
_NUMBERS = {name: number for number, name in _NAMES.items()}
_ENCODING, _SEPARATED = "kv.encoding.type", {"INLINE": False, "SEPARATED": True}
_ABSENT = 0xFFFFFFFF  # the length of a part without a definition

FIRST_VERSION = bytes(8)
VERSION_PROPERTY = "pulsar.schema-version"  # of a message, as published.pyx writes it


class Declared(NamedTuple):
    """`version`: of the schema that was declared; b"": none was. `known`: how many versions the topic's has. `first`:
    what a message that says none was written with; b"" where these clients cannot read the topic's schema.
    """

    version: bytes
    known: int
    first: bytes


def definition_of(schema: Any) -> str:
    """What is recorded of a client's Schema of one of the TYPES, beside its type."""
    return (
        _definition(schema.type, schema.data) if TYPES[schema.type] is not SchemaType.PAIR else _pair(schema).to_text()
    )


def _definition(kind: int, data: bytes) -> str:
    return data.decode("utf-8", "replace") if TYPES[kind] in DEFINED else ""


def _pair(schema: Any) -> Pair:
    """Of a client's Schema, whose data are the definitions of key and value, each behind its length."""
    said = {one.key: one.value for one in schema.properties}
    if (encoding := said.get(_ENCODING, "INLINE")) not in _SEPARATED:
        raise InvalidArgumentError(f"{_ENCODING} must be one of {', '.join(_SEPARATED)}, got {encoding!r:.50}")
    parts, rest = list[TopicSchema | None](), schema.data
    for part in ("key", "value"):
        size, rest = int.from_bytes(rest[:4], "big") if len(rest) >= 4 else -1, rest[4:]
        size = 0 if size == _ABSENT else size
        if not 0 <= size <= len(rest):
            raise InvalidArgumentError(f"the definition of a pair's {part} must be behind its length, got {size}")
        name = said.get(f"{part}.schema.type", "BYTES")
        if (kind := _NUMBERS.get(name)) is None:
            raise UnsupportedError(f"{SCHEMA_MUST}, got a pair with the {part} {name!r:.50}")
        definition, rest = rest[:size], rest[size:]
        parts.append(None if kind <= _NONE else TopicSchema(TYPES[kind], _definition(kind, definition), checked=False))
    if rest:
        raise InvalidArgumentError(f"a pair must be of two definitions, got {len(rest)} bytes behind them")
    return Pair(_SEPARATED[encoding], *parts)


def spelled(pair: Pair) -> dict[str, Any]:
    """The fields of a client's Schema of a pair, as definition_of() reads them. Names and properties of its parts
    are not kept.
    """
    data, said = b"", {_ENCODING: next(name for name, separated in _SEPARATED.items() if separated == pair.separated)}
    for part, schema in (("key", pair.key), ("value", pair.value)):
        definition = b"" if schema is None else schema.definition.encode()
        data += len(definition).to_bytes(4, "big") + definition
        said[f"{part}.schema.name"] = ""
        said[f"{part}.schema.type"] = _NAMES[_BYTES if schema is None else _THEIRS[schema.type]]
        said[f"{part}.schema.properties"] = "{}"
    return {"data": data, "properties": [{"key": key, "value": value} for key, value in said.items()]}


def _named(number: int) -> bytes:
    return number.to_bytes(8, "big")


async def declare(session: Session, topic: TopicName, header: Any, *, producer: bool) -> Declared:
    """Declare the schema of a header, if it has one. Raises SchemaError, UnsupportedError, NotFoundError."""
    if not header.HasField("schema") or header.schema.type <= _NONE:
        versions = (await session.host.service.schemas.history(topic)).versions
        return _declared(b"", [str(one.type) for one in versions])
    return await _declare(session, topic, header.schema, producer=producer)


async def _declare(session: Session, topic: TopicName, schema: Any, *, producer: bool) -> Declared:
    kind = TYPES.get(schema.type)
    if kind is None:
        raise UnsupportedError(f"{SCHEMA_MUST}, got the type {schema.type}")
    definition = definition_of(schema)
    said = {"type": str(kind), "definition": definition}
    answer = await session.ask(
        lambda number: commands.TopicSchema(request_id=number, topic=str(topic), schema=said, producer=producer)
    )
    versions = [(one["type"], one.get("definition", "")) for one in _versions(answer)]
    same = [number for number, one in enumerate(versions) if one == (str(kind), definition)]
    return _declared(_named(same[-1] if same else max(len(versions) - 1, 0)), [kind for kind, _ in versions])


def _declared(version: bytes, kinds: list[str]) -> Declared:
    return Declared(version, len(kinds), FIRST_VERSION if kinds and kinds[0] in _THEIRS else b"")


def _versions(answer: Any) -> list[Any]:
    result = answer.result
    found = result["versions"] if isinstance(result, dict) else result.versions
    return [one if isinstance(one, dict) else {"type": one.type, "definition": one.definition} for one in found]


async def schema_of(session: Session, topic: TopicName, version: bytes) -> tuple[dict[str, Any], bytes]:
    """The fields of a Schema, and its version; without a version, the newest. Raises NotFoundError."""
    versions = await _known(session, topic) or await _of_partitions(session, topic)
    number = int.from_bytes(version, "big") if version else len(versions) - 1
    if not 0 <= number < len(versions) or versions[number]["type"] not in _THEIRS:
        raise NotFoundError(f"{topic} has no version {number} of its schema for a client of Apache Pulsar")
    kind, definition = SchemaType(versions[number]["type"]), versions[number]["definition"]
    fields = {"name": topic.local.partition(":")[2], "type": _THEIRS[kind], "data": definition.encode()}
    return fields | (spelled(Pair.parse(definition)) if kind is SchemaType.PAIR else {}), _named(number)


async def _known(session: Session, topic: TopicName) -> list[Any]:
    answer = await session.ask(lambda number: commands.TopicSchema(request_id=number, topic=str(topic), producer=False))
    return _versions(answer)


async def _of_partitions(session: Session, topic: TopicName) -> list[Any]:
    """Those of the first partition that has some: Java's client asks the topic itself for what its partitions have."""
    record = await session.host.service.get_metadata(topic)
    count = min(partition_count(topic, record.get("properties")), _PARTITIONS_ASKED)
    for name in partition_names(topic, range(count)):
        try:
            if found := await _known(session, TopicName.parse(name)):
                return found
        except NotFoundError:
            continue  # it was not used yet
    return []


async def create_schema(session: Session, topic: TopicName, schema: Any) -> Declared | None:
    """The version of a schema, which becomes one of the topic's if it is none; None for bytes, which have none.

    Raises SchemaError, UnsupportedError, AuthorizationError.
    """
    if schema.type <= _NONE:
        session.check(commands.TopicSchema(request_id=0, topic=str(topic), producer=True))
        return None
    return await _declare(session, topic, schema, producer=True)
