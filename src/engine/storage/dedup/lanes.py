"""`GridLane`: a lane in a bucket that is cut into cells. One in a plain bucket is native: `_native/serve/lanes.pyx`."""

from __future__ import annotations

from engine._native.serve.lanes import UNKNOWN_OFFSET, Lane
from engine._native.serve.log import Claim
from engine.storage.dedup.grid import Area

RECENT = 16  # entries of a lane whose offsets are remembered; as in _native/serve/log.pxd

Seen = tuple[int, int, int, int]  # first sequence, last sequence, offset, messages (0: not known)


def seen_up_to(level: int) -> Seen:
    """What stands for everything up to a sequence, where the entry is not known."""
    return 0, level, UNKNOWN_OFFSET, 0


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

    def push(self, claim: Claim, offset: int, durable: int, area: Area | None) -> None:
        assert area is not None
        self.remember(claim.first_sequence, claim.last_sequence, offset, claim.count)
        self.areas.append(area)
        self._raise(self.levels, area, claim.last_sequence)
        if len(self.areas) > 2 * RECENT and (recent := self.recent)[RECENT][2] < durable:
            for old, place in zip(recent[:RECENT], self.areas, strict=False):
                self._raise(self.bases, place, old[1])
            self.forget_oldest(RECENT)
            del self.areas[:RECENT]

    def drop(self, offset: int) -> list[int]:
        dropped = super().drop(offset)
        if dropped:
            del self.areas[-len(dropped) :]
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
