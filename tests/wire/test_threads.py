"""The in-memory stream between the loops of two threads."""

from __future__ import annotations

import asyncio
import gc
import random
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from engine.aio.portal import Portal
from engine.aio.uv import new_event_loop
from engine.errors import ConnectError
from engine.limits import CONNECTION_WRITE_HIGH, KIB
from engine.wire.commands import Header, ReachedEnd
from engine.wire.memory import MemoryStream, offer_pair
from engine.wire.stream import FrameStream

IN_TIME = 30.0
FRAMES = 3_000


class End:
    """Records the numbers that come, and answers each where it is told to."""

    def __init__(self, stream: FrameStream, answers: bool = False) -> None:
        self.stream = stream
        self.answers = answers
        self.numbers: list[int] = []
        self.sizes = 0
        self.writable = asyncio.Event()
        self.writable.set()
        self.paused = 0
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.changed = asyncio.Event()

    def frame_received(self, header: Header, payload: memoryview) -> None:
        assert isinstance(header, ReachedEnd)
        self.numbers.append(header.consumer_id)
        self.sizes += len(payload)
        self.changed.set()
        if self.answers:
            self.stream.send(number(header.consumer_id))

    def pause_writing(self) -> None:
        self.paused += 1
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.set_result(error)
        self.changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(IN_TIME):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    async def ended(self) -> Exception | None:
        return await asyncio.wait_for(asyncio.shield(self.lost), IN_TIME)


def number(n: int) -> ReachedEnd:
    return ReachedEnd(consumer_id=n, end=0)


class Far:
    """The end on the other thread."""

    def __init__(self, portal: Portal) -> None:
        self.portal = portal
        self.end: End | None = None

    async def run(self, work: Any) -> Any:
        return await asyncio.wait_for(asyncio.wrap_future(self.portal.submit(work)), IN_TIME)

    async def offer(self, answers: bool = False) -> MemoryStream:
        async def make() -> MemoryStream:
            def accept(stream: FrameStream) -> End:
                self.end = End(stream, answers)
                return self.end

            return offer_pair(accept, names=("near", "far"))

        offered: MemoryStream = await self.run(make())
        return offered

    async def ended(self) -> Exception | None:
        assert self.end is not None
        error: Exception | None = await self.run(self.end.ended())
        return error


@pytest.fixture
def far() -> Iterator[Far]:
    portal = Portal("the other thread")
    yield Far(portal)
    portal.close()


async def settled(stream: MemoryStream) -> End:
    made: list[End] = []
    await stream.settle_far(lambda stream: made.append(End(stream)) or made[-1])  # type: ignore[func-returns-value]
    return made[0]


@pytest.fixture
def restless() -> Iterator[None]:
    """Threads take turns in the middle of whatever they do."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("restless")
@pytest.mark.parametrize("seed", range(4))
async def test_every_frame_arrives_in_order_both_ways(far: Far, seed: int) -> None:
    """With pauses of reading at random, and writers that heed their pauses."""
    rng = random.Random(seed)
    near = await settled(await far.offer(answers=True))
    resumed: list[asyncio.TimerHandle] = []
    for n in range(FRAMES):
        await asyncio.wait_for(near.writable.wait(), IN_TIME)
        near.stream.send(number(n), bytes(rng.choice([0, 100, 64 * KIB])))
        if rng.random() < 0.01:
            near.stream.pause_reading()
            resumed.append(asyncio.get_running_loop().call_later(0.001, near.stream.resume_reading))
        if rng.random() < 0.1:
            await asyncio.sleep(0)
    await near.until(lambda: len(near.numbers) == FRAMES)
    assert near.numbers == list(range(FRAMES))
    assert far.end is not None
    assert far.end.numbers == near.numbers
    assert near.stream.unsent_bytes == 0
    near.stream.close()
    assert await near.ended() is None
    assert await far.ended() is None


async def test_a_writer_is_told_to_pause_and_to_go_on(far: Far) -> None:
    near = await settled(await far.offer())
    assert far.end is not None
    far.portal.call(far.end.stream.pause_reading)
    near.stream.send(number(0), bytes(CONNECTION_WRITE_HIGH))
    assert not near.writable.is_set()
    taken = asyncio.Event()
    near.stream.when_taken(taken.set)
    far.portal.call(far.end.stream.resume_reading)
    await asyncio.wait_for(near.writable.wait(), IN_TIME)
    await asyncio.wait_for(taken.wait(), IN_TIME)
    assert near.paused == 1
    near.stream.abort()
    assert await near.ended() is None
    assert isinstance(await far.ended(), ConnectError)


async def test_a_writer_whose_frames_are_taken_as_it_pauses_goes_on(far: Far) -> None:
    """The receiver has looked for a pause just before there was one."""
    offered = await far.offer()
    assert far.end is not None
    released, out = threading.Event(), offered._out

    class Preempted(type(out)):  # type: ignore[misc]
        """Between the sender's look at what is on its way and its pause, the other thread takes all of it."""

        __slots__ = ("_paused",)

        @property
        def paused(self) -> bool:
            return bool(self._paused)

        @paused.setter
        def paused(self, value: bool) -> None:
            if value:
                released.set()
                far.portal.call(lambda: None)
            self._paused = value

    lane = Preempted()
    for name in ("call", "look", "scheduled"):
        setattr(lane, name, getattr(out, name))
    offered._out = far.end.stream._in = lane  # type: ignore[attr-defined]
    near = await settled(offered)
    far.portal.call_soon_threadsafe(released.wait, IN_TIME)
    near.stream.send(number(0), bytes(CONNECTION_WRITE_HIGH))
    assert (near.paused, far.end.numbers) == (1, [0])
    await asyncio.wait_for(near.writable.wait(), IN_TIME)
    near.stream.abort()
    await far.ended()
    await near.ended()


async def test_a_frame_that_comes_while_others_are_delivered_is_delivered(far: Far) -> None:
    """The sender sees that the receiver is awake, and does not wake it."""
    near = await settled(await far.offer())
    assert far.end is not None
    delivering, sent = threading.Event(), threading.Event()
    received = far.end.frame_received

    def slow(header: Header, payload: memoryview) -> None:
        received(header, payload)
        delivering.set()
        sent.wait(IN_TIME)

    far.end.frame_received = slow  # type: ignore[method-assign]
    near.stream.send(number(0))
    await asyncio.to_thread(delivering.wait, IN_TIME)
    near.stream.send(number(1))
    sent.set()
    await far.run(far.end.until(lambda: far.end is not None and far.end.numbers == [0, 1]))
    near.stream.abort()
    await far.ended()
    await near.ended()


@pytest.mark.parametrize("aborts", [False, True])
async def test_what_the_other_thread_ends_is_ended_here(far: Far, aborts: bool) -> None:
    near = await settled(await far.offer())
    assert far.end is not None
    far.portal.call(far.end.stream.abort if aborts else far.end.stream.close)
    assert isinstance(await near.ended(), ConnectError) is aborts
    assert await far.ended() is None
    near.stream.send(number(0))
    near.stream.close()


async def test_what_came_before_it_had_an_owner_is_delivered(far: Far) -> None:
    offered = await far.offer()
    assert far.end is not None
    far.portal.call(far.end.stream.send, number(7))
    near = await settled(offered)
    await near.until(lambda: near.numbers == [7])
    near.stream.abort()
    await far.ended()
    await near.ended()


@pytest.mark.parametrize("has_owner", [False, True])
async def test_one_that_is_collected_is_lost_to_the_other(far: Far, has_owner: bool) -> None:
    stream: MemoryStream | None = await far.offer()
    assert stream is not None
    if has_owner:
        await settled(stream)
    del stream
    ended = asyncio.ensure_future(far.ended())
    while not ended.done():  # the other thread may hold the last reference for a moment
        gc.collect()
        await asyncio.sleep(0.01)
    assert "reset by near" in str(ended.result())


@pytest.mark.parametrize("in_order", [True, False], ids=["shut down", "only closed"])
async def test_one_whose_loop_has_ended_is_lost_to_the_other(far: Far, in_order: bool) -> None:
    """Without a word where it was shut down, else with the next frame."""
    kept = [await far.offer()]

    def work() -> None:
        loop = new_event_loop()
        loop.run_until_complete(settled(kept[0]))
        if in_order:
            loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()

    await asyncio.to_thread(work)
    assert far.end is not None
    if not in_order:
        far.portal.call(far.end.stream.send, number(0))
    assert "reset by near" in str(await far.ended())
    kept[0].abort()


async def test_a_loop_that_goes_on_after_its_generators_were_shut_down_finds_out(far: Far) -> None:
    """What was opened by then is lost to both sides."""

    def work() -> str:
        loop = new_event_loop()
        near = loop.run_until_complete(settled(offered))
        loop.run_until_complete(loop.shutdown_asyncgens())
        error = str(loop.run_until_complete(near.ended()))
        loop.close()
        return error

    offered = await far.offer()
    assert "reset by far" in await asyncio.to_thread(work)
    assert "reset by near" in str(await far.ended())
