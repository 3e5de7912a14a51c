"""`SegmentInfo`: one segment of a layout, and the boundaries of its entry buckets."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from engine.errors import InvalidArgumentError
from engine.limits import BUCKETS_PER_SEGMENT_MAX, HASH_RING_SIZE
from engine.model.fields import Fields
from engine.model.hashrange import HashRange

_KNOWN = frozenset(
    ["segmentId", "hashRange", "state", "parentIds", "childIds", "createdAtEpoch", "sealedAtEpoch"]
) | frozenset(["createdAtMs", "sealedAtMs", "bucketBoundaries"])


class SegmentState(enum.StrEnum):
    """A deleted segment is not in the layout."""

    ACTIVE = "ACTIVE"
    SEALED = "SEALED"


def bucket_ends(count: int) -> tuple[int, ...]:
    """The inclusive ends of `count` equal buckets over the whole bucket ring (semantics 2). InvalidArgumentError."""
    if not 1 <= count <= BUCKETS_PER_SEGMENT_MAX:
        raise InvalidArgumentError(f"entry buckets must be 1 to {BUCKETS_PER_SEGMENT_MAX}, got {count}")
    return tuple(r.end for r in HashRange.divide(count))


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """One segment in the DAG (PIP-468). Epochs are of the layout, times wall-clock milliseconds.

    `sealed_at_epoch` is 0 and `sealed_at_ms` None while it is active (semantics 4). `bucket_ends` never change.
    """

    segment_id: int
    hash_range: HashRange
    bucket_ends: tuple[int, ...]
    created_at_epoch: int
    created_at_ms: int
    parent_ids: tuple[int, ...] = ()
    child_ids: tuple[int, ...] = ()
    state: SegmentState = SegmentState.ACTIVE
    sealed_at_epoch: int = 0
    sealed_at_ms: int | None = None
    extra: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))  # fields of a newer version

    @property
    def active(self) -> bool:
        """Whether it takes messages."""
        return self.state is SegmentState.ACTIVE

    @property
    def bucket_count(self) -> int:
        return len(self.bucket_ends)

    def to_json(self) -> dict[str, Any]:
        """The specification's fields, then our own."""
        fields: dict[str, Any] = {
            "segmentId": self.segment_id,
            "hashRange": {"start": self.hash_range.start, "end": self.hash_range.end},
            "state": str(self.state),
            "parentIds": list(self.parent_ids),
            "childIds": list(self.child_ids),
            "createdAtEpoch": self.created_at_epoch,
            "sealedAtEpoch": self.sealed_at_epoch,
            "createdAtMs": self.created_at_ms,
            "bucketBoundaries": list(self.bucket_ends),
        }
        if self.sealed_at_ms is not None:
            fields["sealedAtMs"] = self.sealed_at_ms
        return {**self.extra, **fields}

    @classmethod
    def from_json(cls, fields: Fields) -> SegmentInfo:
        """Undo to_json(). Without bucketBoundaries: one bucket. Raises CorruptionError naming the field."""
        state = fields.choice("state", SegmentState)
        sealed_at_ms = fields.number("sealedAtMs", 0)
        extra = {k: v for k, v in fields.values.items() if k not in _KNOWN}
        return cls(
            fields.number("segmentId"),
            _read_range(fields),
            _read_ends(fields),
            fields.number("createdAtEpoch"),
            fields.number("createdAtMs", 0),
            fields.numbers("parentIds"),
            fields.numbers("childIds"),
            state,
            fields.number("sealedAtEpoch"),
            None if state is SegmentState.ACTIVE else sealed_at_ms,
            MappingProxyType(extra),
        )


def _read_range(fields: Fields) -> HashRange:
    inner = fields.fields("hashRange")
    try:
        return HashRange(inner.number("start"), inner.number("end"))
    except InvalidArgumentError as e:
        fields.wrong("hashRange", f"is not a range: {e}")


def _read_ends(fields: Fields) -> tuple[int, ...]:
    ends = fields.numbers("bucketBoundaries", [HASH_RING_SIZE - 1])
    last = HASH_RING_SIZE - 1
    rising = all(a < b for a, b in itertools.pairwise(ends))
    if not (ends and rising and ends[-1] == last and len(ends) <= BUCKETS_PER_SEGMENT_MAX):
        right = f"must be 1 to {BUCKETS_PER_SEGMENT_MAX} ascending inclusive ends, the last {last}"
        fields.wrong("bucketBoundaries", f"{right}, got {list(ends)!r:.80}")
    return ends
