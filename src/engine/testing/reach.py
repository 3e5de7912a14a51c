"""Acknowledged positions of subscriptions, and the buckets of messages, as far as a history shows them."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Iterator

from engine.testing.evidence import Evidence


class Reach:
    """The acknowledged positions of one subscription, event by event."""

    def __init__(self, acks: list[tuple[int, dict[int, int]]]) -> None:
        self._acks = deque(acks)
        self._upto: dict[int, int] = {}  # by place

    def advance(self, until: int) -> None:
        """Count what was said before this event."""
        while self._acks and self._acks[0][0] < until:
            for place, position in self._acks.popleft()[1].items():
                self._upto[place] = max(self._upto.get(place, 0), position)

    def upto(self, segment: int, place: int | None = None) -> int:
        """The furthest acknowledgement in a segment, or in one bucket of it."""
        whole = self._upto.get(segment, 0)
        return whole if place is None else max(whole, self._upto.get(place, 0))


class Buckets:
    """What is known of shared segments: in which bucket (its place in position vectors) messages are."""

    def __init__(self, evidence: Evidence) -> None:
        shared = [e for e in evidence.deliveries if e.get("place", e["segment"]) != e["segment"]]
        self._places: dict[tuple[int, int], int] = {(e["segment"], e["offset"]): e["place"] for e in shared}
        self._offsets: dict[int, list[int]] = defaultdict(list)
        for (_, offset), place in sorted(self._places.items()):
            self._offsets[place].append(offset)

    def place(self, segment: int, offset: int) -> int:
        """The bucket, the segment where none is known."""
        return self._places.get((segment, offset), segment)

    def below(self, segment: int, place: int, offset: int) -> Iterator[int]:
        """The messages before this one that its reader must have had, downwards."""
        if place == segment:
            return iter(range(offset - 1, -1, -1))
        offsets = self._offsets[place]
        return reversed(offsets[: bisect_left(offsets, offset)])
