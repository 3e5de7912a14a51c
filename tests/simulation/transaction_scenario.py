"""One random life of brokers and of clients that transact over topics, while these change their shape and things break.

Transactions write to two topics and are committed, aborted and forgotten; one client consumes a topic, and makes of
each message one in a third. In the end every header and every operation record is gone, power fails everywhere, or all
machines are lost where brokers have an object store, and all that was committed, and nothing else, is still there.
"""

from __future__ import annotations

import asyncio
import dataclasses
from dataclasses import dataclass

from engine.broker.settings.config import BrokerConfig
from engine.errors import EngineError
from engine.metadata import keys
from engine.model.transactions import TransactionHeader
from engine.testing.cluster import SimCluster, simulate
from engine.testing.transacting import Transactor, Transformer
from engine.testing.workload import (
    CheckpointReader,
    QueueReader,
    Reader,
    Shaper,
    StreamReader,
    read_all,
    write_layout,
)
from tests.simulation.broker_faults import FAULTS, Nemesis
from tests.simulation.broker_scenario import HEALING_S, change_shape, judge
from tests.simulation.test_broker_seeds import brokers_config

ORDERS, BILLS, COPIES = "orders", "bills", "copies"
TOPICS = (ORDERS, BILLS, COPIES)
READERS: tuple[tuple[type[Reader], str], ...] = (
    (StreamReader, ORDERS),
    (QueueReader, BILLS),
    (CheckpointReader, ORDERS),
)
RETENTION_S = 30.0
TIMEOUTS_S = (3.0, 10.0, 20.0)
VICTIMS = ("leader", "owner", "any")


@dataclass
class TransactionPlan:
    """How much of everything."""

    brokers: int = 3
    writers: int = 2
    transactions: int = 25  # of each writer
    length_s: float = 30.0  # how long faults begin
    kinds: tuple[str, ...] = tuple(kind for kind in FAULTS if kind != "clock jump")  # deadlines are by that clock
    seconds: tuple[float, float] = (0.1, 10.0)
    quiet_s: float = 3.0
    changes: int = 8  # of the shape of each of the first two topics
    delays_s: tuple[float, ...] = (0.002, 0.01, 0.05)
    transformer: bool = True
    queue: bool = False  # what is transformed is consumed as a queue


class TransactionScenario:
    """Call it with a cluster; it raises AssertionError with the violations it found."""

    def __init__(self, plan: TransactionPlan | None = None) -> None:
        self.plan = plan or TransactionPlan()

    async def __call__(self, cluster: SimCluster) -> SimCluster:
        plan, rng = self.plan, cluster.rng("scenario")
        cluster.network.delay_s = (0.0001, rng.choice(plan.delays_s))
        for number in range(plan.brokers):
            await cluster.start(f"b{number + 1}")
        spying = asyncio.create_task(spy(cluster), name="spy")
        writers = [self._writer(cluster, f"w{i}") for i in range(plan.writers)]
        readers = [self._reader(cluster, *reader) for reader in READERS]
        transformers = [self._transformer(cluster)] if plan.transformer else []
        writing = [asyncio.create_task(writer.run(plan.transactions), name=writer.name) for writer in writers]
        actors = (*readers, *transformers)
        acting = [asyncio.create_task(actor.run(), name=actor.name) for actor in actors]
        shaping = [asyncio.create_task(self._shape(cluster, topic)) for topic in (ORDERS, BILLS)]
        await self._strike(cluster, tuple(f"c-{actor.name}" for actor in (*writers, *actors)))
        await asyncio.wait_for(asyncio.gather(*shaping), 600)
        await asyncio.sleep(HEALING_S)
        cluster.history.record("nemesis", "healed")
        await asyncio.wait_for(asyncio.gather(*writing), 300)
        for actor in actors:
            actor.stop()
        await asyncio.wait_for(asyncio.gather(*acting), 300)
        await asyncio.sleep(max(TIMEOUTS_S) + 5.0)  # what nobody ended has ended
        for actor in actors:
            await asyncio.wait_for(actor.drain(), 300)
        await self._read_everything(cluster)
        spying.cancel()
        judge(cluster)
        return cluster

    def _writer(self, cluster: SimCluster, name: str) -> Transactor:
        client, rng = cluster.client(f"c-{name}"), cluster.rng(f"writer {name}")
        writer = Transactor(cluster.history, client, name, (ORDERS, BILLS), rng)
        writer.timeouts_s = TIMEOUTS_S
        writer.pause_s_max = 1.5 * self.plan.length_s / self.plan.transactions
        return writer

    def _reader(self, cluster: SimCluster, kind: type[Reader], topic: str) -> Reader:
        name = f"{kind.kind}-{topic}"
        connect = lambda: cluster.client(f"c-{name}")  # noqa: E731
        return kind(cluster.history, connect, name, topic, f"sub-{kind.kind}", cluster.rng(name))

    def _transformer(self, cluster: SimCluster) -> Transformer:
        connect = lambda: cluster.client("c-maker")  # noqa: E731
        history, rng = cluster.history, cluster.rng("maker")
        maker = Transformer(history, connect, "maker", (ORDERS, COPIES), "making", rng, queue=self.plan.queue)
        maker.timeout_s = max(TIMEOUTS_S)
        return maker

    async def _shape(self, cluster: SimCluster, topic: str) -> None:
        rng = cluster.rng(f"shaper {topic}")
        shaper = Shaper(cluster.history, topic, rng)
        for _ in range(self.plan.changes):
            await asyncio.sleep(rng.uniform(0.0, 2 * self.plan.length_s / self.plan.changes))
            running = [b for b in cluster.brokers.values() if b.process is not None and b.broker is not None]
            if running:
                await change_shape(rng.choice(running), shaper)

    async def _strike(self, cluster: SimCluster, clients: tuple[str, ...]) -> None:
        plan, rng = self.plan, cluster.rng("strikes")
        nemesis = Nemesis(cluster, clients)
        while cluster.loop.time() < plan.length_s:
            await asyncio.sleep(rng.uniform(0.05, plan.quiet_s))
            await nemesis.strike(rng.choice(plan.kinds), rng.choice(VICTIMS), rng.uniform(*plan.seconds))
        await nemesis.heal()

    async def _read_everything(self, cluster: SimCluster) -> None:
        await read_topics(cluster, cluster.client("c-final"), 1)
        await asyncio.sleep(RETENTION_S + 30.0)
        left = await overdue(cluster, RETENTION_S)
        assert not left, f"seed {cluster.seed}: never forgotten: {left[:4]} and {len(left)} in all"
        await read_topics(cluster, cluster.client("c-final"), 2)
        for broker in cluster.brokers.values():
            await (broker.power_cut() if cluster.objects is None else broker.lose_machine())
        await asyncio.gather(*(broker.start() for broker in cluster.brokers.values()))
        await read_topics(cluster, cluster.client("c-final"), 3)


async def spy(cluster: SimCluster) -> None:
    """Write down what every header comes to, whoever asked for it."""
    async for event in cluster.metadata.watch("/txn/"):
        if event.record is not None:
            state, number = TransactionHeader.from_json(event.record.value).state, event.key.split("/")[2]
            cluster.history.record("spy", "txn_state", transaction=number, state=str(state))


async def overdue(cluster: SimCluster, retention_s: float) -> list[str]:
    """The keys of headers, and of operations, that ought to be gone. A clock that jumped may have kept some."""
    headers = await cluster.metadata.list("/txn/", keys.prefix_end("/txn/"))
    until = cluster.clock.time_ms() - retention_s * 1000
    late = {r.key.split("/")[2]: TransactionHeader.from_json(r.value).finalized_ms for r in headers}
    kept = {number for number, ended_ms in late.items() if ended_ms is None or ended_ms > until}
    operations = await cluster.metadata.list("/txn-op/", keys.prefix_end("/txn-op/"))
    return [record.key for record in (*headers, *operations) if record.key.split("/")[2] not in kept]


async def read_topics(cluster: SimCluster, client, reading: int) -> None:
    """One final reading of all topics that are there."""
    broker = cluster.brokers[cluster.rng(f"layout {reading}").choice(list(cluster.brokers))]
    for topic in TOPICS:
        try:
            await read_all(cluster.history, client, topic, reading)
            write_layout(cluster.history, topic, await broker.broker.admin.get_metadata(topic))
        except EngineError as e:
            cluster.history.record("final", "fault", text=f"reading {reading} of {topic} ended: {e!r}")
    await client.close()


def config_of(seed: int) -> BrokerConfig:
    """As for brokers; what has ended is forgotten soon."""
    return dataclasses.replace(brokers_config(seed), transaction_retention_time=RETENTION_S)


def run(seed: int, plan: TransactionPlan | None = None, objects: bool = False) -> SimCluster:
    """One life. `objects`: of brokers that share an object store instead of a disk."""
    scenario = TransactionScenario(plan)
    return simulate(seed, scenario, config=config_of(seed), shared=not objects, objects=objects)
