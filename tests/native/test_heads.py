"""The headers of a block's entries: against the entries themselves, and for bytes that are none."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine._native.format.entry import walk
from engine._native.format.heads import apparent_heads, entry_heads, head_of, span_of
from engine.errors import CorruptionError
from engine.limits import ENTRY_HEADER_SIZE
from tests.reference.entry_reference import PlainMessage, Stamp, encode

AT_SIZE, AT_COUNT = 4, 20


def entry(sequences: list[int], offset: int, delayed: bool = False) -> bytes:
    messages = [
        PlainMessage(value=b"v" * sequence, sequence_id=sequence, deliver_at_ms=7 if delayed else None)
        for sequence in sequences
    ]
    stamp = Stamp(salt=0, term=1, first_offset=offset, publish_time_ms=1000 + offset, durable_upto=0, segment_id=3)
    return encode(messages, stamp=stamp)


def set_u32(block: bytes, at: int, value: int) -> bytes:
    changed = bytearray(block)
    struct.pack_into("<I", changed, at, value)
    return bytes(changed)


@given(st.lists(st.tuples(st.integers(1, 9), st.booleans()), max_size=6))
def test_heads_say_what_the_entries_say(shape: list[tuple[int, bool]]) -> None:
    block, offset, at = b"", 50, 0
    for count, delayed in shape:
        block += entry(list(range(offset, offset + count)), offset, delayed)
        offset += count
    heads = entry_heads(memoryview(block))
    assert [head.first for head in heads] == [head.first for head in apparent_heads(block)]
    for head, found, (_, delayed) in zip(heads, walk(block), shape, strict=True):
        assert (head.start, head.stop) == (at, at + found.size)
        assert (head.first, head.last) == (found.first_offset, found.first_offset + found.count - 1)
        assert (head.first_sequence, head.last_sequence) == (found.first_sequence, found.last_sequence)
        assert (head.producer, head.publish_time_ms) == (found.producer_id, found.publish_time_ms)
        assert head.delayed is delayed
        at = head.stop


@given(st.lists(st.integers(0, 40), min_size=1, max_size=6, unique=True))
def test_the_span_of_a_block_is_that_of_its_heads(sequences: list[int]) -> None:
    block = b"".join(entry([10 * sequence, 10 * sequence + 3], 0) for sequence in sequences)
    heads = entry_heads(block)
    low, high = min(head.first_sequence for head in heads), max(head.last_sequence for head in heads)
    assert span_of(memoryview(block)) == (heads[0].producer, low, high)


@pytest.mark.parametrize("block", [b"", entry([1], 0)[:-1], entry([1], 0) + b"x", set_u32(entry([1], 0), AT_COUNT, 0)])
def test_a_block_of_no_whole_entries_has_no_span(block: bytes) -> None:
    with pytest.raises(CorruptionError, match="bytes and"):
        span_of(block)


def test_the_first_head_of_a_block() -> None:
    block = entry([1, 2, 3], 9) + entry([4], 12)
    head = head_of(block)
    assert head is not None
    assert (head.start, head.first, head.last) == (0, 9, 11)
    assert "offsets 9..11" in repr(head)
    assert head_of(block[: ENTRY_HEADER_SIZE - 1]) is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda block: block[:-8],
        lambda block: block + bytes(8),
        lambda block: set_u32(block, AT_SIZE, ENTRY_HEADER_SIZE - 8),
        lambda block: set_u32(block, AT_SIZE, len(block) + 8),
        lambda block: set_u32(block, AT_COUNT, 0),
    ],
    ids=["cut", "bytes behind it", "a size below the header", "a size beyond the block", "no messages"],
)
def test_sizes_and_counts_that_do_not_add_up_are_corruption(damage) -> None:
    with pytest.raises(CorruptionError, match=r"an entry of \d+ bytes and \d+ messages at byte \d+"):
        entry_heads(damage(entry([1], 0)))


def test_what_looks_like_entries_is_read_as_far_as_it_does() -> None:
    block = entry([1], 0) + entry([5], 1)
    assert [head.first_sequence for head in apparent_heads(block[:-8])] == [1, 5]
    assert [head.first_sequence for head in apparent_heads(set_u32(block, AT_SIZE, 0))] == [1]
    assert [head.stop for head in apparent_heads(set_u32(block, AT_SIZE, 2**32 - 8))] == [2**32 - 8]
    assert apparent_heads(b"x" * 100) == []
