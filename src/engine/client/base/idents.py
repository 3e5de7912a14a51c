"""What a user gives to be acknowledged, and the ids in it."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from pyroaring import BitMap64

from engine._native.consume.batch import MessageBatch
from engine._native.consume.message import Message
from engine.errors import InvalidArgumentError
from engine.model.positions import MessageId


def id_of(x: object, topic: str) -> MessageId:
    """The id of what is to be acknowledged. Raises InvalidArgumentError when it is none, or not of this topic."""
    ident = x.id if isinstance(x, Message) else x
    if not isinstance(ident, MessageId):
        raise InvalidArgumentError(
            f"{type(x).__name__} names no message; a Message, MessageId or MessageBatch is right"
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
    if isinstance(x, (Message, MessageId)):
        ident = id_of(x, topic)
        return {ident.segment_id: BitMap64((ident.offset,))}
    if isinstance(x, Iterable) and not isinstance(x, (str, bytes, bytearray, memoryview)):
        return _offsets_of_many(x, topic)
    raise InvalidArgumentError(
        f"{type(x).__name__} names no message; a Message, MessageId, MessageBatch, or several of the first two is right"
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
