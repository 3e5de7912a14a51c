"""One random life of three brokers with clients spread over them, a topic that changes its shape, and faults."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from engine.errors import EngineError
from engine.testing.checker import check, describe
from engine.testing.cluster import SimBroker, SimCluster
from engine.testing.workload import (
    CheckpointReader,
    QueueReader,
    Reader,
    Sender,
    Shaper,
    StreamReader,
    read_all,
    write_layout,
)
from tests.simulation.broker_faults import FAULTS, TOPIC, VICTIMS, Nemesis

BROKERS = ("b1", "b2", "b3")
READERS: tuple[type[Reader], ...] = (StreamReader, StreamReader, QueueReader, CheckpointReader)
HEALING_S = 10.0


@dataclass
class BrokerPlan:
    """How much of everything."""

    senders: int = 2
    messages: int = 100
    length_s: float = 40.0  # how long faults begin
    kinds: tuple[str, ...] = FAULTS
    victims: tuple[str, ...] = VICTIMS
    seconds: tuple[float, float] = (0.1, 12.0)  # of a fault; a session lasts 5
    quiet_s: float = 2.0  # at most, between two faults
    together: float = 0.2  # how often two faults happen at a time
    delays_s: tuple[float, ...] = (0.002, 0.01, 0.05)  # one of these is the longest way of a piece
    changes: int = 10
    script: tuple[tuple[str | None, str, str], ...] = ()  # instead: (phase, kind, victim) of a change each


class BrokerScenario:
    """Call it with a cluster whose disk is shared, or that has an object store.

    It raises AssertionError with the violations it found.
    """

    def __init__(self, plan: BrokerPlan | None = None) -> None:
        self.plan = plan or BrokerPlan()

    async def __call__(self, cluster: SimCluster) -> SimCluster:
        rng = cluster.rng("scenario")
        cluster.network.delay_s = (0.0001, rng.choice(self.plan.delays_s))
        for name in BROKERS:
            await cluster.start(name)
        senders = [self._sender(cluster, f"p{i}") for i in range(self.plan.senders)]
        readers = [self._reader(cluster, kind, i) for i, kind in enumerate(READERS)]
        sending = [asyncio.create_task(sender.run(self.plan.messages), name=sender.name) for sender in senders]
        reading = [asyncio.create_task(reader.run(), name=reader.name) for reader in readers]
        shaping = asyncio.create_task(self._shape(cluster, self.plan.changes), name="shaper")
        nemesis = Nemesis(cluster, tuple(f"c-{actor.name}" for actor in (*senders, *readers)))
        for phase, kind, who in self.plan.script:
            striking = asyncio.create_task(nemesis.strike_at(phase, kind, who, rng.uniform(*self.plan.seconds)))
            await self._shape(cluster, 1)
            await striking
        while not self.plan.script and cluster.loop.time() < self.plan.length_s:
            await asyncio.sleep(rng.uniform(0.05, self.plan.quiet_s))
            count = 2 if rng.random() < self.plan.together else 1
            strikes = [(rng.choice(self.plan.kinds), rng.choice(self.plan.victims)) for _ in range(count)]
            await asyncio.gather(*(nemesis.strike(k, who, rng.uniform(*self.plan.seconds)) for k, who in strikes))
        await nemesis.heal()
        await asyncio.wait_for(shaping, 600)
        await asyncio.sleep(HEALING_S)
        cluster.history.record("nemesis", "healed")
        await asyncio.wait_for(asyncio.gather(*sending), 120)
        for reader in readers:
            reader.stop()
        await asyncio.wait_for(asyncio.gather(*reading), 120)
        await self._read_everything(cluster, readers)
        judge(cluster)
        return cluster

    def _sender(self, cluster: SimCluster, name: str) -> Sender:
        sender = Sender(cluster.history, cluster.client(f"c-{name}"), name, TOPIC, cluster.rng(f"sender {name}"))
        sender.pause_s_max = 6 * self.plan.length_s / self.plan.messages
        return sender

    def _reader(self, cluster: SimCluster, kind: type[Reader], number: int) -> Reader:
        name = f"{kind.kind}{number}"
        connect = lambda: cluster.client(f"c-{name}")  # noqa: E731
        return kind(cluster.history, connect, name, TOPIC, f"sub-{kind.kind}", cluster.rng(name))

    async def _shape(self, cluster: SimCluster, changes: int) -> None:
        """Change the shape again and again, through any broker; one that dies under it leaves the change to others."""
        rng = cluster.rng(f"shaper {cluster.loop.time():g}")
        shaper = Shaper(cluster.history, TOPIC, rng)
        for _ in range(changes):
            await asyncio.sleep(rng.uniform(0.0, 2 * self.plan.length_s / (self.plan.changes or 10)))
            running = [b for b in cluster.brokers.values() if b.process is not None and b.broker is not None]
            if running:
                await change_shape(rng.choice(running), shaper)

    async def _read_everything(self, cluster: SimCluster, readers: list[Reader]) -> None:
        client = cluster.client("c-final")
        await read(cluster, client, 1)
        for reader in readers:
            await reader.drain()
        await read(cluster, client, 2)
        await client.close()
        for broker in cluster.brokers.values():
            await (broker.power_cut() if cluster.objects is None else broker.lose_machine())
        await asyncio.gather(*(broker.start() for broker in cluster.brokers.values()))
        await read(cluster, cluster.client("c-final"), 3)


async def change_shape(broker: SimBroker, shaper: Shaper) -> None:
    process, serving = broker.process, broker.broker
    change = asyncio.ensure_future(process.do(lambda: shaper.change(serving.admin)))
    await asyncio.wait([change], timeout=60)
    change.cancel()


async def read(cluster: SimCluster, client, reading: int) -> None:
    try:
        await read_all(cluster.history, client, TOPIC, reading)
    except EngineError as e:
        cluster.history.record("final", "fault", text=f"reading {reading} ended: {e!r}")
    broker = cluster.brokers[cluster.rng(f"layout {reading}").choice(list(cluster.brokers))]
    write_layout(cluster.history, TOPIC, await broker.broker.admin.get_metadata(TOPIC))


def judge(cluster: SimCluster) -> None:
    violations = check(cluster.history.events)
    assert not violations, f"seed {cluster.seed}:\n{describe(violations)}"
    assert not cluster.loop.problems, f"seed {cluster.seed}: {cluster.loop.problems}"
    assert not cluster.stuck, f"seed {cluster.seed}: tasks outlived their process: {cluster.stuck}"
