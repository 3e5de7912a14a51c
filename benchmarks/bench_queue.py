"""What a queue's bookkeeping costs: acknowledging single messages in the broker, and remembering those that are not.

Acknowledgements come as frames' headers, a thousand messages each, and go through the dispatcher of a queue to the
cursor, which is saved in a metadata store in memory: everything but the socket and the sync.
"""

from __future__ import annotations

import asyncio
import random
import time
import tracemalloc
from types import SimpleNamespace
from typing import Any

from support import sized

from engine import clock
from engine._native.consume.unacked import Unacknowledged
from engine._native.format.offsets import pack, range_set
from engine.aio.tasks import Supervisor
from engine.broker.delivery.opened import Participation
from engine.broker.delivery.queue import QueueConsumer
from engine.broker.delivery.subscription import HostedSubscription
from engine.broker.pools.latency import BrokerMetrics
from engine.broker.pools.pools import BrokerMemory
from engine.broker.segment.environment import Environment
from engine.broker.segment.hosted import HostedSegment
from engine.broker.settings.config import BrokerConfig
from engine.broker.transactions.headers import TransactionHeaders
from engine.broker.transactions.operations import Operations
from engine.metadata.memory import MemoryMetadataStore
from engine.model.hashrange import HashRange
from engine.model.names import SegmentName, TopicName
from engine.storage.cursor.store import CursorStore
from engine.storage.file.continuation import Gaps
from engine.wire.commands import Ack, Command, decode, encode

MESSAGES = sized(1_000_000, 10_000)
BATCH = 1_000
ROUNDS = sized(3, 1)
NAME = SegmentName(TopicName.parse("t"), HashRange(0, 0xFFFF), 0)
PATTERNS = ["in order", "every other first", "shuffled within 10 batches", "shuffled"]


def order(pattern: str) -> list[int]:
    """The offsets, in the order in which they are acknowledged."""
    offsets = list(range(MESSAGES))
    rng = random.Random(7)
    if pattern == "every other first":
        return offsets[::2] + offsets[1::2]
    if pattern == "shuffled":
        rng.shuffle(offsets)
    if pattern == "shuffled within 10 batches":
        for start in range(0, MESSAGES, 10 * BATCH):
            part = offsets[start : start + 10 * BATCH]
            rng.shuffle(part)
            offsets[start : start + 10 * BATCH] = part
    return offsets


def headers(pattern: str) -> list[bytes]:
    """One ACK's header per batch, packed; runs as a client makes them."""
    offsets, found = order(pattern), []
    for start in range(0, MESSAGES, BATCH):
        ranges: list[list[int]] = []
        for offset in sorted(offsets[start : start + BATCH]):
            if ranges and ranges[-1][1] == offset - 1:
                ranges[-1][1] = offset
            else:
                ranges.append([offset, offset])
        found.append(encode(Ack(request_id=1, consumer_id=1, ack_type="individual", ranges=pack(ranges))))
    return found


async def holding(messages: int) -> QueueConsumer:
    """A consumer of a queue that holds so many."""
    loop_clock: Any = clock.SystemClock()
    segment: Any = SimpleNamespace(
        gaps=Gaps(),
        name=NAME, first_offset=0, durable_offset=messages, next_offset=messages, sealed=False,
        read=lambda *_: None, when_durable=lambda _: asyncio.get_running_loop().create_future(),
    )  # fmt: skip
    spec: Any = SimpleNamespace(name=NAME)
    store = MemoryMetadataStore(loop_clock)
    cursor = await CursorStore(store).create(NAME, "s", 0)
    parts = Participation(TransactionHeaders(store), Operations(store), Supervisor("benchmark"))
    memory = BrokerMemory(BrokerConfig())
    shared = Environment(memory.publish, memory.outbound.reads, BrokerMetrics(loop_clock), loop_clock, lambda: None)
    make_buffer: Any = None  # there are no transactions
    hosted = HostedSegment(spec, segment, 1, shared, make_buffer)
    subscription = HostedSubscription(hosted, "s", cursor, parts)
    connection: Any = SimpleNamespace(writable=True, role="")
    consumer = subscription.attach_queue(connection, 1, "c", 0)
    consumer.unacknowledged = range_set(0, messages - 1)
    return consumer


class Acknowledge:
    """Microseconds per message, in the broker, of acknowledging a million one by one, a thousand in a frame."""

    params = PATTERNS
    param_names = ("order",)
    unit = "us/message"

    def setup(self, pattern: str) -> None:
        self.headers = headers(pattern)

    def track_acknowledge(self, pattern: str) -> float:
        return min(asyncio.run(self._run()) for _ in range(ROUNDS)) / MESSAGES * 1e6

    async def _run(self) -> float:
        consumer = await holding(MESSAGES)
        start = time.perf_counter()
        for header in self.headers:
            ack = decode(Command.ACK, header)
            assert isinstance(ack, Ack)
            await consumer.acknowledge(ack)
        elapsed = time.perf_counter() - start
        assert consumer.pending == 0
        return elapsed


class Unacked:
    """Bytes per message of a million that are not acknowledged, when every third is."""

    params = (["broker", "client"], ["none", "every third"])
    param_names = ("side", "acknowledged")
    unit = "B/message"

    def track_bytes(self, side: str, acknowledged: str) -> float:
        every_third = range(0, MESSAGES, 3) if acknowledged == "every third" else range(0)
        taken = asyncio.run(self._of_broker(every_third) if side == "broker" else self._of_client(every_third))
        return taken / (MESSAGES - len(every_third))

    @staticmethod
    async def _of_broker(acknowledged: range) -> int:
        ranges = [[o, o] for o in acknowledged]
        tracemalloc.start()
        try:
            consumer = await holding(MESSAGES)
            if ranges:
                await consumer.acknowledge(Ack(consumer_id=1, ack_type="individual", ranges=ranges))
            python, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        cursor = consumer.subscription.cursor  # what the compressed sets take is not Python's
        return python + len(consumer.unacknowledged.serialize()) + len(cursor.above.serialize())

    @staticmethod
    async def _of_client(acknowledged: range) -> int:
        tracemalloc.start()
        try:
            unacked = Unacknowledged(30.0, time.monotonic)
            for first in range(0, MESSAGES, BATCH):
                unacked.arrived(0, range_set(first, min(first + BATCH, MESSAGES) - 1))
            unacked.settle(0)
            for offset in acknowledged:
                unacked.take(0, range_set(offset, offset))
            python, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        slots = [slot[0] for _, slot in unacked._slots]
        return python + sum(len(found.serialize()) for found in [unacked.held(0), *slots])
