"""Three members of etcd, whose leader is killed in the middle of writes, watches and leases.

A small checker: every client notes what it was told, and at the end that is compared with what is there. What was
acknowledged is there, once; what was refused is not; what was unknown is what the client read back; each reader of a
watch has been shown every record.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.broker.upkeep.cluster_check import findings_of
from engine.clock import SystemClock
from engine.errors import TimeoutError
from engine.metadata.etcd.cluster import Cluster
from engine.metadata.etcd.inspection import contents
from engine.metadata.etcd.store import EtcdMetadataStore
from engine.metadata.etcd.url import EtcdUrl
from engine.metadata.store import ABSENT, Append, ConflictError, Delete, EventKind, OutcomeUnknownError, Put, Stat
from tests.kit.etcd import Etcd, new_prefix

WRITERS = 3


@pytest.fixture
def members(tmp_path: Path) -> Iterator[Etcd]:
    server = Etcd(tmp_path, 3)
    try:
        server.start()
        yield server
    finally:
        server.stop()


class Checker:
    """What one client did and was told. `told`: key -> value of records that it made, which no other client changes."""

    def __init__(self, name: str, store: EtcdMetadataStore, rng: random.Random) -> None:
        self.name = name
        self.store = store
        self.told: dict[str, bytes] = {}
        self.absent: set[str] = set()
        self.deleted: set[str] = set()
        self.added = 0
        self.unknown = 0
        self.progress = asyncio.Event()  # set by each acknowledged write
        self._rng = rng
        self._number = 0

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            self._number += 1
            await self._rng.choice((self.make, self.add, self.append, self.several, self.clear))()
            self.progress.set()

    async def make(self) -> None:
        key, value = f"/made/{self.name}/{self._number}", b"%d" % self._number
        await self._settle(key, value, self.store.put(key, value, ABSENT, indexes={"by": self.name}))

    async def _settle(self, key: str, value: bytes, call) -> None:
        """No other client writes the key, so a conflict would be an own write that was done twice."""
        try:
            await call
        except TimeoutError:
            self.absent.add(key)
            return
        except OutcomeUnknownError:
            self.unknown += 1
            if await self._there(key) is None:
                self.absent.add(key)
                return
        self.told[key] = value

    async def _there(self, key: str):
        while True:
            try:
                return await self.store.newest.get(key)
            except TimeoutError:
                continue

    async def append(self) -> None:
        prefix, value = f"/appended/{self.name}", b"%s %d" % (self.name.encode(), self._number)
        key = f"/header/{self.name}/{self._number}"
        try:
            stat, record = await self.store.put_with_sequence(Put(key, value, ABSENT), Append(prefix, value))
        except TimeoutError:
            self.absent.add(key)
            return
        except OutcomeUnknownError:
            self.unknown += 1
            found = await self._there(key)
            (self.absent.add(key) if found is None else self.told.update({key: value}))
            return
        assert stat.version > record.stat.version
        self.told |= {key: value, record.key: value}

    async def add(self) -> None:
        """One more in a counter that all of them write."""
        while True:
            found = await self._there("/counter")
            before = 0 if found is None else int(found.value.split()[0])
            value = b"%d %s %d" % (before + 1, self.name.encode(), self._number)
            try:
                await self.store.put("/counter", value, ABSENT if found is None else found.stat.version)
            except (ConflictError, TimeoutError):
                continue
            except OutcomeUnknownError:
                self.unknown += 1
                found = await self._there("/counter")
                if found is None or found.value != value:
                    return  # it is not counted: whether it was there for a moment is not known
            self.added += 1
            return

    async def several(self) -> None:
        """Independent writes with one call; one of them is refused, one deletes what an earlier call made."""
        keys = [f"/several/{self.name}/{self._number}/{at}" for at in range(3)]
        doomed = next((key for key in self.told if key.startswith("/made/")), None)
        writes: list[Put | Delete] = [Put(key, b"s", ABSENT) for key in keys] + [Put(keys[0], b"t", ABSENT)]
        if doomed is not None:
            writes.append(Delete(doomed))
        try:
            outcomes = await self.store.write_all(writes)
        except TimeoutError:
            self.absent |= set(keys)
            return
        except OutcomeUnknownError:
            self.unknown += 1
            found = [await self._there(key) for key in keys]
            assert len({one is None for one in found}) == 1, "one transaction is done as a whole"
            if found[0] is None:
                self.absent |= set(keys)
                return
        else:
            assert all(isinstance(outcome, Stat) for outcome in outcomes[:3])
            assert isinstance(outcomes[3], ConflictError)
            assert doomed is None or outcomes[4] is True
        self.told |= dict.fromkeys(keys, b"s")
        if doomed is not None:
            del self.told[doomed]
            self.deleted.add(doomed)

    async def clear(self) -> None:
        """Make records of a range, and delete it; others never do."""
        prefix = f"/range/{self.name}/{self._number}/"
        keys = [f"{prefix}{at}" for at in range(3)]
        try:
            for key in keys:
                await self.store.put(key, b"r", indexes={"range": self.name})
            assert await self.store.delete_range(prefix, f"{prefix}z") == 3
        except (TimeoutError, OutcomeUnknownError):
            return  # what is left of it is seen by the reader, and in the index
        self.absent |= set(keys)


class Reader:
    """A copy of the records, from a watch alone."""

    def __init__(self, store: EtcdMetadataStore) -> None:
        self.copy: dict[str, bytes] = {}
        self.shown: set[str] = set()
        self.task = asyncio.create_task(self.read(store.watch("/")))

    async def read(self, watch) -> None:
        last = 0
        async for event in watch:
            assert event.version >= last
            last = event.version
            if event.kind is EventKind.PUT:
                self.copy[event.key] = event.record.value
                self.shown.add(event.key)
                if event.key == "/end":
                    return
            elif event.kind is EventKind.DELETE:
                del self.copy[event.key]


class IndexReader:
    """The keys of an index, from a watch of it alone. A record is shown again where one of its index keys changes."""

    def __init__(self, store: EtcdMetadataStore, index: str) -> None:
        self.keys: set[str] = set()
        self.task = asyncio.create_task(self.read(store.watch_index(index, "", "z")))

    async def read(self, watch) -> None:
        async for event in watch:
            if event.kind is EventKind.PUT:
                self.keys.add(event.key)
                if event.key == "/end":
                    return
            elif event.kind is EventKind.DELETE:
                self.keys.discard(event.key)


async def keep(session, stop: asyncio.Event) -> None:
    """Refresh a session, as its holder does."""
    while not stop.is_set():
        await session.refresh()
        await asyncio.wait([asyncio.ensure_future(stop.wait())], timeout=0.5)


async def open_store(server: Etcd, prefix: str, seed: int) -> EtcdMetadataStore:
    return await EtcdMetadataStore.open(server.url(prefix), clock=SystemClock(), rng=random.Random(seed))


async def kill_leaders(server: Etcd, checkers: list[Checker], kills: int) -> None:
    for _ in range(kills):
        for checker in checkers:
            checker.progress.clear()
            await checker.progress.wait()
        leader = await asyncio.to_thread(lambda: server.leader)
        leader.kill()
        for checker in checkers:
            checker.progress.clear()
            await checker.progress.wait()
        await asyncio.to_thread(server.start)


async def check(server: Etcd, seed: int, kills: int) -> int:
    """Run it; how many writes were acknowledged."""
    prefix, rng, stop = new_prefix(), random.Random(seed), asyncio.Event()
    count = WRITERS + len(server.members)
    stores = [await open_store(server, prefix, rng.getrandbits(30)) for _ in range(count)]
    watching = stores[WRITERS:]
    for at, store in enumerate(watching):  # one at each member, so that each kill breaks the stream of one
        store._cluster._at = at
    checkers = [Checker(f"c{at}", store, random.Random(rng.random())) for at, store in enumerate(stores[:WRITERS])]
    readers = [Reader(store) for store in watching]
    of_index = [IndexReader(store, "by") for store in watching]
    session = await stores[0].session(8.0)
    await stores[0].put("/alive", b"", session=session)
    keeping = asyncio.create_task(keep(session, stop))
    running = [asyncio.create_task(checker.run(stop)) for checker in checkers]
    await kill_leaders(server, checkers, kills)
    stop.set()
    await asyncio.gather(*running, keeping)
    await stores[0].put("/end", b"", indexes={"by": "c"})
    await asyncio.wait_for(asyncio.gather(*(one.task for one in (*readers, *of_index))), 30)
    assert sum(store.statistics().watch_streams for store in watching) > len(watching)

    there = {record.key: record.value for record in await stores[0].list("/", "0")}
    assert all(reader.copy == there for reader in readers)
    assert "/alive" in there
    by_index = {record.key for _, record in await stores[0].list_index("by", "", "z")}
    assert all(one.keys == by_index for one in of_index)
    ranges = {record.key for _, record in await stores[0].list_index("range", "", "z")}
    assert ranges == {key for key in there if key.startswith("/range/")}
    for checker in checkers:
        assert checker.told.items() <= there.items()
        assert not (checker.absent | checker.deleted) & there.keys()
        assert all(checker.told.keys() <= reader.shown for reader in readers)
        mine = {key for key in there if key.startswith(f"/made/{checker.name}/")}
        assert mine == {key for key in by_index if key.startswith(f"/made/{checker.name}/")} <= checker.told.keys()
    added, unknown = sum(checker.added for checker in checkers), sum(checker.unknown for checker in checkers)
    assert added <= int(there["/counter"].split()[0]) <= added + unknown
    await session.close()
    assert await stores[0].get("/alive") is None
    for store in stores:
        await store.close()
    return sum(len(checker.told) for checker in checkers) + added


async def test_members_with_different_records_are_told_from_those_that_agree(members: Etcd, tmp_path: Path) -> None:
    members.ctl("put", "a", "b")
    assert members.disagreement() == ""
    url = EtcdUrl.parse(members.url("engine"))
    cluster = Cluster(url, clock=SystemClock(), rng=random.Random(1), timeout=5.0)
    try:
        agreeing = await contents(url, cluster)
        assert (agreeing.revision, agreeing.differing, agreeing.unknown) == (2, "", "")
        members.ctl("compact", "2")
        members.ctl("put", "a", "c")
        (folder := tmp_path / "other").mkdir()
        other = Etcd(folder)
        members.members += other.members  # the fixture stops it
        other.start()
        other.ctl("put", "a", "c")
        both = EtcdUrl.parse(members.url("engine"))
        apart = await contents(both, cluster)
        assert apart.differing or "compacted" in apart.unknown
        other.ctl("put", "a", "d")
        other.ctl("compact", "2")
        assert "different records at revision 3" in members.disagreement()
        differing = await contents(both, cluster)
        assert differing.revision == 3
        assert all(f"{member.endpoint} has " in differing.differing for member in members.members)
        other.members[0].kill()
        gone = await contents(both, cluster)
        assert other.members[0].endpoint in gone.unknown
        found = await findings_of(url.text, None, random.Random(1), {})
        assert [one.state for one in found if one.what == "etcd members"] == ["ok"]
    finally:
        await cluster.close()


async def test_what_is_acknowledged_is_there_and_shown_though_leaders_are_killed(members: Etcd) -> None:
    assert await check(members, 1, kills=2) > 100


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", range(20))
async def test_fuzz_what_is_acknowledged_is_there_and_shown_though_leaders_are_killed(members: Etcd, seed: int) -> None:
    assert await check(members, seed, kills=10) > 500
