"""Batches and frames of Apache Pulsar's protocol as plain Python, by the `protobuf` package."""

from __future__ import annotations

import base64
from dataclasses import dataclass, replace
from typing import Any

from engine.pulsar.messages import Command, MessageMetadata, SingleMessageMetadata
from tests.reference.entry_reference import PlainMessage, crc32c


@dataclass(frozen=True)
class PulsarMessage:
    """What a client of theirs says of one message."""

    value: bytes = b""
    key: bytes | None = None
    key_is_bytes: bool = False
    properties: tuple[tuple[str, str], ...] = ()
    event_time: int = 0
    sequence: int | None = None
    ordering_key: bytes | None = None
    null_value: bool = False

    def plain(self, sequence: int, deliver_at: int | None = None, version: int = 0) -> PlainMessage:
        """What it is for a consumer of ours. `version`: of the schema."""
        properties = dict(self.properties)
        if self.ordering_key is not None:
            properties["pulsar.ordering-key"] = self.ordering_key.hex()
        if self.null_value:
            properties["pulsar.null-value"] = ""
        if self.key_is_bytes:
            properties["pulsar.key-bytes"] = ""
        if version:
            properties["pulsar.schema-version"] = str(version)
        return PlainMessage(self.value, self.key, properties, self.event_time or None, self.at(sequence), deliver_at)

    def at(self, sequence: int) -> int:
        return sequence if self.sequence is None else self.sequence


def numbered(messages: list[PulsarMessage], first: int = 0) -> list[PulsarMessage]:
    """Those without a sequence id have theirs, counted from `first`."""
    return [m if m.sequence is not None else replace(m, sequence=first + i) for i, m in enumerate(messages)]


def batch_of(messages: list[PulsarMessage]) -> bytes:
    """A batch, not compressed."""
    parts = []
    for message in messages:
        single = SingleMessageMetadata(payload_size=len(message.value))
        fill(single, message)
        if message.sequence is not None:
            single.sequence = message.sequence
        head = single.SerializeToString()
        parts.append(len(head).to_bytes(4, "big") + head + message.value)
    return b"".join(parts)


def fill(target: Any, message: PulsarMessage) -> None:
    """The fields that a message in a batch and one alone have in common."""
    for name, value in message.properties:
        target.properties.add(key=name.encode(), value=value.encode())
    if message.key is not None:
        target.key = base64.b64encode(message.key) if message.key_is_bytes else message.key
        if message.key_is_bytes:
            target.key_base64 = True
    if message.event_time:
        target.event_time = message.event_time
    if message.ordering_key is not None:
        target.ordering_key = message.ordering_key
    if message.null_value:
        target.null_value = True


def payload_of(
    messages: list[PulsarMessage], *, sequence: int = 0, alone: bool = False, schema_version: bytes | None = None
) -> bytes:
    """The payload of a SEND, with its checksum."""
    metadata = MessageMetadata(producer_name=b"p", sequence=sequence, publish_time=1)
    body = messages[0].value if alone else batch_of(messages)
    if alone:
        fill(metadata, messages[0])
    else:
        metadata.count = len(messages)
    if schema_version is not None:
        metadata.schema_version = schema_version
    head = metadata.SerializeToString()
    summed = len(head).to_bytes(4, "big") + head + body
    return b"\x0e\x01" + crc32c(summed).to_bytes(4, "big") + summed


@dataclass(frozen=True)
class Delivered:
    """One frame that a consumer is sent."""

    command: Any
    metadata: Any
    messages: list[PulsarMessage]


def read_frame(frame: bytes) -> Delivered:
    """Undo frame_of(), checking each size and the checksum."""
    total, size = int.from_bytes(frame[:4], "big"), int.from_bytes(frame[4:8], "big")
    assert total == len(frame) - 4
    command = Command.FromString(frame[8 : 8 + size])
    rest = frame[8 + size :]
    assert rest[:2] == b"\x0e\x01"
    assert int.from_bytes(rest[2:6], "big") == crc32c(rest[6:])
    size = int.from_bytes(rest[6:10], "big")
    metadata, body = MessageMetadata.FromString(rest[10 : 10 + size]), rest[10 + size :]
    if not metadata.HasField("count"):
        return Delivered(command.message, metadata, [_message(metadata, body, metadata.sequence)])
    messages = []
    for _ in range(metadata.count):
        size = int.from_bytes(body[:4], "big")
        single = SingleMessageMetadata.FromString(body[4 : 4 + size])
        body = body[4 + size :]
        messages.append(_message(single, body[: single.payload_size], single.sequence))
        body = body[single.payload_size :]
    assert not body
    return Delivered(command.message, metadata, messages)


def _message(said: Any, value: bytes, sequence: int) -> PulsarMessage:
    key = said.key if said.HasField("key") else None
    return PulsarMessage(
        value=value,
        key=base64.b64decode(key) if key is not None and said.key_base64 else key,
        key_is_bytes=said.key_base64,
        properties=tuple((pair.key.decode(), pair.value.decode()) for pair in said.properties),
        event_time=said.event_time,
        sequence=sequence,
        ordering_key=said.ordering_key if said.HasField("ordering_key") else None,
        null_value=said.null_value,
    )
