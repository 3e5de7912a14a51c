"""Sample entries for benchmarks: made once by the plain encoder of the tests, then stamped as often as wanted."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))  # a benchmark may run as a script

from tests.reference.entry_reference import PlainMessage, Stamp, encode, stamped

TINY = bool(os.environ.get("ENGINE_BENCH_TINY"))
SALT = 7
SEGMENT = 3


def entry_of(count: int, value_size: int, *, properties: bool = False, bucket: int = 0) -> bytes:
    """One keyed entry with values of so many bytes, not stamped."""
    messages = [
        PlainMessage(
            i.to_bytes(8, "big") * (value_size // 8) + bytes(value_size % 8),
            b"key-%04d" % (i % 1000),
            {"origin": "benchmark", "trace": f"{i:08x}"} if properties else {},
            1_700_000_000_000 + i if properties else None,
            i,
        )
        for i in range(count)
    ]
    return encode(messages, buckets=(bucket, bucket))


def block_of(entry: bytes, entries: int, count: int) -> bytes:
    """The entry so many times back to back, as a broker stamps them for one segment."""
    time_ms = 1_700_000_000_000
    stamps = [Stamp(SEGMENT, i * count, time_ms + i, 1, i * count, SALT) for i in range(entries)]
    return b"".join([stamped(entry, stamp) for stamp in stamps])


def stamped_at(entry: bytes, first_offset: int) -> bytes:
    """An entry as a broker stamps it for one segment."""
    return stamped(entry, Stamp(SEGMENT, first_offset, 1_700_000_000_000, 1, first_offset, SALT))
