"""Group commit with a backing (durability "object"): what goes there, in which order, and what its failure means."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Sequence
from typing import Any

import pytest

from engine._native.serve.commits import SMALL_HANDED_MAX
from engine.errors import AlreadyClosedError, DiskFullError, NotOwnerError, UnsupportedError
from engine.limits import ENTRY_SIZE_MAX
from engine.storage.commit.committer import Committer
from engine.storage.commit.failures import LogEndedError
from engine.storage.commit.groups import GROUP_MAX
from engine.storage.commit.ports import Ended
from engine.storage.file.format import FOOTER_MAGIC, State
from engine.testing.disk import Fault
from tests.kit.stores import make_store, name
from tests.storage.commit_parts import HandLease, created, make_context, plan, settle
from tests.storage.test_committer import Bench

ALONE = GROUP_MAX // 2 + 1  # two of this size do not share a group


class HandBacking:
    """Keeps groups until the test answers: the oldest first, or another."""

    def __init__(self) -> None:
        self.gather_s = 3600.0  # what waits for others does so until the test says otherwise
        self.groups: list[tuple[int, int, bytes]] = []
        self.waiting: list[Ended] = []

    def append(self, first_offset: int, next_offset: int, buffers: Sequence[Any], done: Ended) -> None:
        self.groups.append((first_offset, next_offset, b"".join(map(bytes, buffers))))
        self.waiting.append(done)

    async def answer(self, error: BaseException | None = None, index: int = 0) -> None:
        self.waiting.pop(index)(error)
        await settle()

    @property
    def offsets(self) -> list[tuple[int, int]]:
        return [group[:2] for group in self.groups]


class BackedBench(Bench):
    """A committer of mode "object", behind a recovered file of another owner."""

    def __init__(self, **config: Any) -> None:
        super().__init__("object", HandLease(), **config)
        self.backing = HandBacking()
        mount = self.disk.mount()
        context = make_context(mount, self.workers, **config)
        found = created(mount, plan(0, durability="object"))
        self.lease = HandLease()
        self.commit = Committer(self.segment, context, "object", found, self.lease, continues=False,
                                backing=self.backing)  # type: ignore[arg-type]  # fmt: skip

    async def begin(self) -> None:
        """The first append, and the header of its file."""
        await self.append()
        await self.run()
        assert self.backing.offsets == [(0, 0)], "the header goes first, as a group"
        await self.backing.answer()


async def test_a_group_is_durable_when_it_is_written_and_in_the_backing() -> None:
    bench = BackedBench()
    await bench.begin()
    await bench.run()
    assert bench.backing.offsets == [(0, 0), (0, 1)]
    assert bench.durable() == []
    await bench.backing.answer()
    assert bench.durable() == [1]
    assert bench.outcomes() == ["ok"]
    assert bench.commit.counters.syncs == 0
    assert bench.jobs == 0, "no sync, and no witness"
    header = bench.disk.read("/data/0.log")
    assert header.startswith(bench.backing.groups[0][2])
    assert header[len(bench.backing.groups[0][2]) :] == bench.backing.groups[1][2], "without zeros ahead"


async def test_a_small_group_takes_what_arrives_while_the_one_before_is_on_its_way() -> None:
    bench = BackedBench()
    await bench.begin()
    await bench.run()
    await bench.append()
    await bench.append()
    assert bench.jobs == 0, "they wait for others"
    await bench.backing.answer()
    assert bench.durable() == [1]
    await bench.run()
    assert bench.backing.offsets == [(0, 0), (0, 1), (1, 3)]
    await bench.backing.answer()
    assert bench.outcomes() == ["ok"] * 3


async def test_a_small_group_waits_for_others_no_longer_than_the_backing_says() -> None:
    bench = BackedBench()
    await bench.begin()
    await bench.run()
    bench.backing.gather_s = 0.0
    await bench.append()
    await bench.workers.posted.wait()
    await bench.run()
    assert bench.backing.offsets == [(0, 0), (0, 1), (1, 2)], "both are on their way"
    await bench.backing.answer(index=1)
    assert bench.durable() == [], "the one before it is not stored"
    await bench.backing.answer()
    assert bench.durable() == [1, 2]
    assert bench.outcomes() == ["ok", "ok"]


async def test_the_wait_for_others_is_over_when_something_waits_for_the_end() -> None:
    bench = BackedBench()
    await bench.begin()
    await bench.run()
    await bench.append()
    draining = asyncio.ensure_future(bench.commit.drain())
    await settle()
    await bench.run()
    assert bench.backing.offsets == [(0, 0), (0, 1), (1, 2)]
    await bench.backing.answer()
    assert not draining.done()
    await bench.backing.answer()
    await draining


async def test_large_groups_follow_each_other_and_are_durable_in_order() -> None:
    bench = BackedBench()
    await bench.begin()
    for _ in range(3):
        await bench.append(ALONE)
    for _ in range(4):
        assert bench.jobs == 1, "one is written at a time"
        await bench.run()
    assert bench.backing.offsets == [(0, 0), (0, 1), (1, 2), (2, 3), (3, 4)]
    await bench.backing.answer(index=1)
    await bench.backing.answer(index=2)
    assert bench.durable() == []
    await bench.backing.answer()
    assert bench.durable() == [1, 2], "with the one behind it, which is stored"
    assert bench.outcomes() == ["ok", "ok", "", ""]
    await bench.backing.answer()
    assert bench.durable() == [1, 2, 3, 4]
    assert bench.outcomes() == ["ok"] * 4
    kept = bench.disk.read("/data/0.log")
    assert kept == b"".join(group[2] for group in bench.backing.groups)


async def test_what_is_with_the_backing_is_bounded() -> None:
    bench = BackedBench(commit_bytes_max=ENTRY_SIZE_MAX)
    await bench.begin()
    count = ENTRY_SIZE_MAX // ALONE
    for _ in range(count + 1):
        await bench.append(ALONE)
    for _ in range(count + 1):
        await bench.run()
    assert bench.jobs == 0, "another one would be more than the bound"
    await bench.backing.answer()
    await bench.backing.answer()
    assert bench.jobs == 1


async def test_one_that_the_backing_refused_is_the_end_of_all_behind_it() -> None:
    bench = BackedBench()
    await bench.begin()
    for _ in range(3):
        await bench.append(ALONE)
    for _ in range(4):
        await bench.run()
    await bench.backing.answer()
    await bench.backing.answer(LogEndedError("fenced at 4"))
    assert bench.outcomes() == ["ok", "NotOwnerError", "NotOwnerError", "NotOwnerError"]
    assert bench.durable() == [1]
    await bench.backing.answer()
    await bench.backing.answer()
    assert bench.durable() == [1], "what is stored behind it is not confirmed"


async def test_a_write_that_fails_here_is_undone_when_the_backing_has_what_was_before_it() -> None:
    bench = BackedBench()
    await bench.begin()
    await bench.append(ALONE)
    await bench.run()
    await bench.append()  # small: it waits behind the one that cannot be written
    bench.disk.faults = [Fault("write", errno.ENOSPC, path=".log")]
    await bench.run()
    assert bench.outcomes() == ["", "", ""]
    await bench.backing.answer()
    assert bench.outcomes() == ["ok", "DiskFullError", "DiskFullError"]
    assert bench.durable() == [1]
    await bench.append()
    await bench.run()
    assert bench.backing.offsets == [(0, 0), (0, 1), (1, 1)], "a new file at the offset of what failed"


async def test_a_resend_of_what_could_not_be_written_here_fails_with_it() -> None:
    """While the backing has what was before it, it is in none of the groups that are on their way."""
    bench = BackedBench()
    await bench.begin()
    await bench.append(ALONE)
    await bench.run()
    bench.disk.faults = [Fault("write", errno.ENOSPC, path=".log")]
    await bench.run()
    newest = bench.commit.newest
    assert newest is not None
    resent: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    newest.waiters.append((resent, []))
    await bench.backing.answer()
    assert isinstance(resent.exception(), DiskFullError)


async def test_few_small_groups_are_on_their_way_at_once() -> None:
    bench = BackedBench()
    await bench.begin()
    await bench.run()
    for _ in range(SMALL_HANDED_MAX + 3):
        await bench.append()
        bench.commit._gathered()
        await settle()
        if bench.jobs:
            await bench.run()
    assert len(bench.backing.waiting) == SMALL_HANDED_MAX
    while bench.backing.waiting or bench.jobs:
        if bench.jobs:
            await bench.run()
        else:
            await bench.backing.answer()
    assert bench.outcomes() == ["ok"] * (SMALL_HANDED_MAX + 4)


async def test_nothing_follows_what_the_backing_has_refused() -> None:
    bench = BackedBench()
    await bench.begin()
    for _ in range(2):
        await bench.append(ALONE)
    for _ in range(3):
        await bench.run()
    await bench.backing.answer(LogEndedError("fenced at 4"), index=1)
    await bench.append(ALONE)
    assert bench.jobs == 0
    await bench.backing.answer()
    assert bench.outcomes() == ["ok", "NotOwnerError", "NotOwnerError", "NotOwnerError"]


async def test_a_backing_that_ends_after_a_write_failed_here_fails_all() -> None:
    bench = BackedBench()
    await bench.begin()
    await bench.append(ALONE)
    await bench.run()
    bench.disk.faults = [Fault("write", errno.ENOSPC, path=".log")]
    await bench.run()
    await bench.backing.answer(LogEndedError("fenced at 4"))
    assert bench.outcomes() == ["NotOwnerError", "NotOwnerError"]
    assert bench.durable() == []


async def test_the_next_file_is_begun_when_the_backing_has_all_of_the_one_before() -> None:
    bench = BackedBench(file_size_max=ALONE)
    await bench.begin()
    await bench.append(ALONE)
    await bench.run()
    assert bench.jobs == 0
    await bench.backing.answer()
    await bench.run()
    assert bench.backing.offsets == [(0, 0), (0, 1), (1, 1)]


async def test_a_segment_that_is_closed_confirms_what_the_backing_has() -> None:
    bench = BackedBench()
    await bench.begin()
    await bench.run()
    bench.commit.stop()
    await bench.backing.answer()
    assert bench.outcomes() == ["ok"]


async def test_a_lease_that_is_over_confirms_nothing_that_is_on_its_way() -> None:
    bench = BackedBench()
    await bench.begin()
    await bench.run()
    bench.lease.held = False
    await bench.backing.answer()
    assert bench.outcomes() == ["NotOwnerError"]
    assert bench.durable() == []


async def test_what_could_not_be_written_here_is_not_in_the_backing() -> None:
    bench = BackedBench()
    await bench.begin()
    bench.disk.faults = [Fault("write", errno.ENOSPC, path=".log")]
    await bench.run()
    assert bench.outcomes() == ["DiskFullError"]
    await bench.append()
    await bench.run()  # a new file at the same offset, whose header takes the place of the other one
    assert bench.backing.offsets == [(0, 0), (0, 0)]


@pytest.mark.parametrize("at", ["header", "group"])
async def test_a_backing_that_has_ended_stops_the_segment_and_nothing_is_undone(at: str) -> None:
    bench = BackedBench()
    if at == "header":
        await bench.append()
        await bench.run()
    else:
        await bench.begin()
        await bench.run()
        await bench.append()
    before = bench.disk.read("/data/0.log")
    await bench.backing.answer(LogEndedError("fenced at 4"))
    assert set(bench.outcomes()) == {"NotOwnerError"}
    assert bench.jobs == 0
    assert not bench.durable()
    assert bench.disk.read("/data/0.log") == before
    with pytest.raises(AlreadyClosedError):
        await bench.commit.drain()


async def test_a_seal_is_confirmed_when_the_backing_has_the_footer() -> None:
    bench = BackedBench()
    await bench.begin()
    await bench.run()
    await bench.backing.answer()
    sealing = asyncio.ensure_future(bench.commit.finish(State.SEALED))
    await settle()
    await bench.run()
    assert not sealing.done()
    first, following, footer = bench.backing.groups[-1]
    assert (first, following, footer[:4]) == (1, 1, FOOTER_MAGIC.to_bytes(4, "little"))
    assert bench.disk.read("/data/0.log").endswith(footer)
    await bench.backing.answer()
    await sealing


async def test_a_seal_whose_outcome_is_unknown_stops_the_segment() -> None:
    bench = BackedBench()
    await bench.begin()
    await bench.run()
    await bench.backing.answer()
    sealing = asyncio.ensure_future(bench.commit.finish(State.SEALED))
    await settle()
    await bench.run()
    await bench.backing.answer(LogEndedError("fenced at 4"))
    with pytest.raises(NotOwnerError, match="fenced at 4"):
        await sealing


async def test_durability_object_needs_a_backing(tmp_path: Any) -> None:
    store = make_store(tmp_path)
    with pytest.raises(UnsupportedError, match="'object' needs an object store"):
        await store.create(name(), durability="object")
