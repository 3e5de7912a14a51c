"""`ClosedSegments`: which closed segments retention has to open, and when.

Segments are searched through once in a while, by the heads of their files. What is due before the next search is
remembered; so is, of segments that are open, when they will be due, as they may be closed by then.

A segment of which nothing could go, because a subscription has not acknowledged it, would be due in every search. To
read its cursors it has to be opened, and an acknowledgement opens it as well. So it is left alone for a day, in which
only operations of an operator could free something.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from engine.broker.hosting.open_segments import OpenSegments
from engine.clock import Clock, ForwardSteps
from engine.limits import RETENTION_RETRY_S
from engine.model.names import SegmentName, TopicName
from engine.storage.file.retention import Limits


class ClosedSegments:
    """Times are those of the monotonic clock."""

    def __init__(
        self,
        segments: OpenSegments,
        clock: Clock,
        steps: ForwardSteps,
        limits: Callable[[TopicName], Awaitable[Limits | None]],
    ) -> None:
        """`limits`: of a topic; None: it does not exist."""
        self._segments = segments
        self._clock = clock
        self._steps = steps
        self._limits = limits
        self._horizon_s = 0.0
        self._due: dict[SegmentName, float] = {}
        self._tried: dict[int, float] = {}  # by the hash of the name: there may be very many

    def note(self, name: SegmentName, due_s: float | None) -> None:
        """An open segment will be due in so many seconds; None: never; below 0: nothing of it could go just now."""
        if due_s is None or not 0 <= due_s <= self._horizon_s:
            self._due.pop(name, None)
        else:
            self._due[name] = self._clock.monotonic() + due_s

    def begin_search(self, horizon_s: float) -> None:
        """What is due within so many seconds is remembered; then the next search begins."""
        self._horizon_s = horizon_s
        stale = self._clock.monotonic() - RETENTION_RETRY_S
        self._tried = {name: tried for name, tried in self._tried.items() if tried > stale}

    async def search(self, topics: Iterable[TopicName]) -> None:
        """Look at the closed segments of these topics. Raises StorageError."""
        wall_ms = self._steps.sample()
        for found in await self._segments.find_aging(topics):
            limits = await self._limits(found.name.topic)
            if limits is None or limits.none:
                continue
            due_s = limits.due_s(self._age_s(found.newest_ms, wall_ms), self._age_s(found.oldest_ms, wall_ms))
            if due_s is None or due_s > self._horizon_s:
                continue
            due = self._clock.monotonic() + due_s
            tried = self._tried.get(hash(found.name))
            if tried is None or due > tried:
                self._due[found.name] = due

    def take_due(self) -> list[SegmentName]:
        """Those to be opened now; each is returned once. Open ones are not among them."""
        now = self._clock.monotonic()
        due = [name for name, at in self._due.items() if at <= now]
        for name in due:
            del self._due[name]
        closed = [name for name in due if self._segments.peek(name) is None]
        self._tried.update((hash(name), now) for name in closed)
        return closed

    def _age_s(self, began_ms: int | None, wall_ms: int) -> float | None:
        if began_ms is None:
            return None
        return max(0.0, (wall_ms - began_ms - self._steps.left_out_ms(began_ms)) / 1000)
