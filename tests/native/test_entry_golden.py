"""Entries written by the first version: these files are read for ever and never regenerated."""

from __future__ import annotations

from pathlib import Path

import cramjam
import pytest
import zstandard

from engine._native.consume.batch import decode_block
from engine._native.format.entry import Entry, EntryMessage, verify, walk

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "entries"
SALT, SEGMENT = 0xC0FFEE, 42


def decompress(codec: int, body: memoryview, raw_size: int) -> bytes:
    if codec == 1:
        raw = bytearray(raw_size)
        assert cramjam.lz4.decompress_block_into(body, raw) == raw_size
        return bytes(raw)
    return zstandard.ZstdDecompressor().decompress(body, max_output_size=raw_size)


def read(name: str) -> Entry:
    """The one entry of a file, every checksum verified."""
    [entry] = decode_block((GOLDEN / name).read_bytes(), SALT, SEGMENT, 1000, decompress)
    assert (entry.segment_id, entry.first_offset, entry.term, entry.durable_upto) == (42, 1000, 3, 990)
    assert entry.publish_time_ms == 1_700_000_000_123
    return entry


def row(m: EntryMessage) -> tuple[object, ...]:
    return m.key, m.value, m.properties, m.event_time_ms, m.sequence_id, m.deliver_at_ms


def test_every_file_has_its_test():
    names = {"keyed", "every-column", "keyless", "lz4", "zstd", "unstamped"}
    names |= {"encrypted", "encrypted-zstd"}  # read in tests/client/test_encryption.py
    assert {path.name for path in GOLDEN.iterdir()} == {f"v1-{name}.entry" for name in names}


def test_keyed():
    entry = read("v1-keyed.entry")
    assert [row(m) for m in entry.messages()] == [
        (b"key 0", b"value 0", {}, None, 10, None),
        (b"key 1", b"value 1", {}, None, 11, None),
        (b"key 0", b"value 2", {}, None, 12, None),
        (b"key 1", b"value 3", {}, None, 13, None),
        (b"key 0", b"value 4", {}, None, 14, None),
    ]
    assert (entry.size, entry.flags, entry.producer_name, entry.producer_id) == (256, 1, "producer", 7)
    assert (entry.bucket_min, entry.bucket_max, entry.segment_hash_min, entry.segment_hash_max) == (16, 16383, 0, 32767)


def test_every_column():
    entry = read("v1-every-column.entry")
    assert [row(m) for m in entry.messages()] == [
        (b"", b"first", {"k": "v", "ünïcödé": "日本"}, 1_600_000_000_000, 7, None),
        (b"\x00\xff", b"", {}, None, 9, 1_800_000_000_000),
        (b"order-42", b"x" * 300, {"n": "x" * 40}, -1, 4_000_000_000, None),
    ]
    assert (entry.flags, entry.producer_name, entry.producer_id, entry.txn) == (63, "prödücer", 2**64 - 1, (2**63, 5))
    assert (entry.bucket_min, entry.bucket_max, entry.segment_hash_min, entry.segment_hash_max) == (0, 65535, 256, 256)


def test_keyless():
    entry = read("v1-keyless.entry")
    assert [(m.key, m.value, m.sequence_id) for m in entry.messages()] == [
        (None, b"a", 2**64 - 2),
        (None, b"b", 2**64 - 1),
    ]
    assert (entry.flags, entry.producer_name, entry.txn) == (0, "", None)


@pytest.mark.parametrize(("name", "codec"), [("v1-lz4.entry", 1), ("v1-zstd.entry", 2)])
def test_compressed(name: str, codec: int):
    entry = read(name)
    assert (entry.compression, entry.producer_name, entry.count) == (codec, "packer", 50)
    assert [(m.key, m.value, m.sequence_id) for m in entry.messages()] == [
        (b"k%d" % i, b"compress me " * 20, i) for i in range(50)
    ]


def test_unstamped():
    data = (GOLDEN / "v1-unstamped.entry").read_bytes()
    assert verify(data) == 1
    [entry] = walk(data)
    assert [m.value for m in entry.messages()] == [b"value %d" % i for i in range(5)]
    assert (entry.segment_id, entry.first_offset, entry.term) == (0, 0, 0)
