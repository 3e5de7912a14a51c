"""Footers of a log: each object is read and decoded once for all that ask, and kept for a while."""

from __future__ import annotations

import asyncio

from engine.storage.objects.footers import Footers
from tests.storage.test_wal import LOG, OTHER, SEGMENT, Bench, group, in_objects, read, virtual


@virtual
async def test_segments_that_are_taken_over_from_one_log_read_its_footers_once(bench: Bench):
    wal = await bench.open()
    for offset in range(40):
        await asyncio.gather(wal.append(group(offset)), wal.append(group(offset, b"x", OTHER)))
    other = await bench.open("b")
    await other.fence("a")
    before = bench.store.statistics().requests["get"]
    first, second = await asyncio.gather(read(other, 0, 40), read(other, 0, 40, OTHER))
    assert first == [(n, b"body") for n in range(40)]
    assert second == [(n, b"x") for n in range(40)]
    assert bench.store.statistics().requests["get"] - before == 40 + 2 * 40, "footers once, groups twice"


@virtual
async def test_footers_that_were_asked_for_long_ago_are_read_again(bench: Bench):
    wal = await bench.open()
    await in_objects(wal, 10)
    footers = Footers(bench.store, kept_max=10)

    async def asked(start: int, end: int) -> int:
        before = bench.store.statistics().requests["get"]
        assert [footer.n for footer in await footers.of(LOG, start, end, SEGMENT)] == list(range(start, end))
        return bench.store.statistics().requests["get"] - before

    assert [await asked(0, 5), await asked(0, 5), await asked(5, 10), await asked(0, 5)] == [5, 0, 5, 5]


@virtual
async def test_a_read_that_is_given_up_does_not_end_that_of_another(bench: Bench):
    wal = await bench.open()
    await in_objects(wal, 3)
    footers = Footers(bench.store)
    given_up, other = (asyncio.ensure_future(footers.of(LOG, 0, 3, SEGMENT)) for _ in range(2))
    await asyncio.sleep(0)
    given_up.cancel()
    assert [footer.n for footer in await other] == [0, 1, 2]
