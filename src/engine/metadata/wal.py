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

import numpy as np
import numpy.typing as npt

_HEADER = struct.Struct(">IIII8sII")
_FRAME = struct.Struct(">II8sII")
_MAGIC = 0x377F0682
_WORDS_SUMMED = 2  # one step of the checksum takes two words

_SEEDS_MAX = 3

Sum = tuple[int, int]


def find_damage(log: bytes) -> str | None:
    """The damage of the write-ahead log in `log`; None for a whole log, an empty one, or a torn tail."""
    if len(log) < _HEADER.size:
        return None
    magic, _, page_size, _, salt, *stored = _HEADER.unpack_from(log)
    if magic & ~1 != _MAGIC or page_size & (page_size - 1) or not 512 <= page_size <= 65536:
        return _header_damage(log)
    sums = _Checksum(">u4" if magic & 1 else "<u4")
    if sums.of(log[:24], (0, 0)) != tuple(stored):
        return _header_damage(log)
    return _frames_damage(log, page_size, salt, sums, (stored[0], stored[1]))


def _header_damage(log: bytes) -> str | None:
    # The header is synced before the first commit is confirmed, so frames prove that it was whole. A file system may
    # leave zeros where nothing was synced.
    return "its header is damaged" if any(log) else None


def _frames_damage(log: bytes, page_size: int, salt: bytes, sums: _Checksum, first: Sum) -> str | None:
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


class _Checksum:
    """s0 += word + s1; s1 += word + s0, over pairs of words, modulo 2**32: linear, so a frame is two dot products."""

    def __init__(self, words: str) -> None:
        self._words = np.dtype(words)
        self._weights: dict[int, tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32], list[Sum]]] = {}

    def of(self, content: bytes, before: Sum) -> Sum:
        """The checksum after `content`, continued from `before`."""
        words = np.frombuffer(content, self._words).astype(np.uint32)
        first, second, carry = self._weights_of(len(words))
        sums = int((words * first).sum(dtype=np.uint32)), int((words * second).sum(dtype=np.uint32))
        s0, s1 = (total + before[0] * a + before[1] * b for total, (a, b) in zip(sums, carry, strict=True))
        return s0 & 0xFFFFFFFF, s1 & 0xFFFFFFFF

    def _weights_of(self, count: int) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32], list[Sum]]:
        if count not in self._weights:
            self._weights[count] = _weights(count)
        return self._weights[count]


def _weights(count: int) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32], list[Sum]]:
    """The weights of each word, and of both parts of the earlier sum, in s0 and in s1 after `count` words."""
    mask = 0xFFFFFFFF
    first, second = np.empty(count, np.uint32), np.empty(count, np.uint32)
    # (x, y): a unit of s0 / of s1 after the words so far, counted from the end, adds x to the final s0 and y to s1.
    unit0, unit1 = (1, 0), (0, 1)
    for at in range(count - _WORDS_SUMMED, -1, -_WORDS_SUMMED):
        # The step maps (s0, s1) with words a, b to s0' = s0 + a + s1, s1' = s1 + b + s0'.
        b = unit1
        a = ((unit0[0] + unit1[0]) & mask, (unit0[1] + unit1[1]) & mask)
        first[at], second[at] = a
        first[at + 1], second[at + 1] = b
        unit0, unit1 = a, ((a[0] + unit1[0]) & mask, (a[1] + unit1[1]) & mask)
    return first, second, [(unit0[0], unit1[0]), (unit0[1], unit1[1])]
