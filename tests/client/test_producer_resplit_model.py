"""Semantics 23, 24: whatever happens to a topic and to connections, each message lands once, per key in order.

The real batcher, its re-splitting and the real duplicate detection; what the client does in between is a model.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine._native.produce.batcher import Batcher
from engine._native.produce.sealed import SealedEntry
from tests.client.reshaped_topic import ReshapedTopic, check

KEYS = [b"k%d" % n for n in range(40)]


class Sender:
    """A producer that resends what it does not know to be there, and goes by a layout that may be old."""

    def __init__(self, topic: ReshapedTopic, rng: random.Random) -> None:
        self.topic = topic
        self.rng = rng
        self.batcher = Batcher(b"p", messages_max=12)
        self.lanes: dict[int, list[SealedEntry]] = {}  # what is not known to be there, in order, by segment
        self.sent: list[tuple[int, bytes | None]] = []
        self.learn()

    def learn(self) -> None:
        """The newest layout: what sealed segments did not acknowledge goes to those that own its hashes now."""
        active = self.topic.active
        self.batcher.set_layout(
            [p.range.start for p in active], [p.ident for p in active], [list(p.bucket_ends) for p in active]
        )
        self.seal()
        lanes: dict[int, list[SealedEntry]] = {p.ident: [] for p in active}
        for ident in sorted(self.lanes):
            pieces = self.lanes[ident]
            if ident in lanes:
                lanes[ident] += pieces
                continue
            for entry in pieces:
                for piece in self.batcher.resplit(entry):
                    lanes[piece.segment_id].append(piece)
        self.lanes = lanes

    def seal(self) -> None:
        self.batcher.seal_all()
        for entry in self.batcher.take():
            self.lanes.setdefault(entry.segment_id, []).append(entry)

    def take(self) -> None:
        for _ in range(self.rng.randrange(30)):
            key = self.rng.choice([None, *KEYS])
            self.sent.append((self.batcher.add(b"v", key), key))

    def transmit(self, *, loses: bool = True) -> None:
        """Send the head of one lane, and perhaps hear of the head of that."""
        ident = self.rng.choice(list(self.lanes))
        segment, lane = self.topic.pieces[ident], self.lanes[ident]
        if segment.sealed:
            return
        arrives = self.rng.randrange(len(lane) + 1) if loses else len(lane)
        for entry in lane[:arrives]:
            segment.append(entry.data)
        del lane[: self.rng.randrange(arrives + 1) if loses else arrives]


def run(seed: int, steps: int) -> None:
    rng = random.Random(seed)
    topic = ReshapedTopic(rng, rng.randint(1, 3), rng.choice([1, 2, 4]))
    sender = Sender(topic, rng)
    for _ in range(steps):
        what = rng.random()
        if what < 0.3:
            sender.take()
        elif what < 0.7:
            sender.seal()
            sender.transmit()
        elif what < 0.8:
            topic.reshape()
        elif what < 0.95:
            sender.learn()
        else:
            rng.choice(topic.active).restart(rng)
    sender.learn()
    while any(sender.lanes.values()):
        sender.transmit(loses=False)
    check(topic, sender.sent)


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_24_each_message_once_and_per_key_in_order_through_every_reshaping(seed: int) -> None:
    run(seed, 60)


@pytest.mark.fuzz
@settings(max_examples=5000, deadline=None)
@given(seed=st.integers(0, 1 << 64))
def test_24_each_message_once_and_per_key_in_order_for_long(seed: int) -> None:
    run(seed, 150)
