"""One random life of a broker with producers and two subscriptions, under faults; then the reading of it all."""

from __future__ import annotations

import asyncio
import errno
import random
from dataclasses import dataclass

from engine.errors import EngineError
from engine.testing.checker import check, describe
from engine.testing.cluster import SimBroker, SimCluster
from engine.testing.disk import Fault
from engine.testing.workload import QueueReader, Reader, Sender, Shaper, StreamReader, read_all, write_layout

TOPIC = "orders"
HEALING_S = 10.0
CLIENTS = ("c-p0", "c-p1", "c-stream0", "c-stream1", "c-queue2")
FAULTS = (
    "kill",
    "power cut",
    "close",
    "reset",
    "partition",
    "slow metadata",
    "unsure metadata",
    "metadata out of reach",
    "clock jump",
    "sync fails",
    "disk full",
    "nothing",
)


@dataclass
class Plan:
    """How much of everything."""

    senders: int = 2
    messages: int = 120
    faults: int = 6
    kinds: tuple[str, ...] = FAULTS
    quiet_s: float = 3.0  # at most, between two faults
    delays_s: tuple[float, ...] = (0.002, 0.01, 0.05)  # one of these is the longest way of a piece
    final_power_cut: bool = True
    readers: tuple[type[Reader], ...] = (StreamReader, StreamReader, QueueReader)
    changes: int = 0  # of the topic's shape, tried while faults go on


class Scenario:
    """Call it with a cluster; it raises AssertionError with the violations it found."""

    def __init__(self, plan: Plan | None = None) -> None:
        self.plan = plan or Plan()

    async def __call__(self, cluster: SimCluster) -> SimCluster:
        rng = cluster.rng("scenario")
        cluster.network.delay_s = (0.0001, rng.choice(self.plan.delays_s))
        broker = await cluster.start()
        senders = [
            Sender(cluster.history, cluster.client(f"c-p{i}", broker), f"p{i}", TOPIC, cluster.rng(f"sender {i}"))
            for i in range(self.plan.senders)
        ]
        for sender in senders:
            sender.pause_s_max = 2 * self.plan.faults * self.plan.quiet_s / self.plan.messages
        readers = [self._reader(cluster, broker, kind, i) for i, kind in enumerate(self.plan.readers)]
        sending = [asyncio.create_task(sender.run(self.plan.messages), name=sender.name) for sender in senders]
        reading = [asyncio.create_task(reader.run(), name=reader.name) for reader in readers]
        shaping = asyncio.create_task(self._shape(cluster, broker), name="shaper")
        for _ in range(self.plan.faults):
            await asyncio.sleep(rng.uniform(0.05, self.plan.quiet_s))
            await self._fault(cluster, broker, rng)
        await asyncio.wait_for(shaping, 600)
        await _heal(cluster, broker)
        await asyncio.sleep(HEALING_S)
        cluster.history.record("nemesis", "healed")
        await asyncio.wait_for(asyncio.gather(*sending), 120)
        for reader in readers:
            reader.stop()
        await asyncio.wait_for(asyncio.gather(*reading), 120)
        await self._read_everything(cluster, broker, readers)
        violations = check(cluster.history.events)
        assert not violations, f"seed {cluster.seed}:\n{describe(violations)}"
        assert not cluster.loop.problems, f"seed {cluster.seed}: {cluster.loop.problems}"
        assert not cluster.stuck, f"seed {cluster.seed}: tasks outlived their process: {cluster.stuck}"
        return cluster

    async def _shape(self, cluster: SimCluster, broker: SimBroker) -> None:
        """Change the topic's shape again and again; a change whose broker dies under it is left to the next life."""
        rng = cluster.rng("shaper")
        shaper = Shaper(cluster.history, TOPIC, rng)
        for _ in range(self.plan.changes):
            await asyncio.sleep(rng.uniform(0.0, 2 * self.plan.faults * self.plan.quiet_s / self.plan.changes))
            process, serving = broker.process, broker.broker
            if process is not None and serving is not None:
                change = asyncio.ensure_future(process.do(lambda admin=serving.admin: shaper.change(admin)))
                await asyncio.wait([change], timeout=60)
                change.cancel()

    def _reader(self, cluster: SimCluster, broker: SimBroker, kind: type[Reader], number: int) -> Reader:
        name = f"{kind.kind}{number}"
        connect = lambda: cluster.client(f"c-{name}", broker)  # noqa: E731
        return kind(cluster.history, connect, name, TOPIC, f"sub-{kind.kind}", cluster.rng(name))

    async def _fault(self, cluster: SimCluster, broker: SimBroker, rng: random.Random) -> None:
        kind = rng.choice(self.plan.kinds)
        cluster.history.record("nemesis", "fault", text=kind)
        if kind in ("kill", "power cut", "close"):
            await (broker.kill() if kind == "kill" else broker.power_cut() if kind == "power cut" else broker.close())
            await asyncio.sleep(rng.uniform(0, 2))
            await broker.start()
        elif kind == "reset":
            for client in CLIENTS:
                cluster.network.reset(client, broker.name)
        elif kind == "partition":
            cluster.network.partition(rng.choice(CLIENTS), broker.name)
            await asyncio.sleep(rng.uniform(0.1, 20))
            cluster.network.heal()
        elif kind == "slow metadata":
            broker.metadata.delay_s_max = rng.uniform(0.01, 0.5)
        elif kind == "unsure metadata":
            broker.metadata.unknown_rate = rng.uniform(0.05, 0.5)
            await asyncio.sleep(rng.uniform(0.1, 5))
            broker.metadata.unknown_rate = 0.0
        elif kind == "metadata out of reach":
            broker.metadata.partition()
            await asyncio.sleep(rng.uniform(0.1, 20))
            broker.metadata.heal()
        elif kind == "clock jump":
            cluster.clock.skew_ms += rng.randint(-3_600_000, 3_600_000)
        elif kind == "sync fails":
            broker.disk.faults.append(Fault("sync", path=".log", after=rng.randint(0, 3)))
        elif kind == "disk full":
            broker.disk.faults.append(Fault("write", errno.ENOSPC, ".log", after=rng.randint(0, 3), times=2))

    async def _read_everything(self, cluster: SimCluster, broker: SimBroker, readers: list[Reader]) -> None:
        client = cluster.client("c-final", broker)
        await self._read(cluster, broker, client, 1)
        for reader in readers:
            await reader.drain()
        await self._read(cluster, broker, client, 2)
        await client.close()
        await (broker.power_cut() if self.plan.final_power_cut else broker.close())
        await broker.start()
        await self._read(cluster, broker, cluster.client("c-final", broker), 3)

    async def _read(self, cluster, broker, client, reading) -> None:
        try:
            await read_all(cluster.history, client, TOPIC, reading)
        except EngineError as e:
            cluster.history.record("final", "fault", text=f"reading {reading} ended: {e!r}")
        write_layout(cluster.history, TOPIC, await broker.broker.admin.get_metadata(TOPIC))


async def _heal(cluster: SimCluster, broker: SimBroker) -> None:
    cluster.network.heal()
    cluster.clock.skew_ms = 0
    broker.disk.faults.clear()
    if not broker.running:
        await broker.start()
    broker.metadata.delay_s_max = 0.0
