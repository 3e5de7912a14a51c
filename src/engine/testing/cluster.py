"""A whole cluster in one process under one seed: brokers that start, die and lose power, and their clients.

def test_something(seed):
    async def scenario(cluster):
        broker = await cluster.start("b1")
        client = cluster.client("c1", broker)
        ...
        await broker.power_cut()
    simulate(seed, scenario)
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from engine.broker.config import BrokerConfig
from engine.broker.server import Broker
from engine.client.client import AsyncClient
from engine.metadata.memory import MemoryMetadataStore
from engine.testing.clock import LoopClock
from engine.testing.disk import SimDisk
from engine.testing.history import History
from engine.testing.loop import VirtualLoop
from engine.testing.metadata import FaultyMetadataStore
from engine.testing.network import SimNetwork
from engine.testing.process import Process
from engine.testing.workers import SimWorkers

T = TypeVar("T")

DATA = "/data"
DEFAULT_CONFIG = BrokerConfig(keep_alive=5.0, segments=2)


class SimBroker:
    """One machine with its disk, and the broker process that runs on it, if one does."""

    def __init__(self, cluster: SimCluster, name: str, config: BrokerConfig) -> None:
        self.name = name
        self.url = f"engine://{name}:6650"
        self.config = replace(config, service_url=self.url)
        self.disk = SimDisk(cluster.rng(f"disk {name}"))
        self._cluster = cluster
        self._lives = 0
        # While it runs.
        self.process: Process | None = None
        self.broker: Broker | None = None
        self.metadata: FaultyMetadataStore | None = None
        self._handle: MemoryMetadataStore | None = None

    @property
    def running(self) -> bool:
        """Whether there is a process that serves."""
        return self.broker is not None

    async def start(self) -> None:
        """Start a process on what the disk holds, and serve. Raises what Broker.start() raises."""
        cluster = self._cluster
        self._lives += 1
        life = f"{self.name} life {self._lives}"
        self.process = Process(life)
        self._handle = cluster.metadata.client()
        self.metadata = FaultyMetadataStore(self._handle, cluster.rng(f"metadata {life}"))
        broker = self.process.run(self._make, life)
        try:
            await self.process.do(broker.start)
        except BaseException:
            await self.kill()
            raise
        self.broker = broker
        self.process.run(cluster.network.listen, self.name, self.url, broker.accept)

    def _make(self, life: str) -> Broker:
        cluster = self._cluster
        return Broker(
            DATA,
            config=self.config,
            metadata=self.metadata,
            disk=self.disk.mount(),
            clock=cluster.clock,
            executor=SimWorkers(cluster.rng(f"workers {life}")),
            rng=cluster.rng(f"broker {life}"),
        )

    async def close(self) -> None:
        """End in order."""
        broker, process, handle = self.broker, self.process, self._handle
        if broker is None or process is None or handle is None:
            return
        self._cluster.network.close(self.url)
        await process.do(broker.close)
        await handle.close()
        await self._end()
        self.disk.kill()

    async def kill(self) -> None:
        """kill -9: what was written stays, what was in memory is gone."""
        self.disk.kill()
        await self._end()

    async def power_cut(self) -> None:
        """What was not synced is gone as well, but for a random part."""
        self.disk.crash()
        await self._end()

    async def _end(self) -> None:
        self._cluster.network.kill(self.name)
        process, handle = self.process, self._handle
        self.process = self.broker = self.metadata = self._handle = None
        if handle is not None:
            handle.abandon(0.0)  # the metadata of a local store end their sessions with the process
        if process is not None:
            self._cluster.stuck += await process.kill()


class SimCluster:
    """Everything that one seed drives. Make it on the loop, by simulate()."""

    def __init__(self, seed: int | str, loop: VirtualLoop, config: BrokerConfig) -> None:
        self.seed = seed
        self.loop = loop
        self.config = config
        self.clock = LoopClock(loop)
        self.network = SimNetwork(self.rng("network"))
        self.metadata = MemoryMetadataStore(self.clock)
        self.history = History(loop.time)
        self.brokers: dict[str, SimBroker] = {}
        self.stuck: list[str] = []  # tasks of killed brokers that would not end
        self._clients: list[AsyncClient] = []

    def rng(self, purpose: str) -> random.Random:
        """A generator of its own for every purpose, so that one more draw here changes nothing there."""
        return random.Random(f"{self.seed}/{purpose}")

    async def start(self, name: str = "b1") -> SimBroker:
        """A new machine with a running broker."""
        broker = self.brokers[name] = SimBroker(self, name, self.config)
        await broker.start()
        return broker

    def client(self, name: str, broker: SimBroker, **options: Any) -> AsyncClient:
        """A client on a host of its own."""
        client = AsyncClient(
            broker.url,
            connector=self.network.connector(name),
            clock=self.clock,
            rng=self.rng(f"client {name} {len(self._clients)}"),
            **options,
        )
        self._clients.append(client)
        return client

    async def close(self) -> None:
        """Close clients, then brokers."""
        for client in self._clients:
            await client.close()
        for broker in self.brokers.values():
            await broker.close()


def simulate(
    seed: int | str,
    scenario: Callable[[SimCluster], Coroutine[Any, Any, T]],
    *,
    config: BrokerConfig = DEFAULT_CONFIG,
    time_limit: float = 3600.0,
) -> T:
    """Run a scenario under a seed, on virtual time. The same seed gives the same run."""
    loop = VirtualLoop()

    async def main() -> T:
        cluster = SimCluster(seed, loop, config)
        result = await scenario(cluster)
        await cluster.close()
        await asyncio.sleep(0)
        return result

    return loop.run(main(), time_limit)
