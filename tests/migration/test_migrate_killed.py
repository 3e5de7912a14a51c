"""Black box: a migration and the server of its destination are killed time and again; judged by the checker."""

from __future__ import annotations

import asyncio
import random
import signal
from pathlib import Path

import pytest

import engine
from engine.client.client import AsyncClient
from engine.migration import migrate
from engine.model.positions import Checkpoint
from engine.sync import Client
from engine.testing.checker import check, describe
from engine.testing.history import History, value_of
from tests.chaos.server import Server
from tests.kit.programs import environment, program

TOPIC = "topic://public/default/orders"
COUNT = 2_400
KEYS = 30
WAIT_S_MAX = 60.0


def key_of(number: int) -> str | None:
    return None if number % 7 == 0 else f"k{number * 7919 % KEYS}"


def fill(directory: Path, history: History) -> None:
    """A topic that splits and merges while it is written, with the history of its sends."""
    with (
        engine.open(directory) as source,
        source.producer(TOPIC, batching=engine.Batching(max_messages=40)) as producer,
    ):
        for number in range(COUNT):
            key = key_of(number)
            value = value_of("writer", number, key)
            call = history.invoke("writer", "send", value=value.decode(), key=key, topic=TOPIC)
            producer.send_nowait(value, key=key, properties={"n": str(number)}, event_time=number)
            call.ok(segment=-1, offset=-1)
            if number == COUNT // 3:
                producer.flush()
                source.admin.split_segment(TOPIC, 0)
                source.admin.split_segment(TOPIC, 1)
            elif number == 2 * COUNT // 3:
                producer.flush()
                source.admin.merge_segments(TOPIC, 3, 4)
        producer.flush()


async def started(directory: Path, server: Server) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *program("tests.migration.migrate_program", directory, server.url, TOPIC),
        env=environment(),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )


async def lines_of(process: asyncio.subprocess.Process, count: int) -> list[bytes]:
    assert process.stdout is not None
    found = []
    while len(found) < count and (line := await process.stdout.readline()):
        found.append(line.strip())
    return found


async def read(url: str, history: History) -> None:
    """All that is there, as a final reading."""
    async with AsyncClient(url) as client:
        consumer = await client.checkpoint_consumer(TOPIC, start=Checkpoint.earliest())
        left = COUNT
        history.record("reader", "reading", reading=1)
        while batch := await consumer.receive_batch(timeout=WAIT_S_MAX if left > 0 else 0.5):
            left -= len(batch)
            for message in batch:
                key = None if message.key is None else message.key.decode()
                place = {"topic": TOPIC, "segment": message.segment_id, "offset": message.offset}
                history.record("reader", "final", reading=1, value=message.value.decode(), key=key, **place)
                number = message.event_time_ms
                assert message.properties == {"n": str(number)}


async def kill_and_finish(directory: Path, seed: int, lives: int) -> None:
    rng, history = random.Random(seed), History(lambda: 0.0)
    await asyncio.to_thread(fill, directory / "source", history)
    server = Server(directory / "data")
    await server.start()
    for life in range(lives):
        process = await started(directory / "source", server)
        await lines_of(process, rng.randrange(1, 12))
        if life % 2:
            await server.kill()
        if process.returncode is None:
            process.send_signal(signal.SIGINT if life % 3 == 1 else signal.SIGKILL)
        await process.wait()
        if life % 2:
            await server.start()
    process = await started(directory / "source", server)
    assert (await lines_of(process, COUNT))[-1] == b"done"
    assert await process.wait() == 0
    await read(server.url, history)
    violations = check(history.events)
    assert not violations, describe(violations)

    def verified() -> None:
        with engine.open(directory / "source") as here, Client(server.url) as there:
            again = migrate(here, there, TOPIC, verify=True)
            assert again.sent == 0
            assert again.verified is not None
            assert again.verified.messages == COUNT

    await asyncio.to_thread(verified)
    await server.close()


async def test_a_migration_that_is_killed_goes_on_and_nothing_is_lost_or_doubled(tmp_path: Path):
    await kill_and_finish(tmp_path, seed=1, lives=2)


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", range(20))
async def test_any_number_of_kills_at_any_moment(tmp_path: Path, seed: int):
    await kill_and_finish(tmp_path, seed, lives=12)
