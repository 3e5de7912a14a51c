"""Group commit with a backing (durability "object"): what goes there, in which order, and what its failure means."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Sequence
from typing import Any

import pytest

from engine.errors import AlreadyClosedError, NotOwnerError, UnsupportedError
from engine.storage.commit.committer import Committer
from engine.storage.commit.failures import LogEndedError
from engine.storage.commit.groups import GROUP_MAX
from engine.storage.commit.ports import Ended
from engine.storage.file.format import FOOTER_MAGIC, State
from engine.testing.disk import Fault
from tests.kit.stores import make_store, name
from tests.storage.commit_parts import HandLease, created, make_context, plan, settle
from tests.storage.test_committer import LARGE, Bench

ALONE = GROUP_MAX // 2 + 1  # two of this size do not share a group


class HandBacking:
    """Keeps groups until the test answers: the oldest first."""

    def __init__(self) -> None:
        self.groups: list[tuple[int, int, bytes]] = []
        self.waiting: list[Ended] = []

    def append(self, first_offset: int, next_offset: int, buffers: Sequence[Any], done: Ended) -> None:
        self.groups.append((first_offset, next_offset, b"".join(map(bytes, buffers))))
        self.waiting.append(done)

    async def answer(self, error: BaseException | None = None) -> None:
        self.waiting.pop(0)(error)
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
        self.commit = Committer(self.segment, context, "object", found, HandLease(), continues=False,
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


async def test_one_group_is_under_way_and_takes_what_arrives_meanwhile() -> None:
    bench = BackedBench()
    await bench.begin()
    await bench.append(LARGE)
    await bench.append(LARGE)
    await bench.run()
    assert bench.jobs == 0, "nothing is written ahead"
    await bench.append()
    await bench.backing.answer()
    await bench.run()
    assert bench.backing.offsets == [(0, 0), (0, 1), (1, 4)]
    await bench.backing.answer()
    assert bench.outcomes() == ["ok"] * 4


async def test_all_that_waits_goes_to_the_backing_at_once() -> None:
    bench = BackedBench()
    await bench.begin()
    for _ in range(3):
        await bench.append(ALONE)
    await bench.run()
    await bench.backing.answer()
    await bench.run()
    assert bench.backing.offsets == [(0, 0), (0, 1), (1, 2), (2, 3), (3, 4)]
    await bench.backing.answer()
    await bench.backing.answer()
    assert bench.durable() == [1], "they are durable together"
    await bench.backing.answer()
    assert bench.durable() == [1, 2, 3, 4]
    assert bench.outcomes() == ["ok"] * 4
    kept = bench.disk.read("/data/0.log")
    assert kept == b"".join(group[2] for group in bench.backing.groups)


async def test_one_that_the_backing_refused_is_the_end_of_all_that_went_with_it() -> None:
    bench = BackedBench()
    await bench.begin()
    await bench.append(ALONE)
    await bench.append(ALONE)
    await bench.run()
    await bench.backing.answer()
    await bench.run()
    await bench.backing.answer()
    await bench.backing.answer(LogEndedError("fenced at 4"))
    assert bench.outcomes() == ["ok", "NotOwnerError", "NotOwnerError"]
    assert bench.durable() == [1]


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
