"""CRC32C against its published check values and a bit-at-a-time model."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine._native.format.crc32c import crc32c, crc32c_portable

WAYS = [crc32c, crc32c_portable]


def model(data: bytes, crc: int = 0) -> int:
    """CRC32C from its definition."""
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0x00000000),
        (b"123456789", 0xE3069283),
        # RFC 3720, appendix B.4.
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
    ],
)
def test_published_vectors(way, data: bytes, expected: int) -> None:
    assert way(data) == expected


@given(st.binary(max_size=300), st.integers(0, 0xFFFFFFFF))
def test_agrees_with_the_model(data: bytes, crc: int) -> None:
    assert crc32c(data, crc) == crc32c_portable(data, crc) == model(data, crc)


def test_both_ways_agree_at_every_block_edge() -> None:
    data = random.Random(1).randbytes(3 * 4096 * 2 + 3 * 256 + 20)
    edges = [0, 8, 3 * 256, 3 * 256 * 2, 3 * 4096, 3 * 4096 + 3 * 256, 3 * 4096 * 2]
    for edge in edges:
        for size in range(max(0, edge - 9), edge + 10):
            assert crc32c(data[:size]) == crc32c_portable(data[:size]), size


def test_a_sum_may_be_continued_anywhere_and_start_unaligned() -> None:
    data = random.Random(2).randbytes(30_000)
    whole = crc32c(data)
    for cut in (1, 7, 8, 767, 768, 12_288, 29_999):
        assert crc32c(memoryview(data)[cut:], crc32c(memoryview(data)[:cut])) == whole


def test_every_flipped_bit_changes_the_sum() -> None:
    data = bytearray(random.Random(3).randbytes(1000))
    whole = crc32c(data)
    for bit in range(0, 8000, 7):
        data[bit // 8] ^= 1 << bit % 8
        assert crc32c(data) != whole
        data[bit // 8] ^= 1 << bit % 8
