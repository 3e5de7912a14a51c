"""Black box: a real server is killed at random under transactions; of every message exactly one other is made."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from engine.client.client import AsyncClient
from engine.testing.checker import check, describe
from engine.testing.history import History
from engine.testing.transacting import Transactor, Transformer
from engine.testing.workload import Reader, StreamReader, read_all
from tests.chaos.progress import Progress, committed
from tests.chaos.server import Server
from tests.chaos.test_kill_loop import ENDING_S_MAX, IDLE_S

ORDERS, COPIES = "orders", "copies"
TIMEOUTS_S = (2.0, 4.0)
COMMITTED_MIN = 10


async def chaos(data: Path, seed: int, kills: int, *, queue: bool) -> History:
    """Transactions and so many kills; then everything is transformed and read."""
    rng, loop, commits = random.Random(seed), asyncio.get_running_loop(), Progress(committed)
    history, server = History(loop.time, commits.heard), Server(data)
    await server.start()
    client = AsyncClient(server.url)
    writers = [writer(history, client, f"w{i}", rng) for i in range(2)]
    transformer, follower = maker(history, server, rng, queue=queue), reader(history, server, rng)
    working = [asyncio.create_task(one.run(100_000)) for one in writers]
    working += [asyncio.create_task(actor.run()) for actor in (transformer, follower)]
    for _ in range(kills):
        await commits.more(rng.randint(4, 10))
        await asyncio.sleep(rng.uniform(0.0, 0.1))
        history.record("nemesis", "fault", text="kill -9")
        await server.kill()
        await server.start()
    await commits.until(COMMITTED_MIN + 1)
    for actor in (*writers, transformer, follower):
        actor.stop()
    await asyncio.wait_for(asyncio.gather(*working), ENDING_S_MAX)
    await ended(history, client)
    await read_all(history, client, ORDERS, 1, IDLE_S)
    await asyncio.gather(transformer.drain(), follower.drain())
    await _read_everything(history, server, client)
    await server.close()
    return history


def writer(history: History, client: AsyncClient, name: str, rng: random.Random) -> Transactor:
    """Of transactions."""
    made = Transactor(history, client, name, (ORDERS,), random.Random(rng.random()))
    made.timeouts_s, made.pause_s_max = TIMEOUTS_S, 0.05
    return made


def maker(history: History, server: Server, rng: random.Random, *, queue: bool) -> Transformer:
    """Of every order one copy."""
    connect, own = (lambda: AsyncClient(server.url)), random.Random(rng.random())
    made = Transformer(history, connect, "maker", (ORDERS, COPIES), "making", own, queue=queue)
    made.timeout_s, made.life_s_max, made.idle_s, made.batch_max = max(TIMEOUTS_S), 2.0, IDLE_S, 40
    return made


def reader(history: History, server: Server, rng: random.Random) -> Reader:
    """Of orders."""
    connect, own = (lambda: AsyncClient(server.url)), random.Random(rng.random())
    made = StreamReader(history, connect, "reader", ORDERS, "sub-stream", own)
    made.life_s_max, made.idle_s = 2.0, IDLE_S
    return made


async def ended(history: History, client: AsyncClient) -> None:
    """Wait until every transaction that was begun has ended, and write down how."""
    begun = dict.fromkeys(event["transaction"] for event in history.events if "transaction" in event)
    for number in begun:
        state = "OPEN"
        while state == "OPEN":
            state = (await client.join_transaction(number)).state
        history.record("spy", "txn_state", transaction=number, state=state)


async def _read_everything(history: History, server: Server, client: AsyncClient) -> None:
    await read_all(history, client, COPIES, 1, IDLE_S)
    await server.kill()
    await server.start()
    for topic in (ORDERS, COPIES):
        await read_all(history, client, topic, 2, IDLE_S)
    await client.close()


def judge(history: History, data: Path, seed: int) -> None:
    """Fail with the violations."""
    violations = check(history.events)
    assert not violations, f"seed {seed}, data in {data}:\n{describe(violations)}"
    answers = [(e["what"], e["phase"], e.get("state")) for e in history.events]
    assert answers.count(("txn_end", "ok", "COMMITTED")) > COMMITTED_MIN
    assert any(e["what"] == "send" and "source" in e for e in history.events)


@pytest.mark.timeout(600)
async def test_transactions_under_kills(tmp_path):
    judge(await chaos(tmp_path / "data", 1, 3, queue=False), tmp_path, 1)


@pytest.mark.fuzz
@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", range(100, 120))
async def test_fuzz_transactions_under_kills(tmp_path, seed):
    judge(await chaos(tmp_path / "data", seed, 40, queue=seed % 2 == 1), tmp_path, seed)
