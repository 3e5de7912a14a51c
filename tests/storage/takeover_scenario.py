"""One random life of a segment that moves between brokers, in order and by force, on an object store that misbehaves.

Brokers claim, fence, recover, serve, hand over, die, and go on after they were superseded. They upload files of what is
acknowledged, name them, trim their logs, and sweep what ended sessions have left. The judge knows what was
acknowledged: whatever the next owner recovers has it, at its offset, with its bytes, and nothing else.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import msgspec

from engine._native.format.crc32c import crc32c
from engine.errors import EngineError, NotFoundError
from engine.metadata import keys
from engine.metadata.memory import MemoryMetadataStore
from engine.metadata.store import ABSENT, ConflictError, Expected
from engine.storage.objects import records
from engine.storage.objects.footers import HoleError
from engine.storage.objects.format import WalGroup
from engine.storage.objects.names import FileNames
from engine.storage.objects.ports import ObjectMissingError
from engine.storage.objects.references import RolledFile, SegmentObjects
from engine.storage.objects.sweep import INDEX_OBJECTS, Sweep
from engine.storage.objects.takeover import close, recovered
from engine.storage.objects.trim import needed
from engine.storage.objects.wal import ObjectWal
from engine.storage.objects.writer import WalConfig
from engine.testing.clock import EPOCH_MS, LoopClock
from engine.testing.loop import VirtualLoop
from engine.testing.objects import FaultyObjectStore

SEGMENT = "/topics/t/n/a/segments/0"
INDEX_LOGS = "wal-sessions"
LIFE_S = 20.0
CONFIG = WalConfig(flush_s=0.05, resolve_s=10.0)


class JudgementError(AssertionError):
    """The segment broke a promise."""


class SegmentRecord(msgspec.Struct, frozen=True):
    """A segment's record, as far as this is about it."""

    owner: str | None = None
    term: int = 0
    objects: SegmentObjects = SegmentObjects()


class Cluster:
    """The stores, the segment's record, and the judge."""

    def __init__(self, seed: int, loop: VirtualLoop) -> None:
        self.rng = random.Random(seed)
        self.store = FaultyObjectStore(random.Random(seed + 1))
        self.store.delay_s_max = self.rng.choice([0.0, 0.02, 0.1])
        for knob in ("refuse_rate", "fail_rate", "stored_fail_rate", "hang_rate", "late_rate", "read_fail_rate"):
            setattr(self.store, knob, self.rng.choice([0.0, 0.0, 0.05, 0.1]))
        self.metadata = MemoryMetadataStore(LoopClock(loop))
        self.appended: set[bytes] = set()
        self.acknowledged: dict[int, bytes] = {}
        self.served = self.handed_over = self.superseded = self.named = self.trimmed = self.swept = 0
        self.sessions = 0

    async def begin(self) -> ObjectWal:
        """A session under a new name."""
        self.sessions += 1
        name, rng = f"s{self.sessions}", random.Random(self.rng.random())
        return await ObjectWal.open(
            self.store, self.metadata, "c", name, "engine://x", rng=rng, config=CONFIG, grace_s=0.0
        )

    async def read(self) -> tuple[SegmentRecord, int]:
        found = await self.metadata.newest.get(SEGMENT)
        assert found is not None
        facts = msgspec.json.decode(found.value)
        objects = msgspec.convert(facts, SegmentObjects)
        return SegmentRecord(facts["owner"], facts["term"], objects), found.stat.version

    async def write(self, record: SegmentRecord, version: int | Expected, also: dict[str, int] | None = None) -> bool:
        facts = msgspec.to_builtins(record.objects) | {"owner": record.owner, "term": record.term}
        indexes: dict[str, str | tuple[str, ...]] = {INDEX_OBJECTS: SEGMENT}
        if record.objects.wal:
            indexes[INDEX_LOGS] = tuple(record.objects.starts())
        with suppress(ConflictError):
            await self.metadata.put(SEGMENT, msgspec.json.encode(facts), version, also=also, indexes=indexes)
            return True
        return False

    async def sweep(self) -> None:
        """As the broker does that has the lease for it, at any time."""
        loop = asyncio.get_running_loop()
        swept = await Sweep(self.store, self.metadata, "c", lambda: EPOCH_MS + int(loop.time() * 1000) + 1, 0.0).run()
        self.swept += swept.log_objects + swept.files

    def acknowledge(self, offset: int, body: bytes) -> None:
        if self.acknowledged.setdefault(offset, body) != body:
            raise JudgementError(f"offset {offset} was acknowledged as {self.acknowledged[offset]!r} and {body!r}")

    def judge(self, log: list[bytes], acknowledged: dict[int, bytes]) -> None:
        """`acknowledged`: what was when the log began to be read."""
        for offset, body in acknowledged.items():
            found = log[offset] if offset < len(log) else None
            if found != body:
                raise JudgementError(f"lost: offset {offset} was acknowledged as {body!r}, and {found!r} is recovered")
        for offset, body in enumerate(log):
            if body.rpartition(b"/")[2] != b"%d" % offset or body not in self.appended:
                raise JudgementError(f"invented: {body!r} at offset {offset}")


class Broker:
    """One broker: a session, and the segment while it serves it."""

    def __init__(self, cluster: Cluster, wal: ObjectWal) -> None:
        self.cluster = cluster
        self.wal = wal
        self.term = 0
        self.log: list[bytes] = []
        self.terms: list[int] = []  # of each entry
        self.begun: dict[int, int] = {}  # the lowest object that may have an entry of its own
        self.names = FileNames("c", wal.session)
        self.appends: list[asyncio.Task[None]] = []

    async def take_over(self) -> bool:
        """Claim, fence, recover, serve; False: another broker has it, or a store failed."""
        cluster, me = self.cluster, self.wal.session
        record, version = await cluster.read()
        if record.owner == me:
            return self.term == record.term
        claimed = SegmentRecord(me, record.term + 1, record.objects)  # R1
        if not await cluster.write(claimed, version):
            return False
        self.term = 0
        try:
            closed = await close(self.wal, claimed.objects)  # R3, R10
            before = dict(cluster.acknowledged)
            log, terms = await self._recovered(closed)
        except (HoleError, NotFoundError) as e:
            return await self._superseded(claimed, e)
        now, version = await cluster.read()
        if (now.owner, now.term) != (me, claimed.term) or await self._is_fenced():
            cluster.superseded += 1
            return False
        cluster.judge(log, before)
        served = closed.served(me, self.wal.next_n, claimed.term)
        if not await cluster.write(SegmentRecord(me, claimed.term, served), version):  # R2
            return False
        cluster.served += 1
        self.term, self.log, self.terms, self.begun = claimed.term, log, terms, {}
        return True

    async def _recovered(self, objects: SegmentObjects) -> tuple[list[bytes], list[int]]:
        """R11: the files that the record names, and the range of each reference."""
        log: list[bytes] = []
        terms: list[int] = []
        for file in objects.files:
            try:
                entries = msgspec.json.decode(await self.cluster.store.get(file.key), type=list[tuple[bytes, int]])
            except ObjectMissingError as e:
                raise HoleError(f"{file.key} is missing") from e
            log += [body for body, _ in entries]
            terms += [term for _, term in entries]
        async for group, data in recovered(self.wal, objects, SEGMENT):
            log.append(bytes(data))
            terms.append(group.term)
        return log, terms

    async def _superseded(self, claimed: SegmentRecord, hole: Exception) -> bool:
        """R12: a hole counts as damage only while the segment is still this broker's."""
        now, _ = await self.cluster.read()
        if (now.owner, now.term) == (claimed.owner, claimed.term):
            raise JudgementError(f"lost: {hole}") from hole
        self.cluster.superseded += 1
        return False

    async def _is_fenced(self) -> bool:
        return (await records.read(self.cluster.metadata, self.wal.session)).record.fenced is not None

    def append(self) -> None:
        """As an owner does that has not heard of a successor."""
        offset, term = len(self.log), self.term
        body = f"{self.wal.session}/{term}/{offset}".encode()
        self.begun[offset] = self.wal.next_n
        self.log.append(body)
        self.terms.append(term)
        self.cluster.appended.add(body)
        group = WalGroup(SEGMENT, term, offset, offset + 1, [body])
        self.appends.append(asyncio.ensure_future(self._acknowledged(group, body)))

    async def _acknowledged(self, group: WalGroup, body: bytes) -> None:
        with suppress(EngineError):
            await self.wal.append(group)
            self.cluster.acknowledge(group.first_offset, body)

    async def consolidate(self, rng: random.Random) -> None:
        """R13: upload a file of what is acknowledged, and name it."""
        cluster, term, log, terms, begun = self.cluster, self.term, list(self.log), list(self.terms), self.begun
        first = (await cluster.read())[0].objects.named_end
        stop = first
        while stop < len(log) and cluster.acknowledged.get(stop) == log[stop]:
            stop += 1
        if stop == first:
            return
        stop = rng.randint(first + 1, stop)
        follows = terms[stop] if stop < len(log) else term
        upto = begun.get(stop, self.wal.next_n) if follows == term and stop in (*begun, len(log)) else None
        key = self.names.next(SEGMENT, first, term)
        data = msgspec.json.encode(list(zip(log[first:stop], terms[first:stop], strict=True)))
        file = RolledFile(first, stop, len(data), crc32c(data), key)
        await cluster.store.put_multipart(key, [data], len(data))
        await self.name(file, term, follows, upto)

    async def name(self, file: RolledFile, term: int, follows: int, upto: int | None) -> None:
        """R14, with the term at which the upload began."""
        cluster, me = self.cluster, self.wal.session
        record, version = await cluster.read()
        seen = await records.read(cluster.metadata, me)
        if (record.owner, record.term) != (me, term) or seen.record.fenced is not None:
            return
        if record.objects.named_end != file.first:
            return
        named = record.objects.named(file, me, follows, upto)
        also = {keys.wal(me): seen.version}
        cluster.named += await cluster.write(SegmentRecord(me, term, named), version, also)

    async def trim(self) -> None:
        """R15."""
        cluster, session, acknowledged = self.cluster, self.wal.session, self.wal.writer.acknowledged
        found = await cluster.metadata.newest.list_index(INDEX_LOGS, session, session + "\0")
        objects = [msgspec.json.decode(record.value, type=SegmentObjects) for _, record in found]
        await self.wal.trim(session, needed(objects, session, acknowledged))
        cluster.trimmed += await self.wal.delete_trimmed()

    async def hand_over(self) -> None:
        """R9: stop, wait, one compare-and-set."""
        term, self.term = self.term, 0
        end = await self.wal.drain()
        record, version = await self.cluster.read()
        if (record.owner, record.term) == (self.wal.session, term):
            objects = record.objects.handed_over(self.wal.session, end)
            self.cluster.handed_over += await self.cluster.write(SegmentRecord(None, term, objects), version)


def run(seed: int) -> Cluster:
    """Live one life. Raises JudgementError."""
    loop = VirtualLoop()
    return loop.run(_life(seed, loop), time_limit=3600.0)


async def _life(seed: int, loop: VirtualLoop) -> Cluster:
    cluster = Cluster(seed, loop)
    assert await cluster.write(SegmentRecord(), ABSENT)
    rngs = [random.Random(cluster.rng.random()) for _ in range(3)]
    lives = [loop.create_task(_broker(cluster, rng)) for rng in rngs]
    for ended in await asyncio.gather(*lives, return_exceptions=True):
        if isinstance(ended, BaseException):
            raise ended
    await asyncio.sleep(60)  # what was under way has arrived
    cluster.store.read_fail_rate = 0.0
    last = Broker(cluster, await cluster.begin())
    while not await last.take_over():
        pass
    cluster.judge(last.log, cluster.acknowledged)
    await last.wal.writer.close()
    return cluster


async def _broker(cluster: Cluster, rng: random.Random) -> None:
    """Sessions of one broker, one behind the other."""
    loop = asyncio.get_running_loop()
    while loop.time() < LIFE_S:
        broker = Broker(cluster, await cluster.begin())
        dies = loop.time() + rng.uniform(0.5, LIFE_S / 2)
        while loop.time() < dies and broker.wal.writer.over is None:
            await asyncio.sleep(rng.uniform(0, 0.3))
            try:
                await _step(broker, rng)
            except EngineError:
                continue  # a store failed, or the session is over (R8)
        if rng.random() < 0.5:
            broker.wal.writer.end(EngineError("the broker has died"))  # its PUTs arrive
        await asyncio.gather(*broker.appends)
        await broker.wal.writer.close()


async def _step(broker: Broker, rng: random.Random) -> None:
    if rng.random() < 0.4:
        await broker.trim()
    if not broker.term:
        if rng.random() < 0.3:
            await broker.take_over()
    elif (luck := rng.random()) < 0.1:
        await broker.hand_over()
    elif luck < 0.35:
        consolidating = asyncio.ensure_future(broker.consolidate(rng))
        if rng.random() < 0.5:
            await consolidating
        else:
            broker.appends.append(asyncio.ensure_future(_quietly(consolidating)))
    elif luck < 0.4:
        await broker.cluster.sweep()
    else:
        for _ in range(rng.randint(1, 4)):
            broker.append()


async def _quietly(work: asyncio.Future[None]) -> None:
    with suppress(EngineError):
        await work
