"""What is read from object stores, backups and other metadata stores, as it may have been left by anything."""

from __future__ import annotations

import hashlib
import json
from types import SimpleNamespace
from typing import Any

import msgspec

from engine._native.format.crc32c import crc32c
from engine.backups.manifest import FORMAT, Entry, Manifest, Part, check_part, pack, unpack
from engine.metadata import protocol
from engine.metadata.etcd.layout import Layout, Stored, decoded, encoded
from engine.storage.objects.format import (
    TRAILER_SIZE,
    LogName,
    Trailer,
    WalGroup,
    pack_object,
    unpack_footers,
)

_SESSION = "b1-7"


def wal_object(data: bytes) -> int:
    """An object of a session's log, whole: its trailer, and then the footers that this names."""
    trailer = Trailer.unpack(memoryview(data)[-TRAILER_SIZE:] if len(data) >= TRAILER_SIZE else memoryview(data), "it")
    image = memoryview(data)[trailer.position : trailer.position + trailer.size]
    groups = [group for one in unpack_footers(image, trailer.count, _SESSION, "it") for group in one.groups]
    assert all(group.first_offset <= group.next_offset for group in groups)
    return len(groups)


def wal_object_seeds() -> list[bytes]:
    log = LogName("b1", _SESSION)
    names = [f"segment://public/default/t/0000-ffff-{n}" for n in range(2)]
    groups = [WalGroup(name, 3, 10 * n, 10 * n + 5, [b"entry" * 20]) for n, name in enumerate(names)]
    first, footer = pack_object(log, 1, bytes(16), groups)
    second, _ = pack_object(log, 2, bytes(range(16)), groups[:1], [footer])
    return [b"".join(map(bytes, buffers)) for buffers in (first, second)]


def reseal_object(data: bytes) -> bytes:
    """With right sums of the trailer, and of the footers while their sizes lead from one to the next."""
    if len(data) < TRAILER_SIZE:
        return data
    image = bytearray(data)
    at = int.from_bytes(image[-TRAILER_SIZE + 8 : -TRAILER_SIZE + 16], "little")
    while at + 12 <= len(image) - TRAILER_SIZE:
        size = int.from_bytes(image[at + 8 : at + 12], "little")
        if not 12 <= size <= len(image) - TRAILER_SIZE - at:
            break
        image[at + 4 : at + 8] = crc32c(image[at + 8 : at + size]).to_bytes(4, "little")
        at += size
    image[-TRAILER_SIZE + 4 : len(image) - TRAILER_SIZE + 8] = crc32c(image[-TRAILER_SIZE + 8 :]).to_bytes(4, "little")
    return bytes(image)


def manifest(data: bytes) -> int:
    """Of a backup, with the sum of each part of each file."""
    found = unpack(data, "it")
    for entry in found.files:
        assert entry.size == sum(part.size for part in entry.parts)
    return len(found.files)


def manifest_seeds() -> list[bytes]:
    part = Part(0, 64, 5, crc32c(b"bytes"))
    files = [Entry("segments/1/0.log", [part], [part], tail=(5, 9), whole=True), Entry("metadata.db", [part])]
    made = Manifest(
        FORMAT, "1", "0.1", 1, 2, "s", 3, 4, 1, 1, 10, 10, 5, ["a place"], [("packs/1-00001.pack", 128)], files
    )
    check_part(part, memoryview(b"bytes"), "packs/1-00001.pack", files[1], 0)
    return [pack(made), pack(msgspec.structs.replace(made, files=[], format=FORMAT + 1))]


def reseal_manifest(data: bytes) -> bytes:
    """With the sum of what it has."""
    try:
        found = json.loads(data)
        raw = json.dumps(found["manifest"]).encode()
        found["sha256"] = hashlib.sha256(raw).hexdigest()
    except (ValueError, TypeError, KeyError, RecursionError):
        return data
    return json.dumps({**found, "manifest": None}).encode().replace(b"null", raw)


def metadata_requests(data: bytes) -> int:
    """A frame of requests, as the broker with the store reads it."""
    found = protocol.decode_requests(memoryview(data))
    return len(protocol.joined([protocol.encode(one) for one in found]))


def metadata_answers(data: bytes) -> int:
    """A frame of answers, as the other brokers read it."""
    return len(protocol.encode(protocol.decode_answers(memoryview(data))))


def request_seeds() -> list[bytes]:
    """One frame of each kind of request."""
    return _seeds(protocol.Request)


def answer_seeds() -> list[bytes]:
    """One frame of each kind of answer."""
    return [msgspec.msgpack.encode([7, msgspec.msgpack.decode(frame)]) for frame in _seeds(protocol.Answer)]


def _seeds(union: Any) -> list[bytes]:
    return [
        msgspec.msgpack.encode(
            [[kind.__struct_config__.tag, *(_least(f.type) for f in msgspec.inspect.type_info(kind).fields)]]
        )
        for kind in union.__args__
    ]


def _least(kind: Any) -> object:
    """A small value of a type, as msgspec describes it."""
    said = msgspec.inspect
    if isinstance(kind, said.UnionType):
        return _least(kind.types[0])
    if isinstance(kind, said.StructType):
        values = [_least(one.type) for one in kind.fields]
        return values if kind.tag is None else [kind.tag, *values]
    if isinstance(kind, said.NamedTupleType):
        return [_least(one.type) for one in kind.fields]
    if isinstance(kind, said.DataclassType):
        return {one.encode_name: _least(one.type) for one in kind.fields}
    if isinstance(kind, said.TupleType):
        return [_least(one) for one in kind.item_types]
    if isinstance(kind, said.ListType | said.VarTupleType):
        return [_least(kind.item_type)]
    if isinstance(kind, said.DictType):
        return {_least(kind.key_type): _least(kind.value_type)}
    if isinstance(kind, said.LiteralType):
        return kind.values[0]
    scalars = {said.IntType: 7, said.StrType: "a", said.BytesType: b"v", said.BoolType: True, said.FloatType: 0.5}
    return scalars.get(type(kind))


def etcd_record(data: bytes) -> object:
    """A value in etcd, and a row that may have any name."""
    layout = Layout("/engine/")
    stored = decoded(SimpleNamespace(value=data), "k")
    for row in layout.rows("k", stored.indexes):
        assert layout.row_of(row)[1] == "k"
    return encoded(stored)


def etcd_seeds() -> list[bytes]:
    return [
        encoded(Stored(1, 2, 3, {"by-name": "a\0b", "by-age": ("1", "2")}, b"value")),
        encoded(Stored(0, 2, 3, {}, None)),
    ]
