"""Encryption from end to end: what messages cost with it, in what they cost without."""

from __future__ import annotations

import asyncio
import gc
import os
import statistics
import tempfile
import time
from typing import Any, ClassVar

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

import engine

TINY = bool(os.environ.get("ENGINE_BENCH_TINY"))
TURNS = 1 if TINY else int(os.environ.get("ENGINE_BENCH_ROUNDS", "11"))
BYTES = 100_000 if TINY else 20_000_000  # of messages a turn
_PRIVATE = X25519PrivateKey.from_private_bytes(bytes(range(32)))
PRIVATE = _PRIVATE.private_bytes(
    serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
)
PUBLIC = _PRIVATE.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


class WithEncryption:
    """Processor time of an embedded engine, its producer and its consumer: medians of turns, one after the other."""

    params: ClassVar = [["publish", "consume"], [100, 1024, 65_536]]
    param_names = ("work", "size")
    unit = "ratio"
    timeout = 600

    def track_ratio(self, work: str, size: int) -> float:
        return asyncio.run(_ratio(work, size))


async def _ratio(work: str, size: int) -> float:
    values = [os.urandom(size) for _ in range(BYTES // size)]
    spent: tuple[list[float], list[float]] = ([], [])
    with tempfile.TemporaryDirectory() as directory:
        async with engine.open_async(directory) as e:
            for turn in range(TURNS):
                for encrypted in (0, 1) if turn % 2 else (1, 0):
                    topic = f"t-{turn}-{encrypted}"
                    await e.admin.create_topic(topic, durability="os")
                    published = await _publish(e, topic, values, {"k": PUBLIC} if encrypted else None)
                    consumed = await _consume(e, topic, len(values), {"k": PRIVATE} if encrypted else None)
                    spent[encrypted].append(published if work == "publish" else consumed)
                    await e.admin.delete_topic(topic)
    return statistics.median(spent[1]) / statistics.median(spent[0])


async def _publish(e: Any, topic: str, values: list[bytes], keys: dict[str, bytes] | None) -> float:
    async with await e.producer(topic, encryption_keys=keys) as producer:
        gc.collect()
        started = time.process_time()
        for value in values:
            producer.send_nowait(value)
            await producer.writable()
        await producer.flush()
        return time.process_time() - started


async def _consume(e: Any, topic: str, count: int, keys: dict[str, bytes] | None) -> float:
    got = 0
    async with await e.stream_consumer(topic, "s", initial_position="earliest", decryption_keys=keys) as consumer:
        gc.collect()
        started = time.process_time()
        while got < count:
            batch = await consumer.receive_batch(timeout=60)
            got += len(batch)
        return time.process_time() - started
