"""Places of entries: found, recorded, stamped and joined into groups as by the plain model."""

from __future__ import annotations

import random
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from engine._native.serve import log
from engine._native.serve.flights import Flight, answered
from engine._native.serve.groups import Appended, Group, join_fresh, place
from engine._native.serve.lanes import Lane
from engine.errors import EngineError, InvalidArgumentError, PartlyStoredError, StorageError
from engine.model.hashrange import HashRange
from engine.storage.dedup.dedup import Dedup
from tests.kit.entry_images import KEYED, entry
from tests.reference import lanes_reference as plain
from tests.reference.entry_reference import Stamp

ENDS = (0x3FFF, 0x7FFF, 0xFFFF)
STAMP = Stamp(segment_id=9, publish_time_ms=1_700_000_000_000, term=3, durable_upto=0, salt=0xC0FFEE)
FILE: Any = SimpleNamespace(salt=STAMP.salt, opening=SimpleNamespace(segment_id=STAMP.segment_id))
ERRORS = {
    plain.PartlyStoredError: PartlyStoredError,
    plain.OutOfOrderError: StorageError,
    plain.OutsideError: InvalidArgumentError,
}


class Native:
    """The native parts, put together as a segment does."""

    def __init__(self) -> None:
        self.dedup = Dedup(HashRange(0, 0x7FFF), ENDS)
        self.group = Group(FILE, 0, 0)

    def append(self, data: bytes) -> list[plain.Place]:
        claims, start = log.entries(data), self.group.next_offset
        try:
            places, fresh = place(self.dedup, claims, start, 0)
        except EngineError:
            self.dedup.undo(start)
            raise
        if fresh:
            whole: Any = memoryview(data)
            if len(fresh) < len(claims):
                whole, fresh = join_fresh(whole, fresh)
            self.group.add(whole, STAMP.term, STAMP.publish_time_ms, STAMP.durable_upto)
        return [(p.first_sequence, p.last_sequence, p.first_offset, p.count, bool(p.duplicate)) for p in places]

    def image(self) -> bytes:
        return b"".join(map(bytes, self.group.buffers))


def some_entry(rng: random.Random, sequence: int) -> bytes:
    bucket = rng.choice([0, 0x4000, 0x8000])
    wide = bucket + rng.choice([0, 10] + [0x4000] * (rng.random() < 0.05))
    segment_hash = rng.choice([0, 0x7FFF]) if rng.random() < 0.97 else 0x8000
    values = tuple(rng.randbytes(rng.choice([1, 20, 3000])) for _ in range(rng.randint(1, 3)))
    return entry(
        sequence, values, producer=rng.choice("pq"), bucket=(bucket, wide), segment_hash=(segment_hash,) * 2,
        flags=rng.choice([0, KEYED]),
    )  # fmt: skip


def play(seed: int) -> None:
    """Appends of new entries, of old ones again, and of parts of old ones; and failures."""
    rng = random.Random(seed)
    ours, model = Native(), plain.PlainSegment(0, 0x7FFF, ENDS, STAMP)
    sequence, sent = 0, list[bytes]()
    for _ in range(40):
        data = b""
        for _ in range(rng.randint(1, 4)):
            if sent and rng.random() < 0.4:
                data += rng.choice(sent[-12:])
                continue
            sequence = max(0, sequence + rng.choice([1, 2, 4, -1]))
            sent.append(some_entry(rng, sequence))
            data += sent[-1]
        try:
            wanted = model.append(data)
        except tuple(ERRORS) as e:
            with pytest.raises(ERRORS[type(e)]):
                ours.append(data)
        else:
            assert ours.append(data) == wanted
        assert ours.image() == b"".join(image for *_, image in model.log)
    for producer in "pq":
        mine = [
            said.sequences[1]
            for _, key, said, _ in model.log
            if key[0] == log.entries(entry(producer=producer))[0].producer_id
        ]
        assert ours.dedup.last_sequence(log.entries(entry(producer=producer))[0].producer_id) == max(mine, default=-1)


@pytest.mark.parametrize("seed", range(60))
def test_as_the_plain_model(seed: int) -> None:
    play(seed)


@pytest.mark.fuzz
@pytest.mark.timeout(3600)
def test_as_the_plain_model_for_long() -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seeds from {seed}")
    for more in range(3000):
        play(seed + more)


def test_what_failed_has_to_come_again_first() -> None:
    ours = Native()
    ours.append(entry(0))
    ours.append(entry(1))
    ours.dedup.rollback(1)
    with pytest.raises(StorageError, match="the append of sequence 1 failed"):
        place(ours.dedup, log.entries(entry(2)), 1, 0)
    places, _ = place(ours.dedup, log.entries(entry(1) + entry(2)), 1, 0)
    assert [p.first_offset for p in places] == [1, 2]


def test_the_oldest_entries_of_a_lane_are_forgotten_once_they_are_durable() -> None:
    lane = Lane()
    for sequence in range(100):
        (claim,) = log.entries(entry(sequence))
        lane.push(claim, sequence, 0, None)
    assert len(lane.recent) == 100, "none of them is durable"
    (claim,) = log.entries(entry(100))
    lane.push(claim, 100, 90, None)
    assert (lane.base, lane.last, len(lane.recent)) == (15, 100, 85)
    assert lane.drop(99) == [99, 100]
    lane.lift(None, (0, 500, -1, 0))
    assert (lane.base, lane.recent) == (500, [])
    lane.recent = [(501, 502, 7, 2)]
    assert lane.last == 502


def test_flights_are_answered_in_order_and_told_once() -> None:
    told: list[Any] = []
    first, second, third = (Flight("owner", memoryview(b"12345678"), float(n), told.append) for n in range(3))
    in_flight = deque([first, second, third])
    second.set_result([Appended(4, 5, 70, 2, False)])
    sequences, offsets, since = list[int](), list[int](), list[float]()
    assert answered(in_flight, sequences, offsets, since) == (0, 0), "the first is not over"
    first.set_result([Appended(1, 1, 69, 1, False)])
    third.set_exception(StorageError("full"))
    assert answered(in_flight, sequences, offsets, since) == (3, 16)
    assert (sequences, offsets, since) == ([1, 4], [69, 70], [0.0, 1.0])
    assert list(in_flight) == [third]
    assert isinstance(third.exception(), StorageError)
    assert told == ["owner"] * 3
    with pytest.raises(EngineError, match="ends once"):
        third.set_result([])
