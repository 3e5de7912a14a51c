"""The decisions of auto-scale, and the names of their reasons (PIP-483, PIP-486)."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field

from engine.model.autoscale import BUCKETS_MAX


class ScaleReason(enum.StrEnum):
    """Why a topic is changed, or is not. The names are in statistics, logs and docs/autoscale.md."""

    # Reasons for a change.
    CONSUMERS = "consumers"  # a subscription has more consumers than there are segments
    LOAD = "load"  # a segment is above a split threshold
    BUCKETS = "buckets"  # a subscription has more consumers than there are buckets
    COLD = "cold"  # two neighbours have been below all merge thresholds for the merge window
    IDLE_BUCKETS = "idle_buckets"  # far more buckets than lately needed
    # Reasons for no change at all.
    SETTLED = "settled"  # nothing calls for a change
    DISABLED = "disabled"
    INVALID_POLICY = "invalid_policy"
    PENDING = "pending"  # another change is under way
    # Guards that held a change back.
    MAX_SEGMENTS = "max_segments"
    MIN_SEGMENTS = "min_segments"
    MAX_BUCKETS = "max_buckets"
    MAX_DEPTH = "max_depth"
    SPLIT_COOLDOWN = "split_cooldown"
    MERGE_COOLDOWN = "merge_cooldown"
    REBUCKET_COOLDOWN = "rebucket_cooldown"
    MERGE_WINDOW = "merge_window"  # cold, but not long enough
    UNKNOWN_LOAD = "unknown_load"  # a segment that has not reported its load is never cold
    ONE_HASH_VALUE = "one_hash_value"  # the overloaded segment has a range that cannot be split
    SPLIT_AGAIN = "split_again"  # the merged segment would be split again at once


@dataclass(frozen=True, slots=True)
class HeldBack:
    """A change that a guard held back; for a cooldown, until a wall-clock time in ms."""

    reason: ScaleReason
    until_ms: int | None = None


@dataclass(frozen=True, slots=True)
class RateAbove:
    """The rate for which a segment is split: one of RATES, per second, and the threshold that it is above."""

    name: str
    value: float
    threshold: float


@dataclass(frozen=True, slots=True)
class Split:
    """Split this segment. `held`: changes that guards held back in the same decision. `cause`: of a split for load."""

    segment_id: int
    reason: ScaleReason
    held: tuple[HeldBack, ...] = ()
    cause: RateAbove | None = field(default=None, compare=False)

    @property
    def segment_ids(self) -> tuple[int, ...]:
        return (self.segment_id,)


@dataclass(frozen=True, slots=True)
class Merge:
    """Merge these neighbours, the lower range first, into one of at most so many buckets."""

    first_id: int
    second_id: int
    reason: ScaleReason
    held: tuple[HeldBack, ...] = ()
    buckets_max: int = field(default=BUCKETS_MAX, compare=False)

    @property
    def segment_ids(self) -> tuple[int, ...]:
        return (self.first_id, self.second_id)


@dataclass(frozen=True, slots=True)
class Rebucket:
    """Give each of these segments a number of buckets, in one decision."""

    targets: tuple[tuple[int, int], ...]  # (segment id, buckets), by range start
    reason: ScaleReason
    held: tuple[HeldBack, ...] = ()

    @property
    def segment_ids(self) -> tuple[int, ...]:
        return tuple(segment_id for segment_id, _ in self.targets)


@dataclass(frozen=True, slots=True)
class Nothing:
    """Change nothing: for lack of a reason, or, when `held` is not empty, because of its first item."""

    reason: ScaleReason
    held: tuple[HeldBack, ...] = ()

    @property
    def segment_ids(self) -> tuple[int, ...]:
        return ()

    @property
    def again_ms(self) -> int | None:
        """The earliest wall-clock end of a cooldown that held something back; None without one."""
        return min((h.until_ms for h in self.held if h.until_ms is not None), default=None)

    @classmethod
    def because(cls, held: Iterable[HeldBack]) -> Nothing:
        """Nothing, held back by these; settled when there are none."""
        held = tuple(held)
        return cls(held[0].reason if held else ScaleReason.SETTLED, held)


Action = Split | Merge | Rebucket
Decision = Split | Merge | Rebucket | Nothing
