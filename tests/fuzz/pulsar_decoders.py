"""What Apache Pulsar's clients send, as the broker reads it: payloads, and frames up to their commands."""

from __future__ import annotations

import zlib

from google.protobuf.message import DecodeError

from engine._native.format.crc32c import crc32c
from engine._native.format.entry import Entry
from engine._native.pulsar.delivered import frame_of
from engine._native.pulsar.published import entries_of
from engine.errors import ProtocolError
from engine.pulsar.messages import Command, MessageMetadata, command
from engine.pulsar.payloads import published
from tests.reference.pulsar_reference import PulsarMessage, batch_of, payload_of

_MESSAGES = [
    PulsarMessage(b"value", b"key", properties=(("n", "v"),), event_time=7, ordering_key=b"o"),
    PulsarMessage(b"", null_value=True),
    PulsarMessage(b"x" * 100, b"\xff", key_is_bytes=True, sequence=40),
]


def batch(data: bytes) -> int:
    """A batch of as many messages as its first byte says."""
    entries = entries_of(data[1:], data[0] if data else 0, b"p", sequence=3, stored=4)
    for entry in entries:
        frame_of(Entry(entry), 1, None)
    return len(entries)


def batch_seeds() -> list[bytes]:
    return [bytes([len(_MESSAGES)]) + batch_of(_MESSAGES), b"\x01" + batch_of(_MESSAGES[:1])]


def payload(data: bytes) -> int:
    """A payload with its metadata, compressed or not."""
    return published(memoryview(data), b"p", -1).number


def payload_seeds() -> list[bytes]:
    raw = batch_of(_MESSAGES)
    metadata = MessageMetadata(sequence=1, count=3, compression=2, uncompressed_size=len(raw)).SerializeToString()
    packed = len(metadata).to_bytes(4, "big") + metadata + zlib.compress(raw)
    return [payload_of(_MESSAGES), payload_of(_MESSAGES, alone=True), b"\x0e\x01" + bytes(4) + packed, packed]


def summed(data: bytes) -> bytes:
    """With the checksum of what is there, where it looks as if it had one."""
    if data[:2] != b"\x0e\x01" or len(data) < 6:
        return data
    return data[:2] + crc32c(data[6:]).to_bytes(4, "big") + data[6:]


def commands(data: bytes) -> object:
    """One command."""
    try:
        return Command.FromString(data)
    except DecodeError as e:
        raise ProtocolError(str(e)) from e


def command_seeds() -> list[bytes]:
    return [
        command("connect", client_version="c", protocol=19),
        command("subscribe", topic="t", subscription="s", consumer=1, request=2),
        command("flow", consumer=1, permits=1000),
    ]
