"""`MessageId` and `Checkpoint`: the position of a message, and of a reader.

Their bytes are one format, little-endian, chained without padding. Users keep them: do not change.

    offset  width  what
         0      1  version: 2 for a checkpoint that says when its topic was created, 3 for a message id of a consumer of
                   several topics, else 1
         1      1  kind: "M" message id, "C" checkpoint
         2      4  CRC-32 (zlib) of everything behind it
         6      8  i64  message id: segment id            checkpoint: form, an index into FORMS
        14      8  i64  message id: offset in the segment checkpoint: milliseconds for "timestamp", else the epoch
        22      2  u16  t: bytes of the topic's name, 0xFFFF for none
        24      4  u32  n: positions
        28      t  topic, UTF-8
      28+t   16*n  positions: i64 place, i64 next offset, by rising place
       end      8  version 2: i64 when the topic was created, milliseconds
       end      4  version 3: u32 how many topics; then of each, by name:
                   u16 t, i64 when it was created in milliseconds, u32 n, t bytes of name, n positions as above

A place is a segment's id; in a segment that is shared by bucket (PIP-486), one bucket of it: bit 62 is set, above bit 9
stands the segment's id, below it the index of the bucket in the segment's boundaries.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

from engine.errors import InvalidArgumentError

_HEAD = struct.Struct("<BcI")
_FIXED = struct.Struct("<qqHI")
_PAIR = struct.Struct("<qq")
_CREATED = struct.Struct("<q")
_TOPICS = struct.Struct("<I")
_TOPIC = struct.Struct("<HqI")
_VERSION = 1
_VERSION_CREATED = 2
_VERSION_VECTORS = 3
_NO_TOPIC = 0xFFFF
_LAST = (1 << 63) - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NOTHING: Mapping[int, int] = MappingProxyType({})

_BUCKET_BITS = 10
_BUCKET_FLAG = 1 << 62
_SEGMENT_MASK = (1 << 52) - 1

FORMS = ("positions", "earliest", "latest", "timestamp")  # in checkpoints' bytes: append only


class TopicPositions(NamedTuple):
    """A position vector in one of several topics. `created_ms` tells the topic from a later one of its name."""

    created_ms: int
    positions: Mapping[int, int]


_NO_VECTORS: Mapping[str, TopicPositions] = MappingProxyType({})


class MessageId:
    """Where one message stands: its segment and its offset there; opaque to users.

    Ids of one topic are totally ordered. `positions` is the position vector at delivery, {place: next offset}, where a
    place is a segment's id, or one bucket of a shared segment (`split_position`): what a cumulative acknowledgement of
    this message means (semantics 11); empty when unknown, as in a producer's receipt. `vectors`, in ids of a stream
    consumer of several topics: the vector of every topic, its own included, {topic: TopicPositions}; else empty.
    Equality looks at segment, offset and topic. Never changed after it was made.
    """

    __slots__ = ("offset", "positions", "segment_id", "topic", "vectors")

    earliest: ClassVar[MessageId]
    """Sorts before every message."""

    latest: ClassVar[MessageId]
    """Sorts behind every message."""

    def __init__(
        self,
        segment_id: int,
        offset: int,
        positions: Mapping[int, int] = _NOTHING,
        topic: str | None = None,
        vectors: Mapping[str, TopicPositions] = _NO_VECTORS,
    ) -> None:
        self.segment_id = segment_id
        self.offset = offset
        self.positions = positions
        self.topic = topic
        self.vectors = vectors

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MessageId):
            return NotImplemented
        return self.offset == other.offset and self.segment_id == other.segment_id and self.topic == other.topic

    def __hash__(self) -> int:
        return hash((self.segment_id, self.offset))

    def _order(self, other: MessageId) -> tuple[int, int]:
        if self.topic != other.topic and self.topic is not None and other.topic is not None:
            raise InvalidArgumentError(
                f"message ids must be of one topic to be ordered, got {self.topic} and {other.topic}"
            )
        return (other.segment_id, other.offset)

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, MessageId):
            return NotImplemented
        return (self.segment_id, self.offset) < self._order(other)

    def __le__(self, other: object) -> bool:
        if not isinstance(other, MessageId):
            return NotImplemented
        return (self.segment_id, self.offset) <= self._order(other)

    def __gt__(self, other: object) -> bool:
        if not isinstance(other, MessageId):
            return NotImplemented
        return (self.segment_id, self.offset) > self._order(other)

    def __ge__(self, other: object) -> bool:
        if not isinstance(other, MessageId):
            return NotImplemented
        return (self.segment_id, self.offset) >= self._order(other)

    def __repr__(self) -> str:
        names = {(-1, -1): "MessageId.earliest", (_LAST, _LAST): "MessageId.latest"}
        plain = f"MessageId({self.segment_id}:{self.offset}{f' of {self.topic}' if self.topic else ''})"
        return names.get((self.segment_id, self.offset), plain)

    def __reduce__(self) -> tuple[Any, ...]:
        return (MessageId.from_bytes, (self.to_bytes(),))

    def to_bytes(self) -> bytes:
        """The id with its position vector, for a file or another process."""
        return _pack(b"M", self.segment_id, self.offset, self.topic, self.positions, vectors=self.vectors)

    @classmethod
    def from_bytes(cls, data: bytes) -> MessageId:
        """Undo to_bytes(). Raises InvalidArgumentError for anything else."""
        segment_id, offset, topic, positions, _, vectors = _unpack(b"M", "message id", data)
        return cls(segment_id, offset, positions, topic, vectors)


MessageId.earliest = MessageId(-1, -1)
MessageId.latest = MessageId(_LAST, _LAST)


class Checkpoint:
    """Where a reader stands in a topic: a position for every segment of its layout (semantics 27).

    `form` is "positions", or one of "earliest", "latest", "timestamp": a place that the consumer turns into positions
    when it starts there. `positions` is {segment id: next offset}; a segment that is missing was born later and is read
    from its start. `epoch` is that of the layout, `topic_created_ms` the milliseconds at which
    the topic was created: they tell it from a later one of the same name. None: not known.
    """

    __slots__ = ("epoch", "form", "positions", "timestamp_ms", "topic", "topic_created_ms")

    def __init__(
        self,
        positions: Mapping[int, int],
        *,
        epoch: int,
        topic: str | None = None,
        topic_created_ms: int | None = None,
    ) -> None:
        self.form = "positions"
        self.positions: Mapping[int, int] = MappingProxyType(dict(positions))
        self.epoch = epoch
        self.timestamp_ms: int | None = None  # of the form "timestamp": wall-clock milliseconds, UTC
        self.topic = topic
        self.topic_created_ms = topic_created_ms

    @classmethod
    def _place(cls, form: str, timestamp_ms: int | None = None) -> Checkpoint:
        place = cls(_NOTHING, epoch=0)
        place.form, place.timestamp_ms = form, timestamp_ms
        return place

    @classmethod
    def earliest(cls) -> Checkpoint:
        """The first message that is retained, in every segment."""
        return cls._place("earliest")

    @classmethod
    def latest(cls) -> Checkpoint:
        """Behind what is in the topic when the consumer starts."""
        return cls._place("latest")

    @classmethod
    def at_timestamp(cls, when: datetime) -> Checkpoint:
        """The first message published at or after `when`. Raises InvalidArgumentError when it has no time zone."""
        if not isinstance(when, datetime):
            raise InvalidArgumentError(f"timestamp must be an aware datetime, got {type(when).__name__}")
        if when.tzinfo is None:
            raise InvalidArgumentError(f"timestamp must be an aware datetime, got {when!r} without a time zone")
        return cls._place("timestamp", -((_EPOCH - when) // timedelta(milliseconds=1)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Checkpoint):
            return NotImplemented
        return self._facts() == other._facts()

    def __hash__(self) -> int:
        return hash((self.form, self.epoch, self.timestamp_ms, self.topic, frozenset(self.positions.items())))

    def _facts(self) -> tuple[Any, ...]:
        return (self.form, self.epoch, self.timestamp_ms, self.topic, self.topic_created_ms, dict(self.positions))

    def __repr__(self) -> str:
        if self.form == "timestamp":
            return f"Checkpoint.at_timestamp({_EPOCH + timedelta(milliseconds=self.timestamp_ms or 0)})"
        if self.form != "positions":
            return f"Checkpoint.{self.form}()"
        return f"Checkpoint({dict(self.positions)}, epoch={self.epoch}{f', topic={self.topic}' if self.topic else ''})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (Checkpoint.from_bytes, (self.to_bytes(),))

    def to_bytes(self) -> bytes:
        """The checkpoint, for a file or another process."""
        number = self.epoch if self.timestamp_ms is None else self.timestamp_ms
        return _pack(b"C", FORMS.index(self.form), number, self.topic, self.positions, self.topic_created_ms)

    @classmethod
    def from_bytes(cls, data: bytes) -> Checkpoint:
        """Undo to_bytes(). Raises InvalidArgumentError for anything else."""
        form, number, topic, positions, created_ms, _ = _unpack(b"C", "checkpoint", data)
        if not 0 <= form < len(FORMS):
            raise InvalidArgumentError(f"checkpoint has the unknown form {form}; it was made by a newer version")
        if FORMS[form] == "positions":
            return cls(positions, epoch=number, topic=topic, topic_created_ms=created_ms)
        return cls._place(FORMS[form], number if FORMS[form] == "timestamp" else None)


def bucket_position(segment_id: int, bucket: int) -> int:
    """The place of one bucket of a shared segment in a position vector."""
    return _BUCKET_FLAG | segment_id << _BUCKET_BITS | bucket


def split_position(place: int) -> tuple[int, int | None]:
    """(segment id, bucket) of a place in a position vector; for the place of a segment the bucket is None."""
    if place >> 62 != 1 or place == _LAST:
        return place, None
    return place >> _BUCKET_BITS & _SEGMENT_MASK, place & (1 << _BUCKET_BITS) - 1


def _pack(
    kind: bytes,
    first: int,
    second: int,
    topic: str | None,
    positions: Mapping[int, int],
    created_ms: int | None = None,
    vectors: Mapping[str, TopicPositions] = _NO_VECTORS,
) -> bytes:
    name = b"" if topic is None else topic.encode()
    version = _VERSION_VECTORS if vectors else _VERSION if created_ms is None else _VERSION_CREATED
    try:
        fixed = _FIXED.pack(first, second, _NO_TOPIC if topic is None else len(name), len(positions))
        end = b"" if created_ms is None else _CREATED.pack(created_ms)
        if vectors:
            end = b"".join((_TOPICS.pack(len(vectors)), *(_pack_vector(*item) for item in sorted(vectors.items()))))
        body = b"".join((fixed, name, _pack_positions(positions), end))
    except struct.error as e:
        raise InvalidArgumentError(f"a number of the position does not fit 64 bits: {e}") from e
    return _HEAD.pack(version, kind, zlib.crc32(body)) + body


def _pack_positions(positions: Mapping[int, int]) -> bytes:
    return b"".join([_PAIR.pack(*pair) for pair in sorted(positions.items())])


def _pack_vector(topic: str, vector: TopicPositions) -> bytes:
    name = topic.encode()
    head = _TOPIC.pack(len(name), vector.created_ms, len(vector.positions))
    return b"".join((head, name, _pack_positions(vector.positions)))


_Unpacked = tuple[int, int, str | None, dict[int, int], int | None, dict[str, TopicPositions]]


def _unpack(kind: bytes, what: str, data: bytes) -> _Unpacked:
    if not isinstance(data, bytes | bytearray | memoryview):
        raise InvalidArgumentError(f"{what} must be the bytes of to_bytes(), got {type(data).__name__}")
    data = bytes(data)
    if len(data) < _HEAD.size + _FIXED.size:
        raise InvalidArgumentError(f"{what} must be the bytes of to_bytes(), got {len(data)} bytes, fewer than any has")
    version, found, crc = _HEAD.unpack_from(data)
    created = version == _VERSION_CREATED and kind == b"C"
    several = version == _VERSION_VECTORS and kind == b"M"
    if not (version == _VERSION or created or several) or found != kind:
        raise InvalidArgumentError(f"{what} must start with {bytes((_VERSION,)) + kind!r}, got {data[:2]!r}")
    if zlib.crc32(data[_HEAD.size :]) != crc:
        raise InvalidArgumentError(f"{what} is damaged: its checksum does not match")
    first, second, size, count = _FIXED.unpack_from(data, _HEAD.size)
    start = _HEAD.size + _FIXED.size
    end = start + (0 if size == _NO_TOPIC else size)
    last = end + count * _PAIR.size
    vectors, whole = ({}, last + created * _CREATED.size) if not several else _unpack_vectors(what, data, last)
    if len(data) != whole:
        raise InvalidArgumentError(f"{what} must have {whole} bytes as announced, got {len(data)}")
    try:
        topic = None if size == _NO_TOPIC else data[start:end].decode()
    except UnicodeDecodeError as e:
        raise InvalidArgumentError(f"{what} holds a topic name that is not UTF-8") from e
    created_ms = _CREATED.unpack_from(data, last)[0] if created else None
    return first, second, topic, dict(_PAIR.iter_unpack(data[end:last])), created_ms, vectors


def _unpack_vectors(what: str, data: bytes, at: int) -> tuple[dict[str, TopicPositions], int]:
    """The vectors of all topics, and the position behind them."""
    vectors: dict[str, TopicPositions] = {}
    try:
        (topics,) = _TOPICS.unpack_from(data, at)
        at += _TOPICS.size
        for _ in range(topics):
            size, created_ms, count = _TOPIC.unpack_from(data, at)
            start = at + _TOPIC.size
            at = start + size + count * _PAIR.size
            if at > len(data):
                break
            positions = dict(_PAIR.iter_unpack(data[start + size : at]))
            vectors[data[start : start + size].decode()] = TopicPositions(created_ms, positions)
    except struct.error as e:
        raise InvalidArgumentError(f"{what} ends in the middle of its topics: {e}") from e
    except UnicodeDecodeError as e:
        raise InvalidArgumentError(f"{what} holds a topic name that is not UTF-8") from e
    return vectors, at
