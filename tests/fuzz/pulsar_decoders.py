"""What Apache Pulsar's clients send, as the broker reads it: payloads, and frames up to their commands."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.message import DecodeError

from engine._native.format.crc32c import crc32c
from engine._native.format.entry import Entry, compress, walk
from engine._native.pulsar.delivered import frame_of, key_hashes, schema_versions
from engine._native.pulsar.foreign import foreign_entry
from engine._native.pulsar.published import entries_of
from engine._native.pulsar.sends import plain_send
from engine._native.serve.log import entries as claims_of
from engine.errors import ProtocolError
from engine.migration.pulsar.connection import Service
from engine.migration.pulsar.reading import Source
from engine.model.compression import compressor, decompressor
from engine.model.schema import DEFINED, Pair, SchemaType, TopicSchema
from engine.pulsar.chunks import Chunks
from engine.pulsar.messages import FIELDS, Command, MessageMetadata, Schema, command
from engine.pulsar.payloads import WHOLE, content_of, plain_published, published
from engine.pulsar.schemas import TYPES, definition_of, spelled
from tests.model.test_protobuf import file_of
from tests.pulsar.opaque import KEYS, chunk_of, metadata_of
from tests.reference.pulsar_reference import PulsarMessage, batch_of, payload_of

_SOURCE = Source(Service("pulsar://127.0.0.1:1"), "t")
_ORDERS = [
    FileDescriptorSet(file=[file_of(messages)]).SerializeToString()
    for messages in (
        {"Order": [(1, "int64"), (2, ".shop.Item", "repeated"), (3, ".shop.Colour")], "Item": [(1, "string")]},
        {"Order": [(1, "bool", "required"), (2, ".shop.Order"), (7, "bytes")]},
    )
]
_decompress = decompressor()
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
    """A payload with its metadata, compressed or not; what cannot be taken apart comes back as it was."""
    made = published(memoryview(data), b"p", -1, chunks=Chunks(), versions=range(2))
    for entry in walk(made.entries) if made.number else ():
        if entry.encrypted:
            content = data[6:] if data[:2] == b"\x0e\x01" else data
            frame = frame_of(entry, 1, None)
            assert frame is not None
            assert frame.endswith(content)
            claims_of(entry.data())
    return made.number


def payload_seeds() -> list[bytes]:
    raw = batch_of(_MESSAGES)
    metadata = MessageMetadata(sequence=1, count=3, compression=2, uncompressed_size=len(raw)).SerializeToString()
    packed = len(metadata).to_bytes(4, "big") + metadata + zlib.compress(raw)
    whole = [
        payload_of(_MESSAGES),
        payload_of(_MESSAGES, alone=True, schema_version=bytes(7) + b"\1"),
        b"\x0e\x01" + bytes(4) + packed,
        packed,
    ]
    return [*whole, *(summed(b"\x0e\x01" + bytes(4) + one) for one in _foreign_contents())]


def _foreign_contents() -> list[bytes]:
    """Encrypted, in a batch, and in chunks."""
    said = [
        metadata_of(1, encryption_keys=KEYS, key=b"aw==", key_base64=True, deliver_at=5, ordering_key=b"o"),
        metadata_of(1, encryption_keys=KEYS, count=3, highest_sequence=9),
        chunk_of(1, 0, 3),
        chunk_of(1, 0, 2, encryption_keys=KEYS),
    ]
    return [len(one).to_bytes(4, "big") + one + b"payload" for one in said]


def dealt(data: bytes) -> bytes:
    """An entry that was stored, made a frame in whole and in part, and dealt by its keys."""
    entry = Entry(data)
    keys = key_hashes(entry, _decompress)
    assert frame_of(entry, 1, _decompress, redelivered=3, due=[0], partition=2, schema_version=b"v") is not None
    versions = schema_versions(entry, _decompress)
    frame = frame_of(entry, 1, _decompress)
    assert (frame is None) == (len(set(versions)) > 1)
    return (frame or b"") + versions + keys


def dealt_seeds() -> list[bytes]:
    entries = entries_of(batch_of(_MESSAGES), len(_MESSAGES), b"p", sequence=3)
    made = entries_of(batch_of(_MESSAGES[:1] * 40), 40, b"p", sequence=90, schema_version=2)
    mixed = [PulsarMessage(b"v", b"k", properties=(("pulsar.schema-version", str(n)),)) for n in range(3)]
    made += entries_of(batch_of(mixed), 3, b"p")
    number, pack = compressor("lz4")
    assert pack is not None
    foreign = [foreign_entry(one, 3, b"p", 1, 3, encrypted=True, key=b"k") for one in _foreign_contents()]
    return [*entries, *made, bytes(compress(made[0], number, pack)), *foreign]


def migrated(data: bytes) -> int:
    """A MESSAGE of a source of a migration; its first two bytes say which of its messages are due."""
    header = command_of("message", message_id={"ledger": 3, "entry": 7}, consumer=1)
    header.ack_set.extend(data[:2])
    return len(_SOURCE._read(header, memoryview(data)[2:]))


def migrated_seeds() -> list[bytes]:
    return [b"\xff\xff" + seed for seed in payload_seeds()]


def resummed(data: bytes) -> bytes:
    """summed(), behind the two bytes."""
    return data[:2] + summed(data[2:])


def schema(data: bytes) -> object:
    """A schema as a client declares it: its type, then its definition."""
    kinds = sorted(TYPES.values())
    return TopicSchema(kinds[data[0] % len(kinds)] if data else kinds[0], data[1:].decode("utf-8", "replace"))


def schema_seeds() -> list[bytes]:
    record = b'{"type": "record", "name": "R", "fields": [{"name": "n", "type": ["null", "int"], "default": null}]}'
    said = {kind: record if kind in DEFINED else b"" for kind in TYPES.values()}
    said[SchemaType.PROTOBUF] = _protobuf(_ORDERS[0]).encode()
    said[SchemaType.PAIR] = definition_of(_pair_schema(record)).encode()
    return [bytes([number]) + said[kind] for number, kind in enumerate(sorted(TYPES.values()))]


def _pair_schema(record: bytes) -> Any:
    """Of a number and a record, as a client declares it."""
    said = {"kv.encoding.type": "SEPARATED", "key.schema.type": "INT32", "value.schema.type": "AVRO"}
    data = bytes(4) + len(record).to_bytes(4, "big") + record
    return Schema(type=15, data=data, properties=[{"key": key, "value": value} for key, value in said.items()])


def pair(data: bytes) -> object:
    """A client's Schema of pairs: what is taken is given back as it is understood, and read again."""
    try:
        schema = Schema.FromString(data)
    except DecodeError as e:
        raise ProtocolError(str(e)) from e
    schema.type = 15
    definition = definition_of(schema)
    again = Schema(type=15, **spelled(Pair.parse(definition)))
    assert definition_of(again) == definition
    return TopicSchema(SchemaType.PAIR, definition)


def pair_seeds() -> list[bytes]:
    record = b'{"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]}'
    return [_pair_schema(record).SerializeToString(), Schema(data=b"\xff" * 8).SerializeToString()]


def _protobuf(files: bytes) -> str:
    names = {"rootMessageTypeName": "shop.Order", "rootFileDescriptorName": "shop.proto"}
    return json.dumps({"fileDescriptorSet": base64.b64encode(files).decode(), **names})


def protobuf(data: bytes) -> object:
    """The files of a Protobuf native schema, beside another one: each read what the other wrote, or it is said why."""
    made, known = (TopicSchema(SchemaType.PROTOBUF, _protobuf(files)) for files in (data, _ORDERS[0]))
    return made.why_unreadable(known), known.why_unreadable(made)


def protobuf_seeds() -> list[bytes]:
    return _ORDERS


def command_of(name: str, **fields: object) -> Any:
    """A command, as it is read."""
    return getattr(Command.FromString(command(name, **fields)), name)


def send(data: bytes) -> object:
    """The frame of a SEND: of a plain batch it says what the general way does."""
    found = plain_send(memoryview(data))
    if found is None:
        return None
    producer, sequence, highest, first, count, payload, batch = found
    said = Command.FromString(data[8 : len(data) - len(payload)]).send
    assert (producer, sequence, highest) == (said.producer, said.sequence, max(said.sequence, said.highest_sequence))
    metadata, content, messages = content_of(payload)
    assert (first, count, bytes(batch)) == (metadata.sequence, messages, bytes(content))
    return len(plain_published(batch, count, first, b"p", -1, WHOLE).entries)


def send_seeds() -> list[bytes]:
    frames = []
    for payload in (payload_of(_MESSAGES), payload_of(_MESSAGES, sequence=9), payload_of(_MESSAGES, alone=True)):
        head = command("send", producer=1, sequence=9, count=3, highest_sequence=11)
        frames.append(struct.pack(">II", 4 + len(head) + len(payload), len(head)) + head + payload)
    return frames


def resummed_send(data: bytes) -> bytes:
    """With the checksum of what is there, where it looks as if it had one."""
    at = 8 + int.from_bytes(data[4:8], "big")
    return data[:at] + summed(data[at:])


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
        command("auth_response", client_version="c", response={"auth_method": "token", "auth_data": b"t"}, protocol=19),
        command("get_or_create_schema", topic="t", request=1, schema={"name": "s", "type": 20, "data": b"{}"}),
        command("seek", consumer=1, request=2, message_id={"ledger": 1, "entry": 2, "ack_set": [3]}),
        *(command(name) for name in FIELDS.values()),
    ]
