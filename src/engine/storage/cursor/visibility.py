"""`Visibility`: which messages of one segment readers may see while transactions write to it.

A write of a transaction is *undecided* until the transaction has ended and its operation record exists. Readers see
nothing from the first undecided message on: that offset is the *last stable offset* (read committed). Once decided, the
messages are visible like all others, or *aborted*: hidden forever.

    offsets    … committed │ aborted │ committed │ undecided │ committed, plain …
                             hidden              ▲
                                                 last stable offset: readers stop here

Decisions are saved with the segment before the transaction's header is deleted (docs/design/transactions.md), so that
no answer depends on a header that may be gone. What is saved: `settled_upto`, below which nothing is undecided; what is
decided above it; the aborted ranges, anywhere. The record exists before the first transactional entry. So a segment
without it never had one, and recovery searches for entries without an operation record from `settled_upto` on, and
nowhere else.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING

from pyroaring import BitMap64

from engine._native.format.crc32c import crc32c
from engine.errors import CorruptionError, UnsupportedError
from engine.metadata import keys
from engine.metadata.store import MetadataStore
from engine.model.names import SegmentName
from engine.storage.cursor.cursor import unpack_set
from engine.storage.cursor.pieces import WholeRecord, read
from engine.storage.cursor.record import SavedRecord, claim
from engine.storage.file.owners import Lease

if TYPE_CHECKING:
    from engine._native.serve.undecided import OpenWrites, Write

# In the metadata store: do not change. magic "ENVI", crc of the rest, version, settled_upto, the owner's term (0
# without a lease), sizes of the bitmaps that follow: hidden, decided.
_HEAD = struct.Struct("<IIIQQII")
_MAGIC = 0x49564E45
_VERSION = 1


def pack(settled_upto: int, hidden: BitMap64, decided: BitMap64, term: int = 0) -> bytes:
    images = [bitmap.serialize() if bitmap else b"" for bitmap in (hidden, decided)]
    head = _HEAD.pack(_MAGIC, 0, _VERSION, settled_upto, term, *map(len, images))
    image = bytearray(head + b"".join(images))
    image[4:8] = crc32c(image[8:]).to_bytes(4, "little")
    return bytes(image)


def unpack(image: bytes, key: str) -> tuple[int, BitMap64, BitMap64, int]:
    """Undo pack(). Raises CorruptionError, or UnsupportedError for a version of the future."""
    if len(image) < _HEAD.size:
        raise CorruptionError(f"{key}: a visibility record must have at least {_HEAD.size} bytes, got {len(image)}")
    magic, crc, version, settled_upto, term, hidden, decided = _HEAD.unpack_from(image)
    if magic != _MAGIC or crc != crc32c(image[8:]):
        raise CorruptionError(f"{key}: the visibility record fails its checksum")
    if version != _VERSION:
        raise UnsupportedError(f"{key}: visibility format {version}; this build reads format {_VERSION}")
    middle = _HEAD.size + hidden
    if len(image) != middle + decided:
        raise CorruptionError(f"{key}: the visibility record must have {middle + decided} bytes, got {len(image)}")
    return settled_upto, unpack_set(image[_HEAD.size : middle], key), unpack_set(image[middle:], key), term


class Visibility:
    """Which messages of one segment are visible.

    `changed` is called when the last stable offset or the aborted ranges have changed. `end()` is the segment's durable
    end. Decisions about messages above it, which a crash took in a relaxed mode, are dropped when the record is opened.
    """

    def __init__(
        self,
        metadata: MetadataStore,
        key: str,
        end: Callable[[], int],
        *,
        found: WholeRecord | None = None,
        lease: Lease | None = None,
    ) -> None:
        self.changed: Callable[[], None] = lambda: None
        self.hidden = BitMap64()  # the aborted ranges
        self.decided = BitMap64()  # at or above `_settled_upto`
        self._settled_upto = 0
        self._end = end
        self._lease = lease
        if found is not None:
            self._settled_upto, self.hidden, self.decided, _ = unpack(found.value, key)
            self._cut(end())
        self._undecided: OpenWrites | None = None  # the undecided ones; None: there was none
        version = None if found is None else found.stat.version
        pieces = "" if found is None else found.pieces
        self._record = SavedRecord(metadata, key, version, self._image, lease, pieces=pieces)

    @classmethod
    async def open(
        cls, metadata: MetadataStore, segment: SegmentName, end: Callable[[], int], lease: Lease | None = None
    ) -> Visibility:
        """As saved. Under a lease it is claimed, so that former owners can save it no more.

        Raises CorruptionError, UnsupportedError, FencedError; StorageError if the metadata store did not confirm.
        """
        key = keys.visibility(segment)

        def image_of(image: bytes, term: int) -> tuple[int, bytes]:
            settled_upto, hidden, decided, found = unpack(image, key)
            return found, pack(settled_upto, hidden, decided, term)

        return cls(metadata, key, end, found=await claim(metadata, key, lease, image_of), lease=lease)

    @staticmethod
    async def reach(metadata: MetadataStore, segment: SegmentName) -> int:
        """The first offset above all decisions; 0 for none. Raises as open() does."""
        record = await read(metadata, keys.visibility(segment))
        if record is None:
            return 0
        settled_upto, hidden, decided, _ = unpack(record.value, record.key)
        return max(settled_upto, *(offsets.max() + 1 for offsets in (hidden, decided) if offsets), 0)

    def _cut(self, end: int) -> None:
        self._settled_upto = min(self._settled_upto, end)
        for bitmap in (self.hidden, self.decided):
            if bitmap and bitmap.max() >= end:
                bitmap.remove_range(end, bitmap.max() + 1)

    # -- for readers -----------------------------------------------------------------------------------------

    @property
    def limit(self) -> int | None:
        """The last stable offset: nothing from there on may be read. None: everything may be."""
        return None if self._undecided is None else self._undecided.first

    @property
    def undecided(self) -> int:
        return 0 if self._undecided is None else len(self._undecided)

    # -- for writers -----------------------------------------------------------------------------------------

    @property
    def marked(self) -> bool:
        """Whether the record exists and can be saved. Before mark() it does not exist."""
        return self._record.exists and not self._record.refuses

    async def mark(self) -> None:
        """Create the record. To be awaited before the first transactional entry is appended."""
        if not self._record.exists:
            self._settled_upto = self._end()
            await self._record.save()

    @property
    def unsettled_from(self) -> int | None:
        """Where recovery begins to search for entries without an operation record. None: nowhere."""
        return self._settled_upto if self._record.exists else None

    def is_decided(self, offset: int) -> bool:
        """Whether the messages of a transactional entry at that offset are decided."""
        return offset < self._settled_upto or offset in self.decided or offset in self.hidden

    def wrote(self, first: int, last: int) -> Write:
        """A transaction's messages have these offsets. Call it before they can become durable."""
        return self.undecided_writes().add(first, last)

    def undecided_writes(self) -> OpenWrites:
        """Those of transactions that have not ended, as far as is known."""
        if self._undecided is None:
            from engine._native.serve.undecided import OpenWrites  # loaded with the first transaction

            self._undecided = OpenWrites()
        return self._undecided

    def decide(self, write: Write, *, visible: bool) -> None:
        """Make its messages, which are durable, visible or aborted; permanent after the next save(). Idempotent."""
        if not write.open:
            return
        (self.decided if visible else self.hidden).add_range(write.first, write.last + 1)
        self._close(write)

    def withdraw(self, write: Write) -> None:
        """It was not appended after all."""
        if write.open:
            self._close(write)

    def _close(self, write: Write) -> None:
        self.undecided_writes().close(write)
        self.changed()

    def save(self) -> asyncio.Future[None]:
        """Done when all decisions so far are durable. Fails as SavedRecord.save() does."""
        self._settle()
        return self._record.save()

    def _settle(self) -> None:
        """No further than the durable end: what is written before the first undecided message may still be lost."""
        limit, end = self.limit, self._end()
        self._settled_upto = max(self._settled_upto, end if limit is None else min(limit, end))
        if self.decided and self.decided.min() < self._settled_upto:
            self.decided.remove_range(0, self._settled_upto)

    def _image(self) -> bytes:
        self._settle()
        return pack(self._settled_upto, self.hidden, self.decided, 0 if self._lease is None else self._lease.term)

    def forget_below(self, offset: int) -> None:
        """Retention has deleted everything below the offset."""
        if self.hidden and self.hidden.min() < offset:
            self.hidden.remove_range(0, offset)

    async def close(self) -> None:
        await self._record.close()
