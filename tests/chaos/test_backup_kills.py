"""Black box: backups of a real server under load, transactions and reshapes, while backups and the server are killed.

A backup that ended is restored, served by a server of its own, read, and judged by the checker with what was promised
up to the moment that it shows. One that was killed, or whose server was, leaves those before it as they were. That this
can fail is shown with brokers and backups that have a bug (tests/kit/backup_bugs.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import pytest

import engine
from engine.broker.upkeep.backups import DIRECTORY
from engine.client.client import AsyncClient
from engine.errors import CorruptionError, EngineError, NotFoundError, TransactionNotFoundError
from engine.testing.checker import check, describe
from engine.testing.evidence import Violation
from engine.testing.history import History
from engine.testing.transacting import Transactor
from engine.testing.workload import QueueReader, Reader, Sender, Shaper, StreamReader, read_all
from tests.chaos.backup_past import past
from tests.chaos.progress import Progress, acknowledged
from tests.chaos.server import Server

TOPIC = "orders"
IDLE_S = 1.0
BACKUP_S_MAX = 60.0
ENDING_S_MAX = 120.0
KEPT_MAX = 3  # backups that were killed and that the broker keeps yet: it takes four at once, for five minutes each
BACKUPS_MAX = 30  # until one of them is killed at a certain point


class Made(NamedTuple):
    """A backup that ended: its name, and when it was taken."""

    generation: str
    taken_ms: int


class Scene:
    """A server under load, and its backups. `bug`: that both have. `processes`: of the server."""

    def __init__(self, root: Path, seed: int, bug: str = "", processes: int = 1) -> None:
        self.rng = random.Random(seed)
        self.sent = Progress(acknowledged)
        self.history = History(time.time, self.sent.heard)
        several = ("--processes", str(processes), "--process-port", "0") if processes > 1 else ()
        self.server = Server(root / "data", *several)
        self.program = ("-m", "tests.chaos.planted_program", bug) if bug else ("-m", "engine")
        self.server.program = self.program
        self.where = root / "backups"
        self.made: list[Made] = []
        self.cut_short = 0
        self.kept = 0  # at most so many since the server was started

    async def run(self, rounds: int) -> None:
        """The load, and so many backups, in turns killed, with their server killed, and undisturbed as the last is."""
        await self.server.start()
        client = AsyncClient(self.server.url)
        actors = self._actors(client)
        working = [
            asyncio.create_task(a.run(100_000) if isinstance(a, Sender | Transactor) else a.run()) for a in actors
        ]
        shaper = Shaper(self.history, TOPIC, random.Random(self.rng.random()), segments_max=4)
        for number in range(rounds):
            await self.sent.more(self.rng.randint(20, 60))
            shaping = asyncio.create_task(shaper.change(client.admin))
            await (self._killed, self._server_killed, self._undisturbed)[number % 3]()
            await asyncio.wait([shaping])
            assert shaping.exception() is None or isinstance(shaping.exception(), EngineError)
        await self._undisturbed()
        for actor in actors:
            actor.stop()
        await asyncio.wait_for(asyncio.gather(*working), ENDING_S_MAX)
        await client.close()
        await self.server.close()

    def _actors(self, client: AsyncClient) -> list[Sender | Transactor | Reader]:
        rng, history = self.rng, self.history
        senders: list[Sender | Transactor | Reader] = []
        for i in range(2):
            sender = Sender(history, client, f"p{i}", TOPIC, random.Random(rng.random()))
            sender.pause_s_max = 0.05
            senders.append(sender)
        writer = Transactor(history, client, "w", (TOPIC,), random.Random(rng.random()))
        writer.timeouts_s, writer.pause_s_max = (2.0,), 0.05
        return [*senders, writer, *readers(history, self.server, rng)]

    async def _begin(self) -> asyncio.subprocess.Process:
        command = (sys.executable, *self.program, "backup", str(self.where), "--url", self.server.url, "--json")
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)

    async def _end(self, process: asyncio.subprocess.Process) -> str:
        """Note it if it ended; what it said otherwise."""
        async with asyncio.timeout(BACKUP_S_MAX):
            out, err = await process.communicate()
        if process.returncode == 0:
            done = json.loads(out)["generation"]
            assert not done["damaged"]
            taken = datetime.fromisoformat(done["taken"]).timestamp()
            self.made.append(Made(done["name"], round(taken * 1000)))
        else:
            self.cut_short += 1
            self.kept += 1
        return err.decode()

    async def _until_it_may_be_killed(self, process: asyncio.subprocess.Process) -> None:
        """Some instant: while it starts, or from when on the broker keeps something for it."""
        if self.rng.random() < 0.3:
            await asyncio.sleep(self.rng.uniform(0.0, 1.0))
            return
        folder = self.server.data / DIRECTORY
        before = kept = set(folder.glob("*"))
        async with asyncio.timeout(BACKUP_S_MAX):
            while process.returncode is None and kept <= before:
                await asyncio.sleep(0.005)
                kept = set(folder.glob("*"))
        await asyncio.sleep(self.rng.uniform(0.0, self.rng.choice((0.1, 1.0))))

    async def _undisturbed(self) -> None:
        process = await self._begin()
        said = await self._end(process)
        assert process.returncode == 0, said

    async def _killed(self) -> None:
        process = await self._begin()
        await self._until_it_may_be_killed(process)
        if process.returncode is None:
            process.kill()
        await self._end(process)

    async def _server_killed(self) -> None:
        process = await self._begin()
        await self._until_it_may_be_killed(process)
        children = self.server.children()
        if children and self.kept < KEPT_MAX - 1 and self.rng.random() < 0.7:
            index = self.rng.choice(sorted(children))
            self.history.record("nemesis", "fault", text=f"kill -9 of process {index}")
            os.kill(children[index], signal.SIGKILL)
        else:
            self.history.record("nemesis", "fault", text="kill -9")
            await self.server.kill()
            await self.server.start()
            self.kept = 0
        await self._end(process)


def readers(history: History, server: Server, rng: random.Random) -> list[Reader]:
    """One of each kind."""
    found: list[Reader] = []
    for kind in (StreamReader, QueueReader):
        name, own = f"sub-{kind.kind}", random.Random(rng.random())
        found.append(kind(history, lambda: AsyncClient(server.url), kind.kind, TOPIC, name, own))
        found[-1].life_s_max, found[-1].idle_s = 2.0, IDLE_S
    return found


async def judge(scene: Scene, made: Made, data: Path, seed: int) -> list[Violation]:
    """Restore a backup, serve it, read everything; the violations."""
    await asyncio.to_thread(engine.restore, scene.where, data, generation=made.generation)
    history, server = past(scene.history, made.taken_ms), Server(data)
    assert sum(map(acknowledged, history.events)) > 0
    await server.start()
    client = AsyncClient(server.url)
    await ended(history, client)
    await read_all(history, client, TOPIC, 1, IDLE_S)
    await asyncio.gather(*(reader.drain() for reader in readers(history, server, random.Random(seed))))
    await read_all(history, client, TOPIC, 2, IDLE_S)
    async with client.producer(TOPIC) as producer:  # it goes on
        await producer.send(b"more")
    await client.close()
    await server.close()
    return check(history.events)


async def ended(history: History, client: AsyncClient) -> None:
    """Wait until every transaction has ended, and write down how; one that the copy never knew had no effect."""
    for number in dict.fromkeys(event["transaction"] for event in history.events if "transaction" in event):
        state = "OPEN"
        while state == "OPEN":
            try:
                state = (await client.join_transaction(number)).state
            except TransactionNotFoundError:
                state = ""
        if state:
            history.record("spy", "txn_state", transaction=number, state=state)


async def chaos(
    root: Path, seed: int, rounds: int, restored: int, bug: str = "", processes: int = 1
) -> list[Violation]:
    """What is wrong with backups that ended. `restored`: how many, the last, and others by lot."""
    scene = Scene(root, seed, bug, processes)
    await scene.run(rounds)
    listed = await asyncio.to_thread(engine.list_backups, scene.where)
    check_listed([generation.name for generation in listed], scene)
    await asyncio.to_thread(engine.verify_backup, scene.where)
    chosen = [scene.made[-1], *scene.rng.sample(scene.made[:-1], min(restored - 1, len(scene.made) - 1))]
    found: list[Violation] = []
    for number, made in enumerate(chosen):
        (root / str(number)).mkdir()
        found += await judge(scene, made, root / str(number) / "restored", seed)
    return found


def check_listed(names: Iterable[str], scene: Scene) -> None:
    """Those that ended are there, in order; of those that were cut short each may be, if it was about to end."""
    names, made = list(names), [made.generation for made in scene.made]
    assert [name for name in names if name in made] == made
    assert len(names) - len(made) <= scene.cut_short


def judged(violations: list[Violation]) -> None:
    assert not violations, describe(violations)


@pytest.mark.timeout(600)
async def test_backups_under_kills(tmp_path: Path) -> None:
    judged(await chaos(tmp_path, 1, 2, 1))


@pytest.mark.fuzz
@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", range(100, 120))
async def test_fuzz_backups_under_kills(tmp_path: Path, seed: int) -> None:
    judged(await chaos(tmp_path, seed, 15, 6))


@pytest.mark.timeout(600)
async def test_backups_of_several_processes_under_kills(tmp_path: Path) -> None:
    judged(await chaos(tmp_path, 2, 2, 1, processes=3))


@pytest.mark.fuzz
@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", range(200, 220))
async def test_fuzz_backups_of_several_processes_under_kills(tmp_path: Path, seed: int) -> None:
    judged(await chaos(tmp_path, seed, 15, 6, processes=3))


@pytest.mark.fuzz
@pytest.mark.timeout(0)
async def test_fuzz_processes_that_go_on_before_the_moment_are_found_out(tmp_path: Path) -> None:
    with pytest.raises((CorruptionError, AssertionError), match=r"durable are missing|D1"):
        judged(await chaos(tmp_path, 2, 2, 1, "processes_go_on_before_the_moment", processes=3))


@pytest.mark.fuzz
@pytest.mark.timeout(0)
async def test_fuzz_a_backup_of_two_moments_is_found_out(tmp_path: Path) -> None:
    """What was acknowledged between the two is missing: the broker that serves the copy says so, or the checker."""
    with pytest.raises((CorruptionError, AssertionError), match=r"durable are missing|D1"):
        judged(await chaos(tmp_path, 1, 2, 1, "logs_of_an_earlier_moment"))


@pytest.mark.fuzz
@pytest.mark.timeout(0)
async def test_fuzz_a_backup_that_is_named_before_it_is_stored_is_found_out(tmp_path: Path) -> None:
    """One that was killed is listed, and lacks its packs."""
    scene = Scene(tmp_path, 1, "named_before_it_is_stored")
    await scene.server.start()
    async with AsyncClient(scene.server.url) as client, client.producer(TOPIC) as producer:
        await asyncio.gather(*(producer.send(b"%d" % n) for n in range(100)))
    with pytest.raises(CorruptionError, match="pack"):
        await kill_and_verify(scene)
    await scene.server.close()


async def kill_and_verify(scene: Scene) -> None:
    for _ in range(BACKUPS_MAX):
        await scene._killed()
        with contextlib.suppress(NotFoundError):  # there is none yet
            await asyncio.to_thread(engine.verify_backup, scene.where)
