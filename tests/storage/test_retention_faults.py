"""Retention on a disk that does not let go of a file, and under a lease that ends."""

from __future__ import annotations

import asyncio
import random

import pytest

from engine.errors import NotOwnerError, StorageError
from engine.storage.segment import Segment
from engine.testing.disk import Fault, SimDisk
from engine.testing.loop import run_virtual
from tests.kit.entry_images import entry
from tests.kit.stores import make_store, name, read_blocks


class TestLease:
    """A lease that lasts for so many looks."""

    __test__ = False

    def __init__(self) -> None:
        self.term, self.born = 1, 0
        self.looks = 1 << 30

    @property
    def held(self) -> bool:
        self.looks -= 1
        return self.looks >= 0

    def check(self) -> None:
        if not self.held:
            raise NotOwnerError("the lease is over")


async def fill(segment: Segment, count: int) -> None:
    """One message a file."""
    for i in range(count):
        await segment.append(entry(i, (b"x" * 3000,)))


async def retain(segment: Segment) -> int:
    return await segment.retain(segment.durable_offset, retention_bytes=0)


@pytest.mark.parametrize("operation", ["unlink", "sync_directory"])
def test_d6_a_file_that_could_not_be_deleted_goes_before_all_behind_it(operation: str) -> None:
    """Without it, the next look would leave a hole, which the next open takes for damage."""

    async def body() -> None:
        disk = SimDisk(random.Random(3))
        store = make_store("/data", disk=disk.mount(), file_size_max=4096)
        segment = await store.create(name())
        await fill(segment, 5)
        disk.faults.append(Fault(operation))
        with pytest.raises(StorageError):
            await retain(segment)
        disk.faults.append(Fault(operation, after=1))
        with pytest.raises(StorageError):
            await retain(segment)
        await store.close()
        again = await make_store("/data", disk=disk.mount(), file_size_max=4096).open(name())
        assert again.first_offset >= 1
        assert [b.first_offset for b in await read_blocks(again)][-1] == 4
        await retain(again)
        assert again.first_offset == 4

    asyncio.run(asyncio.to_thread(run_virtual, body()))


def test_g3_each_file_is_deleted_under_the_lease() -> None:
    async def body() -> None:
        store = make_store("/data", disk=SimDisk(random.Random(3)).mount(), file_size_max=4096)
        lease = TestLease()
        segment = await store.create(name(), term=1, lease=lease)
        await fill(segment, 5)
        lease.looks = 2
        with pytest.raises(NotOwnerError):
            await retain(segment)
        assert segment.first_offset == 2

    asyncio.run(asyncio.to_thread(run_virtual, body()))
