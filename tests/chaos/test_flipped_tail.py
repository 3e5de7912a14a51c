"""Black box: a server is killed when it has fallen quiet, and a bit of what it acknowledged last is flipped (D6)."""

from __future__ import annotations

import asyncio
import random
import shutil
from pathlib import Path

import pytest

import engine
from engine.client.client import AsyncClient
from engine.limits import ENTRY_SIZE_MAX
from engine.storage.file.format import HEADER_SIZE_MAX, Header
from tests.chaos.server import Server

COUNT = 20_000
QUIET_S_MAX = 60.0


@pytest.fixture
async def killed(tmp_path: Path) -> Path:
    """One burst, received and acknowledged by a subscription; nothing came after it."""
    server = Server(tmp_path / "killed")
    await server.start()
    async with AsyncClient(server.url) as client:
        async with await client.stream_consumer("orders", "s", initial_position="earliest") as consumer:
            async with await client.producer("orders") as producer:
                await producer.send_batch([b"%d" % n for n in range(COUNT)], keys=[b"k"] * COUNT)
                await producer.flush()
            received = 0
            while received < COUNT:
                batch = await consumer.receive_batch(timeout=60.0)
                received += len(batch)
            await consumer.acknowledge_cumulative(batch)
        path = log_of(server.data)
        async with asyncio.timeout(QUIET_S_MAX):
            while witnessed(path) < COUNT:  # noqa: ASYNC110 - of another process
                await asyncio.sleep(0.02)
        await server.kill()
    return server.data


def log_of(data: Path) -> Path:
    """The only file of the only segment."""
    (path,) = data.glob("segments/*/*/orders/*/*.log")
    return path


def witnessed(path: Path) -> int:
    """How far the file says that it was durable."""
    witness = Header.unpack(path.read_bytes()[:HEADER_SIZE_MAX], str(path)).witness
    assert witness is not None
    return witness.durable_offset


async def flipped_is_reported(killed: Path, scratch: Path, places: list[float]) -> None:
    """At each place (0: the first entry's start, 1: the last one's end) in a copy of its own."""
    original = log_of(killed).read_bytes()
    size = len(original.rstrip(b"\0"))
    assert size < ENTRY_SIZE_MAX
    for place in places:
        data = Path(shutil.copytree(killed, scratch))
        path, image = log_of(data), bytearray(original)
        image[HEADER_SIZE_MAX + int((size - HEADER_SIZE_MAX) * place)] ^= 0x10
        path.write_bytes(image)
        async with engine.open_async(data) as e:
            async with await e.stream_consumer("orders", "s") as consumer:
                with pytest.raises(engine.CorruptionError, match=r"0\.log, position \d+: segment 0, offset \d+"):
                    await consumer.receive(timeout=60.0)
            with pytest.raises(engine.CorruptionError, match=r"0\.log"):
                async with await e.producer("orders") as producer:
                    await producer.send(b"new", key=b"k")
        assert path.read_bytes() == image, "nothing was cut off or written over"
        shutil.rmtree(data)


async def test_d6_a_flipped_bit_behind_a_quiet_moment_is_reported(killed: Path, tmp_path: Path) -> None:
    await flipped_is_reported(killed, tmp_path / "flipped", [0.05, 0.5, 0.98])


@pytest.mark.fuzz
@pytest.mark.timeout(0)
async def test_fuzz_flipped_bits_behind_a_quiet_moment_are_reported(killed: Path, tmp_path: Path) -> None:
    rng = random.Random(20)
    await flipped_is_reported(killed, tmp_path / "flipped", [rng.random() * 0.999 for _ in range(500)])
