"""What a reader is given of the newest entries in memory, beside a plain model of it."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from engine._native.serve.tails import Piece, Pieces
from tests.reference.entry_reference import PlainMessage, Stamp, encode
from tests.reference.tails_reference import PlainPiece, read

SALT = 5
FILES: list[Any] = [SimpleNamespace(salt=SALT), SimpleNamespace(salt=SALT)]


def image(offset: int, size: int) -> bytes:
    return encode([PlainMessage(bytes(size))], stamp=Stamp(3, offset, 0, 0, 0, SALT))


@pytest.mark.parametrize("seed", range(6))
def test_blocks_as_the_model_gives_them(seed: int):
    rng = random.Random(seed)
    pieces, model, offset = Pieces(3), list[PlainPiece](), 0
    for step in range(150):  # past the number at which the list is shortened
        entries = [image(offset + i, rng.choice((10, 300, 40_000))) for i in range(rng.randrange(1, 4))]
        file = step // 40 % 2
        pieces.push(Piece(FILES[file], offset, offset + len(entries), b"".join(entries)))
        model.append(PlainPiece(file, offset, tuple(map(len, entries))))
        offset += len(entries)
        if rng.random() < 0.5:
            pieces.drop_oldest()
            del model[:1]
        at, most = rng.randrange(max(offset - 20, 0), offset + 2), rng.choice((1, 1_000, 100_000, 2**40))
        block, expected = pieces.read(at, most), read(model, at, most)
        assert (None if block is None else (block.first_offset, block.next_offset)) == expected
        if block is not None:
            sizes = {piece.first + i: n for piece in model for i, n in enumerate(piece.sizes)}
            whole = sum(sizes[i] for i in range(block.first_offset, block.next_offset))
            assert (block.size, len(block.data), block.messages, block.salt) == (
                whole, whole, block.next_offset - block.first_offset, SALT,
            )  # fmt: skip
    assert pieces.blocks > 0
