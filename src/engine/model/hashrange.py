"""`HashRange`: an inclusive part of the 16-bit segment ring."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from engine.errors import InvalidArgumentError
from engine.limits import HASH_RING_SIZE


@dataclass(frozen=True, slots=True, order=True)
class HashRange:
    """`[start, end]`, both inclusive, in 0x0000..0xFFFF."""

    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end < HASH_RING_SIZE:
            raise InvalidArgumentError(
                f"a hash range must have 0 <= start <= end <= {HASH_RING_SIZE - 1}, got [{self.start}, {self.end}]"
            )

    def __contains__(self, value: int) -> bool:
        return self.start <= value <= self.end

    @property
    def width(self) -> int:
        """The number of hash values in the range."""
        return self.end - self.start + 1

    @classmethod
    def whole(cls) -> HashRange:
        return cls(0, HASH_RING_SIZE - 1)

    @classmethod
    def divide(cls, count: int) -> list[HashRange]:
        """The ring in `count` equal parts; the last absorbs the remainder (semantics 3)."""
        if not 1 <= count <= HASH_RING_SIZE:
            raise InvalidArgumentError(f"the ring must be divided into 1 to {HASH_RING_SIZE} ranges, got {count}")
        width = HASH_RING_SIZE // count
        starts = [j * width for j in range(count)] + [HASH_RING_SIZE]
        return [cls(a, b - 1) for a, b in itertools.pairwise(starts)]
