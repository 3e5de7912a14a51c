"""Protobuf definitions, as Apache Pulsar's clients declare them: parsed within bounds, and compared: which can read
what another wrote (Protocol Buffers, "Updating A Message Type").

A definition is a JSON object of a FileDescriptorSet in base64 with the names of the message that values are and of its
file. In Protobuf's binary encoding a field is its number and one of a few forms, so names of fields do not matter,
numbers do. A field that only one side has is left out by a reader, or has its default.
"""

from __future__ import annotations

import base64
import json
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from engine.errors import InvalidArgumentError, SchemaError
from engine.limits import (
    SCHEMA_ERROR_SIZE_MAX,
    SCHEMA_FIELDS_MAX,
    SCHEMA_NAMES_MAX,
    SCHEMA_STEPS_MAX,
    SCHEMA_SYMBOLS_MAX,
)

_SET, _MESSAGE, _FILE = "fileDescriptorSet", "rootMessageTypeName", "rootFileDescriptorName"
_NAMES = (  # FieldDescriptorProto.Type, from 1
    *(
        "double",
        "float",
        "int64",
        "uint64",
        "int32",
        "fixed64",
        "fixed32",
        "bool",
        "string",
        "group",
        "message",
        "bytes",
    ),
    *("uint32", "enum", "sfixed32", "sfixed64", "sint32", "sint64"),
)
_FORMS = {  # kinds that are read as each other, perhaps with fewer bits; any other kind is a form of its own
    **dict.fromkeys(("int32", "int64", "uint32", "uint64", "bool", "enum"), "varint"),
    **dict.fromkeys(("sint32", "sint64"), "zigzag"),
    **dict.fromkeys(("fixed32", "sfixed32"), "32 bits"),
    **dict.fromkeys(("fixed64", "sfixed64"), "64 bits"),
}
_REQUIRED, _REPEATED = 2, 3  # FieldDescriptorProto.Label


@dataclass(slots=True, eq=False)
class ProtobufField:
    """One field. `message`: what it holds, of a message or a group."""

    name: str
    kind: str
    required: bool
    repeated: bool
    message: ProtobufMessage | None = None


@dataclass(slots=True, eq=False)
class ProtobufMessage:
    """One message type. Compared by identity."""

    full_name: str
    fields: dict[int, ProtobufField] = field(default_factory=dict)  # by number


@lru_cache(maxsize=64)
def parse_protobuf(definition: str) -> ProtobufMessage:
    """The message that a definition is about.

    Raises InvalidArgumentError for what is no such definition, for one beyond a limit, and where the package protobuf
    is not installed.
    """
    try:
        from google.protobuf.descriptor_pb2 import FileDescriptorSet
    except ImportError as e:
        raise InvalidArgumentError("a Protobuf schema needs the package protobuf: pip install 'engine[pulsar]'") from e
    try:
        spelled = json.loads(definition)
        encoded, root, home = (spelled[name] for name in (_SET, _MESSAGE, _FILE))
        files = FileDescriptorSet.FromString(base64.b64decode(encoded, validate=True)).file
    except (ValueError, TypeError, KeyError, RecursionError) as e:
        raise _no_schema(f"{type(e).__name__} {e}") from e
    except Exception as e:  # protobuf's DecodeError, of a class that depends on its backend
        raise _no_schema(str(e)) from e
    found = _Types(files)
    if not isinstance(root, str) or found.homes.get(root) != home:
        raise _no_schema(f"no file {home!r:.80} of the set has the message {root!r:.80}")
    return found.messages[root]


def _no_schema(text: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"the definition must be a JSON object of {_SET}, {_MESSAGE} and {_FILE}: {text[:SCHEMA_ERROR_SIZE_MAX]}"
    )


def _text(name: str | bytes) -> str:
    """A name of the set: protobuf gives one of proto2 that is no UTF-8 as bytes."""
    if isinstance(name, bytes):
        raise _no_schema(f"a name in the set must be UTF-8, got {name!r:.80}")
    return name


class _Types:
    """All types of a set of files. Only those of proto2 and proto3: an edition may change what a field's form is."""

    def __init__(self, files: Any) -> None:
        self.messages: dict[str, ProtobufMessage] = {}
        self.homes: dict[str, str] = {}  # the file of each message
        self._enums: set[str] = set()
        described = []
        for file in files:
            if file.syntax not in ("", "proto2", "proto3"):
                raise _no_schema(f"the syntax of {file.name!r:.80} is {file.syntax!r:.20}, not proto2 or proto3")
            for name, message in self._named(file):
                self.messages[name] = ProtobufMessage(name)
                self.homes[name] = file.name
                described.append((name, message))
        for name, message in described:
            self._fill(self.messages[name], message.field)

    def _named(self, file: Any) -> Iterator[tuple[str, Any]]:
        """Every message of a file, also those inside others, by its full name."""
        prefix = f"{_text(file.package)}." if file.package else ""
        self._add_enums(prefix, file.enum_type)
        left = deque((prefix, message) for message in file.message_type)
        while left:
            prefix, message = left.popleft()
            name = prefix + _text(message.name)
            if name in self.messages or name in self._enums:
                raise _no_schema(f"{name!r:.80} is defined twice")
            if len(self.messages) == SCHEMA_NAMES_MAX:
                raise _beyond("messages", SCHEMA_NAMES_MAX)
            self._add_enums(f"{name}.", message.enum_type)
            left.extend((f"{name}.", inner) for inner in message.nested_type)
            yield name, message

    def _add_enums(self, prefix: str, enums: Any) -> None:
        for enum in enums:
            if len(enum.value) > SCHEMA_SYMBOLS_MAX:
                raise _beyond(f"values in {prefix}{enum.name}", SCHEMA_SYMBOLS_MAX)
            self._enums.add(prefix + _text(enum.name))

    def _fill(self, message: ProtobufMessage, fields: Any) -> None:
        if len(fields) > SCHEMA_FIELDS_MAX:
            raise _beyond(f"fields in {message.full_name}", SCHEMA_FIELDS_MAX)
        for one in fields:
            at = f"the field {one.name!r:.80} of {message.full_name}"
            if not 1 <= one.type <= len(_NAMES) or one.number in message.fields:
                raise _no_schema(f"{at} has an unknown type, or the number of another one")
            kind, name = _NAMES[one.type - 1], _text(one.type_name).removeprefix(".")
            held = self.messages.get(name) if kind in ("message", "group") else None
            if (kind in ("message", "group") and held is None) or (kind == "enum" and name not in self._enums):
                raise _no_schema(f"{at} is of a type that is not in the set: {name!r:.80}")
            message.fields[one.number] = ProtobufField(
                _text(one.name), kind, one.label == _REQUIRED, one.label == _REPEATED, held
            )


def _beyond(what: str, most: int) -> InvalidArgumentError:
    return InvalidArgumentError(f"a Protobuf schema must have at most {most} {what}")


def why_unreadable(reader: ProtobufMessage, writer: ProtobufMessage) -> str | None:
    """Where and why a reader cannot read the writer's values; None when it can.

    Raises SchemaError when that takes more than SCHEMA_STEPS_MAX comparisons.
    """
    if reader.full_name != writer.full_name:
        return f"it reads {reader.full_name}, and these are {writer.full_name}"
    seen = {(reader, writer)}
    left, steps = deque(seen), 0
    while left:
        one, other = left.popleft()
        steps += len(one.fields) + 1
        if steps > SCHEMA_STEPS_MAX:
            raise SchemaError(f"comparing two Protobuf schemas must take at most {SCHEMA_STEPS_MAX} steps")
        for number, wanted in one.fields.items():
            written = other.fields.get(number)
            if (problem := _why_unlike(wanted, written)) is not None:
                return f"the field {number} ({wanted.name}) of {one.full_name} {problem}"
            if wanted.message is not None and written is not None and written.message is not None:
                pair = wanted.message, written.message
                if pair not in seen:
                    seen.add(pair)
                    left.append(pair)
    return None


def _why_unlike(wanted: ProtobufField, written: ProtobufField | None) -> str | None:
    if written is None or (wanted.required and not written.required):
        return "is required, and may be missing" if wanted.required else None
    if wanted.repeated is not written.repeated:
        one, other = ("repeated" if each.repeated else "single" for each in (wanted, written))
        return f"is {one}, and {other} where it was written"
    forms = [_FORMS.get(each.kind, each.kind) for each in (wanted, written)]
    if forms[0] == forms[1] or forms == ["bytes", "string"]:
        return None
    return f"is a {wanted.kind}, and a {written.kind} where it was written"
