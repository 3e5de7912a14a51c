"""Counters, and the newest entries in memory, as by the plain model."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from engine._native.serve.meters import SLOT_S, SLOTS, Buckets, Tally, TurnFrames, Usage
from engine._native.serve.tails import Piece, Pieces, TailCache
from tests.reference import meters_reference as plain


@pytest.mark.parametrize("seed", range(5))
def test_values_are_counted_in_the_first_bucket_that_holds_them(seed: int) -> None:
    rng = random.Random(seed)
    bounds = tuple(sorted(rng.sample(range(100), rng.randrange(1, 20))))
    buckets, values = (
        Buckets(bounds),
        [rng.choice([rng.random() * 120 - 10, float(rng.choice(bounds))]) for _ in range(300)],
    )
    for value in values:
        buckets.observe(value)
    assert buckets.bounds == bounds
    assert buckets.sums() == plain.sums(bounds, values)
    assert buckets.total == pytest.approx(sum(values))


@pytest.mark.parametrize("seed", range(5))
def test_a_tally_remembers_what_it_was_when_each_slot_began(seed: int) -> None:
    rng, now = random.Random(seed), 0.0
    tally, counted = Tally(lambda: now), list[tuple[float, int, int]]()
    for _ in range(200):
        now += rng.choice([0.0, 0.01, SLOT_S, 3 * SLOT_S]) * rng.random()
        counted.append((now, rng.randrange(5), rng.randrange(500)))
        tally.count(*counted[-1][1:])
        assert list(tally.marks) == plain.marks(counted, SLOT_S, SLOTS)
    assert (tally.messages, tally.bytes) == (sum(c[1] for c in counted), sum(c[2] for c in counted))


def test_a_mark_that_was_dropped_is_made_again() -> None:
    tally = Tally(lambda: 0.0)
    tally.count(1, 10)
    tally.marks.clear()  # as a rate does with what is too old
    tally.count(2, 20)
    assert list(tally.marks) == [(0, 1, 10)]


@pytest.mark.parametrize("seed", range(5))
def test_the_oldest_pieces_of_all_segments_go_first(seed: int) -> None:
    rng = random.Random(seed)
    cache, model = TailCache(3_000), plain.PlainCache(3_000)
    tails, offsets = [Pieces() for _ in range(3)], [0, 0, 0]
    memory = bytearray(500)
    for _ in range(1_000):
        number = rng.randrange(3)
        if rng.random() < 0.5:
            memory = bytearray(rng.randrange(100, 900))
        if rng.random() < 0.02:
            cache.clear(tails[number])
            model.clear(number)
        elif rng.random() < 0.02:
            model.limit = rng.randrange(1_000, 5_000)
            model.shrink()
            cache.resize(model.limit)
        else:
            cache.push(tails[number], Piece(None, offsets[number], offsets[number] + 1, memoryview(memory)[:50]))
            model.push(number, memory)
            offsets[number] += 1
        assert (cache.size, cache.limit) == (model.size, model.limit)
        kept = [[piece.memory for piece in tail.pieces if piece is not None] for tail in tails]
        assert [list(map(id, each)) for each in kept] == [
            [id(memory) for tail, memory in model.pieces if tail == number] for number in range(3)
        ]


class _Asked:
    """What the heirs of a counter were asked."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.asked: list[Any] = []

    def passed(self, connection: Any) -> None:
        self.asked.append(connection)

    def fell(self) -> None:
        self.asked.append("fell")


class _Usage(_Asked, Usage):
    pass


class _Frames(_Asked, TurnFrames):
    pass


def test_usage_asks_above_its_limit_and_while_something_is_held() -> None:
    usage = _Usage(10)
    for size in (4, 6, 1):
        usage.take(size, size)
    assert usage.asked == [1]
    usage.free(11)
    assert usage.asked == [1], "nothing is held"
    usage.holding = True
    usage.free(0)
    assert (usage.asked, usage.in_flight) == ([1, "fell"], 0)


async def test_frames_are_counted_anew_in_each_turn() -> None:
    frames = _Frames(2)
    for number in range(4):
        frames.frame(number)
    assert frames.asked == [2, 3]
    assert frames.counted(8) == 12
    await asyncio.sleep(0)
    frames.frame("next")
    assert (frames.frames, frames.asked) == (1, [2, 3])
