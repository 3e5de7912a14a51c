"""`content_digest`: names a file by what is in it, as a producer that sends each of its rows once needs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import BinaryIO

from engine._native.produce.hashing import xxh64

PART_BYTES = 1 << 20  # at once: read into the cache, where the second pass finds it
SECOND_SEED = 0x9E3779B97F4A7C15  # any that makes the two differ


def content_digest(file: BinaryIO, wanted: Callable[[], bool] = lambda: True) -> bytes:
    """16 bytes that are the same for the same content: XXH64 over its parts, twice, with different seeds, in a tenth of
    the time of SHA-256. It tells files apart that differ by chance, and not what was made to look the same.

    `file`: buffered, so that each part but the last is full. `wanted`: asked before each part; when it says no, what is
    returned is worth nothing.
    """
    first = second = 0
    part = bytearray(PART_BYTES)
    while wanted() and (size := file.readinto(part)):  # type: ignore[attr-defined]
        data = memoryview(part)[:size]
        first, second = xxh64(data, first), xxh64(data, second ^ SECOND_SEED)
    return first.to_bytes(8) + second.to_bytes(8)
