"""The active file on a disk that fails: what each step leaves behind, and the outcome that it reports."""

from __future__ import annotations

import asyncio
import errno
import random
from typing import Any

import pytest

from engine._native.serve.groups import Group
from engine.errors import CorruptionError, NotOwnerError, StorageError
from engine.storage.commit.active_file import ActiveFile
from engine.storage.commit.failures import job_error
from engine.storage.file.format import Closing, State
from engine.storage.file.logfile import LogFile, SyncFailed
from engine.testing.disk import Fault, SimDisk
from tests.kit.entry_images import values_of
from tests.storage.commit_parts import DIRECTORY, HandLease, HandWorkers, created, image, make_context, plan, settle


class Bench:
    """An active file of its own, and the outcomes of its jobs in order."""

    def __init__(self, lease: Any = None) -> None:
        self.disk = SimDisk(random.Random(1))
        self.workers = HandWorkers()
        mount = self.disk.mount()
        self.context = make_context(mount, self.workers)
        self.file = created(mount, plan(0))
        self.active = ActiveFile(self.context, self.file, lease, 0, self.file.end_position)
        self.outcomes: list[BaseException | None] = []
        self.sequence = 0

    def group(self, values: int = 1) -> Group:
        """Behind the durable end."""
        group = Group(self.file, self.file.end_position, self.file.end_offset)
        for _ in range(values):
            data, _ = image(self.sequence)
            assert self.file.index is not None
            self.file.index.add(group.next_offset, group.end_position, 0)
            group.add(data, 0, 0, 0)
            self.sequence += 1
        return group

    def write(self, group: Group | None, *, pads: bool = False, syncs: bool = True) -> BaseException | None:
        """The outcome of a write; a good one moves the file's end, as the committer would."""
        self.active.write([] if group is None else [group], pads=pads, syncs=syncs, done=self.outcomes.append)
        self.workers.run()
        if self.outcomes[-1] is None and group is not None:
            self.file.end_offset, self.file.end_position = group.next_offset, group.end_position
            self.active.synced_offset, self.active.synced_position = group.next_offset, group.end_position
        return self.outcomes[-1]

    def create(self, new: LogFile, abandoned: LogFile | None = None) -> BaseException | None:
        self.active.create(new, abandoned, self.outcomes.append)
        self.workers.run()
        return self.outcomes[-1]

    def bytes(self, name: str = "0.log") -> bytes:
        return self.disk.read(f"{DIRECTORY}/{name}")


async def test_what_was_written_and_synced_survives_a_power_cut() -> None:
    bench = Bench()
    group = bench.group(3)
    assert bench.write(group) is None
    bench.disk.crash()
    assert len(values_of(bench.bytes()[group.position : group.end_position])) == 3


async def test_zeros_ahead_count_as_the_length_of_the_file_once_they_are_written() -> None:
    bench = Bench()
    group = bench.group()
    assert bench.write(group, pads=True) is None
    assert bench.file.allocated == len(bench.bytes()) > group.end_position
    bench.disk.faults = [Fault("write", errno.ENOSPC, after=1)]
    group = bench.group()
    group.position = bench.file.allocated
    assert bench.write(group, pads=True) is None, "the zeros are only to be faster"
    assert bench.file.allocated == group.end_position


@pytest.mark.parametrize(("operation", "kind"), [("write", OSError), ("sync", SyncFailed)])
async def test_a_failed_write_and_a_failed_sync_are_told_apart(operation: str, kind: type[BaseException]) -> None:
    bench = Bench()
    bench.disk.faults = [Fault(operation)]
    assert type(bench.write(bench.group())) is kind


async def test_a_cut_removes_what_a_failed_write_left_for_good() -> None:
    bench = Bench()
    bench.write(bench.group())
    before = bench.bytes()
    bench.disk.faults = [Fault("write", errno.ENOSPC)]
    group = bench.group(50)
    assert isinstance(bench.write(group), OSError)
    bench.active.cut(group.position, bench.outcomes.append)
    bench.workers.run()
    bench.disk.crash()
    assert bench.outcomes[-1] is None
    assert bench.bytes() == before


async def test_a_file_that_could_not_be_opened_again_needs_no_cut() -> None:
    """The write failed before the group: the orderly close still stands, and a cut would take the footer away."""
    bench = Bench()
    bench.file.closing = Closing(State.CLEAN, 0, bench.file.end_position, 0, 0)
    before = bench.bytes()
    bench.active.cut(bench.file.end_position, bench.outcomes.append)
    await settle()
    assert bench.outcomes == [None]
    assert not bench.workers.jobs
    assert bench.bytes() == before


async def test_a_file_that_cannot_be_opened_is_an_outcome_and_no_exception() -> None:
    bench = Bench()
    bench.disk.mount().unlink(bench.file.path)
    bench.active.write([bench.group()], pads=False, syncs=True, done=bench.outcomes.append)
    assert bench.outcomes == [], "never before the call has returned"
    await settle()
    assert isinstance(bench.outcomes[0], FileNotFoundError)


async def test_an_abandoned_file_ends_at_its_last_synced_byte_and_a_new_one_follows() -> None:
    bench = Bench()
    bench.write(bench.group(2))
    end = (bench.file.end_offset, bench.file.end_position)
    bench.disk.faults = [Fault("sync")]
    assert isinstance(bench.write(bench.group()), SyncFailed)
    old = bench.active.abandon(2)
    assert old is bench.file
    assert bench.active.file is None
    assert (old.end_offset, old.end_position) == end
    syncs = bench.disk.statistics.calls["sync"]
    new = plan(2)
    assert bench.create(new, old) is None
    assert bench.active.file is new
    assert (bench.active.synced_offset, bench.active.synced_position) == (2, new.opening.data_position)
    assert bench.disk.statistics.calls["sync"] == syncs + 1, "of the new file alone: a failed sync is never retried"


async def test_damage_below_the_last_sync_is_found_before_a_new_file_follows() -> None:
    bench = Bench()
    group = bench.group()
    bench.write(group)
    bench.disk.corrupt(bench.file.path, group.position + 130)
    old = bench.active.abandon(1)
    assert isinstance(bench.create(plan(1), old), CorruptionError)
    assert bench.active.file is None
    assert bench.disk.paths() == [f"{DIRECTORY}/0.log"]


@pytest.mark.parametrize(
    ("operation", "kind"),
    [("create", OSError), ("write", OSError), ("sync", SyncFailed), ("sync_directory", SyncFailed)],
)
async def test_a_file_that_could_not_be_created_is_not_the_active_one(operation: str, kind: type) -> None:
    bench = Bench()
    bench.disk.faults = [Fault(operation)]
    assert type(bench.create(plan(0, salt=8))) is kind
    assert bench.active.file is bench.file


async def test_no_file_is_created_when_the_lease_ended_while_the_job_waited() -> None:
    lease = HandLease()
    bench = Bench(lease)
    bench.active.create(plan(5), None, bench.outcomes.append)
    lease.held = False
    bench.workers.run()
    assert isinstance(bench.outcomes[0], NotOwnerError)
    assert bench.disk.paths() == [f"{DIRECTORY}/0.log"]


async def test_a_spoilt_file_gets_no_footer() -> None:
    bench = Bench(HandLease())
    assert bench.active.is_fit
    bench.active.spoil()
    assert not bench.active.is_fit
    bench.active.close_rolled(bench.file, b"")
    assert not bench.workers.jobs


async def test_a_rolled_file_gets_its_footer_in_the_background_and_lives_without_it(caplog) -> None:
    bench = Bench()
    bench.write(bench.group(2))
    bench.disk.faults = [Fault("sync")]
    bench.active.close_rolled(bench.file, b"")
    bench.workers.run()
    assert bench.file.closing is None
    assert "footer could not be written" in caplog.text
    bench.active.close_rolled(bench.file, b"")
    bench.workers.run()
    assert bench.file.closing is not None
    assert bench.file.closing.state is State.ROLLED


async def test_a_close_that_failed_leaves_the_file() -> None:
    """Its closing block may be on the disk, and only a new file can undo that."""
    bench = Bench()
    bench.write(bench.group())
    bench.disk.faults = [Fault("sync", after=1)]
    closing = asyncio.ensure_future(bench.active.close(State.CLEAN, b""))
    await settle()
    bench.workers.run()
    with pytest.raises(StorageError, match=r"0\.log"):
        await closing
    assert bench.active.file is None


CORRUPTION, NOT_OWNER = CorruptionError("bits"), NotOwnerError("late")


@pytest.mark.parametrize(
    ("raised", "kind", "text"),
    [
        (CORRUPTION, CorruptionError, "bits"),
        (NOT_OWNER, NotOwnerError, "late"),
        (OSError(errno.EIO, "Input/output error"), StorageError, "p: Input/output error"),
        (SyncFailed(OSError(errno.EIO, "Input/output error")), StorageError, "p: Input/output error"),
        (SyncFailed(OSError(errno.ENOSPC, "")), StorageError, "p: no space left"),
        (ValueError("odd"), StorageError, "p: odd"),
    ],
)
def test_the_error_that_callers_see(raised: BaseException, kind: type, text: str) -> None:
    found = job_error(raised, "p")
    assert isinstance(found, kind)
    assert str(found).startswith(text)
