"""The sparse index of one log file: the first entry in every 64 KiB, by offset and by time."""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from engine.limits import LOG_INDEX_BYTES_STEP

MARK_SIZE = 24  # offset u64, position u64, time ms i64; on disk: do not change


class Index:
    """Marks in the order of the file; offsets and positions rise, times never fall."""

    __slots__ = ("_offsets", "_positions", "_times", "due")

    def __init__(self, marks: Iterable[tuple[int, int, int]] = ()) -> None:
        self._offsets = array("Q")
        self._positions = array("Q")
        self._times = array("q")
        self.due = 0  # the position from which on an entry becomes a mark
        for offset, position, time_ms in marks:
            self._append(offset, position, time_ms)

    def __len__(self) -> int:
        return len(self._offsets)

    def _append(self, offset: int, position: int, time_ms: int) -> None:
        self._offsets.append(offset)
        self._positions.append(position)
        self._times.append(time_ms)
        self.due = position + LOG_INDEX_BYTES_STEP

    def add(self, offset: int, position: int, time_ms: int) -> None:
        """An entry begins here; it becomes a mark if it lies a step behind the last one."""
        if position >= self.due:
            self._append(offset, position, time_ms)

    def rollback(self, offset: int) -> None:
        """Remove the marks at or above an offset."""
        keep = bisect_left(self._offsets, offset)
        for column in (self._offsets, self._positions, self._times):
            del column[keep:]
        self.due = self._positions[-1] + LOG_INDEX_BYTES_STEP if self._positions else 0

    @property
    def first_time_ms(self) -> int | None:
        """The publish time of the file's first entry; None for none."""
        return self._times[0] if self._times else None

    def position_before(self, offset: int, default: int) -> int:
        """The position of the last mark at or below an offset."""
        i = bisect_right(self._offsets, offset) - 1
        return self._positions[i] if i >= 0 else default

    def position_after(self, offset: int, default: int) -> int:
        """The position of the first mark at or above an offset: no entry from there on begins below it."""
        i = bisect_left(self._offsets, offset)
        return self._positions[i] if i < len(self) else default

    def last(self, offset: int, position: int) -> tuple[int, int]:
        """(offset, position) of the last mark; the arguments if there is none."""
        return (self._offsets[-1], self._positions[-1]) if self._offsets else (offset, position)

    def offset_before_time(self, time_ms: int, default: int) -> int:
        """The offset of the last mark older than a time: the search begins there."""
        i = bisect_left(self._times, time_ms) - 1
        return self._offsets[i] if i >= 0 else default

    def pack(self) -> bytes:
        """MARK_SIZE little-endian bytes per mark."""
        flat = array("Q", (0,)) * (3 * len(self))
        flat[0::3] = self._offsets
        flat[1::3] = self._positions
        flat[2::3] = array("Q", self._times.tobytes())
        if sys.byteorder == "big":
            flat.byteswap()
        return flat.tobytes()

    @classmethod
    def unpack(cls, image: bytes) -> Index:
        flat = array("Q", image)
        if sys.byteorder == "big":
            flat.byteswap()
        index = cls()
        index._offsets = flat[0::3]
        index._positions = flat[1::3]
        index._times = array("q", flat[2::3].tobytes())
        return index
