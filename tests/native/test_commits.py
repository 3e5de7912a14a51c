"""Group commit: its jobs, and what is durable behind each, as by the plain model; marks of the newest commits."""

from __future__ import annotations

import random
from typing import Any

import pytest

from engine._native.serve.commits import AHEAD_MIN, PAD_GROUP_MAX, SMALL_HANDED_MAX
from engine._native.serve.meters import Marks
from engine.limits import ENTRY_SIZE_MAX, KIB, MIB
from engine.storage.commit.groups import GROUP_MAX
from engine.storage.commit.witness import WitnessWriter
from tests.reference.commits_reference import Job, PlainCommits, Rules
from tests.storage.commit_parts import HandWorkers, settle
from tests.storage.test_backing import BackedBench
from tests.storage.test_committer import Bench

BYTES_MAX = ENTRY_SIZE_MAX
SIZES = (100, 100, 100, PAD_GROUP_MAX + KIB, AHEAD_MIN + KIB, 3 * MIB)


def rules(mode: str) -> Rules:
    return Rules(mode, GROUP_MAX, AHEAD_MIN, PAD_GROUP_MAX, SMALL_HANDED_MAX, BYTES_MAX)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """The writes that are started."""
    found: list[Job] = []
    post = HandWorkers.post

    def noted(self: HandWorkers, work: Any, done: Any) -> None:
        if hasattr(work, "_buffers"):
            size = sum(map(len, work._buffers))
            found.append((work._position, size, bool(work._zeros), work._syncs))
        post(self, work, done)

    monkeypatch.setattr(HandWorkers, "post", noted)
    monkeypatch.setattr(WitnessWriter, "synced", lambda witness: None)  # it goes by the clock
    return found


@pytest.mark.parametrize("mode", ["fsync", "interval", "os"])
@pytest.mark.parametrize("seed", range(12))
async def test_jobs_and_what_is_durable_are_those_of_the_model(mode: str, seed: int, started: list[Job]) -> None:
    rng = random.Random(f"{mode} {seed}")
    bench = Bench(mode, commit_bytes_max=BYTES_MAX, interval_ms=60_000)
    groups, file = bench.commit.groups, bench.commit.file
    assert file is not None
    model = PlainCommits(
        Rules(mode, GROUP_MAX, AHEAD_MIN, PAD_GROUP_MAX, SMALL_HANDED_MAX, BYTES_MAX), groups.position, file.allocated
    )
    running: list[str] = []  # in the order of bench.workers.jobs
    for _ in range(60):
        known = len(model.jobs)
        if running and rng.random() < 0.5:
            at = rng.randrange(len(running))
            kind = running.pop(at)
            await bench.run(at)
            (model.primary_ends if kind == "primary" else model.ahead_ends)(file.allocated)
        elif rng.random() < 0.1:
            bench.commit.sync_wanted = True
            bench.commit.pump()
            await settle()
            model.sync_soon()
        else:
            for _ in range(rng.randrange(1, 4)):
                before = groups.position
                await bench.append_later(rng.choice(SIZES))
                model.append(groups.position - before)
            await settle()
            model.turn()
        running += model.kinds[known:]
        assert started == model.jobs
        assert bench.commit.durable_offset == model.durable
        assert [f.done() for f in bench.futures] == [offset < model.durable for offset in range(len(bench.futures))]
    await bench.workers.run_all()


@pytest.mark.parametrize("seed", range(12))
async def test_what_goes_to_a_backing_is_that_of_the_model(seed: int, started: list[Job]) -> None:
    rng = random.Random(f"object {seed}")
    bench = BackedBench(commit_bytes_max=BYTES_MAX)
    await bench.begin()
    groups, file = bench.commit.groups, bench.commit.file
    assert file is not None
    head = file.opening.data_position
    model = PlainCommits(
        Rules("object", GROUP_MAX, AHEAD_MIN, PAD_GROUP_MAX, SMALL_HANDED_MAX, BYTES_MAX), head, file.allocated
    )
    model.append(groups.position - head)
    model.turn()
    for _ in range(80):
        if bench.jobs and rng.random() < 0.4:
            await bench.run()
            model.primary_ends(file.allocated)
        elif bench.backing.waiting and rng.random() < 0.4:
            index = rng.randrange(len(bench.backing.waiting))
            await bench.backing.answer(index=index)
            model.stores(index)
        elif rng.random() < 0.2:
            bench.commit._gathered()
            await settle()
            model.gathered()
        else:
            for _ in range(rng.randrange(1, 4)):
                before = groups.position
                await bench.append_later(rng.choice(SIZES))
                model.append(groups.position - before)
            await settle()
            model.turn()
        assert started == model.jobs
        assert bench.backing.offsets[1:] == [(first, after) for first, after, _ in model.went]
        assert bench.commit.durable_offset == model.durable
        assert [f.done() for f in bench.futures] == [offset < model.durable for offset in range(len(bench.futures))]
    await bench.workers.run_all()


def test_marks_remember_the_newest_commits() -> None:
    rng, marks, added = random.Random(5), Marks(), list[tuple[int, float]]()
    offset = 0
    for _ in range(100):
        newest = added[-16:]
        for asked in (0, offset // 2, max(offset - 1, 0), offset):
            expected = next((at for first, at in reversed(newest) if first <= asked), None)
            assert marks.since(asked) == expected
        added.append((offset, rng.random()))
        marks.add(*added[-1])
        offset += rng.randrange(1, 9)
