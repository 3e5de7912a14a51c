"""Black box: a real server is killed time and again while stream consumers share one segment; the checker judges."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from engine.client.client import AsyncClient
from engine.testing.history import History
from engine.testing.members import StreamMember
from engine.testing.workload import Sender, read_all
from tests.chaos.progress import Progress, acknowledged, heard_by
from tests.chaos.server import Server
from tests.chaos.test_kill_loop import ACKNOWLEDGED_MIN, ENDING_S_MAX, IDLE_S, judge

TOPIC = "orders"
BUCKETS = 8
MEMBERS = 4
KILL_S_MAX = 1.2  # between two kills; starting takes about half a second


class FirstShares:
    """The first delivery to each member from buckets of its own."""

    def __init__(self) -> None:
        self._members: set[str] = set()

    def __call__(self, event: dict[str, Any]) -> bool:
        if event["what"] != "deliver" or event["place"] == event["segment"] or event["client"] in self._members:
            return False
        self._members.add(event["client"])
        return True


class Sharing:
    """A server, a topic of one segment, producers, and a group that shares it by buckets."""

    def __init__(self, data: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.sent, self.sharing = Progress(acknowledged), Progress(FirstShares())
        self.history = History(asyncio.get_running_loop().time, heard_by(self.sent, self.sharing))
        self.server = Server(data)

    def _own(self) -> random.Random:
        return random.Random(self.rng.random())

    def _member(self, name: str) -> StreamMember:
        member = StreamMember(self.history, lambda: AsyncClient(self.server.url), name, TOPIC, "s", self._own())
        member.life_s_max, member.idle_s, member.stall_s_max = 4.0, 2 * IDLE_S, 0.5
        return member

    async def run(self, kills: int) -> None:
        """Kill so often, with consumers that come and go; then everything is read."""
        await self.server.start()
        client = AsyncClient(self.server.url)
        await client.admin.create_topic(TOPIC, segments=1)
        await client.admin.set_auto_scale_policy(TOPIC, {"enabled": False})
        await client.admin.rebucket_segment(TOPIC, 0, BUCKETS)
        senders = [Sender(self.history, client, f"p{i}", TOPIC, self._own(), 50) for i in range(2)]
        members = [self._member(f"stream{i}") for i in range(MEMBERS)]
        for sender in senders:
            sender.pause_s_max = 0.02
        working = [asyncio.create_task(sender.run(100_000)) for sender in senders]
        working += [asyncio.create_task(member.run()) for member in members]
        await self._kill(kills)
        await self.sent.until(ACKNOWLEDGED_MIN + 1)
        await self.sharing.until(MEMBERS)
        for actor in (*senders, *members):
            actor.stop()
        await asyncio.wait_for(asyncio.gather(*working), ENDING_S_MAX)
        await read_all(self.history, client, TOPIC, 1, IDLE_S)
        await asyncio.gather(*(member.drain() for member in members))
        await self.server.kill()
        await self.server.start()
        await read_all(self.history, client, TOPIC, 2, IDLE_S)
        await client.close()
        await self.server.close()

    async def _kill(self, kills: int) -> None:
        for _ in range(kills):
            calm = self.history.invoke("nemesis", "calm")
            if self.rng.random() < 0.7:  # otherwise it may not have come to anything since the last one
                await self.sent.more(self.rng.randint(1, 20))
            await asyncio.sleep(self.rng.uniform(0.1, KILL_S_MAX))
            calm.ok()
            self.history.record("nemesis", "fault", text="kill -9")
            await self.server.kill()
            await self.server.start()


async def killed(data: Path, seed: int, kills: int) -> None:
    """Run and judge: every member had buckets of its own."""
    sharing = Sharing(data / "data", seed)
    await sharing.run(kills)
    judge(sharing.history, data, seed)
    deliveries = [e for e in sharing.history.events if e["what"] == "deliver"]
    assert len({e["client"] for e in deliveries if e["place"] != e["segment"]}) == MEMBERS


@pytest.mark.timeout(600)
async def test_kills_while_a_segment_is_shared(tmp_path: Path) -> None:
    """D1 to D4, O1, O2, C1, C2, C4."""
    seed = 299
    print(f"seed {seed}")
    await killed(tmp_path, seed, 5)


@pytest.mark.fuzz
@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", range(300, 320))
async def test_fuzz_kills_while_a_segment_is_shared(tmp_path: Path, seed: int) -> None:
    await killed(tmp_path, seed, 50)
