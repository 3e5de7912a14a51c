"""Black box: a real server is killed in the middle of splits, merges and rebuckets under load; the checker judges."""

from __future__ import annotations

import asyncio
import random
import re
from pathlib import Path
from typing import Any

import pytest

from engine.client.client import AsyncClient
from engine.errors import EngineError
from engine.testing.history import History
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
from tests.chaos.progress import PROGRESS_S_MAX, Progress, acknowledged
from tests.chaos.server import Server
from tests.chaos.test_kill_loop import ACKNOWLEDGED_MIN, ENDING_S_MAX, IDLE_S, judge

TOPIC = "orders"
MOMENT_S = 0.05  # a change takes about as long
READERS = (StreamReader, StreamReader, QueueReader, CheckpointReader)
SEGMENT = re.compile(r"[0-9a-f]{4}-[0-9a-f]{4}-\d+")


class Strikes:
    """A server, load on it, and changes of the topic's shape that end with the server's death more often than not."""

    def __init__(self, data: Path, seed: int, patience_s: float) -> None:
        """`patience_s`: after so long without a message everything is read; many segments take a while to open."""
        self.rng = random.Random(seed)
        self.sent = Progress(acknowledged)
        self.history = History(asyncio.get_running_loop().time, self.sent.heard)
        self.server = Server(data)
        self.struck = 0  # kills that met a change before its end
        self._data = data
        self._patience_s = patience_s

    def actors(self, client: AsyncClient) -> tuple[list[Sender], list[Reader]]:
        """Three producers, and consumers of each kind."""
        own = lambda: random.Random(self.rng.random())  # noqa: E731
        senders = [Sender(self.history, client, f"p{i}", TOPIC, own(), 20) for i in range(3)]
        for sender in senders:
            sender.pause_s_max = 0.02
        connect = lambda: AsyncClient(self.server.url)  # noqa: E731
        readers = [
            k(self.history, connect, f"{k.kind}{i}", TOPIC, f"sub-{k.kind}", own()) for i, k in enumerate(READERS)
        ]
        for reader in readers:
            reader.life_s_max, reader.idle_s = 2.0, IDLE_S
        return senders, readers

    async def run(self, changes: int) -> None:
        """So many changes are begun, more if too few were struck; then everything is read."""
        await self.server.start()
        client = AsyncClient(self.server.url)
        await client.admin.create_topic(TOPIC, segments=1)
        senders, readers = self.actors(client)
        sending = [asyncio.create_task(sender.run(100_000)) for sender in senders]
        reading = [asyncio.create_task(reader.run()) for reader in readers]
        shaper = Shaper(self.history, TOPIC, self.rng)
        while changes > 0 or self.struck < 2:
            changes -= 1
            await asyncio.sleep(self.rng.uniform(0.0, 0.2))
            await self._change(shaper)
        await self.sent.until(ACKNOWLEDGED_MIN + 1)  # L2; kills in a row may have kept everybody out
        for actor in (*senders, *readers):
            actor.stop()
        await asyncio.wait_for(asyncio.gather(*sending, *reading), ENDING_S_MAX)
        await self._read_everything(client, readers)
        await client.close()
        await self.server.close()

    async def _change(self, shaper: Shaper) -> None:
        """One change, and perhaps a kill: when it is seen to be pending, or at any moment near."""
        async with AsyncClient(self.server.url) as client, AsyncClient(self.server.url) as other:
            await self._metadata(client)
            await self._metadata(other)
            change = asyncio.create_task(shaper.change(client.admin))
            luck = self.rng.random()
            if luck < 0.4:
                await self._see_pending(other, change)
            elif luck < 0.8:
                await asyncio.wait([change], timeout=self.rng.uniform(0, MOMENT_S))
            else:
                await change
                return
            self.struck += not change.done()
            self.history.record("nemesis", "fault", text=f"kill -9; done: {change.done()}")
            await self.server.kill()
            await self.server.start()
            await asyncio.wait_for(change, ENDING_S_MAX)

    async def _see_pending(self, client: AsyncClient, change: asyncio.Task[bool]) -> None:
        while not change.done():
            if "change" in await client.admin.get_metadata(TOPIC):
                return
        # Too fast to be seen: the kill comes right behind its end.

    async def _metadata(self, client: AsyncClient) -> Any:
        """The topic's metadata, asked for until a server answers."""
        async with asyncio.timeout(PROGRESS_S_MAX):
            while True:
                try:
                    return await client.admin.get_metadata(TOPIC)
                except EngineError:
                    await asyncio.sleep(0.05)

    async def _read_everything(self, client: AsyncClient, readers: list[Reader]) -> None:
        for reader in readers:
            reader.idle_s = self._patience_s
        await read_all(self.history, client, TOPIC, 1, self._patience_s)
        await asyncio.gather(*(reader.drain() for reader in readers))
        await self.server.kill()
        await self.server.start()
        await read_all(self.history, client, TOPIC, 2, self._patience_s)
        async with AsyncClient(self.server.url) as admin:
            await self._settled(admin)

    async def _settled(self, client: AsyncClient) -> None:
        """Nothing is pending for ever, and what was undone leaves no folder behind."""
        async with asyncio.timeout(PROGRESS_S_MAX):
            while "change" in (metadata := await client.admin.get_metadata(TOPIC)):  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.05)
        write_layout(self.history, TOPIC, metadata)
        await self.server.kill()
        await self.server.start()
        async with asyncio.timeout(PROGRESS_S_MAX):
            while self._on_disk() != set(map(int, metadata["segments"])):  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.05)

    def _on_disk(self) -> set[int]:
        return {int(p.name.rsplit("-", 1)[1]) for p in self._data.rglob("*") if SEGMENT.fullmatch(p.name)}


async def strikes(data: Path, seed: int, changes: int, patience_s: float) -> None:
    """Run and judge."""
    one = Strikes(data / "data", seed, patience_s)
    await one.run(changes)
    judge(one.history, data, seed)


@pytest.mark.timeout(600)
async def test_kills_in_the_middle_of_changes(tmp_path: Path):
    seed = 199
    print(f"seed {seed}")
    await strikes(tmp_path, seed, 6, 2 * IDLE_S)


@pytest.mark.fuzz
@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", range(200, 230))
async def test_fuzz_kills_in_the_middle_of_changes(tmp_path: Path, seed: int):
    await strikes(tmp_path, seed, 80, 10.0)
