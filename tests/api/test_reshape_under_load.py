"""Twenty random changes of shape under a load of every kind of client; the independent checker judges."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

import engine
from engine.client.local import LocalClient
from engine.testing.checker import check, describe
from engine.testing.history import Fact, History
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

TOPIC = "orders"
CHANGES = 20
KEYS = 800  # of each producer
IDLE_S = 3.0  # nobody who reads takes longer, even on a machine with much else to do
READERS = (StreamReader, StreamReader, StreamReader, QueueReader, QueueReader, CheckpointReader)

Connect = Callable[[], engine.AsyncClient]


@pytest.fixture(params=["embedded", "tcp"])
async def connect(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Connect]:
    """Makes clients of one embedded engine, or of one behind a socket."""
    async with AsyncExitStack() as stack:
        if request.param == "embedded":
            opened = await stack.enter_async_context(engine.open_async(tmp_path / "data", shared=False))
            broker = opened.broker
            yield lambda: LocalClient(broker.accept_local, broker.service_url, broker.admin)
        else:
            opened = await stack.enter_async_context(
                engine.open_async(tmp_path / "data", listen="127.0.0.1:0", admin="127.0.0.1:0", shared=False)
            )
            yield lambda: engine.AsyncClient(opened.service_url)


class Load:
    """Everybody who is at work on one topic. `stay`: consumers come once; else they come and go."""

    def __init__(self, connect: Connect, seed: int, stay: bool) -> None:
        self.rng = random.Random(seed)
        self.history = History(asyncio.get_running_loop().time)
        self.client = connect()
        self._connect = connect
        self._senders = [self._sender(f"p{i}") for i in range(4)]
        self._readers = [self._reader(kind, i, stay) for i, kind in enumerate(READERS)]

    def _sender(self, name: str) -> Sender:
        sender = Sender(self.history, self.client, name, TOPIC, random.Random(self.rng.random()), KEYS)
        sender.pause_s_max, sender.size_max = 0.01, 200
        return sender

    def _reader(self, kind: type[Reader], number: int, stay: bool) -> Reader:
        rng = random.Random(self.rng.random())
        reader = kind(self.history, self._connect, f"{kind.kind}{number}", TOPIC, f"sub-{kind.kind}", rng)
        reader.life_s_max, reader.idle_s = float("inf") if stay else 2.0, IDLE_S
        return reader

    async def run(self, changes: int) -> None:
        """Send and read until so many changes were made, then read everything."""
        sending = [asyncio.create_task(sender.run(1_000_000)) for sender in self._senders]
        reading = [asyncio.create_task(reader.run()) for reader in self._readers]
        await self._reshape(changes)
        for actor in (*self._senders, *self._readers):
            actor.stop()
        await asyncio.gather(*sending, *reading)
        await asyncio.gather(*(reader.drain() for reader in self._readers))
        for reading_number in (1, 2):
            await read_all(self.history, self.client, TOPIC, reading_number, IDLE_S)
        await self.client.close()

    async def _reshape(self, changes: int) -> None:
        shaper = Shaper(self.history, TOPIC, self.rng)
        while shaper.done < changes:
            await asyncio.sleep(self.rng.uniform(0, 0.2))
            await shaper.change(self.client.admin)
        write_layout(self.history, TOPIC, await self.client.admin.get_metadata(TOPIC))


def _of(history: History, what: str) -> list[Fact]:
    return [event for event in history.events if event["what"] == what]


async def judged(connect: Connect, seed: int, stay: bool, changes: int) -> None:
    """A load and its changes: the checker finds nothing, and nobody is told that anything failed."""
    print(f"seed {seed}")
    load = Load(connect, seed, stay)
    await load.client.admin.create_topic(TOPIC, segments=1)
    await load.client.admin.set_auto_scale_policy(TOPIC, {"enabled": False})  # every change is counted here
    await load.run(changes)
    violations = check(load.history.events)
    assert not violations, f"seed {seed}:\n{describe(violations)}"
    assert [e for e in load.history.events if e["phase"] in ("fail", "info")] == []
    assert [e for e in _of(load.history, "fault") if e["client"] != "shaper"] == []
    assert {e["epoch"] for e in _of(load.history, "layout")} == set(range(changes + 1))
    assert len({e["key"] for e in _of(load.history, "final")}) > 1_000


@pytest.mark.parametrize(("connect", "stay"), [("embedded", True), ("tcp", False)], indirect=["connect"])
async def test_twenty_changes_under_load(connect: Connect, stay: bool):
    """D1 D3 D4 O1 O2 C1 C2 C3 G1 G2. `stay`: consumers come once; else they come and go."""
    await judged(connect, 100, stay, CHANGES)


@pytest.mark.fuzz
@pytest.mark.timeout(0)
@pytest.mark.parametrize("stay", [True, False])
@pytest.mark.parametrize("seed", range(20))
async def test_fuzz_changes_under_load(connect: Connect, seed: int, stay: bool):
    await judged(connect, seed, stay, 5 * CHANGES)
