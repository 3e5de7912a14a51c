"""`Cursor`: what one subscription has acknowledged in one segment, durable in the metadata store.

A cursor is a position, below which everything is acknowledged, and the set of offsets acknowledged above it. It never
moves back (C1), except by seek(). Acknowledgements that arrive during a save share the next save.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterable

from pyroaring import BitMap64

from engine._native.format.crc32c import crc32c
from engine._native.serve.cursors import Acked
from engine.errors import (
    CorruptionError,
    InvalidArgumentError,
    UnsupportedError,
)
from engine.metadata.store import MetadataStore, Record
from engine.storage.cursor.record import AT_ONCE, SavedRecord, SavePace
from engine.storage.file.owners import Lease

# In the metadata store: do not change. magic "ENCU", crc of the rest, version, position, size of the bitmap after it.
# Version 2, under a lease, has the owner's term between the size and the bitmap.
_HEAD = struct.Struct("<IIIQI")
_TERM = struct.Struct("<Q")
_MAGIC = 0x55434E45
_VERSION = 1
_VERSION_TERM = 2


def pack(position: int, acked: BitMap64, term: int = 0) -> bytes:
    """The stored form. `term`: the owner's; 0 without a lease."""
    bitmap = acked.serialize() if acked else b""
    version, owner = (_VERSION_TERM, _TERM.pack(term)) if term else (_VERSION, b"")
    image = bytearray(_HEAD.pack(_MAGIC, 0, version, position, len(bitmap)) + owner + bitmap)
    image[4:8] = crc32c(image[8:]).to_bytes(4, "little")
    return bytes(image)


def unpack(image: bytes, key: str) -> tuple[int, BitMap64]:
    """Undo pack(). Raises CorruptionError, or UnsupportedError for a version of the future."""
    if len(image) < _HEAD.size:
        raise CorruptionError(f"{key}: a cursor must have at least {_HEAD.size} bytes, got {len(image)}")
    magic, crc, version, position, size = _HEAD.unpack_from(image)
    if magic != _MAGIC or crc != crc32c(image[8:]):
        raise CorruptionError(f"{key}: the cursor fails its checksum")
    if version not in (_VERSION, _VERSION_TERM):
        raise UnsupportedError(f"{key}: cursor format {version}; this build reads formats up to {_VERSION_TERM}")
    start = _HEAD.size + (_TERM.size if version == _VERSION_TERM else 0)
    if size != len(image) - start:
        raise CorruptionError(f"{key}: the bitmap of the cursor must have {size} bytes, got {len(image) - start}")
    return position, unpack_set(image[start:], key)


def unpack_set(image: bytes, key: str) -> BitMap64:
    """A stored set of offsets; b"" is the empty set. Raises CorruptionError."""
    try:
        return BitMap64.deserialize(image) if image else BitMap64()
    except (ValueError, IndexError) as e:
        raise CorruptionError(f"{key}: the set of offsets cannot be decoded: {e}") from e


def owner_of(image: bytes) -> int:
    """The term in a stored cursor that unpack() accepted; 0 for none."""
    (version,) = struct.unpack_from("<I", image, 8)
    return int(_TERM.unpack_from(image, _HEAD.size)[0]) if version == _VERSION_TERM else 0


def stored_cursor(metadata: MetadataStore, record: Record) -> Cursor:
    """The cursor in a record with its whole image, to be read and not saved.

    Raises CorruptionError, UnsupportedError.
    """
    position, acked = unpack(record.value, record.key)
    return Cursor(metadata, record.key, position, acked, record.stat.version)


class Cursor(Acked):
    """One subscription's cursor in one segment. One object per cursor at a time.

    `position` and `is_acked` include acknowledgements that are not saved yet.
    """

    __slots__ = ("_lease", "_record", "key")
    above: BitMap64

    def __init__(
        self,
        metadata: MetadataStore,
        key: str,
        position: int,
        acked: BitMap64,
        version: int,
        lease: Lease | None = None,
        *,
        pieces: str = "",
        pace: SavePace = AT_ONCE,
    ) -> None:
        """`pieces`: the name of the pieces in which it is stored; "" for none."""
        self.key = key
        self._lease = lease
        self.position = position
        self.above = acked
        self._record = SavedRecord(metadata, key, version, self._image, lease, pieces=pieces, pace=pace)

    def _image(self) -> bytes:
        return pack(self.position, self.above, 0 if self._lease is None else self._lease.term)

    @property
    def acked_count(self) -> int:
        """The number of offsets acknowledged above the position."""
        return len(self.above)

    @property
    def acked_end(self) -> int:
        """The end of what is acknowledged."""
        return max(self.position, self.above.max() + 1) if self.above else self.position

    @property
    def unsaved(self) -> bool:
        """Whether some acknowledgement is not known to be saved: it may be lost in a crash."""
        return self._record.unsaved

    def is_acked(self, offset: int) -> bool:
        """Whether the message at an offset is acknowledged."""
        return offset < self.position or offset in self.above

    def unacked(self, start: int, stop: int) -> list[tuple[int, int]]:
        """The runs [start, stop) of offsets not acknowledged inside [start, stop)."""
        start = max(start, self.position)
        if start >= stop:
            return []
        if not self.above:
            return [(start, stop)]
        missing = BitMap64()
        missing.add_range(start, stop)
        missing -= self.above
        return _runs(missing)

    def backlog(self, end_offset: int) -> int:
        """The number of offsets below `end_offset` that are not acknowledged."""
        above = self.above.rank(end_offset - 1) if self.above and end_offset > 0 else 0
        return max(0, end_offset - self.position - above)

    def waiting(self, first: int, end: int, hidden: Callable[[int, int], BitMap64 | None]) -> int:
        """The messages in [first, end) that are not acknowledged. `hidden(start, stop)`: offsets without a message."""
        gone = self.backlog(first)  # deleted by retention, perhaps before the subscription was made
        unacknowledged = max(0, self.backlog(end) - gone)
        without = hidden(max(first, self.position), end) if unacknowledged else None
        return unacknowledged if without is None else unacknowledged - self.unacked_of(without, end)

    def position_over(self, hidden: BitMap64) -> int:
        """The first offset that is neither acknowledged nor in `hidden`."""
        if self.position not in hidden:
            return self.position
        missing = BitMap64()
        missing.add_range(self.position, max(hidden.max(), self.acked_end) + 2)
        return int((missing - hidden - self.above).min())

    def unacked_of(self, offsets: BitMap64, stop: int) -> int:
        """The number of these offsets below `stop` that are not acknowledged."""
        if stop <= self.position:
            return 0
        there = offsets.range_cardinality(self.position, stop)
        return there - offsets.intersection_cardinality(self.above) if there and self.above else there

    def ack_cumulative(self, position: int, *, lazy: bool = False) -> asyncio.Future[None]:
        """Acknowledge everything below `position`; the future is done when that is durable. Never moves back.
        `lazy`: the save may be deferred (SavePace).

        The future may fail with FencedError (another owner saved the cursor), StorageError or an error of the metadata
        store, AlreadyClosedError.
        """
        changed = position > self.position and not self._record.refuses
        if changed:
            self.position = position
            self._fold()
        return self._record.save(changed, lazy)

    def ack_individual(
        self, ranges: Iterable[tuple[int, int]], below: int = 0, *, lazy: bool = False
    ) -> asyncio.Future[None]:
        """Acknowledge runs [start, stop) of offsets, and all `below`; the future is done when that is durable."""
        before = (self.position, len(self.above))
        if not self._record.refuses:
            self.position = max(self.position, below)
            for start, stop in ranges:
                if start < 0 or stop < start:
                    raise InvalidArgumentError(
                        f"offsets to acknowledge must be [start, stop) with 0 <= start <= stop, got [{start}, {stop})"
                    )
                if stop > self.position:
                    self.above.add_range(start if start > self.position else self.position, stop)
            self._fold()
        return self._record.save(before != (self.position, len(self.above)), lazy)

    def ack_set(self, offsets: BitMap64, below: int = 0, *, lazy: bool = False) -> asyncio.Future[None]:
        """Acknowledge a set of offsets, and all `below`; the future is done when that is durable."""
        before = (self.position, len(self.above))
        if not self._record.refuses:
            self.position = max(self.position, below)
            self.above |= offsets
            self._fold()
        return self._record.save(before != (self.position, len(self.above)), lazy)

    def pass_gaps(self, gaps: Iterable[tuple[int, int]]) -> None:
        """Count runs [start, stop) of offsets without messages as acknowledged. Saved with the next change."""
        for start, stop in gaps:
            if stop > self.position:
                self.above.add_range(max(start, self.position), stop)
        self._fold()

    def _fold(self) -> None:
        """Move the position over the acknowledged offsets directly above it."""
        acked = self.above
        if not acked:
            return
        if acked.min() < self.position:
            acked.remove_range(0, self.position)
        if acked and self.position in acked:
            last = acked.max()
            run = acked.range_cardinality(self.position, last + 1)
            if run == last + 1 - self.position:
                self.position = last + 1
                acked.clear()
                return
            self.position = self._end_of_run(self.position, last)
            acked.remove_range(0, self.position)

    def _end_of_run(self, start: int, last: int) -> int:
        """The first offset after `start` that is not acknowledged, by bisection."""
        low, high = start + 1, last + 1
        while low < high:
            middle = (low + high) // 2
            if self.above.range_cardinality(start, middle + 1) == middle + 1 - start:
                low = middle + 1
            else:
                high = middle
        return low

    def check_usable(self) -> None:
        """Raise, as the future of an acknowledgement would, if the cursor can be saved no more.

        Then acknowledgements do not change it in memory either, since positions are reported to clients.
        """
        self._record.check()

    async def settled(self) -> int:
        """Wait until the position is durable, and return it. Raises as an acknowledgement does."""
        position = self.position
        await self._record.save(False)
        return position

    async def seek(self, position: int) -> None:
        """Move the cursor to a position, forwards or back, and clear what was acknowledged above it. Durable."""
        if not self._record.refuses:
            self.position, self.above = position, BitMap64()
        await self._record.save(True)

    async def close(self) -> None:
        """Finish saving; later acknowledgements fail. Idempotent."""
        await self._record.close()


def _runs(bitmap: BitMap64) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    start = stop = -1
    for value in bitmap:
        if value != stop:
            if stop >= 0:
                runs.append((start, stop))
            start = value
        stop = value + 1
    if stop >= 0:
        runs.append((start, stop))
    return runs
