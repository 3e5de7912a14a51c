"""The end of a segment: G3, D4; sealing beside appends, closing, inheriting and failures."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.aio.turns import Turns
from engine.aio.workers import ThreadWorkers
from engine.errors import EngineError, FencedError, InvalidArgumentError, SegmentSealedError, StorageError
from engine.model.names import SegmentName
from engine.storage.store import SegmentStore
from engine.testing.disk import Fault, SimDisk
from tests.kit.entry_images import KEYED, entry
from tests.kit.stores import make_store, name, read_blocks


class HeldWorkers:
    """Does nothing until it is told to, then one job after the other, each in a turn of its own."""

    def __init__(self) -> None:
        self.held = False
        self._jobs: list[tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]] = []

    def post(self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        self._jobs.append((work, done))
        self._run_soon()

    def release(self) -> None:
        self.held = False
        self._run_soon()

    def _run_soon(self) -> None:
        asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        if self.held or not self._jobs:
            return
        work, done = self._jobs.pop(0)
        result, error = None, None
        try:
            result = work()
        except BaseException as e:
            error = e
        done(result, error)
        self._run_soon()


async def turns(n: int) -> None:
    for _ in range(n):
        await asyncio.sleep(0)


@pytest.mark.parametrize("seed", range(12))
async def test_g3_an_append_is_committed_before_the_seal_or_refused(tmp_path: Path, seed: int) -> None:
    rng, workers = random.Random(seed), ThreadWorkers(2)
    segment = await make_store(tmp_path, workers=workers).create(name())
    appends = [segment.append(entry(i)) for i in range(rng.randrange(30))]
    await turns(rng.randrange(6))
    sealing = asyncio.ensure_future(segment.seal())
    for i in range(100, 120):
        appends.append(segment.append(entry(i)))
        await asyncio.sleep(0)
    end = await sealing
    outcomes = await asyncio.gather(*appends, return_exceptions=True)
    places = [p for o in outcomes if isinstance(o, list) for p in o]
    assert [p.first_offset for p in places] == list(range(end)), "what was acknowledged is what is there"
    assert all(isinstance(o, (list, SegmentSealedError)) for o in outcomes), "nothing is left open"
    assert segment.durable_offset == segment.next_offset == end
    segment.release()
    again = await make_store(tmp_path).open(name())
    assert (again.sealed, again.next_offset) == (True, end)
    with pytest.raises(SegmentSealedError):
        await again.append(entry(999))
    assert await again.seal() == end
    again.release()
    workers.close()


async def test_g3_nothing_gets_in_under_an_old_term(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    segment = await store.create(name(), term=3)
    await segment.append(entry(0), term=3)
    await store.open(name(), term=5)
    for late in (segment.append(entry(1), term=3), segment.seal(3)):
        with pytest.raises(FencedError, match=r"term must be at least \d+, got 3"):
            await late
    assert not segment.sealed
    assert await segment.seal(5) == 1
    segment.release()
    again = await make_store(tmp_path).open(name(), term=6)
    with pytest.raises(FencedError):
        await again.seal(5)
    again.release()


async def test_g4_an_entry_outside_the_range_of_the_segment_is_refused(tmp_path: Path) -> None:
    segment = await make_store(tmp_path).create(name(1, 0x8000, 0xFFFF))
    for low, high in ((0, 0), (0x7FFF, 0x8000), (0, 0xFFFF)):
        with pytest.raises(InvalidArgumentError, match="8000-ffff"):
            await segment.append(entry(0, segment_hash=(low, high), flags=KEYED))
    await segment.append(entry(0, segment_hash=(0x8000, 0xFFFF), flags=KEYED))
    await segment.append(entry(1, segment_hash=(0, 0)))  # without a key it belongs anywhere
    assert segment.next_offset == 2
    segment.release()


async def test_sealing_twice_at_once_is_sealing_once(tmp_path: Path) -> None:
    workers = HeldWorkers()
    segment = await make_store(tmp_path, workers=workers).create(name())
    appended = segment.append(entry(0))
    assert await asyncio.gather(*(segment.seal() for _ in range(5))) == [1] * 5
    assert (await appended)[0].first_offset == 0
    assert not segment.sealing
    segment.release()


async def test_g3_a_seal_that_fails_does_not_let_appends_in_beside_the_next(tmp_path: Path) -> None:
    disk = SimDisk(random.Random(1))
    segment = await make_store("/data", disk=disk.mount()).create(name())
    await segment.append(entry(0))
    disk.faults = [Fault("sync", errno.EIO)]
    first, second = asyncio.ensure_future(segment.seal()), asyncio.ensure_future(segment.seal())
    with pytest.raises(StorageError):
        await first
    assert segment.sealing or segment.sealed
    with pytest.raises(SegmentSealedError):
        await segment.append(entry(1))
    assert await second == 1
    disk.crash()
    again = await make_store("/data", disk=disk.mount()).open(name())
    assert (again.sealed, again.next_offset) == (True, 1)


@pytest.mark.parametrize("how", ["close", "cancel", "release the store's hold", "delete"])
async def test_g3_a_seal_under_way_is_finished_whatever_comes(tmp_path: Path, how: str) -> None:
    workers = HeldWorkers()
    store = make_store(tmp_path, workers=workers)
    segment = await store.create(name())
    await segment.append(entry(0))
    workers.held = True
    sealing = asyncio.ensure_future(segment.seal())
    await turns(3)
    ending: asyncio.Future[Any] | None = None
    if how == "close":
        ending = asyncio.ensure_future(segment.close())
    elif how == "cancel":
        sealing.cancel()
        await turns(3)
        assert segment.sealing, "the caller was cancelled, the seal goes on"
    elif how == "delete":
        ending = asyncio.ensure_future(store.delete(name()))
    else:
        ending = asyncio.ensure_future(store.release(name()))
    await turns(3)
    workers.release()
    with contextlib.suppress(asyncio.CancelledError):
        assert await sealing == 1
    if ending is not None:
        await ending
    while segment.sealing:  # noqa: ASYNC110 - nothing tells
        await asyncio.sleep(0)
    assert segment.sealed
    if how == "delete":
        assert not await store.exists(name())
    else:
        again = await make_store(tmp_path).open(name())
        assert (again.sealed, again.next_offset) == (True, 1)
        again.release()


@pytest.mark.parametrize("after", range(6))
async def test_d4_a_seal_that_was_seen_survives_a_power_cut_once_it_is_confirmed(after: int) -> None:
    """The process dies between the closing block and its sync; the next one sees a seal that the medium may lack."""
    for seed in range(8):
        disk = SimDisk(random.Random(seed))
        segment = await make_store("/data", disk=disk.mount()).create(name())
        await segment.append(entry(0))
        disk.faults = [Fault("sync", errno.EIO, after=after % 3)]
        with contextlib.suppress(EngineError):
            await segment.seal()
        disk.faults = []
        disk.kill()
        segment = await make_store("/data", disk=disk.mount()).open(name())
        if segment.sealed:
            assert await segment.seal() == 1
            disk.crash()
            again = await make_store("/data", disk=disk.mount()).open(name())
            assert (again.sealed, again.next_offset) == (True, 1)
        else:
            await segment.append(entry(1))
            disk.crash()
            again = await make_store("/data", disk=disk.mount()).open(name())
            assert len(await read_blocks(again, 0, 1)) == 2, "it goes on as if no seal had begun"


async def test_24_inheriting_at_once_and_while_closing_leaves_it_whole(tmp_path: Path) -> None:
    workers = HeldWorkers()
    store = make_store(tmp_path, workers=workers)
    parent = await store.create(name(0))
    await parent.append(entry(7))
    child = await store.create(name(1))
    snapshot = parent.dedup_snapshot()
    await asyncio.gather(*(child.inherit([snapshot]) for _ in range(3)), child.close())
    again = await make_store(tmp_path).open(name(1))
    assert again.last_sequence("p") == 7
    again.release()
    parent.release()


async def test_whoever_waits_at_the_end_is_woken_by_the_seal(tmp_path: Path) -> None:
    segment = await make_store(tmp_path).create(name())
    await segment.append(entry(0))
    waiting = [segment.when_durable(1), segment.when_durable(50)]
    assert not any(w.done() for w in waiting)
    await segment.seal()
    assert all(w.done() for w in waiting)
    assert segment.when_durable(1).done()
    segment.release()


async def test_the_store_tells_what_is_on_disk(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    odd = type(name().topic)("ten ant", "n%s", "ü*")
    names: list[SegmentName] = [name(0), name(3, 0, 0x7FFF), odd.segment(name().hash_range, 5)]
    assert await store.everything() == {}
    for each in names:
        assert not await store.exists(each)
        await store.create(each)
        assert await store.exists(each)
    (tmp_path / "segments" / "stray").write_text("not ours")
    found = await store.everything()
    assert sorted(n for some in found.values() for n in some) == sorted(names)
    await store.delete(name(0))
    assert not await store.exists(name(0))
    assert (await store.everything())[name().topic] == [name(3, 0, 0x7FFF)]
    assert await _reopened(tmp_path).exists(name(3, 0, 0x7FFF))


def _reopened(root: Path) -> SegmentStore:
    return make_store(root)


async def test_turns_are_taken_in_order_and_to_their_end() -> None:
    done: list[str] = []
    gate = asyncio.Event()
    turns_ = Turns()

    async def work(what: str, fail: bool = False) -> str:
        await gate.wait()
        done.append(what)
        if fail:
            raise StorageError(what)
        return what

    tasks = [asyncio.ensure_future(turns_.take(lambda w=w: work(w, w == "b"))) for w in "abcd"]
    await turns(3)
    tasks[0].cancel()
    tasks[2].cancel()
    await turns(3)
    gate.set()
    with pytest.raises(StorageError):
        await tasks[1]
    assert await tasks[3] == "d"
    assert done == ["a", "b", "c", "d"], "also those whose caller was cancelled"
