"""Black box: the processes of one server hand segments over, or stand still past their lease; the checker judges."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from engine.client.client import AsyncClient
from engine.errors import EngineError
from engine.testing.checker import check, describe
from engine.testing.history import History
from engine.testing.workload import QueueReader, Reader, Sender, StreamReader, read_all
from engine.wire.url import format_unix_url
from tests.chaos.progress import Progress, acknowledged
from tests.chaos.server import Server
from tests.chaos.test_kill_loop import ENDING_S_MAX, IDLE_S, TOPIC

COUNT = 3
SEGMENTS = 6
LOOK_S, WAIT_S_MAX = 0.05, 120.0
SESSION_S = 2.0
CONFIG = f"session_timeout = {SESSION_S}\nkeep_alive = 1.0\nbalance_enabled = false\n"


class Moves:
    """Producers and consumers of both kinds on a server of several processes."""

    def __init__(self, folder: Path, seed: int) -> None:
        config = folder / "engine.toml"
        config.write_text(CONFIG)
        self.rng = random.Random(seed)
        self.sent = Progress(acknowledged)
        self.history = History(asyncio.get_running_loop().time, self.sent.heard)
        self.server = Server(folder / "data", "--processes", str(COUNT), "--process-port", "0", "--config", str(config))

    async def run(self, disturb: Callable[[AsyncClient], Awaitable[None]]) -> None:
        """Load, while the processes are disturbed; then everything is read and judged."""
        await self.server.start()
        client = AsyncClient(self.server.url)
        await until(self.server.url, lambda found: len(found) == COUNT)  # the port answers when the first one serves
        await client.admin.create_topic(TOPIC, segments=SEGMENTS)
        senders = [Sender(self.history, client, f"p{i}", TOPIC, self._own()) for i in range(3)]
        readers = [self._reader(kind) for kind in (StreamReader, QueueReader)]
        for sender in senders:
            sender.pause_s_max = 0.02
        working = [asyncio.create_task(one.run(100_000)) for one in senders]
        working += [asyncio.create_task(one.run()) for one in readers]
        await self.sent.more(50)
        await disturb(client)
        await self.sent.more(50)
        for actor in (*senders, *readers):
            actor.stop()
        await asyncio.wait_for(asyncio.gather(*working), ENDING_S_MAX)
        await read_all(self.history, client, TOPIC, 1, IDLE_S)
        await asyncio.gather(*(one.drain() for one in readers))
        await client.close()
        await self.server.close()
        violations = check(self.history.events)
        assert not violations, describe(violations)

    def _own(self) -> random.Random:
        return random.Random(self.rng.random())

    def _reader(self, kind: type[Reader]) -> Reader:
        server = self.server
        made = kind(self.history, lambda: AsyncClient(server.url), kind.kind, TOPIC, f"s-{kind.kind}", self._own())
        made.life_s_max, made.idle_s = 2.0, IDLE_S
        return made

    async def move(self) -> None:
        """Anything that takes segments from one process to another."""
        children = self.server.children()
        async with AsyncClient(self.server.url) as client:
            name = self.rng.choice(sorted(await segments(client)))
            match self.rng.randrange(5):
                case 0:
                    await client.admin.drain_broker(name)
                    await self.sent.more(self.rng.randint(1, 20))
                    await client.admin.undrain_broker(name)
                case 1:
                    await client.admin.unload_topic(TOPIC, to=name)
                case 2:
                    await client.admin.balance_brokers()
                case 3:
                    os.kill(self.rng.choice(sorted(children.values())), signal.SIGKILL)
                case 4:
                    pid = self.rng.choice(sorted(children.values()))
                    os.kill(pid, signal.SIGSTOP)
                    await asyncio.sleep(self.rng.uniform(0.5, 2.0) * SESSION_S)
                    os.kill(pid, signal.SIGCONT)

    async def command(self, *words: str) -> str:
        """What `engine brokers …` prints."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "engine", "brokers", *words, "--url", self.server.url),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await process.communicate()
        assert process.returncode == 0, said.decode()
        return said.decode()


async def segments(client: AsyncClient) -> dict[str, int]:
    """How many each live process has."""
    return {broker["url"]: broker["segments"] for broker in await client.admin.list_brokers()}


async def until(url: str, so: Callable[[dict[str, int]], bool]) -> None:
    """Wait for a distribution of segments that is not told. Asks over connections that a stopped process has not."""
    found: dict[str, int] = {}
    async with AsyncClient(url) as client:
        try:
            async with asyncio.timeout(WAIT_S_MAX):
                while not so(found := await segments(client)):  # noqa: ASYNC110 - nothing tells
                    await asyncio.sleep(LOOK_S)
        except TimeoutError as e:
            raise AssertionError(f"it did not come to that, but to {found}: {e!r}") from e


@pytest.mark.timeout(600)
async def test_processes_drain_unload_and_balance_under_load(tmp_path: Path):
    """O1, D1: `engine brokers` moves segments between real processes; nothing is lost, doubled or out of order."""
    moves = Moves(tmp_path, 1)

    async def disturb(client: AsyncClient) -> None:
        name, *_ = (await segments(client)).keys()
        assert f"{name} has nothing left" in await moves.command("drain", name)
        assert (await segments(client))[name] == 0
        await moves.sent.more(20)
        await client.admin.undrain_broker(name)
        await moves.command("unload", TOPIC, "--to", name)
        await until(moves.server.url, lambda found: found[name] == SEGMENTS)
        await moves.sent.more(20)
        assert " went from " in await moves.command("balance")
        await until(moves.server.url, lambda found: found[name] < SEGMENTS)

    await moves.run(disturb)


@pytest.mark.timeout(600)
async def test_a_process_that_stands_still_past_its_lease_is_fenced_and_joins_again(tmp_path: Path):
    """L1, D1, O1: its segments go on at the others; when it goes on, nothing of its old terms is served or stored."""
    moves = Moves(tmp_path, 2)

    async def disturb(client: AsyncClient) -> None:
        children = moves.server.children()
        before = await segments(client)
        names = {index: format_unix_url(str(moves.server.data / f"engine-{index}.sock")) for index in children}
        index = max(names, key=lambda i: before[names[i]])
        name = names[index]
        assert before[name] > 0
        os.kill(children[index], signal.SIGSTOP)
        moves.history.record("nemesis", "fault", text=f"process {index} stands still")
        await until(moves.server.url, lambda found: name not in found and sum(found.values()) == SEGMENTS)
        await moves.sent.more(50)
        os.kill(children[index], signal.SIGCONT)
        await until(moves.server.url, lambda found: name in found)
        await moves.sent.more(20)
        await moves.command("unload", TOPIC, "--to", name)
        await until(moves.server.url, lambda found: found[name] == SEGMENTS)

    await moves.run(disturb)


@pytest.mark.fuzz
@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", range(100, 120))
async def test_fuzz_moves_between_processes(tmp_path: Path, seed: int):
    """D1, O1, L1."""
    moves = Moves(tmp_path, seed)

    async def disturb(client: AsyncClient) -> None:
        for _ in range(30):
            try:
                await moves.move()
            except EngineError as e:  # the process that was asked, or that was to get a segment, has died
                moves.history.record("nemesis", "fault", text=f"refused: {e!r}")
            await moves.sent.more(moves.rng.randint(5, 30))

    await moves.run(disturb)
