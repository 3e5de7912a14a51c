"""Entries as a broker has them: made from values, and looked into."""

from __future__ import annotations

import struct

from engine._native.produce.batcher import Batcher
from engine._native.serve.log import stamp

SALT = 7


def block(segment: int, first: int, values: list[bytes]) -> bytes:
    """One stamped entry of a segment."""
    batcher = Batcher(b"p")
    batcher.set_layout([0], [segment], [[65535]])
    for value in values:
        batcher.send_nowait(value)
    batcher.seal_all()
    data = bytearray(batcher.take()[0].data)
    stamp(data, SALT, 1, first, 1_700_000_000_000 + first, first, segment)
    return bytes(data)


def entries(payload: memoryview) -> list[tuple[int, int]]:
    """(first sequence, count) of the entries of a SEND."""
    found, at = [], 0
    while at < len(payload):
        size, count, first = (struct.unpack_from(f, payload, at + o)[0] for f, o in (("<I", 4), ("<I", 20), ("<Q", 48)))
        found.append((first, count))
        at += size
    return found
