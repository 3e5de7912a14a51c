"""What a program has received and not acknowledged, as plainly as it can be said: the model of `unacked.pyx`."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

Place = tuple[int, int]  # a segment, and an offset in it


class PlainUnacked:
    """`queue`: what waits, in the order of arrival; `got`: when the program has received what it has."""

    def __init__(self) -> None:
        self.queue: deque[Place] = deque()
        self.got: dict[Place, float] = {}

    @property
    def total(self) -> int:
        return len(self.queue) + len(self.got)

    def arrived(self, segment: int, offsets: Iterable[int]) -> None:
        self.queue.extend((segment, offset) for offset in sorted(offsets))

    def receive(self, count: int, now: float) -> None:
        for _ in range(min(count, len(self.queue))):
            self.got[self.queue.popleft()] = now

    def take(self, segment: int, offsets: Iterable[int]) -> set[int]:
        """Those that the program has: it has them no more."""
        mine = {offset for offset in offsets if (segment, offset) in self.got}
        for offset in mine:
            del self.got[segment, offset]
        return mine

    def give_back(self, segment: int, offsets: Iterable[int], now: float) -> None:
        for offset in offsets:
            self.got[segment, offset] = now

    def forget(self, segment: int, offsets: set[int]) -> None:
        self.queue = deque((i, offset) for i, offset in self.queue if i != segment or offset not in offsets)
        self.take(segment, offsets)

    def drop(self, segment: int) -> set[int]:
        """All of a segment, which may come again."""
        dropped = {offset for i, offset in (*self.queue, *self.got) if i == segment}
        self.forget(segment, dropped)
        return dropped

    def held(self, segment: int) -> set[int]:
        return {offset for i, offset in self.got if i == segment}
