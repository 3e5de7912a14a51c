"""Power cuts and disk faults under virtual time: what was acknowledged is there, once, whatever else was lost."""

from __future__ import annotations

import asyncio
import errno
import random

import pytest

from engine.errors import EngineError, SegmentSealedError
from engine.metadata.memory import MemoryMetadataStore
from engine.model.hashrange import HashRange
from engine.model.names import TopicName
from engine.storage.disk.config import StorageConfig
from engine.storage.segment import Appended, Block, Segment
from engine.storage.store import SegmentStore
from engine.testing.clock import LoopClock
from engine.testing.disk import Fault, SimDisk
from engine.testing.loop import run_virtual
from engine.testing.workers import SimWorkers
from tests.kit.entry_images import entry, values_of

NAME = TopicName.parse("power").segment(HashRange.whole(), 3)
BUCKETS = (0x3FFF, 0x7FFF, 0xBFFF, 0xFFFF)
WINDOW = 6


class World:
    """One disk, several lives of a process, and what its producers know."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.disk = SimDisk(self.rng)
        self.acked: dict[tuple[str, int], int] = {}
        self.seen: dict[int, bytes] = {}
        self.next_sequence = dict.fromkeys("abcd", 0)
        self.lost_window = False

    def store(self) -> SegmentStore:
        """A store of a new process."""
        clock = LoopClock(asyncio.get_running_loop())
        return SegmentStore(
            self.disk.mount(),
            "/data",
            clock=clock,
            metadata=MemoryMetadataStore(clock),
            executor=SimWorkers(self.rng),
            config=StorageConfig(
                file_size_max=self.rng.choice([20_000, 60_000, 3_000_000]), cache_bytes=100_000, log_cache_bytes=30_000
            ),
            rng=self.rng,
        )

    def value(self, producer: str, sequence: int) -> bytes:
        """What is sent under a sequence; now and then it is large, so that groups are written ahead."""
        size = 300_000 if sequence % 29 == 7 else 40 + sequence % 500
        return f"{producer}:{sequence}:".encode().ljust(size, b".")

    async def produce(self, segment: Segment, producer: str) -> None:
        """Send in order with several in flight; what fails is sent again, in order. Runs until the power is cut."""
        bucket = "abcd".index(producer) * 0x4000
        while True:
            start = self.next_sequence[producer]
            stop = start + self.rng.randint(1, WINDOW)
            sends = []
            for sequence in range(start, stop):
                if sends and _is_sealed(sends[-1]):
                    break  # that ends an attachment: what follows is never appended
                image = entry(sequence, (self.value(producer, sequence),), producer=producer, bucket=(bucket,) * 2)
                sends.append(segment.append(image, producer))
                if self.rng.random() < 0.3:
                    await asyncio.sleep(self.rng.uniform(0, 0.004))
            results = await asyncio.gather(*sends, return_exceptions=True)
            for sequence, result in zip(range(start, stop), results, strict=False):
                if isinstance(result, EngineError):
                    break
                assert isinstance(result, list), result
                self.acked[producer, sequence] = result[0].first_offset
                self.next_sequence[producer] = sequence + 1
            await asyncio.sleep(self.rng.uniform(0, 0.002))

    async def consume(self, segment: Segment) -> None:
        """Read on and on; D4 and D5: what was seen once stays."""
        offset = 0
        while True:
            await segment.when_durable(offset)
            block = segment.read(offset, self.rng.choice([1, 1000, 1 << 20]))
            if block is not None and not isinstance(block, Block):
                block = await block
            if block is None:
                await asyncio.sleep(0.001)
                continue
            self.note(block, offset)
            offset = block.next_offset

    def note(self, block: Block, offset: int) -> None:
        """Compare with everything that was ever read."""
        assert block.first_offset <= offset < block.next_offset
        for at, text in values_of(block.data):
            assert self.seen.setdefault(at, text) == text, f"D4: offset {at} changed"

    async def check(self, segment: Segment) -> None:
        """D1, D3, D4, D5 against everything that was acknowledged or delivered in any life."""
        found: dict[int, bytes] = {}
        while (block := segment.read(len(found), 50_000)) is not None:
            if not isinstance(block, Block):
                block = await block
            self.note(block, len(found))
            found.update(values_of(block.data))
        assert len(found) == segment.durable_offset
        assert set(self.seen) <= set(found), "D5: a delivered message is gone"
        texts = list(found.values())
        assert len(set(texts)) == len(texts), "D3: a message is there twice"
        known = set(texts)
        for (producer, sequence), offset in self.acked.items():
            text = self.value(producer, sequence)
            assert text in known, f"D1: {producer} {sequence} is lost"
            assert offset < 0 or found[offset] == text, f"D1: {producer} {sequence} is not at {offset}"
        for producer in "abcd":
            order = [t for t in texts if t.startswith(producer.encode() + b":")]
            assert order == [self.value(producer, i) for i in range(len(order))], "O1: order was lost"

    async def live(self, faults: bool) -> None:
        """One life: open, check, produce and consume until the power goes, or the process is killed."""
        segment = await self.store().create(NAME, bucket_ends=BUCKETS)
        await self.check(segment)
        if faults:
            self.disk.faults = [self.fault() for _ in range(self.rng.randint(0, 3))]
        tasks = [asyncio.ensure_future(self.produce(segment, p)) for p in "abcd"]
        tasks.append(asyncio.ensure_future(self.consume(segment)))
        done, _ = await asyncio.wait(tasks, timeout=self.rng.uniform(0.001, 0.2), return_when="FIRST_EXCEPTION")
        (self.disk.crash if self.rng.random() < 0.8 else self.disk.kill)()
        self.disk.faults = []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            task.result()

    def fault(self) -> Fault:
        """Some operation fails soon."""
        operation = self.rng.choice(["write", "sync", "sync", "sync_directory", "create", "rename", "truncate"])
        error = self.rng.choice([errno.EIO, errno.ENOSPC]) if operation in ("write", "create") else errno.EIO
        return Fault(operation, error, after=self.rng.randint(0, 40), times=self.rng.randint(1, 2))


def _is_sealed(send: asyncio.Future[list[Appended]]) -> bool:
    return send.done() and isinstance(send.exception(), SegmentSealedError)


async def lives(seed: int, count: int, faults: bool) -> None:
    """Several lives on one disk."""
    world = World(seed)
    for _ in range(count):
        await world.live(faults)
    segment = await world.store().create(NAME, bucket_ends=BUCKETS)
    await world.check(segment)


@pytest.mark.parametrize("faults", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_d1_d3_d4_d5_hold_through_power_cuts(seed: int, faults: bool) -> None:
    run_virtual(lives(seed, 5, faults))


@pytest.mark.fuzz
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("faults", [False, True])
def test_d1_d3_d4_d5_hold_through_many_power_cuts(faults: bool) -> None:
    for seed in range(1000, 1600):
        print("seed", seed)
        run_virtual(lives(seed, 6, faults))
