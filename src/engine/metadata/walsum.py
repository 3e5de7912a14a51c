"""The checksums of SQLite's write-ahead log. Loaded where there is a log to be checked: NumPy takes long to load."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_WORDS_SUMMED = 2  # one step of the checksum takes two words

Sum = tuple[int, int]


class Checksum:
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
