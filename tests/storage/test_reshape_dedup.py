"""Semantics 23, 24 over real segments: what was durable in a parent is recognised in its children and in theirs.

A producer that never knows what arrived sends again, split anew by message, through splits, merges, rebuckets and
crashes at every point between the seal and the moment in which the children know.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from engine._native.consume.batch import decode_block
from engine._native.produce.batcher import Batcher
from engine._native.produce.sealed import SealedEntry
from engine.model.hashrange import HashRange
from engine.model.names import SegmentName
from engine.storage.segment import Block, Segment
from engine.testing.disk import SimDisk
from tests.kit.stores import make_store, name

KEYS = [b"k%d" % n for n in range(30)]


def even(buckets: int) -> tuple[int, ...]:
    """Inclusive ends of so many equal buckets."""
    return tuple((b + 1) * (65536 // buckets) - 1 for b in range(buckets))


@dataclass
class Piece:
    """One segment of the topic."""

    name: SegmentName
    bucket_ends: tuple[int, ...]
    sealed: bool = False


class Topic:
    """Segments on a disk that outlives the process."""

    def __init__(self, rng: random.Random, segments: int, buckets: int) -> None:
        self.rng = rng
        self.disk = SimDisk(rng)
        self.pieces = [Piece(name(i, r.start, r.end), even(buckets)) for i, r in enumerate(HashRange.divide(segments))]
        self.store = make_store("/data", disk=self.disk.mount(), file_size_max=4096)

    @property
    def active(self) -> list[Piece]:
        return sorted((p for p in self.pieces if not p.sealed), key=lambda p: p.name.hash_range.start)

    async def segment(self, piece: Piece) -> Segment:
        return await self.store.create(piece.name, bucket_ends=piece.bucket_ends)

    async def restart(self, how: str | None = None) -> None:
        """The process ends: in order, by a signal, or by the power."""
        how = how or self.rng.choice(["close", "kill", "crash"])
        if how == "close":
            await self.store.close()
        elif how == "kill":
            self.disk.kill()
        else:
            self.disk.crash()
        self.store = make_store("/data", disk=self.disk.mount(), file_size_max=4096)

    async def maybe_restart(self) -> None:
        if self.rng.random() < 0.3:
            await self.restart()

    async def reshape(self, kind: str | None = None) -> None:
        """One change, in the order in which a leader and its successors do it."""
        parents, ranges, ends = self._plan(kind or self.rng.choice(["split", "merge", "rebucket"]))
        children = [Piece(name(len(self.pieces) + i, r.start, r.end), ends) for i, r in enumerate(ranges)]
        for child in children:
            await self.segment(child)
        await self.maybe_restart()
        for _ in range(self.rng.choice([1, 1, 2])):  # a leader that takes over does all of it again
            bequests = []
            for parent in parents:
                segment = await self.segment(parent)
                await segment.seal()
                bequests.append(segment.dedup_snapshot())
            await self.maybe_restart()
            for child in children:
                await (await self.segment(child)).inherit(bequests)
                await self.maybe_restart()
        for parent in parents:
            parent.sealed = True
        self.pieces += children

    def _plan(self, kind: str) -> tuple[list[Piece], list[HashRange], tuple[int, ...]]:
        active = self.active
        at = self.rng.randrange(len(active))
        parent = active[at]
        inside = parent.name.hash_range
        if kind == "merge" and at + 1 < len(active):
            pair = active[at : at + 2]
            ends = max((p.bucket_ends for p in pair), key=len)
            return pair, [HashRange(inside.start, pair[1].name.hash_range.end)], ends
        if kind == "rebucket" or inside.width < 2:
            return [parent], [inside], even(self.rng.choice([1, 2, 4, 8]))
        middle = (inside.start + inside.end) // 2
        halves = [HashRange(inside.start, middle), HashRange(middle + 1, inside.end)]
        return [parent], halves, even(max(1, len(parent.bucket_ends) // 2))

    async def messages(self) -> list[tuple[int, bytes | None]]:
        """(sequence, key) of everything, parents before children."""
        return [(sequence, key) for sequence, key, _ in await self.placed_messages()]

    async def placed_messages(self) -> list[tuple[int, bytes | None, tuple[int, int]]]:
        """(sequence, key, (segment id, offset)) of everything, parents before children."""
        found: list[tuple[int, bytes | None, tuple[int, int]]] = []
        for piece in self.pieces:
            segment, offset = await self.segment(piece), 0
            while (block := segment.read(offset, 1 << 20)) is not None:
                block = block if isinstance(block, Block) else await block
                for entry in decode_block(block.data, block.salt, piece.name.segment_id):
                    places = [(piece.name.segment_id, entry.first_offset + i) for i in range(entry.count)]
                    found += [(m.sequence_id, m.key, at) for m, at in zip(entry.messages(), places, strict=True)]
                offset = block.next_offset
        return found


class Sender:
    """A producer; `lanes` is what it does not know to be there, in order, by segment."""

    def __init__(self, topic: Topic) -> None:
        self.topic, self.rng = topic, topic.rng
        self.batcher = Batcher(b"p", messages_max=8)
        self.lanes: dict[int, list[SealedEntry]] = {}
        self.sent: list[tuple[int, bytes | None]] = []
        self.learn()

    def learn(self) -> None:
        """The newest layout: what sealed segments left unanswered goes to those that own its hashes now."""
        active = self.topic.active
        self.batcher.set_layout(
            [p.name.hash_range.start for p in active],
            [p.name.segment_id for p in active],
            [list(p.bucket_ends) for p in active],
        )
        self.seal()
        lanes: dict[int, list[SealedEntry]] = {p.name.segment_id: [] for p in active}
        for ident in sorted(self.lanes):
            for entry in self.lanes[ident]:
                for part in [entry] if ident in lanes else self.batcher.resplit(entry):
                    lanes[part.segment_id].append(part)
        self.lanes = lanes

    def seal(self) -> None:
        self.batcher.seal_all()
        for entry in self.batcher.take():
            self.lanes.setdefault(entry.segment_id, []).append(entry)

    def take(self, count: int) -> None:
        for _ in range(count):
            key = self.rng.choice([None, *KEYS])
            self.sent.append((self.batcher.add(b"v" * self.rng.randrange(40), key), key))

    async def transmit(self, ident: int, *, loses: bool) -> None:
        """Send the head of a lane, and perhaps hear of the head of that."""
        piece, lane = self.topic.pieces[ident], self.lanes[ident]
        if piece.sealed:
            return
        segment = await self.topic.segment(piece)
        arrives = self.rng.randrange(len(lane) + 1) if loses else len(lane)
        for entry in lane[:arrives]:
            await segment.append(bytearray(entry.data))
        del lane[: self.rng.randrange(arrives + 1) if loses else arrives]


async def check(topic: Topic, sender: Sender) -> None:
    """Everything is sent until nothing is left; then each message is there once, those of a key in order (D3, O1)."""
    sender.learn()
    for ident in list(sender.lanes):
        await sender.transmit(ident, loses=False)
    found = await topic.messages()
    assert sorted(found, key=lambda m: m[0]) == sender.sent
    newest: dict[bytes, int] = {}
    for sequence, key in found:
        if key is not None:
            assert newest.get(key, -1) < sequence, f"{key!r} out of order"
            newest[key] = sequence


@pytest.mark.parametrize("seed", range(25))
async def test_24_each_message_once_through_every_reshaping_and_crash(seed: int) -> None:
    rng = random.Random(seed)
    topic = Topic(rng, rng.randint(1, 3), rng.choice([1, 2, 4]))
    sender = Sender(topic)
    for _ in range(40):
        what = rng.random()
        if what < 0.3:
            sender.take(rng.randrange(25))
        elif what < 0.7:
            sender.seal()
            await sender.transmit(rng.choice(list(sender.lanes)), loses=True)
        elif what < 0.82:
            await topic.reshape()
        elif what < 0.94:
            sender.learn()
        else:
            await topic.restart()
    await check(topic, sender)


@pytest.mark.parametrize("first", ["split", "merge", "rebucket"])
@pytest.mark.parametrize("second", ["split", "merge", "rebucket"])
async def test_24_two_generations_later_nothing_is_stored_twice(first: str, second: str) -> None:
    """Everything arrived in the first generation and nothing was heard of it; it is sent again to the third."""
    for seed in range(4):
        rng = random.Random(seed)
        topic, sender = await everything_arrived_unheard(rng, 2)
        ends = [(await topic.segment(p)).next_offset for p in topic.pieces]
        await topic.reshape(first)
        if rng.random() < 0.5:
            sender.learn()
        await topic.reshape(second)
        await topic.restart()
        await check(topic, sender)
        after = [(await topic.segment(p)).next_offset for p in topic.pieces]
        assert after == ends + [0] * (len(topic.pieces) - 2)


@pytest.mark.parametrize("how", ["close", "kill", "crash"])
async def test_24_what_a_child_inherited_survives_its_restart(how: str) -> None:
    topic, sender = await everything_arrived_unheard(random.Random(3), 1)
    await topic.reshape("split")
    for _ in range(3):
        await topic.restart(how)
    await check(topic, sender)
    assert [(await topic.segment(p)).next_offset for p in topic.pieces[1:]] == [0, 0]


async def everything_arrived_unheard(rng: random.Random, segments: int) -> tuple[Topic, Sender]:
    """A topic with messages whose producer has lost every receipt."""
    topic = Topic(rng, segments, 4)
    sender = Sender(topic)
    sender.take(120)
    sender.seal()
    kept = {ident: list(lane) for ident, lane in sender.lanes.items()}
    for ident in kept:
        await sender.transmit(ident, loses=False)
    sender.lanes = kept
    return topic, sender
