"""When an object of the log goes: after the interval of its most urgent append, or when it is full."""

from __future__ import annotations

import asyncio

import pytest

from engine.limits import WAL_FLUSH_BYTES
from tests.storage.test_wal import OTHER, Bench, group, read, virtual


@virtual
async def test_groups_of_one_interval_are_one_object(bench: Bench):
    wal, loop = await bench.open(), asyncio.get_running_loop()
    began = loop.time()
    appends = [wal.append(group(0)), wal.append(group(0, b"x", OTHER)), wal.append(group(1))]
    assert await asyncio.gather(*appends) == [0, 0, 0]
    assert loop.time() - began == pytest.approx(bench.config.flush_s)
    assert list(bench.store.objects) == ["wal/c/a/000000000000"]
    assert await read(wal, 0, 1) == [(0, b"body"), (1, b"body")]
    assert await read(wal, 0, 1, OTHER) == [(0, b"x")]


@virtual
async def test_an_object_goes_when_its_most_urgent_append_has_waited_long_enough(bench: Bench):
    wal, loop = await bench.open(), asyncio.get_running_loop()
    began = loop.time()
    slow = asyncio.ensure_future(wal.append(group(0), flush_s=1.0))
    usual = asyncio.ensure_future(wal.append(group(0, b"x", OTHER)))
    await asyncio.sleep(0.05)
    urgent = asyncio.ensure_future(wal.append(group(1), flush_s=0.02))
    assert await asyncio.gather(slow, usual, urgent) == [0, 0, 0], "one PUT has all three"
    assert loop.time() - began == pytest.approx(0.07), "not after 100 ms, nor after a second"
    began = loop.time()
    slow = asyncio.ensure_future(wal.append(group(2), flush_s=1.0))
    await asyncio.sleep(0.5)
    later = asyncio.ensure_future(wal.append(group(3), flush_s=0.8))
    assert await asyncio.gather(slow, later) == [1, 1]
    assert loop.time() - began == pytest.approx(1.0), "an append that is due later does not put it off"


@virtual
async def test_a_full_object_does_not_wait_for_the_interval(bench: Bench):
    wal, loop = await bench.open(), asyncio.get_running_loop()
    began = loop.time()
    await wal.append(group(0, bytes(WAL_FLUSH_BYTES)))
    assert loop.time() == began


@virtual
async def test_the_rest_of_a_burst_waits_a_tenth_of_the_interval_behind_a_full_object(bench: Bench):
    wal, loop = await bench.open(), asyncio.get_running_loop()
    began, tenth = loop.time(), bench.config.flush_s / 10
    assert await asyncio.gather(wal.append(group(0, bytes(WAL_FLUSH_BYTES))), wal.append(group(1))) == [0, 1]
    assert loop.time() - began == pytest.approx(tenth)
    assert await wal.append(group(2)) == 2
    assert loop.time() - began == pytest.approx(tenth + bench.config.flush_s), "behind a small one, all of it"
