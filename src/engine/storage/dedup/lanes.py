"""`Lane`: how far one producer's entries of one kind in one bucket are stored, and where the newest of them are."""

from __future__ import annotations

from collections.abc import Iterable

from engine.storage.dedup.grid import Area

RECENT = 16  # entries of a lane whose offsets are remembered; as in _native/serve/log.pxd
UNKNOWN_OFFSET = -1

Seen = tuple[int, int, int, int]  # first sequence, last sequence, offset, messages (0: not known)


def seen_up_to(level: int) -> Seen:
    """What stands for everything up to a sequence, where the entry is not known."""
    return 0, level, UNKNOWN_OFFSET, 0


class Lane:
    """A lane in a bucket of one cell: sequences rise."""

    __slots__ = ("base", "recent")

    def __init__(self, base: int = -1, recent: Iterable[Seen] = ()) -> None:
        self.base = base  # the highest sequence before `recent`
        self.recent: list[Seen] = list(recent)

    @property
    def last(self) -> int:
        """The highest sequence appended, -1 for none."""
        return self.recent[-1][1] if self.recent else self.base

    def reach(self, area: Area | None) -> tuple[int, int]:
        """(low, high): of messages with a hash in the area, all with a sequence up to `low` are stored, and none with
        one above `high`.
        """
        return self.last, self.last

    def offset_of(self, first: int, last: int, count: int) -> int:
        """The offset of an entry appended before, or UNKNOWN_OFFSET.

        The sequences alone do not name an entry: what a sealed parent left may lack messages between them that went to
        its neighbour (38, 44, 45 here), and a producer that resumes batches them anew (38, 43, 44, 45), as all of the
        bucket's. Such a batch has at least the messages of any other entry from `first` to `last`: as many, the same.
        """
        for seen_first, seen_last, offset, messages in reversed(self.recent):
            if seen_first == first and seen_last == last:
                return offset if messages == count else UNKNOWN_OFFSET
        return UNKNOWN_OFFSET

    def push(self, seen: Seen, durable: int, area: Area | None) -> None:
        """Remember an appended entry; the oldest are forgotten once they are durable."""
        recent = self.recent
        recent.append(seen)
        if len(recent) > 2 * RECENT and recent[RECENT][2] < durable:
            self.base = recent[RECENT - 1][1]
            del recent[:RECENT]

    def drop(self, offset: int) -> list[int]:
        """Forget the entries at or above an offset; returns their first sequences."""
        dropped = []
        while self.recent and self.recent[-1][2] >= offset:
            dropped.append(self.recent.pop()[0])
        return dropped[::-1]

    def lift(self, area: Area | None, seen: Seen) -> None:
        """Everything up to and with this entry is stored: a snapshot says so."""
        if seen[1] > self.last:
            self.base, self.recent = (seen[1], []) if seen[2] < 0 else (max(self.last, seen[0] - 1), [seen])


class GridLane(Lane):
    """A lane in a bucket of several cells: sequences rise in each of them."""

    __slots__ = ("areas", "bases", "levels", "width")

    def __init__(self, width: int, cells: int) -> None:
        super().__init__()
        self.width = width  # columns
        self.levels = [-1] * cells
        self.bases = [-1] * cells  # before `recent`
        self.areas: list[Area] = []  # of `recent`

    @property
    def last(self) -> int:
        """The highest sequence appended, -1 for none."""
        return max(self.levels)

    def reach(self, area: Area | None) -> tuple[int, int]:
        assert area is not None
        levels = self.levels
        stretches = [levels[start:stop] for start, stop in self._stretches(area)]
        return min(map(min, stretches)), max(map(max, stretches))

    def push(self, seen: Seen, durable: int, area: Area | None) -> None:
        assert area is not None
        recent = self.recent
        recent.append(seen)
        self.areas.append(area)
        self._raise(self.levels, area, seen[1])
        if len(recent) > 2 * RECENT and recent[RECENT][2] < durable:
            for old, place in zip(recent[:RECENT], self.areas, strict=False):
                self._raise(self.bases, place, old[1])
            del recent[:RECENT], self.areas[:RECENT]

    def drop(self, offset: int) -> list[int]:
        dropped = super().drop(offset)
        if dropped:
            del self.areas[len(self.recent) :]
            self.levels = self.levels_below(None)
        return dropped

    def lift(self, area: Area | None, seen: Seen) -> None:
        assert area is not None
        for levels in (self.levels, self.bases):
            self._raise(levels, area, seen[1])

    def levels_below(self, offset: int | None) -> list[int]:
        """The level of each cell. `offset`: only by the entries below it."""
        levels = list(self.bases)
        for seen, area in zip(self.recent, self.areas, strict=True):
            if offset is None or seen[2] < offset:
                self._raise(levels, area, seen[1])
        return levels

    def _raise(self, levels: list[int], area: Area, level: int) -> None:
        for start, stop in self._stretches(area):
            if max(levels[start:stop]) <= level:
                levels[start:stop] = [level] * (stop - start)
            else:
                levels[start:stop] = [max(before, level) for before in levels[start:stop]]

    def _stretches(self, area: Area) -> list[tuple[int, int]]:
        """The area as runs [start, stop) of indexes into the levels."""
        top, bottom, left, right = area
        width = self.width
        if right - left == width:
            return [(top * width, bottom * width)]
        return [(row * width + left, row * width + right) for row in range(top, bottom)]
