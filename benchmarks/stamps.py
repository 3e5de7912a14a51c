"""The first sixteen bytes of a message whose delay is measured: when it was due, and its number."""

from __future__ import annotations

import struct

STAMP = struct.Struct("<QQ")


def stamped(due_ns: int, number: int) -> bytes:
    return STAMP.pack(due_ns, number)


def unstamped(value: bytes) -> tuple[int, int]:
    """(due_ns, number) of a value that starts with one."""
    due_ns, number = STAMP.unpack_from(value)
    return due_ns, number


def padding(size: int) -> bytes:
    """What a value of `size` bytes has behind its stamp."""
    return bytes(size - STAMP.size)
