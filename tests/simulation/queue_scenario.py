"""One random life of a queue: members hand back, forget, die; some messages are for later, some end as dead letters."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from engine.testing.cluster import SimCluster, simulate
from engine.testing.members import DelayingSender, QueueMember, ResumingSender, read_letters
from engine.testing.workload import Sender, Shaper
from tests.simulation.broker_faults import TOPIC, Nemesis
from tests.simulation.broker_scenario import HEALING_S, change_shape, judge, read
from tests.simulation.sharing_scenario import SETTLING_S
from tests.simulation.test_broker_seeds import brokers_config

SUBSCRIPTION = "sub"


@dataclass
class QueuePlan:
    """How much of everything."""

    brokers: int = 1
    members: int = 3
    messages: int = 80
    strikes: int = 0
    kinds: tuple[str, ...] = ("kill", "power cut", "close", "reset", "client apart", "freeze", "isolate")
    calm_s: float = 20.0
    changes: int = 3
    life_s: float = 8.0
    kill_rate: float = 0.3
    nack_rate: float = 0.2
    forget_rate: float = 0.1
    ack_timeout: float | None = 2.0
    max_redeliveries: int | None = 2


class QueueScenario:
    """Call it with a cluster; it raises AssertionError with the violations it found."""

    def __init__(self, plan: QueuePlan | None = None) -> None:
        self.plan = plan or QueuePlan()

    async def __call__(self, cluster: SimCluster) -> SimCluster:
        plan, rng = self.plan, cluster.rng("scenario")
        cluster.network.delay_s = (0.0001, rng.choice((0.002, 0.01)))
        for number in range(plan.brokers):
            await cluster.start(f"b{number + 1}")
        calm = cluster.history.invoke("nemesis", "calm")
        senders = self._senders(cluster)
        members = [self._member(cluster, f"queue{i}") for i in range(plan.members)]
        sending = [asyncio.create_task(sender.run(plan.messages), name=sender.name) for sender in senders]
        reading = [asyncio.create_task(member.run(), name=member.name) for member in members]
        shaping = asyncio.create_task(self._shape(cluster), name="shaper")
        nemesis = Nemesis(cluster, tuple(f"c-{actor.name}" for actor in (*senders, *members)))
        for _ in range(plan.strikes):
            await asyncio.sleep(rng.uniform(0.5, plan.calm_s / 2))
            calm.ok()
            await nemesis.strike(rng.choice(plan.kinds), "any", rng.uniform(0.1, 8.0))
            await asyncio.sleep(SETTLING_S)
            calm = cluster.history.invoke("nemesis", "calm")
        await asyncio.sleep(plan.calm_s)
        await asyncio.wait_for(shaping, 600)
        await asyncio.wait_for(asyncio.gather(*sending), 600)
        for member in members:
            member.stop()
        await asyncio.wait_for(asyncio.gather(*reading), 120)
        await asyncio.sleep(HEALING_S)
        await members[0].finish()
        calm.ok()
        await self._read_everything(cluster)
        judge(cluster)
        return cluster

    def _senders(self, cluster: SimCluster) -> list[Sender]:
        arguments = lambda name: (  # noqa: E731
            *(cluster.history, cluster.client(f"c-{name}"), name, TOPIC, cluster.rng(f"sender {name}")),
        )
        resuming = ResumingSender(*arguments("resumer")).connected(lambda: cluster.client("c-resumer"))
        senders = [Sender(*arguments("plain")), DelayingSender(*arguments("delayer")), resuming]
        for sender in senders:
            sender.pause_s_max = 6 * self.plan.calm_s * (self.plan.strikes + 1) / self.plan.messages
        return senders

    def _member(self, cluster: SimCluster, name: str) -> QueueMember:
        connect = lambda: cluster.client(f"c-{name}")  # noqa: E731
        member = QueueMember(cluster.history, connect, name, TOPIC, SUBSCRIPTION, cluster.rng(name))
        member.life_s_max, member.kill_rate, member.ack_rate = self.plan.life_s, self.plan.kill_rate, 1.0
        member.nack_rate, member.forget_rate = self.plan.nack_rate, self.plan.forget_rate
        member.ack_timeout, member.max_redeliveries = self.plan.ack_timeout, self.plan.max_redeliveries
        return member

    async def _shape(self, cluster: SimCluster) -> None:
        rng = cluster.rng("shaper")
        shaper = Shaper(cluster.history, TOPIC, rng, segments_max=4)
        for _ in range(self.plan.changes):
            await asyncio.sleep(rng.uniform(0.0, 2 * self.plan.calm_s / self.plan.changes))
            running = [b for b in cluster.brokers.values() if b.process is not None and b.broker is not None]
            if running:
                await change_shape(rng.choice(running), shaper)

    async def _read_everything(self, cluster: SimCluster) -> None:
        client = cluster.client("c-final")
        await read(cluster, client, 1)
        if self.plan.max_redeliveries is not None:
            await read_letters(cluster.history, client, TOPIC, SUBSCRIPTION)
        await client.close()
        for broker in cluster.brokers.values():
            await (broker.power_cut() if cluster.objects is None else broker.lose_machine())
        await asyncio.gather(*(broker.start() for broker in cluster.brokers.values()))
        await read(cluster, cluster.client("c-final"), 2)


def run(seed: int, plan: QueuePlan | None = None, objects: bool = False) -> SimCluster:
    """One life. `objects`: of brokers that share an object store instead of a disk."""
    return simulate(seed, QueueScenario(plan), config=brokers_config(seed), shared=not objects, objects=objects)
