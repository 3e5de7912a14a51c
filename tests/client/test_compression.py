"""Bodies that say they are larger than they may be, and blocks of LZ4 whatever their bytes."""

from __future__ import annotations

import random
import tracemalloc

import cramjam
import pytest
import zstandard

from engine.errors import CorruptionError, InvalidArgumentError
from engine.limits import ENTRY_SIZE_MAX, MIB
from engine.model.compression import LZ4, NONE, ZSTD, compressor, decompressor
from tests.reference import lz4_reference

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


def text(rng: random.Random, size: int) -> bytes:
    """Some of it again and again."""
    words = [rng.randbytes(rng.randint(1, 12)) for _ in range(rng.randint(1, 40))]
    return b"".join(rng.choice(words) for _ in range(size))


@pytest.mark.parametrize("seed", range(100))
def test_an_lz4_block_is_what_its_format_says(seed: int):
    rng = random.Random(seed)
    body = text(rng, rng.choice((0, 1, 3, 50, 2000)))
    codec, compress = compressor("lz4")
    assert compress is not None
    block = compress(memoryview(body))
    assert type(block) is bytes
    assert lz4_reference.decompress(block) == body
    assert decompressor()(codec, memoryview(block), len(body)) == body


@pytest.mark.parametrize("seed", range(100))
def test_a_damaged_lz4_block_gives_the_size_of_the_header_or_an_error(seed: int):
    """What does open is what the format says, to the byte: never a shorter text with something behind it."""
    rng = random.Random(seed)
    _, compress = compressor("lz4")
    assert compress is not None
    body = text(rng, 100)
    block = compress(body)
    opened = 0
    for _ in range(200):
        damaged = bytearray(block)
        for _ in range(rng.randint(1, 3)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        cut = bytes(damaged[: rng.choice((len(damaged), rng.randrange(len(damaged) + 1)))])
        size = rng.choice((len(body), len(body), rng.randrange(2 * len(body))))
        try:
            raw = decompressor()(LZ4, cut, size)
        except CorruptionError:
            continue
        opened += 1
        assert (len(raw), raw) == (size, lz4_reference.decompress(cut))
    assert opened, "none opened: the test says nothing"


@pytest.mark.parametrize("text", [BODY, b""])
def test_an_lz4_body_behind_its_size_is_none(text: bytes):
    """Its reader would be the only one that opens it."""
    _, compress = compressor("lz4")
    assert compress is not None
    with pytest.raises(CorruptionError, match=f"must be an LZ4 block of {len(text):,} bytes, and is none"):
        decompressor()(LZ4, len(text).to_bytes(4, "little") + compress(text), len(text))


def test_a_size_at_the_head_of_an_lz4_body_is_not_believed():
    """As packages put one there for themselves."""
    _, compress = compressor("lz4")
    assert compress is not None
    decompress = decompressor()
    decompress(LZ4, compress(BODY), len(BODY))  # what is loaded for it is loaded
    stated = (2**31 - 1).to_bytes(4, "little") + compress(BODY)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptionError):
            decompress(LZ4, stated, len(BODY))
        assert tracemalloc.get_traced_memory()[1] < 4 * len(BODY)
    finally:
        tracemalloc.stop()
