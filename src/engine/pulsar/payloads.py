"""The payload of a SEND: checked, decompressed, and made entries of ours.

    0x0e01, the magic | CRC32C u32 of all behind it | size of the metadata u32 | MessageMetadata | messages, compressed

Without the magic there is no checksum: clients of before Apache Pulsar 1.15 sent none.

What its client has encrypted or cut into chunks is not opened: it becomes an entry as it is (`_native/pulsar/foreign`).
"""

from __future__ import annotations

import zlib
from base64 import b64decode
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from cramjam import snappy
from google.protobuf.message import DecodeError

from engine._native.format.crc32c import crc32c
from engine._native.format.entry import compress
from engine._native.produce.hashing import MURMUR3
from engine._native.pulsar.foreign import foreign_entry
from engine._native.pulsar.published import entries_of
from engine.errors import CorruptionError, InvalidArgumentError, MessageTooLargeError, UnsupportedError
from engine.limits import ENTRY_MESSAGES_MAX, ENTRY_SIZE_MAX, HASH_RING_SIZE, PROPERTIES_SIZE_MAX
from engine.model.compression import LZ4, ZSTD, compressor, decompressor
from engine.pulsar.chunks import Chunks
from engine.pulsar.messages import MessageMetadata, SingleMessageMetadata

_MAGIC = b"\x0e\x01"
_KEYED, _TRANSACTIONAL = 1, 2  # flags of an entry
_SUMMED = 6  # bytes of the magic and the checksum
_SEQUENCE_MAX = 2**63 - 1
_PLAIN, _LZ4, _ZLIB, _ZSTD, _SNAPPY = range(5)
# A codec of theirs -> ours, which an entry of such messages is stored with.
_STORED = {_LZ4: "lz4", _ZLIB: "zstd", _ZSTD: "zstd", _SNAPPY: "lz4"}
_HERE = b"__local__"  # in place of the clusters that a message is to be replicated to: to none
_VERSION_SIZE = 8  # of a schema, in the metadata of a message
_WORTH = 512  # bytes of an entry below which compressing it saves little


class Published(NamedTuple):
    """`entries`: whole entries back to back, `number` of them: none of a chunk whose message is stored already.
    `sequence`: of the first message. `chunk`, `opaque`: it is one; it is one that is
    encrypted and whole.
    """

    entries: bytes
    number: int
    sequence: int
    chunk: bool = False
    opaque: bool = False


def metadata_of(payload: memoryview) -> tuple[Any, memoryview]:
    """The MessageMetadata of a payload, and what is behind it. Raises CorruptionError."""
    if payload[:2] == _MAGIC:
        payload = payload[2:]
        if len(payload) < 4 or crc32c(payload[4:]) != int.from_bytes(payload[:4], "big"):
            raise CorruptionError("the message's checksum must be that of its bytes; it is not")
        payload = payload[4:]
    size = int.from_bytes(payload[:4], "big")
    if len(payload) < 4 or size > len(payload) - 4:
        raise CorruptionError(f"the metadata of a message must lie within its {len(payload)} bytes, got {size}")
    try:
        return MessageMetadata.FromString(bytes(payload[4 : 4 + size])), payload[4 + size :]
    except DecodeError as e:
        raise CorruptionError(f"the metadata of a message cannot be read: {e}") from e


def version_in(said: bytes, versions: Sequence[int | None]) -> int:
    """What a message is stored with that says a version of a schema. `versions`: for each that it may say, by its
    place; None: that one has no definition. Raises InvalidArgumentError.
    """
    number = int.from_bytes(said[:_VERSION_SIZE], "big")
    if len(said) != _VERSION_SIZE or number >= len(versions):
        text = "the schema version of a message must be eight bytes, and one of those of its topic"
        got = number if len(said) == _VERSION_SIZE else f"{len(said):,} bytes"
        raise InvalidArgumentError(f"{text}, which are {len(versions)} from 0, got {got}")
    return versions[number] or 0


class Routing(NamedTuple):
    """What entries go by. `hashes`: of the segment, inclusive. `buckets`: the inclusive ends of its buckets.
    `key_hash`: of the topic, as in hashing.pxd.
    """

    hashes: tuple[int, int] = (0, HASH_RING_SIZE - 1)
    buckets: tuple[int, ...] = (HASH_RING_SIZE - 1,)
    key_hash: int = MURMUR3


WHOLE = Routing()


def published(
    payload: memoryview,
    name: bytes,
    stored: int,
    routing: Routing = WHOLE,
    transaction: int | None = None,
    *,
    compress: bool = True,
    chunks: Chunks | None = None,
    versions: Sequence[int | None] = (),
) -> Published:
    """The entries of a payload. `name`: the producer's. `stored`: its last sequence id that may be stored already.
    `transaction`: the number of the one that it belongs to. `compress`: whether they are compressed where it was.
    `chunks`: of the producer, which is given its messages that are encrypted or in chunks as they are; None: there are
    none of these. `versions`: of the topic's schema, as of version_in().

    Raises CorruptionError, MessageTooLargeError; InvalidArgumentError for another version; UnsupportedError for
    markers, and what `chunks` are missing for.
    """
    metadata, batch, count = content_of(payload)
    if is_opaque(metadata):
        if said := metadata.schema_version:
            version_in(said, versions)
        content = payload[_SUMMED:] if payload[:2] == _MAGIC else payload
        return _as_sent(content, metadata, name, routing, transaction, chunks)
    return batch_published(
        metadata, batch, count, name, stored, routing, transaction, compress=compress, versions=versions
    )


def is_opaque(metadata: Any) -> bool:
    """Whether the message is encrypted or one of several chunks: not opened here."""
    return bool(metadata.encryption_keys) or metadata.chunks > 1


def content_of(payload: memoryview) -> tuple[Any, bytes | memoryview, int]:
    """The metadata of a payload, its messages as a batch, decompressed, and how many they are. What is not opened is as
    it was sent. Raises CorruptionError, MessageTooLargeError; UnsupportedError for markers, and messages
    for other clusters.
    """
    metadata, packed = metadata_of(payload)
    if metadata.marker:
        raise UnsupportedError("markers, which brokers write, are not taken from a client")
    if metadata.replicate_to and list(metadata.replicate_to) != [_HERE]:
        named = b", ".join(metadata.replicate_to).decode(errors="replace")
        raise UnsupportedError(f"a message must be for this cluster alone, got one to be replicated to {named:.200}")
    if is_opaque(metadata):
        return metadata, packed, _count_of(metadata)
    batch = _decompressed(metadata.compression, packed, metadata.uncompressed_size)
    count = _count_of(metadata)
    return metadata, batch if metadata.HasField("count") else _batch_of_one(metadata, batch), count


def batch_published(
    metadata: Any,
    batch: bytes | memoryview,
    count: int,
    name: bytes,
    stored: int,
    routing: Routing = WHOLE,
    transaction: int | None = None,
    *,
    compress: bool = True,
    versions: Sequence[int | None] = (),
) -> Published:
    """The entries of a batch of `count` messages that was decompressed. The rest as for published()."""
    said = metadata.schema_version
    entries = entries_of(
        batch,
        count,
        name,
        sequence=metadata.sequence,
        deliver_at=metadata.deliver_at if metadata.HasField("deliver_at") else None,
        stored=stored,
        hashes=routing.hashes,
        buckets=routing.buckets,
        key_hash=routing.key_hash,
        transaction=transaction,
        schema_version=version_in(said, versions) if said else 0,
    )
    if compress and (codec := _STORED.get(metadata.compression)) is not None:
        entries = [_compressed(entry, codec) for entry in entries]
    return _published(entries, metadata.sequence)


def plain_published(
    batch: memoryview, count: int, sequence: int, name: bytes, stored: int, routing: Routing
) -> Published:
    """batch_published() of a batch about which its metadata say no more than this: plain_send() has read them."""
    entries = entries_of(
        batch,
        count,
        name,
        sequence=sequence,
        stored=stored,
        hashes=routing.hashes,
        buckets=routing.buckets,
        key_hash=routing.key_hash,
    )
    return _published(entries, sequence)


def _published(entries: list[bytes], sequence: int) -> Published:
    return Published(entries[0] if len(entries) == 1 else b"".join(entries), len(entries), sequence)


def _as_sent(
    content: memoryview, metadata: Any, name: bytes, routing: Routing, transaction: int | None, chunks: Chunks | None
) -> Published:
    """The entry of what only these clients can read. None, as `number` says, where the message is stored already."""
    encrypted, chunked, first = bool(metadata.encryption_keys), metadata.chunks > 1, metadata.sequence
    if chunks is None:
        text = f"got one of {metadata.chunks} chunks" if chunked else "got one that its client has encrypted"
        raise UnsupportedError(f"a message must be whole and readable here, {text}")
    if (size := int.from_bytes(content[:4], "big")) > PROPERTIES_SIZE_MAX:
        text = (
            f"the metadata of a message that is encrypted or in chunks must have at most {PROPERTIES_SIZE_MAX:,} bytes"
        )
        raise MessageTooLargeError(f"{text}, got {size:,}")
    count, key = _count_of(metadata), _key_of(metadata)
    last = max(metadata.highest_sequence, first + count - 1)
    if last > _SEQUENCE_MAX:
        raise CorruptionError(f"a sequence id must be below 2^63, got {last}")
    number: int | None = None
    stored = False
    if chunked:
        if metadata.HasField("count"):
            raise CorruptionError("a message in chunks must not be a batch")
        last = first
        kind = (_KEYED if key is not None else 0) | (_TRANSACTIONAL if transaction is not None else 0)
        if not (stored := chunks.is_stored(metadata, kind)):
            number = chunks.number_of(metadata)
        elif metadata.chunk != metadata.chunks - 1:
            return Published(b"", 0, first, chunk=True)
    entry = foreign_entry(
        content,
        count,
        name,
        first if number is None else number,
        last if number is None else number,
        encrypted=encrypted,
        chunk=(metadata.uuid.encode(), metadata.chunk) if chunked else None,
        part=number is not None,
        key=key,
        ordering_key=metadata.ordering_key if metadata.HasField("ordering_key") else None,
        deliver_at=metadata.deliver_at if metadata.HasField("deliver_at") else None,
        hashes=routing.hashes,
        key_hash=routing.key_hash,
        transaction=transaction,
    )
    if chunked and not stored:
        chunks.sent(metadata)
    return Published(entry, 1, first, chunked, not chunked)


def _count_of(metadata: Any) -> int:
    """How many messages it has. Raises CorruptionError."""
    count = metadata.count if metadata.HasField("count") else 1
    if not 1 <= count <= ENTRY_MESSAGES_MAX:
        raise CorruptionError(f"a batch must have 1 to {ENTRY_MESSAGES_MAX:,} messages, got {count:,}")
    return int(count)


def _key_of(metadata: Any) -> bytes | None:
    """The key that it is routed by. Raises CorruptionError, MessageTooLargeError."""
    if not metadata.HasField("key") or metadata.null_key:
        return None
    key: bytes = metadata.key
    if metadata.key_base64:
        try:
            key = b64decode(key, validate=True)
        except ValueError as e:
            raise CorruptionError("the key of a message must be base64, as its metadata say; it is not") from e
    return key


def _batch_of_one(metadata: Any, value: bytes | memoryview) -> bytes:
    """A message alone, in the form of a batch."""
    single = SingleMessageMetadata(payload_size=len(value), sequence=metadata.sequence)
    single.properties.extend(metadata.properties)
    for field in ("key", "event_time", "key_base64", "ordering_key", "null_value", "null_key"):
        if metadata.HasField(field):
            setattr(single, field, getattr(metadata, field))
    head = single.SerializeToString()
    return b"".join((len(head).to_bytes(4, "big"), head, value))


def _compressed(entry: bytes, codec: str) -> bytes:
    if len(entry) < _WORTH:
        return entry
    number, pack = compressor(codec)
    assert pack is not None
    return bytes(compress(entry, number, pack))


def _decompressed(codec: int, packed: memoryview, size: int) -> bytes | memoryview:
    """Raises CorruptionError, MessageTooLargeError."""
    if codec == _PLAIN:
        return packed
    if size > ENTRY_SIZE_MAX:
        raise MessageTooLargeError(f"a batch must have at most {ENTRY_SIZE_MAX:,} bytes decompressed, got {size:,}")
    if codec not in _DECOMPRESS:
        raise CorruptionError(f"compression must be 0 to 4, got {codec}")
    raw = _DECOMPRESS[codec](packed, size)
    if len(raw) != size:
        raise CorruptionError(f"a batch must have {size:,} bytes decompressed, as its metadata say, got {len(raw):,}")
    return raw


def _inflated(packed: memoryview, size: int) -> bytes:
    try:
        inflate = zlib.decompressobj()
        raw = inflate.decompress(packed, size + 1)
    except zlib.error as e:
        raise CorruptionError(f"a batch does not decompress: {e}") from e
    return raw


def _unsnapped(packed: memoryview, size: int) -> bytes:
    """The package makes as many bytes as the block says at its head, so that is compared before."""
    stated = shift = 0
    for byte in packed[:5]:
        stated |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if stated != size:
        raise CorruptionError(f"a batch must have {size:,} bytes decompressed, as its metadata say, got {stated:,}")
    try:
        return bytes(snappy.decompress_raw(packed))
    except Exception as e:  # the package has an error of its own, which is no class that can be named
        raise CorruptionError(f"a batch does not decompress: {e}") from e


_ours = decompressor()
_DECOMPRESS: dict[int, Callable[[memoryview, int], bytes]] = {
    _LZ4: lambda packed, size: _ours(LZ4, packed, size),
    _ZLIB: _inflated,
    _ZSTD: lambda packed, size: _ours(ZSTD, packed, size),
    _SNAPPY: _unsnapped,
}
