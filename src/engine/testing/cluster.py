"""A whole cluster in one process under one seed: brokers that start, die and lose power, and their clients.

def test_something(seed):
    async def scenario(cluster):
        broker = await cluster.start("b1")
        client = cluster.client("c1", broker)
        ...
        await broker.power_cut()
    simulate(seed, scenario)

With `simulate(seed, scenario, shared=True)` all brokers mount one disk and hold leases in one metadata store:

    for name in ("b1", "b2", "b3"):
        await cluster.start(name)
    client = cluster.client("c1")               # connects to any broker that can be reached
    cluster.brokers["b1"].isolate()             # from the metadata store and the other brokers: a zombie in the making
    cluster.brokers["b1"].rejoin()
    cluster.brokers["b1"].suspend()             # SIGSTOP, resume() is SIGCONT: a zombie that does not know of it

With `simulate(seed, scenario, objects=True)` each has its own disk, and all have one object store, `cluster.objects`:

    await cluster.brokers["b1"].lose_machine()  # with its disk; start() is another machine of that name
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from engine.broker.server import Broker
from engine.broker.settings.config import BrokerConfig
from engine.client.client import AsyncClient
from engine.errors import ConnectError, TimeoutError
from engine.metadata.memory import MemoryMetadataStore
from engine.metadata.remote import RemoteMetadataStore
from engine.testing.clock import LoopClock
from engine.testing.disk import SimDisk
from engine.testing.history import History
from engine.testing.loop import VirtualLoop
from engine.testing.metadata import FaultyMetadataStore
from engine.testing.metadata_server import HOST, SimMetadataServer
from engine.testing.network import SimNetwork
from engine.testing.objects import FaultyObjectStore
from engine.testing.process import Process
from engine.testing.workers import SimWorkers

T = TypeVar("T")

DATA = "/data"
DEFAULT_CONFIG = BrokerConfig(keep_alive=5.0, segments=2, session_timeout=5.0)
WHERE = {
    "objects": "s3://simulated/cluster", "durability": "object", "cluster_name": "simulated",
    "object_flush_interval": 0.01, "object_file_age": 8.0,
}  # fmt: skip
CLUSTER_URL = "engine://cluster:6650"
_DIAL_AGAIN_S = 0.2  # a broker that starts while the metadata server is down


class SimBroker:
    """One machine with its disk, and the broker process that runs on it, if one does."""

    def __init__(self, cluster: SimCluster, name: str, config: BrokerConfig) -> None:
        self.name = name
        self.url = f"engine://{name}:6650"
        self.config = replace(config, service_url=self.url, **cluster.where)
        self.disk = cluster.disk or SimDisk(cluster.rng(f"disk {name}"))
        self._cluster = cluster
        self._lives = 0
        self.last: Broker | None = None  # that runs, or ran last
        # While it runs.
        self.process: Process | None = None
        self.broker: Broker | None = None
        self.metadata: FaultyMetadataStore | None = None
        self.workers: SimWorkers | None = None
        self._handle: MemoryMetadataStore | RemoteMetadataStore | None = None

    @property
    def running(self) -> bool:
        """Whether a broker process runs and serves."""
        return self.broker is not None

    async def start(self) -> None:
        """Start a broker process on the machine's disk, and serve. Raises what Broker.start() raises."""
        cluster = self._cluster
        self._lives += 1
        life = f"{self.name} life {self._lives}"
        self.process = Process(life)
        try:
            self._handle = await self._open_metadata(life)
            self.metadata = FaultyMetadataStore(self._handle, cluster.rng(f"metadata {life}"))
            broker = self.process.run(self._make, life)
            await self.process.do(broker.start)
        except BaseException:
            await self.kill()
            raise
        self.broker = self.last = broker
        self.process.run(cluster.network.listen, self.name, self.url, broker.accept)

    async def _open_metadata(self, life: str) -> MemoryMetadataStore | RemoteMetadataStore:
        server, process = self._cluster.metadata_server, self.process
        if server is None or process is None:
            return self._cluster.metadata.client(leases=self._cluster.leases)
        rng = self._cluster.rng(f"metadata client {life}")
        while True:
            try:
                return await process.do(partial(server.client, self.name, rng))
            except (ConnectError, TimeoutError):
                await asyncio.sleep(_DIAL_AGAIN_S)

    def _make(self, life: str) -> Broker:
        cluster = self._cluster
        self.workers = SimWorkers(cluster.rng(f"workers {life}"))
        return Broker(
            DATA,
            config=self.config,
            metadata=self.metadata,
            disk=self.disk.mount(self.name),
            clock=cluster.clock,
            executor=self.workers,
            rng=cluster.rng(f"broker {life}"),
            connector=cluster.network.connector(self.name),
            objects=cluster.objects,
        )

    async def close(self) -> None:
        broker, process, handle = self.broker, self.process, self._handle
        if broker is None or process is None or handle is None:
            return
        self._cluster.network.close(self.url)
        await process.do(broker.close)
        await process.do(handle.close)
        await self._end()
        self.disk.kill(self.name)

    async def kill(self) -> None:
        """kill -9: what was written stays, what was only in memory is lost."""
        self.disk.kill(self.name)
        await self._end()

    async def power_cut(self) -> None:
        """Power cut: what was not synced is lost as well, but for a random part."""
        self.disk.crash(self.name)
        await self._end()

    async def lose_machine(self) -> None:
        """kill -9, and nothing that was on its disk is ever seen again."""
        await self.kill()
        self.disk = SimDisk(self._cluster.rng(f"disk {self.name} {self._lives}"))

    def suspend(self) -> None:
        """SIGSTOP: the process stops until resume(). Writes and sends already begun complete."""
        if self.process is not None:
            self.process.suspend()

    def resume(self) -> None:
        """SIGCONT: the process continues."""
        if self.process is not None:
            self.process.resume()

    def isolate(self) -> None:
        """Cut it off from the metadata store and the other brokers, not from clients, until rejoin()."""
        if self.metadata is not None:
            self.metadata.partition()
        for other in (*self._cluster.brokers, HOST):
            if other != self.name:
                self._cluster.network.partition(self.name, other)

    def rejoin(self) -> None:
        if self.metadata is not None:
            self.metadata.heal()
        self._cluster.network.heal()

    async def _end(self) -> None:
        self._cluster.network.kill(self.name)
        process, handle = self.process, self._handle
        self.process = self.broker = self.metadata = self.workers = self._handle = None
        if isinstance(handle, MemoryMetadataStore):
            # A local store ends its sessions with the process; a shared one, when it has received nothing for a while.
            handle.abandon(None if self._cluster.leases else 0.0)
        if process is not None:
            self._cluster.stuck += await process.kill()


class SimCluster:
    """Everything that one seed drives. Made by simulate(), on the loop."""

    def __init__(
        self,
        seed: int | str,
        loop: VirtualLoop,
        config: BrokerConfig,
        *,
        shared: bool = False,
        served: bool = False,
        objects: bool = False,
    ) -> None:
        self.seed = seed
        self.loop = loop
        self.config = config
        self.clock = LoopClock(loop)
        self.network = SimNetwork(self.rng("network"))
        self.metadata = MemoryMetadataStore(self.clock)
        self.disk = SimDisk(self.rng("disk")) if shared or served else None  # of all brokers together
        self.leases = shared or served or objects
        self.objects = FaultyObjectStore(self.rng("objects")) if objects else None
        self.where: dict[str, Any] = WHERE if objects else {}
        self.metadata_server: SimMetadataServer | None = None  # of the brokers, over the records in `metadata`
        if served:
            server_rng = self.rng("metadata server")
            self.metadata_server = SimMetadataServer(self.network, self.metadata, self.clock, server_rng)
            self.metadata_server.session_timeout_max = config.session_timeout
            self.metadata_server.start()
        self.history = History(loop.time)
        self.brokers: dict[str, SimBroker] = {}
        self.stuck: list[str] = []  # tasks of killed brokers that would not end
        self._clients: list[AsyncClient] = []

    def rng(self, purpose: str) -> random.Random:
        """A random generator for each purpose, so that one more draw for one does not change the others."""
        return random.Random(f"{self.seed}/{purpose}")

    async def start(self, name: str = "b1") -> SimBroker:
        """Start a broker on a new machine."""
        broker = self.brokers[name] = SimBroker(self, name, self.config)
        self.network.alias(CLUSTER_URL, broker.url)
        await broker.start()
        return broker

    def client(
        self, name: str, broker: SimBroker | None = None, *, url: str | None = None, **options: Any
    ) -> AsyncClient:
        """A client on a host of its own, of `broker`, or of the addresses in `url`, or, as behind a balancer, of any
        broker that it can reach.
        """
        client = AsyncClient(
            url or (CLUSTER_URL if broker is None else broker.url),
            connector=self.network.connector(name),
            clock=self.clock,
            rng=self.rng(f"client {name} {len(self._clients)}"),
            **options,
        )
        self._clients.append(client)
        return client

    async def close(self) -> None:
        for client in self._clients:
            await client.close()
        for broker in self.brokers.values():
            await broker.close()
        if self.metadata_server is not None:
            self.stuck += await self.metadata_server.kill()


def simulate(
    seed: int | str,
    scenario: Callable[[SimCluster], Coroutine[Any, Any, T]],
    *,
    config: BrokerConfig = DEFAULT_CONFIG,
    time_limit: float = 3600.0,
    shared: bool = False,
    served: bool = False,
    objects: bool = False,
) -> T:
    """Run a scenario under a seed, on virtual time. The same seed gives the same run.

    `shared`: the brokers share one disk and hold what they own by leases. `served`: likewise, and they reach the
    metadata store over the network, at `cluster.metadata_server`. `objects`: what they own lies in an object store.
    """
    loop = VirtualLoop()

    async def main() -> T:
        cluster = SimCluster(seed, loop, config, shared=shared, served=served, objects=objects)
        result = await scenario(cluster)
        await cluster.close()
        await asyncio.sleep(0)
        return result

    return loop.run(main(), time_limit)
