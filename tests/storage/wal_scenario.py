"""One random life of a session's log on a store that misbehaves, judged by what was acknowledged alone.

A session appends groups of several segments and trims; successors fence it at random moments, some die on the way. The
judge knows what was appended, and what was acknowledged at which n:

    lost             an acknowledged group that was not trimmed is not read from the log below the fence
    invented         what is read was never appended, at another offset, twice, or out of order
    behind the fence an object at or above the fence was acknowledged
    moved            two successors were told different ends
    stuck            an append or a fence did not end
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field

from engine.errors import EngineError
from engine.metadata.memory import MemoryMetadataStore
from engine.storage.objects.footers import HoleError
from engine.storage.objects.format import WalGroup
from engine.storage.objects.wal import ObjectWal
from engine.storage.objects.writer import WalConfig
from engine.testing.clock import LoopClock
from engine.testing.loop import VirtualLoop
from engine.testing.metadata import FaultyMetadataStore
from engine.testing.objects import FaultyObjectStore

SEGMENTS = ["/topics/t/n/a/segments/0", "/topics/t/n/a/segments/1", "/topics/t/n/b/segments/0"]
LIFE_S = 6.0


class JudgementError(AssertionError):
    """The log broke a promise."""


@dataclass
class Witness:
    """What was appended and acknowledged. Groups are (segment, first offset) -> bytes."""

    appended: dict[tuple[str, int], bytes] = field(default_factory=dict)
    acknowledged: dict[tuple[str, int], int] = field(default_factory=dict)  # -> n
    trimmed: int = 0
    ends: list[int] = field(default_factory=list)


def run(seed: int) -> Witness:
    """Live one life. Raises JudgementError."""
    loop = VirtualLoop()
    try:
        return loop.run(_life(seed, loop), time_limit=3600.0)
    finally:
        asyncio.set_event_loop(None)


async def _life(seed: int, loop: VirtualLoop) -> Witness:
    rng = random.Random(seed)
    store = _store(rng)
    metadata = FaultyMetadataStore(MemoryMetadataStore(LoopClock(loop)), random.Random(seed))
    witness = Witness()
    config = WalConfig(flush_s=rng.choice([0.01, 0.05, 0.2]), resolve_s=rng.choice([2.0, 20.0, 60.0]))
    wal = await _open(store, metadata, "a", rng, config)
    metadata.unknown_rate = rng.choice([0.0, 0.1])
    metadata.delay_s_max = rng.choice([0.0, 0.05])
    fenced_after = rng.uniform(0.1, LIFE_S)
    appending = [loop.create_task(_append(wal, witness, segment, rng, LIFE_S)) for segment in SEGMENTS]
    trimming = loop.create_task(_trim(wal, witness, rng))
    await asyncio.sleep(fenced_after)
    successors = [await _open(store, metadata, f"s{n}", rng, config) for n in range(rng.randint(1, 3))]
    fencing = [loop.create_task(_fence(each, witness, rng)) for each in successors]
    if rng.random() < 0.5:
        await asyncio.sleep(rng.uniform(0, 0.3))
        fencing[0].cancel()
    await asyncio.wait(fencing)
    await _fence(successors[-1], witness, rng)  # at least one lives
    await asyncio.wait_for(asyncio.gather(*appending), 600)
    trimming.cancel()
    with suppress(asyncio.CancelledError):
        await trimming
    await asyncio.sleep(60)  # what was under way has arrived
    metadata.unknown_rate = store.read_fail_rate = 0.0
    await _judge(successors[-1], witness)
    await wal.writer.close()
    for each in successors:
        await each.writer.close()
    return witness


def _store(rng: random.Random) -> FaultyObjectStore:
    store = FaultyObjectStore(random.Random(rng.random()))
    store.delay_s_max = rng.choice([0.0, 0.02, 0.2])
    for knob in ("refuse_rate", "fail_rate", "stored_fail_rate", "hang_rate", "late_rate", "read_fail_rate"):
        setattr(store, knob, rng.choice([0.0, 0.0, 0.05, 0.15]))
    return store


async def _open(
    store: FaultyObjectStore, metadata: FaultyMetadataStore, name: str, rng: random.Random, config: WalConfig
) -> ObjectWal:
    url = f"engine://{name}"
    draw = random.Random(rng.random())
    return await ObjectWal.open(
        store, metadata, "c", name, url, rng=draw, config=config, grace_s=rng.choice([0.0, 1.0])
    )


async def _append(wal: ObjectWal, witness: Witness, segment: str, rng: random.Random, until: float) -> None:
    """Appends, several under way at once, until the session is over or a while after it should have been fenced."""
    loop, offset, waiting = asyncio.get_running_loop(), 0, []
    while wal.writer.over is None and loop.time() < until * 2:
        body = f"{segment} {offset}".encode() * rng.randint(1, 40)
        witness.appended[segment, offset] = body
        cut = rng.randint(0, len(body))
        group = WalGroup(segment, 1, offset, offset + 1, [body[:cut], bytearray(body[cut:])])
        waiting.append(loop.create_task(_acknowledged(wal, witness, group)))
        offset += 1
        await asyncio.sleep(rng.uniform(0, 0.1))
    await asyncio.gather(*waiting)


async def _acknowledged(wal: ObjectWal, witness: Witness, group: WalGroup) -> None:
    with suppress(EngineError):
        witness.acknowledged[group.segment, group.first_offset] = await wal.append(group)


async def _trim(wal: ObjectWal, witness: Witness, rng: random.Random) -> None:
    """As a consolidation would: up to something acknowledged."""
    with suppress(EngineError):
        while True:
            await asyncio.sleep(rng.uniform(0.2, 2))
            upto = rng.randint(0, wal.writer.acknowledged)
            if rng.random() < 0.5:
                witness.trimmed = max(witness.trimmed, upto)  # before: nothing of it may be relied on any more
                with suppress(EngineError):
                    await wal.trim("a", upto)
            await wal.delete_trimmed()


async def _fence(wal: ObjectWal, witness: Witness, rng: random.Random) -> None:
    while True:
        try:
            witness.ends.append(await wal.fence("a"))
        except EngineError:
            await asyncio.sleep(rng.uniform(0, 1))
            continue
        return


async def _judge(reader: ObjectWal, witness: Witness) -> None:
    end = witness.ends[-1]
    if set(witness.ends) != {end}:
        raise JudgementError(f"moved: successors were told {witness.ends}")
    behind = {group: n for group, n in witness.acknowledged.items() if n >= end}
    if behind:
        raise JudgementError(f"behind the fence at {end}: {behind}")
    found: dict[tuple[str, int], int] = {}
    for segment in SEGMENTS:
        expected: dict[str, int] = defaultdict(lambda: -1)
        try:
            async for group, data in reader.read("a", min(witness.trimmed, end), end, segment):
                key = group.segment, group.first_offset
                if group.segment != segment or witness.appended.get(key) != bytes(data) or group.term != 1:
                    raise JudgementError(f"invented: {group}")
                if group.first_offset != expected[segment] and expected[segment] >= 0:
                    raise JudgementError(f"invented: offset {group.first_offset} behind {expected[segment] - 1}")
                expected[segment] = group.next_offset
                found[key] = group.n
        except (EngineError, HoleError) as e:
            raise JudgementError(f"lost: {e!r}") from e
    wrong = {group: n for group, n in witness.acknowledged.items() if n >= witness.trimmed and found.get(group) != n}
    if wrong:
        raise JudgementError(f"lost below the fence at {end}: {wrong}")
