"""Black box: brokers on etcd and SeaweedFS are killed, and what was on their disks is removed; the checker judges."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.client.client import AsyncClient
from engine.testing.history import History
from engine.testing.workload import QueueReader, Reader, Sender, StreamReader, read_all
from tests.chaos.progress import Progress, acknowledged
from tests.chaos.server import Server
from tests.chaos.test_kill_loop import ENDING_S_MAX, judge
from tests.kit.etcd import Etcd, new_prefix
from tests.kit.s3_server import S3Server

TOPIC = "orders"
SESSION_S = 3
IDLE_S = 3.0
READERS: tuple[type[Reader], ...] = (StreamReader, QueueReader)


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[S3Server]:
    """A server of its own, so that it may be killed."""
    server = S3Server(tmp_path / "s3")
    try:
        server.start()
        yield server
    finally:
        server.kill()


class Machines:
    """Brokers, each on a disk of its own, clients of all of them, and the judge."""

    def __init__(self, root: Path, etcd: Etcd, s3: S3Server, seed: int, brokers: int) -> None:
        self.rng = random.Random(seed)
        self.sent = Progress(acknowledged)
        self.history = History(asyncio.get_running_loop().time, self.sent.heard)
        self._root = root
        self._lost = 0
        common = ("--metadata", etcd.url(new_prefix()), "--objects", "s3://engine/loss", "--cluster", "tests")
        variables = {
            **s3.environment, "ENGINE_SESSION_TIMEOUT": str(SESSION_S), "ENGINE_OBJECT_FLUSH_INTERVAL": "0.02",
        }  # fmt: skip
        self.servers = [Server(root / f"machine-{n}" / "data", *common, environment=variables) for n in range(brokers)]
        for server in self.servers:
            server.advertise()
        self.url = "engine://" + ",".join(server.url.removeprefix("engine://") for server in self.servers)

    async def start(self) -> None:
        for server in self.servers:
            server.data.parent.mkdir()
        await asyncio.gather(*(server.start() for server in self.servers))

    async def lose(self, server: Server) -> None:
        """kill -9, and the disk is gone; another machine takes the place."""
        self.history.record("nemesis", "fault", text=f"lost machine {self.servers.index(server)}")
        await server.kill()
        self._lost += 1
        server.data.rename(self._root / f"lost-{self._lost}")  # removed at once, even while it is large
        shutil.rmtree(self._root / f"lost-{self._lost}")

    def client(self) -> AsyncClient:
        return AsyncClient(self.url)

    def _own(self) -> random.Random:
        return random.Random(self.rng.random())

    def reader(self, kind: type[Reader]) -> Reader:
        reader = kind(self.history, self.client, kind.kind, TOPIC, f"sub-{kind.kind}", self._own())
        reader.life_s_max, reader.idle_s = 5.0, IDLE_S
        return reader

    async def run(self, losses: int) -> None:
        """Producers and consumers, a split and a merge, and so many machines that are lost; everything is read then."""
        await self.start()
        client = self.client()
        await client.admin.create_topic(TOPIC, segments=2)
        senders = [Sender(self.history, client, f"p{i}", TOPIC, self._own()) for i in range(2)]
        readers = [self.reader(kind) for kind in READERS]
        for sender in senders:
            sender.pause_s_max = 0.05
        working = [asyncio.create_task(sender.run(100_000)) for sender in senders]
        working += [asyncio.create_task(reader.run()) for reader in readers]
        for loss in range(losses):
            await self.sent.more(self.rng.randint(10, 60))
            if loss == 0:
                await client.admin.split_segment(TOPIC, 0)
            server = self.rng.choice(self.servers)
            await self.lose(server)
            await self.sent.more(10)
            await server.start()
        for actor in (*senders, *readers):
            actor.stop()
        await asyncio.wait_for(asyncio.gather(*working), ENDING_S_MAX)
        await read_all(self.history, client, TOPIC, 1, IDLE_S)
        await asyncio.gather(*(reader.drain() for reader in readers))
        await asyncio.gather(*(self.lose(server) for server in self.servers))  # nothing but the stores is left
        await asyncio.gather(*(server.start() for server in self.servers))
        await read_all(self.history, client, TOPIC, 2, IDLE_S)
        await client.close()
        await asyncio.gather(*(server.close() for server in self.servers))


async def lost(root: Path, etcd: Etcd, s3: S3Server, seed: int, *, brokers: int, losses: int) -> None:
    machines = Machines(root, etcd, s3, seed, brokers)
    await machines.run(losses)
    judge(machines.history, root, seed)


@pytest.mark.timeout(300)
async def test_acknowledged_messages_survive_the_loss_of_machines_with_their_disks(
    tmp_path: Path, etcd: Etcd, s3: S3Server
) -> None:
    """D1 to D4, O1, O2, C1, C2: real brokers, etcd and S3."""
    seed = 41
    print(f"seed {seed}")
    await lost(tmp_path, etcd, s3, seed, brokers=2, losses=1)


@pytest.mark.fuzz
@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", range(400, 410))
async def test_fuzz_the_loss_of_machines(tmp_path: Path, etcd: Etcd, s3: S3Server, seed: int) -> None:
    await lost(tmp_path, etcd, s3, seed, brokers=3, losses=20)
