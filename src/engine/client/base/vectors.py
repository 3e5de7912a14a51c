"""Position vectors as acknowledgements need them: what is asked of each segment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from engine._native.consume.batch import MessageBatch
from engine.client.base.idents import check_topic, id_of
from engine.model.positions import bucket_position, split_position

# {bucket, or None for the segment as a whole: the first offset that is not acknowledged}
Asked = dict[int | None, int]


def position_vector(x: object, topic: str) -> Mapping[int, int]:
    """{place: first offset not acknowledged} that acknowledging `x` cumulatively means.

    Raises InvalidArgumentError.
    """
    if isinstance(x, MessageBatch):
        check_topic(x, x.topic, topic)
        return x.positions if len(x) else {}
    ident = id_of(x, topic)
    return ident.positions or {ident.segment_id: ident.offset + 1}


def by_segment(vector: Mapping[int, int]) -> dict[int, Asked]:
    """The same, segment by segment."""
    found: dict[int, Asked] = {}
    for place, position in vector.items():
        segment_id, bucket = split_position(place)
        found.setdefault(segment_id, {})[bucket] = position
    return found


def without(segment_id: int, vector: Mapping[int, int]) -> dict[int, int]:
    """A vector without what it says of one segment and its buckets."""
    return {place: position for place, position in vector.items() if split_position(place)[0] != segment_id}


class Ack(NamedTuple):
    """What one ACK says: of the segment as a whole, or of its buckets."""

    position: int | None
    buckets: list[tuple[int, int]] | None

    @property
    def asked(self) -> Asked:
        """The same, by bucket."""
        return {None: self.position} if self.position is not None else dict(self.buckets or ())


def place_of(segment_id: int, bucket: int | None) -> int:
    """Where the position of a bucket, or (None) of the whole segment, stands in a position vector."""
    return segment_id if bucket is None else bucket_position(segment_id, bucket)
