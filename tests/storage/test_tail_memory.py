"""What is kept in memory counts with all of the memory that it holds on to."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from engine._native.serve.groups import COPY_MAX, PINNED_MAX, Group
from engine._native.serve.tails import Piece, Pieces, TailCache
from engine.limits import KIB, MIB
from tests.kit.entry_images import entry

FILE: Any = SimpleNamespace(salt=1, opening=SimpleNamespace(segment_id=0))


def piece(data: memoryview, first: int) -> Piece:
    return Piece(FILE, first, first + 1, data)


def test_a_piece_counts_with_the_memory_it_was_received_in_once_for_all_its_pieces():
    cache, tail, other = TailCache(3 * MIB), Pieces(0), Pieces(1)
    chunks = [bytearray(MIB) for _ in range(4)]
    for first, chunk in enumerate(chunks[:3]):
        cache.push(tail, piece(memoryview(chunk)[: 20 * KIB], 2 * first))
        cache.push(tail, piece(memoryview(chunk)[20 * KIB : 40 * KIB], 2 * first + 1))
    assert cache.size == 3 * MIB
    cache.push(other, piece(memoryview(chunks[3])[: 20 * KIB], 0))  # the oldest two go: their memory is the same
    assert cache.size == 3 * MIB
    assert [tail.read(offset, MIB) is None for offset in (0, 1)] == [True, True]
    cache.clear(tail)
    assert cache.size == MIB
    cache.resize(0)
    assert cache.size == 0


def test_a_small_part_of_what_was_received_is_copied():
    def part(size: int) -> memoryview:
        image = entry(0, (b"v" * (size - 300),))
        chunk[: len(image)] = image
        return memoryview(chunk)[: len(image)]

    group, chunk = Group(FILE, 0, 0), bytearray(MIB)
    group.add(part(COPY_MAX + 8), 0, 0, 0)
    group.add(part(MIB // PINNED_MAX + 300), 0, 0, 0)
    assert [memoryview(data).obj is chunk for data in group.buffers] == [False, True]
