"""`OpenEntries`: a cache of the entries that are being sent in parts, verified once, and decompressed once."""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum
from typing import TYPE_CHECKING

from engine._native.format.entry import Entry
from engine.aio.semaphore import PoolStatistics
from engine.errors import CorruptionError
from engine.limits import MIB
from engine.model.compression import decompressor

if TYPE_CHECKING:
    from engine._native.serve.blocks import Block
    from engine._native.serve.parts import OpenEntry

DECOMPRESSED_MAX = MIB  # of one entry: decompressing it takes the loop a millisecond or two
LIMIT = 16 * MIB

_Key = tuple[int, int, int]  # salt of the file, segment, first offset: what was durable there never changes


class Closed(Enum):
    """Why an entry is not opened."""

    DAMAGED = "a consumer finds that out, and skips all of it"
    ENCRYPTED = "it is encrypted, and only consumers have the keys"
    LARGE = "it is compressed, and decompressing it would delay the loop"


class OpenEntries:
    """Loop thread only. The entry that was used longest ago is dropped first; a larger one is not kept at all.

    Between two parts of an entry a consumer works for some tenths of a second, in which the block may have left memory.
    """

    __slots__ = ("_cached", "_decompress", "limit", "used")

    def __init__(self, limit: int = LIMIT) -> None:
        self.limit = limit
        self.used = 0
        self._cached: OrderedDict[_Key, OpenEntry] = OrderedDict()
        self._decompress = decompressor()

    def open(self, block: Block, start: int, stop: int) -> OpenEntry | Closed:
        """The entry in the bytes `start` up to `stop` of a block; one that is not opened is sent whole."""
        data = block.data[start:stop]
        try:
            entry = Entry(data)
            key = block.salt, entry.segment_id, entry.first_offset
            if (found := self._cached.get(key)) is not None:
                self._cached.move_to_end(key)
                return found
            if entry.encrypted:
                return Closed.ENCRYPTED
            if entry.compression and entry.raw_size > DECOMPRESSED_MAX:
                return Closed.LARGE
            from engine._native.serve.parts import OpenEntry  # with the first entry that is too large for a consumer

            found = OpenEntry(data, block.salt, self._decompress)
        except CorruptionError:
            return Closed.DAMAGED
        self._keep(key, found)
        return found

    def _keep(self, key: _Key, opened: OpenEntry) -> None:
        if opened.nbytes > self.limit:
            return
        self._cached[key] = opened
        self.used += opened.nbytes
        while self.used > self.limit:
            self.used -= self._cached.popitem(last=False)[1].nbytes

    def statistics(self) -> PoolStatistics:
        """Usage and limit."""
        return PoolStatistics("open_entries", "bytes", self.used, self.limit)
