"""Bodies that say they are larger than they may be."""

from __future__ import annotations

import cramjam
import pytest
import zstandard

from engine.errors import CorruptionError, InvalidArgumentError
from engine.limits import ENTRY_SIZE_MAX, MIB
from engine.model.compression import LZ4, NONE, ZSTD, compressor, decompressor

BODY = b"some text, again and again; " * 1000


@pytest.mark.parametrize("name", ["lz4", "zstd"])
def test_round_trip(name: str):
    codec, compress = compressor(name)
    assert compress is not None
    assert decompressor()(codec, memoryview(compress(BODY)), len(BODY)) == BODY


def test_none_needs_no_function():
    assert compressor("none") == (NONE, None)
    with pytest.raises(InvalidArgumentError, match="lz4"):
        compressor("gzip")


def test_a_zstd_bomb_allocates_nothing():
    """A frame that states its own size is given that much memory by the package, so it is not asked."""
    bomb = zstandard.ZstdCompressor().compress(bytes(64 * MIB))
    assert len(bomb) < 10_000
    with pytest.raises(CorruptionError, match="67,108,864 bytes when decompressed; its header says 1,000"):
        decompressor()(ZSTD, bomb, 1000)


def test_a_zstd_frame_that_states_no_size_is_held_to_the_header():
    bomb = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(64 * MIB))
    with pytest.raises(CorruptionError):
        decompressor()(ZSTD, bomb, 1000)
    body = zstandard.ZstdCompressor(write_content_size=False).compress(BODY)
    assert decompressor()(ZSTD, body, len(BODY)) == BODY


def test_an_lz4_bomb_is_held_to_the_header():
    bomb = bytes(cramjam.lz4.compress_block(bytes(64 * MIB), store_size=False))
    with pytest.raises(CorruptionError):
        decompressor()(LZ4, bomb, 1000)


@pytest.mark.parametrize("codec", [LZ4, ZSTD])
@pytest.mark.parametrize("raw_size", [ENTRY_SIZE_MAX + 1, 2**62, -1])
def test_a_size_over_the_limit_is_damage(codec: int, raw_size: int):
    with pytest.raises(CorruptionError):
        decompressor()(codec, b"anything", raw_size)


@pytest.mark.parametrize(
    ("codec", "body"), [(LZ4, b""), (LZ4, b"\xff" * 9), (ZSTD, b""), (ZSTD, b"\xff" * 9), (9, b"")]
)
def test_garbage_is_damage(codec: int, body: bytes):
    with pytest.raises(CorruptionError):
        decompressor()(codec, body, 100)


def test_too_short_is_damage():
    for name in ("lz4", "zstd"):
        codec, compress = compressor(name)
        assert compress is not None
        with pytest.raises(CorruptionError, match="its header says"):
            decompressor()(codec, compress(BODY), len(BODY) + 1)
