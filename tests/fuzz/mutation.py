"""Mutants of good images: bytes, numbers, cuts and splices, all from one seed."""

from __future__ import annotations

import random
import struct

_BYTES = [0, 1, 0x7F, 0x80, 0xC1, 0xDF, 0xFF]
_NUMBERS = [0, 1, 7, 8, 2**7, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1]


def mutant(rng: random.Random, seeds: list[bytes]) -> bytes:
    """One of the seeds with a few changes; most of them small, near its front as often as anywhere."""
    data = bytearray(rng.choice(seeds))
    for _ in range(rng.choice([1, 1, 1, 2, 3, 6])):
        rng.choice(_CHANGES)(rng, data, seeds)
    return bytes(data)


def _place(rng: random.Random, data: bytearray) -> int:
    front = min(len(data), 160)
    return rng.randrange(front if rng.random() < 0.6 else len(data)) if data else 0


def _byte(rng: random.Random, data: bytearray, seeds: list[bytes]) -> None:
    if data:
        data[_place(rng, data)] = rng.choice([*_BYTES, rng.randrange(256)])


def _bit(rng: random.Random, data: bytearray, seeds: list[bytes]) -> None:
    if data:
        data[_place(rng, data)] ^= 1 << rng.randrange(8)


def _number(rng: random.Random, data: bytearray, seeds: list[bytes]) -> None:
    if len(data) >= 8:
        at = min(_place(rng, data) & ~3, len(data) - 4)
        struct.pack_into(rng.choice("<>") + "I", data, at, rng.choice([*_NUMBERS, len(data), rng.randrange(2**32)]))


def _long(rng: random.Random, data: bytearray, seeds: list[bytes]) -> None:
    if len(data) >= 16:
        at = min(_place(rng, data) & ~7, len(data) - 8)
        struct.pack_into("<Q", data, at, rng.choice([0, 2**63, 2**63 - 1, 2**64 - 1, 2**40, rng.randrange(64)]))


def _cut(rng: random.Random, data: bytearray, seeds: list[bytes]) -> None:
    del data[_place(rng, data) :]


def _drop(rng: random.Random, data: bytearray, seeds: list[bytes]) -> None:
    at = _place(rng, data)
    del data[at : at + rng.choice([1, 2, 4, 8, 64])]


def _insert(rng: random.Random, data: bytearray, seeds: list[bytes]) -> None:
    at = _place(rng, data)
    data[at:at] = rng.choice([b"\0" * 8, rng.randbytes(rng.randrange(1, 20)), data[at : at + 16]])


def _splice(rng: random.Random, data: bytearray, seeds: list[bytes]) -> None:
    other = rng.choice(seeds)
    at = _place(rng, data)
    data[at:] = other[min(at, len(other)) :]


def _text(rng: random.Random, data: bytearray, seeds: list[bytes]) -> None:
    words = [b"null", b"-1", b"1e999", b"[]", b"{}", b'""', b"true", b"9" * 30, b"\\ud800", b"[" * 40, b"NaN", b'"x"']
    at = _place(rng, data)
    data[at : at + rng.choice([0, 1, 4])] = rng.choice(words)


def _value(rng: random.Random, data: bytearray, seeds: list[bytes]) -> None:
    """Of JSON: what stands behind a colon."""
    colons = [i for i, byte in enumerate(data[:4096]) if byte == 0x3A]
    if colons:
        at = rng.choice(colons) + 1
        stop = next((i for i in range(at, len(data)) if data[i] in b",}]"), len(data))
        data[at:stop] = rng.choice(
            [b"null", b"-1", b'"x"', b"[]", b"{}", b"true", b"1.5", b"9" * 30, b"[1]", b"[null]"]
        )


_CHANGES = [_byte, _bit, _number, _long, _cut, _drop, _insert, _splice, _text, _value]
