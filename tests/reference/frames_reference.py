"""Frames as plain Python: slow, obvious, and independent of the native code it is compared with."""

from __future__ import annotations

import struct
from collections.abc import Sequence

PREFIX = struct.Struct("<IBI")


def _aligned(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)


def frame(command: int, packed: bytes, payload: Sequence[bytes]) -> bytes:
    """One frame: a prefix, the header, and the payload, the latter two on multiples of 8."""
    body = b"".join(payload)
    head = _aligned(PREFIX.pack(0, command, len(packed)) + packed)
    return _aligned(struct.pack("<I", len(head) + len(body) - 4) + head[4:] + body)


def frames(data: bytes) -> list[tuple[int, bytes, bytes]]:
    """(command, header, payload) of each whole frame."""
    found, at = [], 0
    while at + PREFIX.size <= len(data):
        length, command, header_size = PREFIX.unpack_from(data, at)
        stop = at + 4 + length
        if stop + -stop % 8 > len(data):
            break
        header_at = at + PREFIX.size
        payload_at = header_at + header_size
        payload_at += -payload_at % 8
        found.append((command, data[header_at : header_at + header_size], data[payload_at:stop]))
        at = stop + -stop % 8
    return found
