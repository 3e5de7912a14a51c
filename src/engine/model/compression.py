"""How an entry's body is compressed: lz4 (block format) and zstd (level 3), through their packages.

The entry's header says the codec and the size before compression. It is believed only as far as the limits go: no
body makes this side allocate more than an entry may hold, nor more than its header says. A codec's package is loaded
when the codec is first used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engine.errors import CorruptionError, InvalidArgumentError, MissingKeyError
from engine.limits import ENTRY_SIZE_MAX

# In every entry's header: do not change.
NONE = 0
LZ4 = 1
ZSTD = 2
ENCRYPTED = 4  # a bit beside the codec

CODECS = {"none": NONE, "lz4": LZ4, "zstd": ZSTD}
ZSTD_LEVEL = 3

Compressor = Callable[[Any], bytes]
Decompressor = Callable[[Any, int], bytes]  # of a body and its size when decompressed


def compressor(name: str) -> tuple[int, Compressor | None]:
    """(codec, function of a buffer) for "none", "lz4" or "zstd"; no function for "none".

    Raises InvalidArgumentError.
    """
    codec = CODECS.get(name) if isinstance(name, str) else None
    if codec is None:
        raise InvalidArgumentError(f"compression must be one of {', '.join(CODECS)}, got {name!r}")
    if codec == LZ4:
        return codec, _lz4_compressor()
    if codec == ZSTD:
        import zstandard

        return codec, zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress
    return codec, None


def _lz4_compressor() -> Compressor:
    from cramjam import lz4

    return lambda body: bytes(lz4.compress_block(body, store_size=False))


def decompressor() -> Callable[[int, Any, int], bytes]:
    """A function (codec, body, raw size) -> body, for one thread at a time. It costs nothing before it is used.

    It raises CorruptionError for a damaged body, MissingKeyError for an encrypted one.
    """
    used: dict[int, Decompressor] = {}

    def decompress(codec: int, body: Any, raw_size: int) -> bytes:
        if not 0 <= raw_size <= ENTRY_SIZE_MAX:
            raise CorruptionError(f"an entry's header says {raw_size:,} bytes when decompressed; the limit is lower")
        if codec & ENCRYPTED:
            raise MissingKeyError("the message is encrypted: there must be a private key of it in decryption_keys")
        if codec not in used:
            if codec not in _DECOMPRESSORS:
                raise CorruptionError(f"an entry names the unknown compression {codec}")
            used[codec] = _DECOMPRESSORS[codec]()
        raw = used[codec](body, raw_size)
        if len(raw) != raw_size:
            raise _wrong_size(len(raw), raw_size)
        return raw

    return decompress


def _lz4_decompressor() -> Decompressor:
    from cramjam import DecompressionError, lz4

    def decompress(body: Any, raw_size: int) -> bytes:
        """Into memory of the size that the header says, as the package pads what has fewer bytes otherwise.

        Where a body is no block, it takes the first four bytes for a size, and the others for one: what begins with its
        size is decompressed once more in the way that does not.
        """
        raw = bytearray(raw_size)
        try:
            size = lz4.decompress_block_into(body, raw)
            if int.from_bytes(body[:4], "little") == size:
                lz4.decompress_block(body, output_len=size)
        except DecompressionError as e:
            raise CorruptionError(f"an entry's body must be an LZ4 block of {raw_size:,} bytes, and is none") from e
        if size != raw_size:
            raise _wrong_size(size, raw_size)
        return bytes(raw)

    return decompress


def _zstd_decompressor() -> Decompressor:
    import zstandard

    zstd = zstandard.ZstdDecompressor(max_window_size=ENTRY_SIZE_MAX)

    def decompress(body: Any, raw_size: int) -> bytes:
        """Where the body's frame states a size, the package allocates that size, whatever it is told to."""
        try:
            stated = zstandard.frame_content_size(body)  # -1: it states none
            if stated not in (-1, raw_size):
                raise _wrong_size(stated, raw_size)
            return zstd.decompress(body, max_output_size=raw_size)
        except zstandard.ZstdError as e:
            raise _damaged(e) from e

    return decompress


_DECOMPRESSORS: dict[int, Callable[[], Decompressor]] = {LZ4: _lz4_decompressor, ZSTD: _zstd_decompressor}


def _damaged(error: Exception) -> CorruptionError:
    return CorruptionError(f"an entry's body does not decompress: {error}")


def _wrong_size(size: int, raw_size: int) -> CorruptionError:
    return CorruptionError(f"an entry's body has {size:,} bytes when decompressed; its header says {raw_size:,}")
