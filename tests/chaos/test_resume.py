"""Black box: a producer's process and the server are killed time and again; each message is stored once, in order."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from engine.client.client import AsyncClient
from engine.client.consume.checkpoint_consumer import AsyncCheckpointConsumer
from engine.model.positions import Checkpoint
from tests.chaos.resume_program import key_of
from tests.chaos.server import Server
from tests.kit.programs import environment, program

TOPIC = "topic://public/default/orders"
COUNT = 12_000


async def started(server: Server) -> asyncio.subprocess.Process:
    """The program, running."""
    return await asyncio.create_subprocess_exec(
        *program("tests.chaos.resume_program", server.url, TOPIC, COUNT),
        env=environment(),
        stdout=asyncio.subprocess.PIPE,
    )


async def lines_of(program: asyncio.subprocess.Process, count: int) -> list[bytes]:
    """What it says next, at most so many lines."""
    assert program.stdout is not None
    found = []
    while len(found) < count and (line := await program.stdout.readline()):
        found.append(line.strip())
    return found


async def reshape(server: Server, rng: random.Random) -> None:
    """Split or merge something."""
    async with AsyncClient(server.url) as client:
        layout = (await client.admin.get_metadata(TOPIC))["segments"]
        active = sorted((s for s in layout.values() if s["state"] == "ACTIVE"), key=lambda s: s["hashRange"]["start"])
        if len(active) > 1 and rng.random() < 0.4:
            await client.admin.merge_segments(TOPIC, active[0]["segmentId"], active[1]["segmentId"])
        else:
            await client.admin.split_segment(TOPIC, rng.choice(active)["segmentId"])


async def everything(consumer: AsyncCheckpointConsumer) -> list[tuple[int, bytes | None]]:
    """(number, key) of every message."""
    found: list[tuple[int, bytes | None]] = []
    while batch := await consumer.receive_batch(timeout=10.0 if len(found) < COUNT else 0.5):
        found += [(int(m.value), m.key) for m in batch]
    return found


@pytest.mark.parametrize("seed", range(2))
async def test_24_a_killed_program_resumes_where_it_stood_over_all_segments(tmp_path: Path, seed: int):
    rng = random.Random(seed)
    server = Server(tmp_path / "data")
    await server.start()
    for life in range(6):
        program = await started(server)
        await lines_of(program, rng.randrange(1, 12))
        victims = [server.kill, program.kill]
        rng.shuffle(victims)
        for kill in victims if life % 2 else [program.kill]:
            if (killed := kill()) is not None:
                await killed
        await program.wait()
        if life % 2:
            await server.start()
        await reshape(server, rng)
    program = await started(server)
    assert (await lines_of(program, COUNT))[-1] == b"done"
    assert await program.wait() == 0
    async with AsyncClient(server.url) as client:
        found = await everything(await client.checkpoint_consumer(TOPIC, start=Checkpoint.earliest()))
        async with await client.producer(TOPIC, name="loader") as producer:
            assert producer.last_sequence_id == COUNT - 1
            assert producer.acknowledged_sequence_id < COUNT
    assert sorted(number for number, _ in found) == list(range(COUNT)), "each of them once"
    newest: dict[bytes, int] = {}
    for number, key in found:
        assert key == key_of(number)
        if key is not None:
            assert newest.get(key, -1) < number, f"{key!r} out of order"
            newest[key] = number
    await server.close()
