"""The messages of Apache Pulsar's protocol: those of pulsar.proto, made when this module is imported."""

from __future__ import annotations

from typing import Any

from engine.wire.protobuf import messages

_made = messages("engine.pulsar", "pulsar")
Command: Any = _made["Command"]
MessageIdData: Any = _made["MessageIdData"]
MessageMetadata: Any = _made["MessageMetadata"]
SingleMessageMetadata: Any = _made["SingleMessageMetadata"]
Schema: Any = _made["Schema"]

# Command's number, which is also that of its field -> the field's name.
FIELDS: dict[int, str] = {field.number: field.name for field in Command.DESCRIPTOR.fields if field.number > 1}


def command(name: str, /, **fields: Any) -> bytes:
    """A Command of the field `name`, encoded."""
    number = Command.DESCRIPTOR.fields_by_name[name].number
    found: bytes = Command(type=number, **{name: fields}).SerializeToString()
    return found


def framed(name: str, /, **fields: Any) -> bytes:
    """The frame of a command without a payload."""
    body = command(name, **fields)
    return b"".join(((len(body) + 4).to_bytes(4, "big"), len(body).to_bytes(4, "big"), body))
