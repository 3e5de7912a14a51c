"""Tells a torn tail of SQLite's write-ahead log from damage. SQLite itself takes either for the end of the log.

    0   magic u32, big-endian; its lowest bit: checksums are of big-endian words
    8   page size u32
    16  salt, 8 bytes
    24  checksum of bytes 0..24, 2 x u32
    32  frames: page number u32 | pages after commit u32 (0: not a commit) | salt | checksum 2 x u32 | page

A frame's checksum covers its first 8 bytes and its page and goes on from the frame before. With synchronous=FULL a
transaction is written only when the one before is synced, so only the last one can be torn: a whole frame of a later
transaction behind a bad one proves that synced bytes have changed. (https://sqlite.org/fileformat2.html#walformat)
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.metadata.walsum import Checksum, Sum

_HEADER = struct.Struct(">IIII8sII")
_FRAME = struct.Struct(">II8sII")
_MAGIC = 0x377F0682

_SEEDS_MAX = 3


def find_damage(log: bytes) -> str | None:
    """The damage of the write-ahead log in `log`; None for a whole log, an empty one, or a torn tail."""
    if len(log) < _HEADER.size:
        return None
    magic, _, page_size, _, salt, *stored = _HEADER.unpack_from(log)
    if magic & ~1 != _MAGIC or page_size & (page_size - 1) or not 512 <= page_size <= 65536:
        return _header_damage(log)
    from engine.metadata.walsum import Checksum  # loads NumPy

    sums = Checksum(">u4" if magic & 1 else "<u4")
    if sums.of(log[:24], (0, 0)) != tuple(stored):
        return _header_damage(log)
    return _frames_damage(log, page_size, salt, sums, (stored[0], stored[1]))


def _header_damage(log: bytes) -> str | None:
    # The header is synced before the first commit is confirmed, so frames prove that it was whole. A file system may
    # leave zeros where nothing was synced.
    return "its header is damaged" if any(log) else None


def _frames_damage(log: bytes, page_size: int, salt: bytes, sums: Checksum, first: Sum) -> str | None:
    bad: int | None = None
    committed = False  # a transaction ended at or behind the bad frame
    before = {first}
    for at in _frame_offsets(log, page_size):
        _, commit, frame_salt, *sum_parts = _FRAME.unpack_from(log, at)
        stored = (sum_parts[0], sum_parts[1])
        content = log[at : at + 8] + log[at + _FRAME.size : at + _FRAME.size + page_size]
        computed = {sums.of(content, b) for b in before}
        whole = frame_salt == salt and stored in computed
        if bad is None and not whole:
            bad = at
        elif whole and committed:
            return f"the frame at byte {bad} is damaged, and committed transactions follow it"
        committed |= bad is not None and commit != 0
        # Behind a bad frame the sum may continue from the stored sum, or, if that was hit, from the content.
        before = {stored} if whole else {stored, *computed}
        if len(before) > _SEEDS_MAX:
            before = {stored}
    return None


def _frame_offsets(log: bytes, page_size: int) -> Iterator[int]:
    size = _FRAME.size + page_size
    return iter(range(_HEADER.size, len(log) - size + 1, size))
