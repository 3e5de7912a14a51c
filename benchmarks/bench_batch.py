"""What a consumer pays for each message: decoding a block, iterating it, and taking it as columns."""

from __future__ import annotations

import time
from collections.abc import Callable

from entry_samples import SALT, SEGMENT, TINY, block_of, entry_of

from engine._native.consume.batch import MessageBatch, decode_block
from engine._native.consume.entry_queue import EntryQueue

COUNT = 10 if TINY else 1000
ENTRIES = 3 if TINY else 200
REPEATS = 1 if TINY else 7


def make_id(segment_id: int, offset: int, positions: dict[int, int]) -> tuple[int, int]:
    return segment_id, offset


def rate(run: Callable[[], object]) -> float:
    """Messages per second of the fastest of several runs over the whole sample."""
    best = float("inf")
    for _ in range(REPEATS):
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return COUNT * ENTRIES / best


class Batch:
    """Each in messages per second, for values of 100 bytes and of 1 KiB with 8-byte keys."""

    params = ([100, 1024],)
    param_names = ("value bytes",)
    unit = "messages/s"

    def setup(self, value_size: int) -> None:
        self.block = block_of(entry_of(COUNT, value_size), ENTRIES, COUNT)
        self.entries = decode_block(self.block, SALT, SEGMENT)
        self.batch = MessageBatch("topic", [(e, 0, e.count) for e in self.entries], {}, make_id)

    def iterate(self) -> int:
        """The loop of a user who reads every value."""
        size = 0
        for message in self.batch:
            size += len(message.value)
        return size

    def receive(self) -> int:
        """The same, one pop each."""
        queue, size = EntryQueue("topic", make_id), 0
        queue.push(self.entries)
        while (message := queue.pop_message()) is not None:
            size += len(message.value)
        return size

    def receive_batches(self) -> int:
        """Decode, queue and iterate: all that a message costs on the consumer's side but the socket."""
        queue, size = EntryQueue("topic", make_id), 0
        queue.push(decode_block(self.block, SALT, SEGMENT))
        while batch := queue.pop_batch(10_000):
            for message in batch:
                size += len(message.value)
        return size

    def track_iterate(self, value_size: int) -> float:
        return rate(self.iterate)

    def track_iterate_ids(self, value_size: int) -> float:
        return rate(lambda: [message.id for message in self.batch])

    def track_receive(self, value_size: int) -> float:
        return rate(self.receive)

    def track_receive_batches(self, value_size: int) -> float:
        return rate(self.receive_batches)

    def track_values(self, value_size: int) -> float:
        return rate(lambda: self.batch.values)

    def track_decode(self, value_size: int) -> float:
        return rate(lambda: decode_block(self.block, SALT, SEGMENT))

    def track_to_arrow(self, value_size: int) -> float:
        return rate(self.batch.to_arrow)

    def track_decode_to_arrow(self, value_size: int) -> float:
        return rate(
            lambda: MessageBatch(
                "t", [(e, 0, e.count) for e in decode_block(self.block, SALT, SEGMENT)], {}, make_id
            ).to_arrow()
        )


class Rich:
    """The same with event times and two properties a message."""

    unit = "messages/s"

    def setup(self) -> None:
        block = block_of(entry_of(COUNT, 100, properties=True), ENTRIES, COUNT)
        entries = decode_block(block, SALT, SEGMENT)
        self.batch = MessageBatch("topic", [(e, 0, e.count) for e in entries], {}, make_id)

    def track_properties(self) -> float:
        return rate(lambda: [message.properties for message in self.batch])

    def track_to_arrow(self) -> float:
        return rate(self.batch.to_arrow)
