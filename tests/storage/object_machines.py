"""Machines that own a segment one behind the other, each with an empty disk, on one object store.

What a broker does of it is done here in few words: the segment's record with owner, term and objects is written under
the conditions of R1, R2, R9 and R14.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from engine.aio.workers import Workers
from engine.errors import EngineError, NotOwnerError
from engine.metadata import keys
from engine.metadata.memory import MemoryMetadataStore
from engine.metadata.store import ABSENT, ConflictError
from engine.storage.commit.failures import LogEndedError
from engine.storage.consolidation import Change, Consolidation, ObjectGarbage
from engine.storage.disk.disk import Disk, OsDisk
from engine.storage.file.format import FOOTER_MAGIC
from engine.storage.file.named import NamedFiles
from engine.storage.file.restore import fetch, restore
from engine.storage.objects import records
from engine.storage.objects.cache import ObjectCache
from engine.storage.objects.format import WalGroup
from engine.storage.objects.names import FileNames
from engine.storage.objects.references import SegmentObjects
from engine.storage.objects.sweep import INDEX_OBJECTS
from engine.storage.objects.takeover import close, recovered
from engine.storage.objects.wal import ObjectWal
from engine.storage.objects.writer import WalConfig
from engine.storage.segment import Segment
from engine.storage.store import SegmentStore
from engine.testing.clock import FakeClock
from engine.testing.objects import FaultyObjectStore
from tests.kit.stores import make_store, name
from tests.storage.test_succession import TestLease

FAST = WalConfig(flush_s=0.01)
CACHE = 64 << 20


class SegmentRecord(msgspec.Struct, frozen=True):
    """A segment's record, as far as this is about it."""

    owner: str | None = None
    term: int = 0
    objects: SegmentObjects = SegmentObjects()


class Machines:
    """The stores and the record of one segment. `grace_s`: before objects that were given up are deleted."""

    def __init__(self, root: Path, *, seed: int = 1, grace_s: float = 0.0, **config: Any) -> None:
        self.root = root
        self.config = config
        self.grace_s = grace_s
        self.store = FaultyObjectStore(random.Random(seed))
        self.clock = FakeClock()
        self.metadata = MemoryMetadataStore(self.clock)
        self.path = keys.segment(name())
        self.number = 0

    async def read(self) -> tuple[SegmentRecord, Any]:
        found = await self.metadata.newest.get(self.path)
        if found is None:
            return SegmentRecord(), ABSENT
        facts = msgspec.json.decode(found.value)
        objects = msgspec.convert(facts, SegmentObjects)
        return SegmentRecord(facts["owner"], facts["term"], objects), found.stat.version

    async def objects(self) -> SegmentObjects:
        return (await self.read())[0].objects

    async def write(self, record: SegmentRecord, version: Any, also: dict[str, int] | None = None) -> None:
        indexes: dict[str, str | tuple[str, ...]] = {INDEX_OBJECTS: self.path}
        if record.objects.wal:
            indexes["wal-sessions"] = tuple(record.objects.starts())
        facts = msgspec.to_builtins(record.objects) | {"owner": record.owner, "term": record.term}
        await self.metadata.put(self.path, msgspec.json.encode(facts), version, also=also, indexes=indexes)

    async def machine(self, wal: ObjectWal | None = None, cache: int = CACHE) -> Machine:
        """Another machine, or another term of a session, takes the segment over."""
        self.number += 1
        if wal is None:
            rng = random.Random(self.number)
            wal = await ObjectWal.open(
                self.store, self.metadata, "c", f"s{self.number}", "engine://x", rng=rng, config=FAST,
                grace_s=self.grace_s,
            )  # fmt: skip
        machine = Machine(self, wal, self.number)
        await machine.open(cache)
        return machine


class Machine:
    """The owner of the segment under one term."""

    segment: Segment
    consolidation: Consolidation
    cache: ObjectCache

    def __init__(self, machines: Machines, wal: ObjectWal, number: int) -> None:
        self.machines = machines
        self.wal = wal
        self.names = FileNames("c", wal.session)
        self.store: SegmentStore = make_store(
            machines.root / f"machine-{number}", clock=machines.clock, **machines.config
        )
        self.lease = TestLease(0)
        self.record = Owned(self)
        self.garbage = ObjectGarbage(machines.store, machines.grace_s)

    async def open(self, cache: int) -> None:
        record, version = await self.machines.read()
        self.lease.term = self.record.term = record.term + 1
        await self.machines.write(SegmentRecord(self.wal.session, record.term + 1, record.objects), version)
        self.segment = await self.store.create(
            name(), durability="object", term=self.lease.term, lease=self.lease, backing=self.record
        )
        context = self.segment._context
        directory = str(self.machines.root / f"cache-{self.lease.term}")
        self.cache = ObjectCache(self.machines.store, OsDisk(), context.workers, directory, cache, chunk_size=4096)
        await self.cache.start()
        named = NamedFiles(self.record.objects, self.cache, name().segment_id)
        self.consolidation = Consolidation(context, self.record, self.names, named, self.garbage)
        self.segment.consolidate_by(self.consolidation)

    async def consolidate(self) -> int:
        return await self.consolidation.run(self.segment)

    async def hand_over(self) -> None:
        """R9."""
        await self.segment.close()
        end = await self.wal.drain()
        record, version = await self.machines.read()
        assert record.term == self.record.term
        await self.machines.write(
            SegmentRecord(None, record.term, record.objects.handed_over(self.wal.session, end)), version
        )


class Owned:
    """The record as its owner writes it, and the segment's backing."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._machines = machine.machines
        self._wal = machine.wal
        self._begun: dict[int, int] = {}
        self._head: tuple[int, bytes] | None = None
        self.flush_s: float | None = None
        self.gather_s = 0.001
        self.path = machine.machines.path
        self.session = machine.wal.session
        self.term = 0
        self.objects = SegmentObjects()

    def begun(self, first_offset: int) -> int | None:
        return self._begun.get(first_offset)

    async def change(self, change: Change) -> SegmentObjects:
        while True:
            record, version = await self._machines.read()
            seen = await records.read(self._machines.metadata, self.session)
            if (record.owner, record.term) != (self.session, self.term) or seen.record.fenced is not None:
                raise NotOwnerError(f"{self.path} is not this broker's any more")
            after = change(record.objects)
            try:
                await self._machines.write(
                    SegmentRecord(self.session, self.term, after), version, {keys.wal(self.session): seen.version}
                )
            except ConflictError:
                continue
            self.objects = after
            return after

    async def quiet(self, within_s: float) -> None:
        await self._wal.writer.quiet(within_s)

    def append(self, first_offset: int, next_offset: int, buffers: Sequence[Any], done: Any) -> None:
        self._head = None
        if first_offset == next_offset and bytes(buffers[0][:4]) != FOOTER_MAGIC.to_bytes(4, "little"):
            self._begun.setdefault(first_offset, self._wal.next_n)
            self._head = first_offset, b"".join(map(bytes, buffers))
        group = WalGroup(self.path, self.term, first_offset, next_offset, [bytes(b) for b in buffers])

        def ended(task: asyncio.Task[int]) -> None:
            error = task.exception()
            done(None if error is None else LogEndedError(str(error)))

        asyncio.ensure_future(self._wal.append(group)).add_done_callback(ended)

    async def renew(self, first_offset: int) -> int | None:
        head = self._head
        if head is None or head[0] != first_offset:
            return None
        start, stored = self._wal.next_n, asyncio.Event()
        self.append(first_offset, first_offset, [head[1]], lambda error: stored.set())
        await stored.wait()
        return start

    async def restore(self, disk: Disk, workers: Workers, directory: str) -> None:
        self.objects = await close(self._wal, (await self._machines.objects()))
        names = await restore(disk, workers, directory, recovered(self._wal, self.objects, self.path))
        if not names and self.objects.files:
            await fetch(disk, workers, directory, self._machines.store, self.objects.files[-1])

    async def serve(self) -> None:
        served = self.objects.served(self.session, self._wal.next_n, self.term)
        _, version = await self._machines.read()
        self.objects = served
        await self._machines.write(SegmentRecord(self.session, self.term, served), version)

    async def keep_inherited(self, snapshot: bytes) -> None:
        raise EngineError("no parents here")
