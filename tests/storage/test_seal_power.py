"""Sealing under power cuts, signals and disk faults: a seal that was reported stays, with the same end (D4, G3)."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from engine.errors import EngineError
from engine.storage.segment import Segment
from engine.testing.loop import run_virtual
from tests.storage.test_power_cut import BUCKETS, NAME, World


class SealingWorld(World):
    """As its base; in each life the segment is also sealed at a random moment."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.end: int | None = None  # once it was reported

    async def opened(self) -> Segment:
        """As an owner opens it: a seal that is found is confirmed before it is reported."""
        segment = await self.store().create(NAME, bucket_ends=BUCKETS)
        if segment.sealed:
            self.tell(await segment.seal())
        assert self.end is None or segment.sealed, "D4: the seal is gone"
        return segment

    def tell(self, end: int) -> None:
        assert self.end in (None, end), f"D4: the end moved from {self.end} to {end}"
        self.end = end

    async def seal(self, segment: Segment) -> None:
        """As a leader does: until it works."""
        await asyncio.sleep(self.rng.uniform(0, 0.15))
        while True:
            with contextlib.suppress(EngineError):
                self.tell(await segment.seal())
            if self.end is not None:
                assert segment.durable_offset == segment.next_offset == self.end
                assert isinstance(await _refused(segment), EngineError), "G3: an append got in behind the end"
            await asyncio.sleep(self.rng.uniform(0.001, 0.01))

    async def live(self, faults: bool) -> None:
        """One life: open, check, produce, consume and seal, until the power goes or the process is killed."""
        segment = await self.opened()
        await self.check(segment)
        if faults:
            self.disk.faults = [self.fault() for _ in range(self.rng.randint(0, 3))]
        tasks = [asyncio.ensure_future(self.produce(segment, p)) for p in "abcd"]
        tasks += [asyncio.ensure_future(work(segment)) for work in (self.consume, self.seal)]
        done, _ = await asyncio.wait(tasks, timeout=self.rng.uniform(0.001, 0.2), return_when="FIRST_EXCEPTION")
        (self.disk.crash if self.rng.random() < 0.8 else self.disk.kill)()
        self.disk.faults = []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            task.result()


async def _refused(segment: Segment) -> BaseException | None:
    return await asyncio.wait_for(_exception(segment), 10)


async def _exception(segment: Segment) -> BaseException | None:
    future = segment.append(b"")
    await asyncio.wait([future])
    return future.exception()


async def lives(seed: int, faults: bool) -> bool:
    """Several lives on one disk; whether it was sealed in the end."""
    world = SealingWorld(seed)
    for _ in range(5):
        await world.live(faults)
    segment = await world.opened()
    await world.check(segment)
    return segment.sealed


@pytest.mark.parametrize("faults", [False, True])
def test_d4_g3_a_seal_holds_through_power_cuts(faults: bool) -> None:
    sealed = [run_virtual(lives(seed, faults)) for seed in range(14)]
    assert sum(sealed) > 3


@pytest.mark.fuzz
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("faults", [False, True])
def test_d4_g3_a_seal_holds_through_many_power_cuts(faults: bool) -> None:
    for seed in range(2000, 2400):
        print("seed", seed)
        run_virtual(lives(seed, faults))
