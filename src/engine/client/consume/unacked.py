"""What the program of a queue consumer has received and not acknowledged, and since when.

Messages are received in the order in which they arrived, so nothing is stored per message: the number of those that
still wait tells which ones were received. Offsets are kept in compressed sets, times in a wheel of a few slots.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from pyroaring import BitMap64

from engine import checks
from engine._native.format.offsets import range_set

SLOTS = 16  # parts of the time-out; a message expires at most two parts late

Offsets = dict[int, BitMap64]  # by segment


class _Arrived:
    """Messages of one block that wait, in the order of their offsets."""

    __slots__ = ("count", "offsets", "segment_id")

    def __init__(self, segment_id: int, offsets: BitMap64) -> None:
        self.segment_id = segment_id
        self.offsets = offsets
        self.count = len(offsets)

    def take(self, count: int) -> BitMap64:
        """The first of them."""
        if count >= self.count:
            taken, self.offsets = self.offsets, BitMap64()
        else:
            taken = self.offsets & range_set(self.offsets.min(), self.offsets[count - 1])
            self.offsets -= taken
        self.count -= len(taken)
        return taken

    def drop(self, offsets: BitMap64) -> int:
        """Remove these; how many of them were there."""
        before = self.count
        self.offsets -= offsets
        self.count = len(self.offsets)
        return before - self.count


class Unacknowledged:
    """Loop thread only.

    `timeout` and `now` are seconds; without a timeout nothing expires. An offset in a slot that is held was received at
    the slot's time. Invariants: `_arrived` counts what is in `_waiting`; what is held expires, if there is a timeout.
    `total`: messages that are queued or held. Checked by _check(), with ENGINE_DEBUG=1.
    """

    __slots__ = ("_arrived", "_held", "_now", "_slots", "_waiting", "timeout", "total")

    def __init__(self, timeout: float | None, now: Callable[[], float]) -> None:
        self.timeout = timeout
        self._now = now
        self.total = 0
        self._arrived = 0
        self._waiting: deque[_Arrived] = deque()
        self._held: Offsets = {}
        self._slots: deque[tuple[float, Offsets]] = deque()  # (when it expires, what was received before)

    def count(self, waiting: int) -> int:
        """Messages received and not acknowledged, when `waiting` are queued. From any thread."""
        return sum(map(len, list(self._held.values()))) + max(0, self._arrived - waiting)

    @property
    def busy(self) -> bool:
        """Whether something may expire."""
        return bool(self._waiting or self._held)

    @property
    def tick(self) -> float:
        """Seconds between two checks."""
        return (self.timeout or 0.0) / SLOTS

    def _check(self) -> None:
        checks.check(self._arrived == sum(arrived.count for arrived in self._waiting), "what has arrived is what waits")
        count = sum(map(len, self._held.values()))
        checks.check(self.total == self._arrived + count, "the total is what waits and what is held")
        for segment_id, held in self._held.items() if self.timeout is not None else ():
            slots = [slot[segment_id] for _, slot in self._slots if segment_id in slot]
            checks.check(held <= BitMap64().union(*slots), f"what the user has of segment {segment_id} expires")

    def held(self, segment_id: int) -> BitMap64:
        """What was received of a segment and not acknowledged; a copy."""
        return BitMap64(self._held.get(segment_id, ()))

    def arrived(self, segment_id: int, offsets: BitMap64) -> None:
        """These were queued, behind all others."""
        if offsets:
            self._waiting.append(_Arrived(segment_id, offsets))
            self._arrived += len(offsets)
            self.total += len(offsets)
        if checks.COSTLY:
            self._check()

    def settle(self, waiting: int) -> None:
        """`waiting` messages are still queued: the others were received."""
        received = self._arrived - waiting
        while received > 0 and self._waiting:
            head = self._waiting[0]
            taken = head.take(received)
            received -= len(taken)
            self._arrived -= len(taken)
            if not head.count:
                self._waiting.popleft()
            self._receive(head.segment_id, taken)
        if checks.COSTLY:
            self._check()

    def _receive(self, segment_id: int, offsets: BitMap64) -> None:
        _add(self._held, segment_id, offsets)
        if self.timeout is None:
            return
        due = self._now() + self.timeout
        if not self._slots or self._slots[-1][0] < due:
            self._slots.append((due + self.tick, {}))
        _add(self._slots[-1][1], segment_id, offsets)

    def take(self, segment_id: int, offsets: BitMap64) -> BitMap64:
        """Remove and return those of the offsets that are held. They may be delivered again later."""
        held = self._held.get(segment_id)
        if held is None:
            return BitMap64()
        taken = held & offsets
        if taken:
            self.total -= len(taken)
            _remove(self._held, segment_id, taken)
            for _, slot in self._slots:
                _remove(slot, segment_id, taken)
        return taken

    def give_back(self, segment_id: int, offsets: BitMap64) -> None:
        """They are held after all."""
        if offsets:
            self.total += len(offsets)
            self._receive(segment_id, offsets)
        if checks.COSTLY:
            self._check()

    def forget(self, segment_id: int, offsets: BitMap64) -> None:
        """These are neither queued nor held any more."""
        for arrived in self._waiting:
            if arrived.segment_id == segment_id:
                dropped = arrived.drop(offsets)
                self._arrived -= dropped
                self.total -= dropped
        self._waiting = deque(a for a in self._waiting if a.count)
        self.take(segment_id, offsets)
        if checks.COSTLY:
            self._check()

    def drop(self, segment_id: int) -> None:
        """Remove everything of a segment."""
        for arrived in self._waiting:
            if arrived.segment_id == segment_id:
                self._arrived -= arrived.count
                self.total -= arrived.count
        self._waiting = deque(a for a in self._waiting if a.segment_id != segment_id)
        self.total -= len(self._held.pop(segment_id, ()))
        for _, slot in self._slots:
            slot.pop(segment_id, None)
        if checks.COSTLY:
            self._check()

    def expired(self) -> Iterable[tuple[int, BitMap64]]:
        """Remove and return (segment, offsets) of what has been held too long."""
        now = self._now()
        while self._slots and self._slots[0][0] <= now:
            _, slot = self._slots.popleft()
            for segment_id, offsets in slot.items():
                late = self.take(segment_id, offsets)
                if late:
                    yield segment_id, late


def _add(offsets: Offsets, segment_id: int, more: BitMap64) -> None:
    found = offsets.get(segment_id)
    if found is None:
        offsets[segment_id] = BitMap64(more)
    else:
        found |= more


def _remove(offsets: Offsets, segment_id: int, less: BitMap64) -> None:
    found = offsets.get(segment_id)
    if found is not None:
        found -= less
        if not found:
            del offsets[segment_id]
