"""Keys and values in etcd (docs/formats/metadata-etcd.md).

    {prefix}format                                  b"1"
    {prefix}records/{key}                           Stored, as msgpack
    {prefix}indexes/{index}\\0{index key}\\0{key}      Stored without indexes; and without value, where that is large
    {prefix}sequences/{hh}                          the last sequence of all prefixes with this hash
    {prefix}writers/{id}                            the number of a client's last transaction; on a lease

A version of a record is the revision of its transaction and the record's position among the changes of it: several
changes of one transaction have one revision, and a reader of a watch may stop between any two of them.
"""

from __future__ import annotations

import zlib

import msgspec

from engine.errors import CorruptionError
from engine.metadata.store import Indexes, Record, Stat
from engine.metadata.table import each_key

FORMAT = b"1"
POSITION_BITS = 16
POSITION_MAX = (1 << POSITION_BITS) - 1
POSITION_LAST = POSITION_MAX - 1  # of a change behind so many others; its exact place is not known
SEQUENCE_COUNTERS = 256
CARRIED_SIZE_MAX = 64 * 1024  # of values in all index rows of a record together; above it rows have none


class Stored(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The value of a record in etcd. `value`: None in an index row that does not carry it."""

    position: int
    created_ms: int
    modified_ms: int
    indexes: dict[str, str | tuple[str, ...]]
    value: bytes | None


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Stored)


def version_of(revision: int, position: int) -> int:
    """The version of a change at a position of the transaction with this revision."""
    return revision << POSITION_BITS | min(position, POSITION_LAST)


def whole(revision: int) -> int:
    """The version behind all changes of a revision."""
    return revision << POSITION_BITS | POSITION_MAX


def revision_of(version: int) -> int:
    """The revision of a version."""
    return version >> POSITION_BITS


class Layout:
    """Makes keys below a prefix, and reads what is there."""

    def __init__(self, prefix: str) -> None:
        """`prefix`: begins and ends with "/"."""
        self.prefix = prefix
        base = prefix.encode()
        self.format = base + b"format"
        self._records = base + b"records/"
        self._indexes = base + b"indexes/"
        self._sequences = base + b"sequences/"
        self._writers = base + b"writers/"

    def record(self, key: str) -> bytes:
        return self._records + key.encode()

    def record_range(self, start: str, end: str) -> tuple[bytes, bytes]:
        """The keys of records with start <= key < end."""
        return self.record(start), self.record(end)

    def record_prefix(self, prefix: str) -> tuple[bytes, bytes]:
        """The keys of records that start with `prefix`, which may be empty."""
        start = self.record(prefix)
        return start, after(start)

    def record_alone(self, key: str) -> tuple[bytes, bytes]:
        """The range that holds the key of this record and no other."""
        start = self.record(key)
        return start, start + b"\0"

    def key_of(self, record: bytes) -> str:
        """Undo record()."""
        return record[len(self._records) :].decode()

    def row(self, index: str, index_key: str, key: str) -> bytes:
        """The row of an index for one of the record's keys there."""
        return self._index(index) + _part(index_key) + b"\0" + key.encode()

    def rows(self, key: str, indexes: Indexes) -> list[bytes]:
        """All rows of a record."""
        return [self.row(index, one, key) for index, those in indexes.items() for one in each_key(those)]

    def is_record(self, key: bytes) -> bool:
        return key.startswith(self._records)

    def _index(self, index: str) -> bytes:
        return self._indexes + _part(index) + b"\0"

    def row_range(self, index: str, start: str, end: str) -> tuple[bytes, bytes]:
        """The rows with start <= index key < end."""
        base = self._index(index)
        return base + _part(start), base + _part(end)

    def row_of(self, row: bytes) -> tuple[str, str]:
        """(index key, key) of a row."""
        _, end = _part_at(row, len(self._indexes))
        index_key, end = _part_at(row, end)
        return index_key, row[end:].decode()

    def sequence(self, prefix: str) -> bytes:
        """The counter of the sequences below a prefix."""
        return self._sequences + b"%02x" % (zlib.crc32(prefix.encode()) % SEQUENCE_COUNTERS)

    def writer(self, lease: int) -> bytes:
        return self._writers + b"%016x" % lease


def after(prefix: bytes) -> bytes:
    """The smallest key above every key that starts with `prefix`, whose last byte is below 255 in UTF-8."""
    return prefix[:-1] + bytes((prefix[-1] + 1,))


def _part(text: str) -> bytes:
    """Text in a key with several parts: sorted as the text, and ended by one zero byte."""
    return text.encode().replace(b"\0", b"\0\xff")


def _part_at(row: bytes, start: int) -> tuple[str, int]:
    """The part that begins at `start`, and where the next one begins."""
    end = row.index(b"\0", start)
    while row[end + 1 : end + 2] == b"\xff":  # no text has this byte, so it is an escaped zero
        end = row.index(b"\0", end + 2)
    return row[start:end].replace(b"\0\xff", b"\0").decode(), end + 1


def encoded(stored: Stored) -> bytes:
    return _encoder.encode(stored)


def decoded(kv: object, where: str) -> Stored:
    """The value of a record or row. Raises CorruptionError."""
    try:
        return _decoder.decode(kv.value)  # type: ignore[attr-defined]
    except (msgspec.DecodeError, msgspec.ValidationError) as e:
        raise CorruptionError(f"the record {where!r} in etcd is not one of Engine's: {e}") from e


def record_of(key: str, kv: object, stored: Stored) -> Record:
    """The record of a key-value pair whose value is carried."""
    return Record(key, stored.value or b"", stat_of(kv, stored))


def stat_of(kv: object, stored: Stored) -> Stat:
    version = version_of(kv.mod_revision, stored.position)  # type: ignore[attr-defined]
    return Stat(version, stored.created_ms, stored.modified_ms, kv.lease or None)  # type: ignore[attr-defined]
