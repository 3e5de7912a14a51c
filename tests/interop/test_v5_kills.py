"""The V5 client and clients of ours on one topic, whose server is killed, and which splits and merges; judged by the
checker.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from engine.client.client import AsyncClient
from engine.testing.history import History, value_of
from engine.testing.workload import QueueReader, Sender, StreamReader, read_all, write_layout
from tests.chaos.progress import Progress, acknowledged, heard_by
from tests.chaos.server import Server
from tests.chaos.test_kill_loop import ENDING_S_MAX, IDLE_S, judge
from tests.interop.agent import UNBATCHED, Agent, AgentError, place_of

TOPIC = "topic://public/default/orders"
KEYS = 8
NOWHERE = 1 << 63  # of a message that was sent again and was there: its id says nothing
MORE = 40  # messages between what happens


def theirs(event: dict[str, Any]) -> bool:
    """A send of the V5 client was acknowledged."""
    return acknowledged(event) and event["client"] == "v5"


class V5Writer:
    """A producer of the V5 client. Each key waits for its last send: the client may reorder what it sends again."""

    def __init__(self, history: History, agent: Agent) -> None:
        self._history, self._agent = history, agent
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True

    async def run(self) -> None:
        await self._agent.ask("producer", name="p", topic=TOPIC, **UNBATCHED, **{"as": "v5"})
        await asyncio.gather(*(self._send(number) for number in range(KEYS)))

    async def _send(self, number: int) -> None:
        key = f"v5-key{number}"
        while not self._stopped:
            value = value_of("v5", number, key).decode()
            call = self._history.invoke("v5", "send", value=value, key=key, topic=TOPIC)
            try:
                segment, offset = place_of(await self._agent.begin("send", name="p", value=value, key=key))
                offset = offset if offset < NOWHERE else -1
            except AgentError as e:
                call.info(str(e))
            else:
                call.ok(segment=segment, offset=offset)
            number += KEYS
            await asyncio.sleep(0.02)


class V5Reader:
    """A stream or queue consumer of the V5 client, which connects again by itself: it attaches once."""

    def __init__(self, history: History, agent: Agent, kind: str) -> None:
        self._history, self._agent, self._kind = history, agent, kind
        self._subscription = f"v5-{kind}"
        self._ends: dict[str, int] = {}
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True

    async def run(self) -> None:
        """Until it is stopped and was given everything."""
        name, said = self._kind, {"subscription": self._subscription, "from": "earliest"}
        attached = self._history.invoke(name, "attach", subscription=self._subscription, kind=name, topic=TOPIC)
        await self._agent.ask(name, name=name, topic=TOPIC, **said)
        attached.ok()
        while not self._stopped or self._history.undelivered(self._subscription, TOPIC):
            for message in await self._agent.receive(name, 20, quiet_ms=500, ack=True):
                self._write(attached.number, message)
        self._history.record(name, "drained", subscription=self._subscription)

    def _write(self, attachment: int, message: dict[str, Any]) -> None:
        segment, offset = place_of(message["message"])
        self._history.record(
            self._kind,
            "deliver",
            attachment=attachment,
            topic=TOPIC,
            value=message["value"],
            key=message.get("key"),
            segment=segment,
            offset=offset,
        )
        if self._kind == "stream":  # when it has come is not told
            self._ends[str(segment)] = offset + 1
            said = {"subscription": self._subscription, "positions": dict(self._ends)}
            self._history.invoke(self._kind, "ack", **said).info("not answered")


async def mixed(folder: Path, agent: Agent, rounds: int) -> History:
    rng, sent, resent = random.Random(1), Progress(acknowledged), Progress(theirs)
    history = History(asyncio.get_running_loop().time, heard_by(sent, resent))
    server = Server(folder / "data")
    await server.start()
    ours = AsyncClient(server.url)
    options: dict[str, Any] = {"segments": 2, "entry_buckets": 1, "key_hash": "murmur3-low"}
    await ours.admin.create_topic(TOPIC, auto_scale={"enabled": False}, **options)
    await agent.ask("client", name="client", url=f"pulsar://127.0.0.1:{server.port}")
    sender, writer = Sender(history, ours, "p0", TOPIC, rng), V5Writer(history, agent)
    readers = [V5Reader(history, agent, kind) for kind in ("stream", "queue")]
    connect = lambda: AsyncClient(server.url)  # noqa: E731
    natives = [
        kind(history, connect, f"native-{kind.kind}", TOPIC, f"native-{kind.kind}", rng)
        for kind in (StreamReader, QueueReader)
    ]
    for native in natives:
        native.life_s_max, native.idle_s = 2.0, IDLE_S
    running = [asyncio.create_task(one) for one in (sender.run(100_000), writer.run(), *(n.run() for n in natives))]
    reading = [asyncio.create_task(reader.run()) for reader in readers]
    for number in range(rounds):
        await sent.more(MORE)
        await _reshape(history, ours, merge=bool(number % 2))
        await sent.more(MORE)
        history.record("nemesis", "fault", text="kill -9")
        await server.kill()
        await server.start()
        # What had no receipt is sent again before anything else. Behind a change it would go to another segment, by
        # another producer of the client, and nothing could tell that it was stored.
        await resent.more(KEYS + 1)
    await sent.more(MORE)
    for actor in (sender, writer, *natives):
        actor.stop()
    await asyncio.wait_for(asyncio.gather(*running), ENDING_S_MAX)
    await read_all(history, ours, TOPIC, 1, IDLE_S)
    for reader in readers:
        reader.stop()
    await asyncio.wait_for(asyncio.gather(*reading), ENDING_S_MAX)
    await asyncio.gather(*(native.drain() for native in natives))
    await ours.close()
    await agent.close()
    await server.close()
    return history


async def _reshape(history: History, ours: AsyncClient, *, merge: bool) -> None:
    found = (await ours.admin.get_metadata(TOPIC))["segments"].values()
    active = sorted((s for s in found if s["state"] == "ACTIVE"), key=lambda s: s["hashRange"]["start"])
    first, second = (one["segmentId"] for one in active[:2])
    changed = ours.admin.merge_segments(TOPIC, first, second) if merge else ours.admin.split_segment(TOPIC, first)
    write_layout(history, TOPIC, await changed)


@pytest.mark.timeout(600)
async def test_v5_clients_and_ours_lose_nothing_when_the_server_is_killed_and_the_topic_changes(tmp_path):
    agent = await Agent.start(tmp_path / "agent.log")
    judge(await mixed(tmp_path, agent, 4), tmp_path, 1)
