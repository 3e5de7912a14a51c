"""Black box: processes of one server are killed at random under splits, merges and transactions; the checker judges."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from pathlib import Path

import pytest

from engine.client.client import AsyncClient
from engine.testing.checker import check, describe
from engine.testing.history import History
from engine.testing.workload import QueueReader, Reader, Sender, Shaper, read_all, write_layout
from tests.chaos.progress import Progress, acknowledged, committed, heard_by, was_split
from tests.chaos.server import Server
from tests.chaos.test_kill_loop import ENDING_S_MAX, IDLE_S
from tests.chaos.test_transaction_kills import COPIES, ORDERS, ended, maker, reader, writer

COUNT = 4
COMMITTED_MIN = 5


class Strikes:
    """Load on a server of several processes, changes of a topic's shape, and the deaths of processes."""

    def __init__(self, data: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.sent, self.commits, self.splits = Progress(acknowledged), Progress(committed), Progress(was_split)
        self.history = History(asyncio.get_running_loop().time, heard_by(self.sent, self.commits, self.splits))
        self.server = Server(data, "--processes", str(COUNT), "--process-port", "0")
        self.stopped = False

    async def run(self, strikes: int) -> None:
        """So many deaths; then everything is read, once more after the death of the parent."""
        await self.server.start()
        client = AsyncClient(self.server.url)
        await client.admin.create_topic(ORDERS, segments=3)
        senders, readers = self._actors(client)
        actors = [*senders, *readers]
        working = [asyncio.create_task(actor.run(100_000)) for actor in senders]
        working += [asyncio.create_task(actor.run()) for actor in readers]
        shaping = asyncio.create_task(self._shape(client))
        for _ in range(strikes):
            await self.sent.more(self.rng.randint(5, 30))
            await asyncio.sleep(self.rng.uniform(0.0, 0.3))
            await self._strike()
        await self.sent.more(20)  # L2
        await self.commits.until(COMMITTED_MIN)
        await self.splits.until(1)
        self.stopped = True
        for actor in actors:
            actor.stop()
        await asyncio.wait_for(asyncio.gather(*working, shaping), ENDING_S_MAX)
        await ended(self.history, client)
        await read_all(self.history, client, ORDERS, 1, IDLE_S)
        await asyncio.gather(*(one.drain() for one in readers))
        await read_all(self.history, client, COPIES, 1, IDLE_S)
        await self.server.kill()
        await self.server.start()
        for topic in (ORDERS, COPIES):
            await read_all(self.history, client, topic, 2, IDLE_S)
        write_layout(self.history, ORDERS, await client.admin.get_metadata(ORDERS))
        await client.close()
        await self.server.close()

    def _actors(self, client: AsyncClient) -> tuple[list[Sender], list[Reader]]:
        """Producers in transactions and without; consumers of both kinds, and one that makes messages of messages."""
        rng, history, server = self.rng, self.history, self.server
        plain = Sender(history, client, "p0", ORDERS, random.Random(rng.random()))
        plain.pause_s_max = 0.02
        senders = [plain, *(writer(history, client, f"w{i}", rng) for i in range(2))]
        queue = QueueReader(
            history, lambda: AsyncClient(server.url), "queue", ORDERS, "sub-queue", random.Random(rng.random())
        )
        queue.life_s_max, queue.idle_s = 2.0, IDLE_S
        return senders, [maker(history, server, rng, queue=False), reader(history, server, rng), queue]

    async def _shape(self, client: AsyncClient) -> None:
        """Splits, merges and rebuckets, one after the other."""
        shaper = Shaper(self.history, ORDERS, self.rng)
        while not self.stopped:
            await shaper.change(client.admin)
            await asyncio.sleep(self.rng.uniform(0.05, 0.3))

    async def _strike(self) -> None:
        """The death of a process, or it stands still for a while."""
        children = self.server.children()
        index = self.rng.choice(sorted(children)) if children else None
        if index is None:
            return
        if self.rng.random() < 0.2:
            self.history.record("nemesis", "fault", text=f"process {index} freezes")
            os.kill(children[index], signal.SIGSTOP)
            await asyncio.sleep(self.rng.uniform(0.1, 0.5))
            os.kill(children[index], signal.SIGCONT)
        else:
            self.history.record("nemesis", "fault", text=f"kill -9 of process {index}")
            os.kill(children[index], signal.SIGKILL)


def judge(history: History, data: Path, seed: int) -> None:
    """Fail with the violations."""
    violations = check(history.events)
    assert not violations, f"seed {seed}, data in {data}:\n{describe(violations)}"
    assert sum(map(committed, history.events)) >= COMMITTED_MIN
    assert any(map(was_split, history.events))


async def strikes(data: Path, seed: int, count: int) -> None:
    """Run and judge."""
    one = Strikes(data / "data", seed)
    await one.run(count)
    judge(one.history, data, seed)


@pytest.mark.timeout(600)
async def test_processes_killed_under_splits_and_transactions(tmp_path: Path):
    await strikes(tmp_path, 1, 6)


@pytest.mark.fuzz
@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", range(100, 120))
async def test_fuzz_processes_killed_under_splits_and_transactions(tmp_path: Path, seed: int):
    await strikes(tmp_path, seed, 60)
