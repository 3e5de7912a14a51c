"""Eight processes share a directory, and the one that serves it is killed time and again; the checker judges."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest

import engine
from engine.clock import SystemClock
from engine.metadata.lockfile import holder_of
from engine.testing.checker import check, describe
from engine.testing.history import History, load
from engine.testing.workload import QueueReader, StreamReader, read_all
from tests.chaos.progress import acknowledged
from tests.chaos.sharing_directory_program import IDLE_S, TOPIC, reader_of
from tests.kit.programs import environment, program

PROCESSES = 8
START_S_MAX = 60.0
SERVED_S_MAX = 60.0  # until another process serves; a tenth of a second on an idle machine
PROGRESS = 40  # acknowledgements over all processes between two kills
ACKNOWLEDGED_MIN = 50


class Sharer:
    """One process, and the file of its history."""

    def __init__(self, process: asyncio.subprocess.Process, history: Path) -> None:
        self.process = process
        self.history = history
        self.killed_at: float | None = None

    def acknowledged(self) -> int:
        """How many of its messages are."""
        return self.history.read_text().count('"what": "send", "phase": "ok"') if self.history.exists() else 0


class Sharing:
    """All processes that have shared the directory."""

    def __init__(self, folder: Path, seed: int, life_s: float) -> None:
        self.data = folder / "data"
        self.rng = random.Random(seed)
        self._folder = folder
        self._seed = seed
        self._life_s = life_s
        self._all: list[Sharer] = []
        self._numbers = itertools.count()

    @property
    def living(self) -> list[Sharer]:
        return [one for one in self._all if one.process.returncode is None]

    async def start(self) -> None:
        """One more process, which has the directory open."""
        name = f"m{next(self._numbers)}"
        history = self._folder / f"{name}.jsonl"
        process = await asyncio.create_subprocess_exec(
            *program("tests.chaos.sharing_directory_program", self.data, name, history, self._seed, self._life_s),
            env=environment(),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        self._all.append(Sharer(process, history))
        assert process.stdout is not None
        async with asyncio.timeout(START_S_MAX):
            assert await process.stdout.readline() == b"open\n"

    async def serving(self) -> Sharer:
        """The process that serves the directory."""
        async with asyncio.timeout(SERVED_S_MAX):
            while True:
                holder = holder_of(self.data / "metadata.db.lock")
                for one in self.living:
                    if holder is not None and one.process.pid == holder.process:
                        return one
                await asyncio.sleep(0.01)

    async def progress(self) -> None:
        """Wait for more acknowledged messages, over all processes."""
        before = sum(one.acknowledged() for one in self._all)
        async with asyncio.timeout(SERVED_S_MAX):
            while sum(one.acknowledged() for one in self._all) < before + PROGRESS:  # noqa: ASYNC110 - it is in files
                await asyncio.sleep(0.05)

    async def strike(self) -> None:
        """kill -9 the process that serves; another one starts."""
        victim = await self.serving()
        victim.process.kill()
        await victim.process.wait()
        victim.killed_at = SystemClock().monotonic()
        await self.start()

    async def end(self) -> None:
        """Let all come to their end, in order."""
        ending = self.living
        for one in ending:
            assert one.process.stdin is not None
            one.process.stdin.close()
        async with asyncio.timeout(2 * SERVED_S_MAX):
            codes = await asyncio.gather(*(one.process.wait() for one in ending))
        assert codes == [0] * len(ending)

    def kill(self) -> None:
        """What a failed test leaves."""
        for one in self.living:
            one.process.kill()

    def events(self) -> list[dict[str, Any]]:
        """What all have written, in the order of time; calls are numbered through."""
        found: list[dict[str, Any]] = []
        for i, one in enumerate(self._all):
            events = load(one.history.read_text().splitlines(keepends=True))
            attached = {e["call"] for e in events if e["what"] == "attach" and e["phase"] != "fail"}
            attached -= {e["attachment"] for e in events if e["what"] == "detach"}
            if one.killed_at is not None:
                events += [_detached(one.killed_at, call) for call in attached]
            for event in events:
                for field in ("call", "attachment"):
                    if field in event:
                        event[field] = event[field] * 1000 + i
            found += events
        found.sort(key=lambda event: event["time"])
        return [{**event, "n": n} for n, event in enumerate(found)]


def _detached(time: float, call: int) -> dict[str, Any]:
    facts = {"client": "nemesis", "what": "detach", "phase": "ok", "attachment": call, "killed": True}
    return {"n": 0, "time": time, **facts}


async def killed(folder: Path, seed: int, kills: int, life_s: float) -> list[dict[str, Any]]:
    """The history of so many kills, with everything read in the end. `life_s`: of a consumer, at most."""
    sharing = Sharing(folder, seed, life_s)
    try:
        await asyncio.gather(*(sharing.start() for _ in range(PROCESSES)))
        for _ in range(kills):
            await sharing.progress()
            await sharing.strike()
        await sharing.progress()
        await sharing.end()
    finally:
        sharing.kill()
    history = History(SystemClock().monotonic)
    history.events = sharing.events()
    history._calls = max(event.get("call", 0) for event in history.events)
    async with engine.open_async(sharing.data) as opened:
        await read_all(history, opened, TOPIC, 1, IDLE_S)
        for kind in (StreamReader, QueueReader):
            await reader_of(kind, history, opened, "end", sharing.rng, life_s).drain()
        await read_all(history, opened, TOPIC, 2, IDLE_S)
    (folder / "history.jsonl").write_text("".join(json.dumps(event) + "\n" for event in history.events))
    return history.events


def judge(events: list[dict[str, Any]], folder: Path, seed: int) -> None:
    """Fail with the violations; the history is beside the data."""
    violations = check(events)
    assert not violations, f"seed {seed}, in {folder}:\n{describe(violations)}"
    assert sum(map(acknowledged, events)) > ACKNOWLEDGED_MIN


@pytest.mark.timeout(600)
async def test_kills_of_the_process_that_serves(tmp_path: Path) -> None:
    judge(await killed(tmp_path, 1, 3, 10.0), tmp_path, 1)


@pytest.mark.fuzz
@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", range(100, 103))
async def test_fuzz_kills_of_the_process_that_serves(tmp_path: Path, seed: int) -> None:
    judge(await killed(tmp_path, seed, 100, 2.0), tmp_path, seed)
