"""Semantics 24: a program that dies and resumes under its producer's name stores each message once, in order.

It numbers its messages itself and knows nothing of its earlier lives. It asks how far everything is stored, over all
segments, and sends again from there, in batches that end elsewhere, to a topic that has another shape by then.
"""

from __future__ import annotations

import random
from collections import deque

import pytest

from engine._native.format.entry import Entry
from engine._native.produce.batcher import Batcher
from engine._native.produce.sealed import SealedEntry
from engine._native.serve import log
from engine.errors import PartlyStoredError
from tests.storage.test_reshape_dedup import Topic


class Program:
    """Its source is the same in every life: message i has always the same key."""

    def __init__(self, topic: Topic, count: int, *, keyless: float) -> None:
        self.topic, self.rng = topic, topic.rng
        source = random.Random(7)
        self.keys = [None if source.random() < keyless else b"k%d" % source.randrange(12) for _ in range(count)]
        self.begun: list[int] = []
        self.said: dict[int, set[tuple[int, int]]] = {}  # by sequence: where it is, as the segments answered

    async def live(self, *, to_the_end: bool) -> bool:
        """One life; whether everything is stored at its end."""
        segments = {p.name.segment_id: await self.topic.segment(p) for p in self.topic.active}
        floor = max(s.floor("p") for s in segments.values())
        last = max(s.last_sequence("p") for s in segments.values())
        self.begun.append(floor)
        batcher = Batcher(b"p", first_sequence=last + 1, least_sequence=floor, steady=True,
                          messages_max=self.rng.choice([1, 3, 10]))  # fmt: skip
        active = self.topic.active
        batcher.set_layout(
            [p.name.hash_range.start for p in active],
            [p.name.segment_id for p in active],
            [list(p.bucket_ends) for p in active],
        )
        lanes: dict[int, deque[SealedEntry]] = {i: deque() for i in segments}
        at = floor
        while at < len(self.keys) or any(lanes.values()):
            if not to_the_end and self.rng.random() < 0.05:
                return False
            if at < len(self.keys):
                batcher.add(b"v", self.keys[at], sequence_id=at)
                at += 1
            if at == len(self.keys) or self.rng.random() < 0.1:
                batcher.seal_all()
                for entry in batcher.take():
                    lanes[entry.segment_id].append(entry)
            if any(lanes.values()) and (at == len(self.keys) or self.rng.random() < 0.3):
                await self.transmit(batcher, segments, lanes)
                waiting = [e.first_sequence for lane in lanes.values() for e in lane]
                if not batcher.open_messages and not waiting:
                    batcher.floor = at
        return True

    async def transmit(self, batcher: Batcher, segments: dict, lanes: dict[int, deque[SealedEntry]]) -> None:
        """Send one entry of one lane."""
        ident = self.rng.choice([i for i, lane in lanes.items() if lane])
        entry = lanes[ident].popleft()
        try:
            (place,) = await segments[ident].append(bytearray(entry.data))
        except PartlyStoredError as e:
            if e.sequence != entry.first_sequence or entry.count == 1:  # of one message it is known
                raise
            lanes[ident].extendleft(reversed(batcher.take_apart(entry)))
        else:
            if place.first_offset >= 0:
                for i, message in enumerate(Entry(entry.data).messages()):
                    self.said.setdefault(message.sequence_id, set()).add((ident, place.first_offset + i))


async def check(program: Program) -> None:
    found = await program.topic.placed_messages()
    assert sorted(sequence for sequence, _, _ in found) == list(range(len(program.keys)))
    newest: dict[bytes, int] = {}
    for sequence, key, place in found:
        assert key == program.keys[sequence]
        assert program.said.get(sequence, set()) <= {place}, "a receipt names the message's place, or none"
        if key is not None:
            assert newest.get(key, -1) < sequence, f"{key!r} out of order"
            newest[key] = sequence


@pytest.mark.parametrize("keyless", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("seed", range(12))
async def test_24_a_program_that_dies_time_and_again_stores_each_message_once(seed: int, keyless: float):
    rng = random.Random(seed)
    topic = Topic(rng, rng.randint(1, 3), rng.choice([1, 2, 4]))
    program = Program(topic, 300, keyless=keyless)
    for _ in range(8):
        await program.live(to_the_end=False)
        for _ in range(rng.randrange(3)):
            await topic.reshape()
        await topic.maybe_restart()
    assert await program.live(to_the_end=True)
    await check(program)
    assert program.begun == sorted(program.begun), "what was stored stays stored"


async def test_24_how_far_everything_is_stored_survives_restarts_and_reshaping():
    topic = Topic(random.Random(1), 2, 4)
    segments = [await topic.segment(p) for p in topic.active]
    batcher = Batcher(b"p", messages_max=1)
    batcher.set_layout([0, 0x8000], [0, 1], [[*p.bucket_ends] for p in topic.active])
    for i in range(50):
        batcher.floor = max(i - 3, 0)
        batcher.add(b"", b"k%d" % i)
        for entry in batcher.take():
            await segments[entry.segment_id].append(bytearray(entry.data))
    for how in ("split", "merge", "rebucket", "merge"):
        await topic.restart()
        assert max([(await topic.segment(p)).floor("p") for p in topic.active]) == 46
        await topic.reshape(how)
    assert [(await topic.segment(p)).floor("q") for p in topic.active] == [0] * len(topic.active)


@pytest.mark.parametrize("distance", [0, 1, 2047, 2048, 2049, 4095, 10**6, 2**40 + 1])
def test_what_an_entry_says_is_never_more_than_is_so(distance: int):
    batcher = Batcher(b"p", first_sequence=2**60)
    batcher.set_layout([0], [0], [[0xFFFF]])
    batcher.floor = 2**60 - distance
    batcher.add(b"", b"k")
    batcher.seal_all()
    (entry,) = batcher.take()
    (claim,) = log.entries(entry.data)
    assert distance <= 2**60 - claim.floor <= distance * 513 // 512
    if distance < 2048:
        assert claim.floor == 2**60 - distance


def test_a_new_producer_says_nothing():
    batcher = Batcher(b"p")
    batcher.set_layout([0], [0], [[0xFFFF]])
    for first, floor in ((0, 0), (5, 9), (2**62, 1)):
        batcher.floor = floor
        batcher.add(b"", b"k", sequence_id=first)
        batcher.seal_all()
        (entry,) = batcher.take()
        assert log.entries(entry.data)[0].floor == 0
