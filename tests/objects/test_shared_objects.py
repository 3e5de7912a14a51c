"""Many slow segments on brokers that are killed with their disks: what they share in a real S3 server is read whole, by
other brokers, and is not swept (R18).
"""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from engine.client.client import AsyncClient
from engine.clock import SystemClock
from engine.metadata import keys
from engine.metadata.etcd.store import EtcdMetadataStore
from engine.metadata.store import MetadataStore
from engine.model.positions import Checkpoint
from engine.storage.objects import records
from engine.storage.objects.names import shared_of
from engine.storage.objects.references import SegmentObjects
from engine.storage.objects.remote import RemoteObjectStore
from engine.storage.objects.sweep import INDEX_OBJECTS, Sweep
from tests.chaos.server import Server
from tests.kit.etcd import Etcd, new_prefix
from tests.kit.programs import environment
from tests.kit.s3_server import S3Server
from tests.objects.conftest import open_store

CLUSTER, PREFIX = "slow", "shared-objects"
TOPICS, SEGMENTS = [f"slow-{number}" for number in range(2)], 12
ROUND = 24  # messages of a topic
WAIT_S_MAX = 90.0
SETTINGS = {
    "ENGINE_SESSION_TIMEOUT": "2", "ENGINE_OBJECT_FILE_AGE": "2", "ENGINE_OBJECT_FLUSH_INTERVAL": "0.02",
    "ENGINE_SCALABLE_TOPIC_AUTO_SCALE_ENABLED": "false",
}  # fmt: skip


class Brokers:
    """Two machines, each with a disk of its own, and a view of what they keep in the stores."""

    def __init__(
        self, root: Path, server: S3Server, url: str, store: RemoteObjectStore, metadata: MetadataStore
    ) -> None:
        """`url`: of etcd."""
        self.objects = store
        self.metadata = metadata
        where = ("--cluster", CLUSTER, "--metadata", url, "--objects", f"s3://engine/{PREFIX}")
        variables = environment(**SETTINGS, **server.environment)
        self.machines = [Server(root / f"b{n}" / "data", *where, environment=variables) for n in range(2)]
        for machine in self.machines:
            machine.data.parent.mkdir()
            machine.advertise()

    def client(self) -> AsyncClient:
        return AsyncClient(",".join([self.machines[0].url, self.machines[1].url.removeprefix("engine://")]))

    async def lose(self, machine: Server) -> None:
        """kill -9, and its disk is gone."""
        await machine.kill()
        await asyncio.to_thread(shutil.rmtree, machine.data)

    async def records(self) -> dict[str, SegmentObjects]:
        """What each segment's record says."""
        found = await self.metadata.newest.list_index(INDEX_OBJECTS, "", keys.LAST)
        return {key: msgspec.json.decode(record.value, type=SegmentObjects) for key, record in found}

    async def named(self, count: int) -> dict[str, SegmentObjects]:
        """The records, as soon as files hold so many messages."""

        async def all_named() -> bool:
            return sum(objects.named_end for objects in (await self.records()).values()) >= count

        await until(all_named)
        return await self.records()

    async def ended(self) -> list[str]:
        """The sessions of the log that another broker has fenced."""
        found = await self.metadata.newest.list(keys.WALS, keys.prefix_end(keys.WALS))
        sessions = [keys.decode(record.key.removeprefix(keys.WALS)) for record in found]
        return [each for each in sessions if (await records.read(self.metadata, each)).record.fenced is not None]

    async def swept(self) -> list[str]:
        """What is deleted by the second of two sweeps."""
        unshared: frozenset[str] = frozenset()
        for _ in range(2):
            sweep = Sweep(self.objects, self.metadata, CLUSTER, lambda: int(time.time() * 1000) + 60_000, 0.0, unshared)
            names, unshared = (await sweep.run()).names, sweep.unshared
        return names


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(WAIT_S_MAX):
        while not await condition():  # noqa: ASYNC110 - other processes write the records
            await asyncio.sleep(0.1)


@asynccontextmanager
async def running(root: Path, server: S3Server, etcd: Etcd) -> AsyncIterator[Brokers]:
    """Both brokers."""
    url, store = etcd.url(new_prefix()), open_store(server, PREFIX)
    metadata = await EtcdMetadataStore.open(url, clock=SystemClock(), rng=random.Random(1))
    brokers = Brokers(root, server, url, store, metadata)
    try:
        await asyncio.gather(*(machine.start() for machine in brokers.machines))
        yield brokers
    finally:
        for machine in Server.running & set(brokers.machines):
            await machine.kill()
        await metadata.close()
        await store.close()


async def send(client: AsyncClient, first: int) -> None:
    """A round: each topic gets the numbers from `first` on, with the number within the round as the key."""

    async def to(topic: str) -> None:
        async with await client.producer(topic) as producer:
            for number in range(first, first + ROUND):
                await producer.send(b"%d" % number, key=f"k{number - first}")

    await asyncio.gather(*map(to, TOPICS))


async def read(client: AsyncClient, count: int) -> None:
    """Each message of each topic once, those of a key in order."""

    async def of(topic: str) -> None:
        found: dict[bytes, list[int]] = {}
        consumer = await client.checkpoint_consumer(topic, start=Checkpoint.earliest())
        while sum(map(len, found.values())) < count:
            batch = await consumer.receive_batch(timeout=WAIT_S_MAX)
            assert len(batch), f"{topic}: {count - sum(map(len, found.values()))} messages are missing"
            for message in batch:
                found.setdefault(message.key, []).append(int(message.value))
        assert not len(await consumer.receive_batch(timeout=0.2))
        await consumer.close()
        assert found == {b"k%d" % k: list(range(k, count, ROUND)) for k in range(ROUND)}

    await asyncio.gather(*map(of, TOPICS))


def shared(found: dict[str, SegmentObjects]) -> list[str]:
    """The name of the object, of each file that lies in one which segments share."""
    return [file.key for objects in found.values() for file in objects.files if shared_of(file.key) is not None]


def sessions(names: list[str]) -> set[str]:
    return {each.session for name in names if (each := shared_of(name)) is not None}


@pytest.mark.timeout(600)
async def test_r18_what_slow_segments_share_outlives_the_machines_that_wrote_it(
    server: S3Server, etcd: Etcd, tmp_path: Path
) -> None:
    async with running(tmp_path, server, etcd) as brokers, brokers.client() as client:
        first, second = brokers.machines
        await asyncio.gather(*(client.admin.create_topic(topic, segments=SEGMENTS) for topic in TOPICS))
        await send(client, 0)
        before = shared(await brokers.named(len(TOPICS) * ROUND))
        assert len(before) > len(set(before)), "no file shares its object"  # how many do is a matter of time

        # One machine is lost while a round is under way: what it had named, and what was in its log alone.
        sending = asyncio.create_task(send(client, ROUND))
        await asyncio.sleep(0.2)
        await brokers.lose(first)
        await sending
        await read(client, 2 * ROUND)
        names = shared(await brokers.named(2 * len(TOPICS) * ROUND))
        assert len(names) > len(before)
        assert sessions(names) == sessions(before), "both brokers have shared objects"

        # Sweeps, as of a clock that is a minute ahead: what no record names goes, and nothing else.
        (session,) = await brokers.ended()
        orphan = f"log/{CLUSTER}/shared/{999:012d}-{session}.logs"
        await brokers.objects.put_if_absent(orphan, [b"that no record names"])
        assert orphan in await brokers.swept()

        # Nothing is left but what the stores have; another machine goes on with what both have written.
        await brokers.lose(second)
        await first.start()
        await send(client, 2 * ROUND)
        await read(client, 3 * ROUND)
