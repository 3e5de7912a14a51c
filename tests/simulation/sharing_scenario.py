"""One random life of a group of stream consumers that share segments by buckets, and of the topic under them.

Members come, go, die and dawdle; the topic splits, merges and is rebucketed, by hand and by itself; now and then
something breaks. In the calm between, nobody may be given what another one still holds.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from dataclasses import dataclass

from engine.broker.settings.config import BrokerConfig
from engine.testing.cluster import SimCluster, simulate
from engine.testing.members import StreamMember
from engine.testing.workload import Sender, Shaper, StreamReader
from tests.simulation.broker_faults import TOPIC, Nemesis
from tests.simulation.broker_scenario import HEALING_S, change_shape, judge, read
from tests.simulation.test_broker_seeds import brokers_config

SETTLING_S = 11.0  # after a fault: by then whoever lost a connection knows
KINDS = ("kill", "kill", "power cut", "close", "reset", "reset", "client apart", "client apart", "freeze", "isolate")
VICTIMS = ("leader", "owner", "owner", "any")


@dataclass
class SharingPlan:
    """How much of everything."""

    brokers: int = 1
    members: tuple[int, int] = (3, 8)
    senders: int = 2
    messages: int = 150
    keys: int = 12  # of each sender
    strikes: int = 3
    kinds: tuple[str, ...] = KINDS
    calm_s: float = 8.0  # at most, between two strikes
    changes: int = 4
    delays_s: tuple[float, ...] = (0.002, 0.01, 0.05)
    life_s: float = 15.0  # of a member, at most
    kill_rate: float = 0.3
    ack_rate: float = 0.6

    @property
    def length_s(self) -> float:
        """About how long faults begin."""
        return (self.strikes + 1) * (self.calm_s / 2 + SETTLING_S)


class SharingScenario:
    """Call it with a cluster; it raises AssertionError with the violations it found."""

    def __init__(self, plan: SharingPlan | None = None) -> None:
        self.plan = plan or SharingPlan()

    async def __call__(self, cluster: SimCluster) -> SimCluster:
        plan, rng = self.plan, cluster.rng("scenario")
        cluster.network.delay_s = (0.0001, rng.choice(plan.delays_s))
        for number in range(plan.brokers):
            await cluster.start(f"b{number + 1}")
        senders = [self._sender(cluster, f"p{i}") for i in range(plan.senders)]
        members = [self._member(cluster, f"stream{i}") for i in range(rng.randint(*plan.members))]
        sending = [asyncio.create_task(sender.run(plan.messages), name=sender.name) for sender in senders]
        reading = [asyncio.create_task(member.run(), name=member.name) for member in members]
        shaping = asyncio.create_task(self._shape(cluster), name="shaper")
        nemesis = Nemesis(cluster, tuple(f"c-{actor.name}" for actor in (*senders, *members)))
        for strike in range(plan.strikes + 1):
            calm = cluster.history.invoke("nemesis", "calm")
            await asyncio.sleep(rng.uniform(0.5, plan.calm_s))
            if strike < plan.strikes:
                calm.ok()
                await nemesis.strike(rng.choice(plan.kinds), rng.choice(VICTIMS), rng.uniform(0.1, 8.0))
                await asyncio.sleep(SETTLING_S)
        await asyncio.wait_for(shaping, 600)
        await asyncio.sleep(HEALING_S)
        cluster.history.record("nemesis", "healed")
        await asyncio.wait_for(asyncio.gather(*sending), 120)
        for member in members:
            member.stop()
        await asyncio.wait_for(asyncio.gather(*reading), 120)
        calm.ok()
        await self._read_everything(cluster, members)
        judge(cluster)
        return cluster

    def _sender(self, cluster: SimCluster, name: str) -> Sender:
        client, rng = cluster.client(f"c-{name}"), cluster.rng(f"sender {name}")
        sender = Sender(cluster.history, client, name, TOPIC, rng, self.plan.keys)
        sender.pause_s_max = 6 * self.plan.length_s / self.plan.messages
        return sender

    def _member(self, cluster: SimCluster, name: str) -> StreamReader:
        connect = lambda: cluster.client(f"c-{name}")  # noqa: E731
        member = StreamMember(cluster.history, connect, name, TOPIC, "sub", cluster.rng(name))
        member.life_s_max, member.kill_rate = self.plan.life_s, self.plan.kill_rate
        member.ack_rate = self.plan.ack_rate
        return member

    async def _shape(self, cluster: SimCluster) -> None:
        """By hand, beside what the topic does by itself."""
        rng = cluster.rng("shaper")
        shaper = Shaper(cluster.history, TOPIC, rng, segments_max=4)
        for _ in range(self.plan.changes):
            await asyncio.sleep(rng.uniform(0.0, 2 * self.plan.length_s / self.plan.changes))
            running = [b for b in cluster.brokers.values() if b.process is not None and b.broker is not None]
            if running:
                await change_shape(rng.choice(running), shaper)

    async def _read_everything(self, cluster: SimCluster, members: list[StreamReader]) -> None:
        client = cluster.client("c-final")
        for member in members:
            await member.drain()
        await read(cluster, client, 1)
        await client.close()
        for broker in cluster.brokers.values():
            await (broker.power_cut() if cluster.objects is None else broker.lose_machine())
        await asyncio.gather(*(broker.start() for broker in cluster.brokers.values()))
        await read(cluster, cluster.client("c-final"), 2)


def config_of(seed: int) -> BrokerConfig:
    """One segment at first, with one to eight buckets; the topic changes its shape by itself at low rates already."""
    return dataclasses.replace(
        brokers_config(seed),
        segments=1 + (seed % 5 == 4),
        entry_buckets=(2, 8, 8, 16)[seed % 4],
        scalable_topic_auto_scale_interval=2.0,
        scalable_topic_load_report_interval=1.0,
        scalable_topic_max_segments=4,
        scalable_topic_split_cooldown=10.0,
        scalable_topic_merge_cooldown=15.0,
        scalable_topic_merge_window=10.0,
        scalable_topic_rebucket_cooldown=5.0,
        scalable_topic_split_floor_msg_rate_in=(1.0, 1000.0)[seed % 2],
        scalable_topic_split_msg_rate_in_threshold=20.0,
        scalable_topic_merge_msg_rate_in_threshold=4.0,
        scalable_topic_merge_msg_rate_out_threshold=4.0,
    )


def run(
    seed: int, plan: SharingPlan | None = None, config: BrokerConfig | None = None, objects: bool = False
) -> SimCluster:
    """One life. `objects`: of brokers that share an object store instead of a disk."""
    scenario = SharingScenario(plan)
    return simulate(seed, scenario, config=config or config_of(seed), shared=not objects, objects=objects)


def shared_deliveries(cluster: SimCluster) -> Counter[str]:
    """How many messages came to each consumer out of a bucket that was its own."""
    given = (e for e in cluster.history.events if e["what"] == "deliver" and e.get("place", 0) != e["segment"])
    return Counter(e["client"] for e in given)
