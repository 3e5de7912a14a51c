"""Group commit, one job at a time: which job is next, what is durable when, and what a failure or the end leaves.

The test runs each job when it likes, so that every interleaving of the two jobs is one line.
"""

from __future__ import annotations

import asyncio
import errno
import random
from typing import Any

import pytest

from engine._native.serve.commits import AHEAD_MIN
from engine.errors import (
    AlreadyClosedError,
    CorruptionError,
    EngineError,
    NotOwnerError,
    StorageError,
    UnknownOutcomeError,
)
from engine.limits import KIB
from engine.storage.commit.committer import Committer
from engine.storage.file.format import State
from engine.testing.disk import Fault, SimDisk
from tests.storage.commit_parts import HandLease, HandWorkers, NotedSegment, created, image, make_context, plan, settle

LARGE = AHEAD_MIN + KIB


class Bench:
    """A committer over a simulated disk."""

    def __init__(self, mode: str = "fsync", lease: Any = None, **config: Any) -> None:
        self.disk = SimDisk(random.Random(1))
        self.workers = HandWorkers()
        self.segment = NotedSegment()
        mount = self.disk.mount()
        context = make_context(mount, self.workers, **config)
        self.metrics = context.metrics
        self.commit = Committer(self.segment, context, mode, created(mount, plan(0, durability=mode)), lease)
        self.sent = 0
        self.futures: list[asyncio.Future[Any]] = []

    async def append(self, size: int = 100) -> asyncio.Future[Any]:
        """One entry; what can be started then is."""
        future = await self.append_later(size)
        await settle()
        return future

    async def append_later(self, size: int = 100) -> asyncio.Future[Any]:
        """One entry, in this turn of the loop."""
        data, claims = image(self.sent, size)
        self.sent += 1
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.commit.add(data, claims, 0, 0).waiters.append((future, []))
        self.commit.schedule()
        self.futures.append(future)
        return future

    async def run(self, index: int = 0) -> None:
        self.workers.run(index)
        await settle()

    @property
    def jobs(self) -> int:
        return len(self.workers.jobs)

    def durable(self) -> list[int]:
        """Where each commit ended that was published."""
        return [note[2] for note in self.segment.notes if note[0] == "durable"]

    def outcomes(self) -> list[str]:
        """Of every append so far: its error's name, "ok", or "" while it waits."""
        return ["" if not f.done() else type(f.exception()).__name__ if f.exception() else "ok" for f in self.futures]


# -- which job is next -------------------------------------------------------------------------------------------------


async def test_appends_of_one_turn_share_a_commit_and_those_during_a_sync_the_next_one() -> None:
    bench = Bench()
    await asyncio.gather(bench.append(), bench.append(), bench.append())
    assert bench.jobs == 1
    await bench.append()
    await bench.append()
    assert bench.jobs == 1, "small groups wait for the sync that runs"
    await bench.run()
    assert bench.outcomes() == ["ok", "ok", "ok", "", ""]
    assert bench.jobs == 1
    await bench.run()
    assert bench.durable() == [3, 5]
    assert (bench.commit.counters.commits, bench.commit.counters.syncs) == (2, 2)


async def test_a_resend_of_what_failed_ahead_of_a_sync_fails_with_it() -> None:
    bench = Bench()
    await bench.append(LARGE)
    await bench.append(LARGE)
    bench.disk.faults = [Fault("write", errno.ENOSPC, path=".log")]
    await bench.run(1)
    newest = bench.commit.newest
    assert newest is not None
    resent: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    newest.waiters.append((resent, []))
    await bench.run()
    await bench.workers.run_all()
    assert bench.outcomes() == ["ok", "DiskFullError"]
    assert type(resent.exception()).__name__ == "DiskFullError"


async def test_large_groups_are_written_ahead_and_one_sync_covers_them() -> None:
    bench = Bench()
    await bench.append(LARGE)
    await bench.append(LARGE)
    assert bench.jobs == 2, "the primary, and the next group ahead of its sync"
    await bench.append(LARGE)
    assert bench.jobs == 2
    await bench.run(1)
    assert bench.jobs == 2, "the third is written ahead as well"
    assert bench.durable() == []
    await bench.run(1)
    await bench.run()
    assert bench.durable() == [1]
    assert bench.commit.durable_offset == 1
    assert bench.jobs == 1, "only a sync is left to do"
    await bench.run()
    assert bench.durable() == [1, 2, 3]
    assert bench.commit.counters.syncs == 2


async def test_nothing_is_written_ahead_beyond_the_limit() -> None:
    bench = Bench(commit_bytes_max=13 * 1024 * KIB)
    for _ in range(4):
        await bench.append(4 * 1024 * KIB)
    assert bench.jobs == 2
    await bench.run(1)
    await bench.run(1)
    assert bench.jobs == 1, "the fourth waits until something of the others is synced"
    await bench.run()
    assert bench.jobs == 2
    await bench.workers.run_all()
    assert bench.outcomes() == ["ok"] * 4


async def test_a_group_behind_the_one_that_is_written_ahead_is_never_durable_before_it() -> None:
    bench = Bench()
    await bench.append(LARGE)
    await bench.append(LARGE)
    await bench.append()
    await bench.run()
    assert bench.outcomes() == ["ok", "", ""]
    assert bench.jobs == 1, "the group ahead still runs: nothing is synced before it has ended"
    await bench.run()
    await bench.run()
    assert bench.durable() == [1, 2, 3]


@pytest.mark.parametrize("mode", ["interval", "os"])
async def test_in_the_relaxed_modes_what_is_written_is_durable_in_order(mode: str) -> None:
    bench = Bench(mode, interval_ms=3_600_000)
    await bench.append(LARGE)
    await bench.append(LARGE)
    await bench.run(1)
    assert bench.durable() == [], "the second was written first"
    await bench.run()
    assert bench.durable() == [1, 2]
    assert bench.commit.counters.syncs == 0
    drained = asyncio.ensure_future(bench.commit.drain())
    await bench.workers.run_all()
    await drained
    assert bench.commit.counters.syncs == 1
    assert bench.durable() == [1, 2], "the sync publishes nothing twice"


async def test_with_durability_interval_a_sync_follows_by_itself() -> None:
    bench = Bench("interval", interval_ms=1)
    await bench.append()
    await bench.run()
    bench.workers.posted.clear()
    assert bench.outcomes() == ["ok"]
    async with asyncio.timeout(60):
        await bench.workers.posted.wait()
    await bench.run()
    assert bench.commit.counters.syncs == 1


async def test_all_of_a_file_is_synced_before_the_next_one_is_created() -> None:
    bench = Bench(file_size_max=LARGE + 8 * KIB)
    await bench.append(LARGE)
    await bench.append(LARGE)
    assert bench.jobs == 1, "the new file waits for the sync of the old one"
    assert len(bench.disk.paths()) == 1
    await bench.run()
    assert bench.outcomes() == ["ok", ""]
    await bench.run()
    assert ("created", 1) in bench.segment.notes
    assert bench.jobs == 2, "the footer of the old file, and the group in the new one"
    await bench.workers.run_all()
    assert bench.outcomes() == ["ok", "ok"]
    assert bench.commit.counters.rolls == 1


async def test_in_a_relaxed_mode_too() -> None:
    bench = Bench("os", file_size_max=8 * KIB)
    await bench.append(5 * KIB)
    await bench.run()
    await bench.append(5 * KIB)
    assert bench.commit.counters.syncs == 0
    await bench.run()
    assert bench.commit.counters.syncs == 1
    assert len(bench.disk.paths()) == 1
    await bench.workers.run_all()
    assert bench.durable() == [1, 2]


# -- failures ----------------------------------------------------------------------------------------------------------


async def test_a_failed_write_fails_all_behind_it_and_the_next_append_takes_its_offset() -> None:
    bench = Bench()
    await bench.append()
    await bench.append()
    await bench.run()
    bench.disk.faults = [Fault("write")]
    await bench.run()
    assert bench.jobs == 1, "the cut"
    assert bench.outcomes() == ["ok", ""], "what failed is told when it is out of the file"
    assert bench.commit.groups.next_offset == 1
    await bench.append()
    assert bench.jobs == 1, "no job touches the file meanwhile"
    await bench.workers.run_all()
    assert bench.outcomes() == ["ok", "StorageError", "ok"]
    assert bench.durable() == [1, 2]
    assert ("rolled back", 1) in bench.segment.notes
    assert bench.commit.counters.write_failures == 1


@pytest.mark.parametrize("mode", ["fsync", "os"])
async def test_what_was_written_ahead_of_a_failed_write_is_not_confirmed(mode: str) -> None:
    """The failed write ends first: the group behind it is in the file by then, and is cut off with it."""
    bench = Bench(mode)
    await bench.append(LARGE)
    await bench.append(LARGE)
    bench.disk.faults = [Fault("write")]
    await bench.run()
    await bench.run()
    assert bench.durable() == []
    await bench.workers.run_all()
    assert bench.outcomes() == ["StorageError"] * 2
    await bench.append()
    await bench.workers.run_all()
    assert bench.outcomes()[2:] == ["ok"]
    assert bench.durable() == [1]


async def test_a_group_that_was_written_before_the_one_that_failed_is_still_synced() -> None:
    bench = Bench()
    await bench.append(LARGE)
    await bench.append(LARGE)
    await bench.append()
    await bench.run(1)
    await bench.run()
    assert bench.jobs == 1, "the primary covers the second and writes the third"
    bench.disk.faults = [Fault("write")]
    await bench.workers.run_all()
    assert bench.outcomes() == ["ok", "ok", "StorageError"]
    assert bench.durable() == [1, 2]


@pytest.mark.parametrize("first", [0, 1])
async def test_a_failed_sync_and_a_failed_write_at_once_abandon_the_file(first: int) -> None:
    """Whichever job ends first: nothing is cleaned up before the other has ended, and the sync undoes more."""
    bench = Bench()
    await bench.append(LARGE)
    await bench.append(LARGE)
    bench.disk.faults = [Fault("sync"), Fault("write", after=1 - first)]
    await bench.run(first)
    assert bench.jobs == 1
    assert bench.outcomes() == ["", ""]
    await bench.workers.run_all()
    assert bench.outcomes() == ["UnknownOutcomeError"] * 2
    assert bench.commit.file is not None
    assert bench.commit.file.first_offset == 0
    assert ("created", 0) in bench.segment.notes
    assert bench.commit.counters.sync_failures == 1


async def test_after_a_failed_sync_the_log_goes_on_in_a_new_file() -> None:
    bench = Bench()
    await bench.append()
    await bench.run()
    bench.disk.faults = [Fault("sync")]
    await bench.append()
    await bench.run()
    assert bench.outcomes() == ["ok", "UnknownOutcomeError"]
    assert bench.metrics.trouble is not None
    await bench.append()
    assert bench.jobs == 1, "the append waits for the file"
    await bench.workers.run_all()
    assert bench.outcomes() == ["ok", "UnknownOutcomeError", "ok"]
    assert bench.commit.file is not None
    assert bench.commit.file.first_offset == 1
    assert bench.metrics.trouble is None


async def test_in_a_relaxed_mode_the_offsets_of_what_was_readable_are_given_up() -> None:
    bench = Bench("os")
    await bench.append()
    await bench.run()
    bench.disk.faults = [Fault("sync")]
    drained = asyncio.ensure_future(bench.commit.drain())
    await bench.workers.run_all()
    await drained
    assert ("gap", 0, 1) in bench.segment.notes
    assert bench.commit.groups.next_offset == bench.commit.durable_offset == 1


@pytest.mark.parametrize("operation", ["create", "sync", "sync_directory"])
async def test_a_file_that_could_not_be_created_fails_what_waits_for_it_and_is_tried_again(operation: str) -> None:
    bench = Bench(file_size_max=8 * KIB)
    await bench.append(5 * KIB)
    await bench.run()
    bench.disk.faults = [Fault(operation, errno.EIO)]
    await bench.append(5 * KIB)
    await bench.append(100)
    await bench.run()
    assert bench.outcomes() == ["ok", "StorageError", "StorageError"]
    await bench.append(100)
    await bench.workers.run_all()
    assert bench.outcomes()[3:] == ["ok"]
    assert bench.commit.durable_offset == 2


async def test_a_failed_cut_abandons_the_file() -> None:
    bench = Bench()
    await bench.append()
    bench.disk.faults = [Fault("write"), Fault("truncate")]
    await bench.workers.run_all()
    assert bench.outcomes() == ["UnknownOutcomeError"]
    counters = bench.commit.counters
    assert (counters.write_failures, counters.sync_failures) == (1, 1)
    await bench.append()
    await bench.workers.run_all()
    assert bench.outcomes()[1:] == ["ok"]


async def test_damage_found_behind_a_failed_sync_ends_the_segment() -> None:
    bench = Bench()
    await bench.append()
    await bench.run()
    file = bench.commit.file
    assert file is not None
    bench.disk.corrupt(file.path, file.opening.data_position + 130)
    bench.disk.faults = [Fault("sync")]
    await bench.append()
    await bench.run()
    await bench.append()
    await bench.workers.run_all()
    assert bench.outcomes() == ["ok", "UnknownOutcomeError", CorruptionError.__name__]
    assert ("failed", "CorruptionError") in bench.segment.notes


# -- leases ------------------------------------------------------------------------------------------------------------


async def test_under_a_lease_a_failed_write_is_left_where_it_is() -> None:
    bench = Bench(lease=HandLease())
    bench.disk.faults = [Fault("write")]
    await bench.append()
    truncates = bench.disk.statistics.calls.get("truncate", 0)
    await bench.workers.run_all()
    assert bench.outcomes() == [StorageError.__name__]
    await bench.append()
    await bench.workers.run_all()
    assert bench.outcomes()[1:] == ["ok"]
    assert bench.disk.statistics.calls.get("truncate", 0) == truncates
    assert ("created", 0) in bench.segment.notes


@pytest.mark.parametrize("operation", [None, "write", "sync"])
async def test_nothing_is_confirmed_or_begun_once_the_lease_is_over(operation: str | None) -> None:
    lease = HandLease()
    bench = Bench(lease=lease)
    await bench.append(LARGE)
    await bench.append(LARGE)
    await bench.append()
    bench.disk.faults = [Fault(operation)] if operation else []
    lease.held = False
    await bench.run()
    await bench.run()
    assert bench.outcomes() == [NotOwnerError.__name__] * 3
    assert not bench.jobs
    assert bench.durable() == []
    with pytest.raises(NotOwnerError):
        await bench.commit.drain()
    with pytest.raises(NotOwnerError):
        await bench.commit.replace()


# -- the end -----------------------------------------------------------------------------------------------------------


async def test_drain_waits_for_the_last_append_and_its_sync() -> None:
    bench = Bench()
    await bench.append()
    drained = asyncio.ensure_future(bench.commit.drain())
    await settle()
    assert not drained.done()
    await bench.run()
    await drained
    assert bench.outcomes() == ["ok"]
    await bench.commit.drain()


async def test_finish_closes_the_file_and_a_failed_one_is_made_good_by_a_new_file() -> None:
    bench = Bench()
    await bench.append()
    bench.disk.faults = [Fault("sync", after=1)]
    first = asyncio.ensure_future(bench.commit.finish(State.SEALED))
    await bench.workers.run_all()
    with pytest.raises(StorageError):
        await first
    assert bench.commit.file is None
    again = asyncio.ensure_future(bench.commit.finish(State.SEALED))
    await bench.workers.run_all()
    await again
    assert bench.commit.file is not None
    assert bench.commit.file.sealed
    assert bench.commit.file.first_offset == 1


async def test_after_stop_running_jobs_end_and_all_else_fails() -> None:
    """None of them waits for ever: also not the group that was written ahead, which no sync will cover."""
    bench = Bench()
    await bench.append(LARGE)
    await bench.append(LARGE)
    await bench.append(LARGE)
    drained = asyncio.ensure_future(bench.commit.drain())
    await settle()
    bench.commit.stop()
    await settle()
    assert bench.outcomes() == ["", "", UnknownOutcomeError.__name__]
    assert isinstance(drained.exception(), AlreadyClosedError)
    await bench.run()
    await bench.run()
    assert bench.outcomes() == ["ok", UnknownOutcomeError.__name__, UnknownOutcomeError.__name__]
    assert not bench.jobs
    for ended in (bench.commit.drain, bench.commit.replace):
        with pytest.raises(AlreadyClosedError):
            await ended()


@pytest.mark.parametrize("faults", [[], [Fault("create")], [Fault("sync")]])
async def test_a_file_whose_creation_ends_after_stop_begins_nothing(faults: list[Fault]) -> None:
    bench = Bench(file_size_max=8 * KIB)
    await bench.append(5 * KIB)
    await bench.run()
    await bench.append(5 * KIB)
    assert bench.jobs == 1
    bench.commit.stop()
    bench.disk.faults = faults
    await bench.run()
    assert bench.outcomes() == ["ok", UnknownOutcomeError.__name__]
    await bench.workers.run_all()
    assert bench.durable() == [1]


@pytest.mark.parametrize("operation", ["write", "sync", "truncate"])
async def test_a_failure_after_stop_is_told_and_not_repaired(operation: str) -> None:
    """The files may be another segment object's by now; what the failure left is recovery's."""
    bench = Bench()
    await bench.append()
    if operation == "truncate":
        bench.disk.faults = [Fault("write"), Fault("truncate")]
        await bench.run()
    else:
        bench.disk.faults = [Fault(operation)]
    bench.commit.stop()
    await bench.run()
    assert bench.outcomes() == [UnknownOutcomeError.__name__]
    assert not bench.jobs
    assert bench.segment.notes in ([], [("rolled back", 0)])


async def test_random_appends_and_faults_leave_no_append_waiting_and_offsets_that_rise() -> None:
    """Jobs end in any order; each append is confirmed or fails, and what is confirmed rises without holes but gaps."""
    for seed in range(40):
        rng = random.Random(seed)
        bench = Bench(rng.choice(["fsync", "os"]), file_size_max=1024 * KIB)
        for _ in range(30):
            for _ in range(rng.randrange(3)):
                await bench.append(rng.choice([100, 20 * KIB, LARGE]))
            if rng.random() < 0.15:
                bench.disk.faults = [Fault(rng.choice(["write", "sync", "truncate", "create"]))]
            while bench.jobs and rng.random() < 0.7:
                await bench.run(rng.randrange(bench.jobs))
        bench.disk.faults = []
        drained = asyncio.ensure_future(bench.commit.drain())
        await bench.workers.run_all()
        await drained
        assert "" not in bench.outcomes(), f"seed {seed}"
        durable = bench.durable()
        assert durable == sorted(durable), f"seed {seed}"
        assert bench.outcomes().count("ok") == sum(
            after - first for kind, first, after in (n for n in bench.segment.notes if n[0] == "durable")
        )
        assert all(isinstance(f.exception(), EngineError | None) for f in bench.futures)
