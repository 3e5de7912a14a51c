"""Black box: a real server process is killed and frozen at random moments under load; the checker judges."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from engine.client.client import AsyncClient
from engine.testing.checker import check, describe
from engine.testing.history import History
from engine.testing.workload import QueueReader, Reader, Sender, StreamReader, read_all
from tests.chaos.progress import Progress, acknowledged
from tests.chaos.server import Server

TOPIC = "orders"
IDLE_S = 1.0
ENDING_S_MAX = 120.0  # until actors that were stopped have ended
ACKNOWLEDGED_MIN = 50


async def chaos(data: Path, seed: int, strikes: int) -> History:
    """Load, and so many kills and freezes; then everything is read."""
    rng, sent = random.Random(seed), Progress(acknowledged)
    history = History(asyncio.get_running_loop().time, sent.heard)
    server = Server(data)
    await server.start()
    client = AsyncClient(server.url)
    senders = [Sender(history, client, f"p{i}", TOPIC, random.Random(rng.random())) for i in range(3)]
    readers = [_reader(kind, history, server, rng) for kind in (StreamReader, QueueReader)]
    for sender in senders:
        sender.pause_s_max = 0.02
    sending = [asyncio.create_task(sender.run(100_000)) for sender in senders]
    reading = [asyncio.create_task(reader.run()) for reader in readers]
    for _ in range(strikes):
        if rng.random() < 0.7:  # otherwise it may not have come to anything since the last one
            await sent.more(rng.randint(1, 20))
        await asyncio.sleep(rng.uniform(0.05, 0.7))
        await _strike(server, history, rng)
    await sent.until(ACKNOWLEDGED_MIN + 1)
    for actor in (*senders, *readers):
        actor.stop()
    await asyncio.wait_for(asyncio.gather(*sending, *reading), ENDING_S_MAX)
    await _read_everything(server, history, readers, client)
    await server.close()
    return history


def _reader(kind: type[Reader], history: History, server: Server, rng: random.Random) -> Reader:
    connect, own = (lambda: AsyncClient(server.url)), random.Random(rng.random())
    reader = kind(history, connect, kind.kind, TOPIC, f"sub-{kind.kind}", own)
    reader.life_s_max, reader.idle_s = 2.0, IDLE_S
    return reader


async def _strike(server: Server, history: History, rng: random.Random) -> None:
    if rng.random() < 0.2:
        history.record("nemesis", "fault", text="freeze")
        await server.freeze(rng.uniform(0.1, 0.5))
        return
    history.record("nemesis", "fault", text="kill -9")
    await server.kill()
    await server.start()


async def _read_everything(server: Server, history: History, readers: list[Reader], client: AsyncClient) -> None:
    await read_all(history, client, TOPIC, 1, IDLE_S)
    await asyncio.gather(*(reader.drain() for reader in readers))
    await read_all(history, client, TOPIC, 2, IDLE_S)
    await server.kill()
    await server.start()
    await read_all(history, client, TOPIC, 3, IDLE_S)
    await client.close()


def judge(history: History, data: Path, seed: int) -> None:
    """Fail with the violations; keep the history beside the data."""
    violations = check(history.events)
    assert not violations, f"seed {seed}, data in {data}:\n{describe(violations)}"
    assert sum(map(acknowledged, history.events)) > ACKNOWLEDGED_MIN


@pytest.mark.timeout(600)
async def test_kill_loop(tmp_path):
    judge(await chaos(tmp_path / "data", 1, 6), tmp_path, 1)


@pytest.mark.fuzz
@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", range(100, 120))
async def test_fuzz_kill_loop(tmp_path, seed):
    judge(await chaos(tmp_path / "data", seed, 100), tmp_path, seed)
