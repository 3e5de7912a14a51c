"""What a user acknowledges: the ids in it, and the position vector that follows, segment by segment."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pyroaring import BitMap64

from engine._native.consume.asked import vector_of
from engine._native.consume.batch import MessageBatch
from engine._native.consume.message import Message
from engine.errors import InvalidArgumentError
from engine.model.positions import MessageId, bucket_position, split_position

# {bucket, or None for the segment as a whole: the first offset that is not acknowledged}
Asked = dict[int | None, int]


def id_of(x: object, topic: str) -> MessageId:
    """The id of what is to be acknowledged. Raises InvalidArgumentError when it is none, or not of this topic."""
    ident = x.id if isinstance(x, Message) else x
    if not isinstance(ident, MessageId):
        raise InvalidArgumentError(
            f"what is acknowledged must be a Message, MessageId or MessageBatch, got {type(x).__name__}"
        )
    check_topic(ident, ident.topic, topic)
    if ident.segment_id < 0 or ident.offset < 0 or ident == MessageId.latest:
        raise InvalidArgumentError(f"{ident!r} names no message")
    return ident


def check_topic(x: object, of: str | None, topic: str) -> None:
    """Raise InvalidArgumentError when `x` is known to be of another topic."""
    if of is not None and of != topic:
        raise InvalidArgumentError(f"{x!r} cannot be acknowledged on {topic}")


def offsets_of(x: object, topic: str) -> dict[int, BitMap64]:
    """{segment: offsets} of a Message, an id, a MessageBatch, or several messages or ids.

    Raises InvalidArgumentError.
    """
    if isinstance(x, MessageBatch):
        check_topic(x, x.topic, topic)
        return _offsets_of_batch(x)
    if isinstance(x, Message) and x.topic == topic:
        return {x.segment_id: BitMap64((x.offset,))}  # making an id costs more
    if isinstance(x, (Message, MessageId)):
        ident = id_of(x, topic)
        return {ident.segment_id: BitMap64((ident.offset,))}
    if isinstance(x, Iterable) and not isinstance(x, (str, bytes, bytearray, memoryview)):
        return _offsets_of_many(x, topic)
    raise InvalidArgumentError(
        "what is acknowledged must be a Message, a MessageId, a MessageBatch or several of the first two, got "
        f"{type(x).__name__}"
    )


def _offsets_of_batch(batch: MessageBatch) -> dict[int, BitMap64]:
    found: dict[int, BitMap64] = {}
    for part in batch.slices:
        first = part.entry.first_offset
        found.setdefault(part.entry.segment_id, BitMap64()).add_range(first + part.start, first + part.stop)
    return found


def _offsets_of_many(many: Iterable[object], topic: str) -> dict[int, BitMap64]:
    found: dict[int, array[int]] = {}
    for one in many:
        if isinstance(one, Message) and one.topic == topic:
            segment_id, offset = one.segment_id, one.offset  # making an id costs more
        else:
            ident = id_of(one, topic)
            segment_id, offset = ident.segment_id, ident.offset
        offsets = found.get(segment_id)
        if offsets is None:
            offsets = found[segment_id] = array("Q")
        offsets.append(offset)
    return {segment_id: BitMap64(offsets) for segment_id, offsets in found.items()}


def position_vector(x: object, topic: str) -> Mapping[int, int]:
    """{place: first offset not acknowledged} that acknowledging `x` cumulatively means.

    Raises InvalidArgumentError.
    """
    if isinstance(x, MessageBatch):
        check_topic(x, x.topic, topic)
        return x.positions if len(x) else {}
    if isinstance(x, Message) and x.topic == topic:
        return vector_of(x)  # making an id costs more
    ident = id_of(x, topic)
    return ident.positions or {ident.segment_id: ident.offset + 1}


def without(segment_id: int, vector: Mapping[int, int]) -> dict[int, int]:
    """A vector without the positions of one segment and its buckets."""
    return {place: position for place, position in vector.items() if split_position(place)[0] != segment_id}


class Ack(NamedTuple):
    """The positions in one ACK: of the segment as a whole, or of its buckets."""

    position: int | None
    buckets: list[tuple[int, int]] | None

    @property
    def asked(self) -> Asked:
        """The positions by bucket."""
        return {None: self.position} if self.position is not None else dict(self.buckets or ())


def place_of(segment_id: int, bucket: int | None) -> int:
    """Where the position of a bucket, or (None) of the whole segment, stands in a position vector."""
    return segment_id if bucket is None else bucket_position(segment_id, bucket)
