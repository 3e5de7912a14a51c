"""Layout sessions over several brokers: owners and controller are told of as they change, under the same epoch."""

from __future__ import annotations

import asyncio
from typing import Any

from engine.model.names import TopicName
from engine.testing.cluster import SimBroker, SimCluster, simulate
from engine.testing.maps import over_maps
from engine.wire.commands import FEATURES, MAGIC, Command
from engine.wire.stream import FrameStream

TOPIC = TopicName.parse("orders")


class Watcher:
    """A client that looks a topic up and keeps what it is told."""

    def __init__(self, stream: FrameStream) -> None:
        self.stream = stream
        self.updates: list[dict[str, Any]] = []
        hello = {"magic": MAGIC, "protocol": 1, "features": list(FEATURES), "client": "test", "token": None}
        stream.send(Command.CONNECT, hello)

    def look_up(self) -> None:
        lookup = {"request_id": 1, "session_id": 2, "topic": str(TOPIC), "create": False}
        self.stream.send(Command.SCALABLE_TOPIC_LOOKUP, lookup)

    def frame_received(self, command: Command, header: dict[str, Any], payload: memoryview) -> None:
        if command is Command.CONNECTED:
            self.look_up()
        elif command is Command.SCALABLE_TOPIC_UPDATE:
            self.updates.append(header)
        elif command is Command.PING:
            self.stream.send(Command.PONG, {})

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def connection_lost(self, error: Exception | None) -> None: ...

    @property
    def owners(self) -> dict[str, str]:
        return self.updates[-1]["dag"]["segmentBrokers"]


async def watch(cluster: SimCluster, broker: SimBroker) -> Watcher:
    made: list[Watcher] = []

    def accept(stream: FrameStream) -> Watcher:
        made.append(Watcher(stream))
        return made[0]

    await cluster.network.connector(f"watcher of {broker.name}").connect(broker.url, over_maps(accept))
    await asyncio.sleep(1)
    return made[0]


def test_every_broker_tells_of_new_owners_and_controllers() -> None:
    async def scenario(cluster: SimCluster) -> None:
        for name in ("b1", "b2", "b3"):
            await cluster.start(name)
        admin = cluster.brokers["b1"].broker.admin
        await admin.create_topic(str(TOPIC), segments=6)
        await admin.create_subscription(str(TOPIC), "s")  # b1 leads
        watchers = [await watch(cluster, b) for b in cluster.brokers.values()]
        producer = await cluster.client("p").producer(str(TOPIC))
        for i in range(60):
            await producer.send(b"", key=f"key-{i}")
        await asyncio.sleep(1)
        before = watchers[0].owners
        assert len(before) == 6
        assert all(w.owners == before for w in watchers)
        for broker in cluster.brokers.values():
            opened = {str(h.name.segment_id) for h in broker.broker.segments}
            assert opened == {s for s, url in before.items() if url == broker.url}
        assert {w.updates[-1]["dag"]["controllerBrokerUrl"] for w in watchers} == {cluster.brokers["b1"].url}
        await _b1_dies(cluster, watchers[1:], before)

    simulate(5, scenario, shared=True)


async def _b1_dies(cluster: SimCluster, watchers: list[Watcher], before: dict[str, str]) -> None:
    dead = cluster.brokers["b1"]
    told = [len(w.updates) for w in watchers]
    await dead.kill()
    await asyncio.sleep(2 * cluster.config.session_timeout)
    await cluster.brokers["b2"].broker.admin.create_subscription(str(TOPIC), "t")
    await asyncio.sleep(1)
    for watcher, count in zip(watchers, told, strict=True):
        assert len(watcher.updates) > count
        assert {u["epoch"] for u in watcher.updates} == {0}
        assert dead.url not in watcher.owners.values()
        assert {s: u for s, u in watcher.owners.items() if before[s] != dead.url} == {
            s: u for s, u in before.items() if u != dead.url
        }, "only what the dead one had has moved"
        assert watcher.updates[-1]["dag"]["controllerBrokerUrl"] == cluster.brokers["b2"].url


def test_nothing_is_told_twice() -> None:
    async def scenario(cluster: SimCluster) -> None:
        for name in ("b1", "b2"):
            await cluster.start(name)
        await cluster.brokers["b1"].broker.admin.create_topic(str(TOPIC), segments=2)
        watcher = await watch(cluster, cluster.brokers["b2"])
        count = len(watcher.updates)
        await cluster.brokers["b2"].broker.admin.create_topic("another", segments=2)
        await asyncio.sleep(30)
        assert len(watcher.updates) == count

    simulate(6, scenario, shared=True)
