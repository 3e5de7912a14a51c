"""A split of a segment that is under full load: how long publishing pauses, and how soon the rate is back (P14)."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from itertools import cycle, pairwise
from typing import Any

from pace import Ticker
from support import TINY, Rows
from workloads import ROOM_EVERY, new_topic

SAMPLES = 1000  # a second, at how much is acknowledged
BEFORE_S, AFTER_S = (0.5, 1.0) if TINY else (1.0, 2.0)  # in the second half of the latter the rate should be back

WAITS_S, WAITED_S = AFTER_S / 2, BEFORE_S / 10  # what is sent just before the split may still wait when it begins
PROBE_EVERY = 10  # looks at the room there is, to a message whose acknowledgement is timed

Progress = list[tuple[float, int]]  # when; how many messages were acknowledged by then
Probes = dict[float, float]  # when a message was sent: how long its acknowledgement took


@dataclass(frozen=True)
class Split:
    """One split. Rates are messages per second, before it and from one second after it on; the pause is in seconds."""

    pause: float  # the longest time without any acknowledgement
    usual_pause: float  # the same before the split
    waits: list[float]  # from sending to the acknowledgement, of messages sent within WAITS_S from when it began
    usual_waits: list[float]  # the same, of those sent before
    rate_before: float
    rate_after: float
    seconds: float  # until the split was confirmed


async def split_under_load(client: Any, sample: Rows) -> Split:
    """Split the only segment of a new topic while one producer sends all it can; raises what a send raises."""
    async with new_topic(client) as topic, await client.producer(topic) as producer:
        progress: Progress = []
        probes: Probes = {}
        enough = asyncio.Event()
        publishing, sampling = _publish(producer, sample, probes, enough), _sample(producer, progress)
        async with _background(publishing) as published, _background(sampling):
            await asyncio.sleep(2 * BEFORE_S)
            # A machine with much other work may have sent no probe in the time that counts: it begins once it has.
            while not _sent(probes, (began := time.monotonic()) - BEFORE_S, began - WAITED_S):
                await _pass(published)
            await client.admin.split_segment(topic, 0)
            took = time.monotonic() - began
            await asyncio.sleep(AFTER_S)
            while not _sent(probes, began, math.inf):
                await _pass(published)
            enough.set()
            await published  # with the acknowledgements of all probes, those that take longest among them
        await producer.flush()
    before = [look for look in progress if began - BEFORE_S <= look[0] <= began]
    after = [look for look in progress if began <= look[0] <= began + AFTER_S]
    late = [look for look in after if look[0] >= began + AFTER_S / 2]
    first = min(_sent(probes, began, math.inf))
    waits = [probes[sent] for sent in _sent(probes, began, max(began + WAITS_S, math.nextafter(first, math.inf)))]
    usual_waits = [probes[sent] for sent in _sent(probes, began - BEFORE_S, began - WAITED_S)]
    return Split(longest_pause(after), longest_pause(before), waits, usual_waits, rate(before), rate(late), took)


async def _pass(published: asyncio.Future[Any]) -> None:
    """Let a little time go by; raises what has ended publishing."""
    done, _ = await asyncio.wait([published], timeout=WAITED_S)
    for ended in done:
        ended.result()


def _sent(probes: Probes, since: float, until: float) -> list[float]:
    return [sent for sent in probes if since <= sent < until]


@contextlib.asynccontextmanager
async def _background(work: Any) -> AsyncIterator[asyncio.Future[Any]]:
    """Beside the block, ended with it. What it raises is raised at the end of the block."""
    task = asyncio.ensure_future(work)
    try:
        yield task
        if task.done():
            task.result()
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _publish(producer: Any, sample: Rows, probes: Probes, enough: asyncio.Event) -> None:
    """All it can, until it is enough; some of it is timed."""
    send = producer.send_nowait
    async with asyncio.TaskGroup() as tasks:
        for i, (key, value) in enumerate(cycle(sample)):
            send(value, key=key)
            if not i % ROOM_EVERY:
                await producer.writable()
                await asyncio.sleep(0)
                if enough.is_set():
                    break
            if not i % (ROOM_EVERY * PROBE_EVERY):
                tasks.create_task(_probe(producer, key, value, probes))


async def _probe(producer: Any, key: bytes, value: bytes, probes: Probes) -> None:
    sent = time.monotonic()
    probes[sent] = math.inf
    await producer.send(value, key=key)
    probes[sent] = time.monotonic() - sent


async def _sample(producer: Any, progress: Progress) -> None:
    """Write down how far it is, until cancelled."""
    ticker = Ticker(SAMPLES)
    try:
        while True:
            await ticker.wait()
            progress.append((time.monotonic(), producer.statistics().messages_acknowledged))
    finally:
        ticker.close()


def longest_pause(progress: Progress) -> float:
    """Seconds between two looks that saw something new."""
    moved = [looked for looked, _ in _steps(progress)]
    return max((later - earlier for earlier, later in pairwise(moved)), default=0.0)


def _steps(progress: Progress) -> Iterable[tuple[float, int]]:
    last = None
    for look in progress:
        if look[1] != last:
            yield look
        last = look[1]


def rate(progress: Progress) -> float:
    """Messages per second, from the first look to the last; 0 where nothing was looked at."""
    if not progress:
        return 0.0
    (start, first), (end, last) = progress[0], progress[-1]
    return (last - first) / max(end - start, 1e-9)
