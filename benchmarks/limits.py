"""What a tenant at its limit costs another one: the other's rate of publishing alone, and beside it, in turns.

    python benchmarks/limits.py                # five turns of a second of processor time each
    python benchmarks/limits.py --turns 1 --seconds 0.05
    python benchmarks/limits.py --pulsar       # both are clients of Apache Pulsar, of Python

`red` sends as much as it can, and is limited to 1 MB/s (0.1 as a client of Apache Pulsar); `blue` has no limit. Each
turn measures blue without red, with red on the same connection, and with red on another one. The ratios are those of
blue's rates within a turn.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import engine

RED, BLUE = "topic://red/app/orders", "topic://blue/app/orders"
LIMIT = 1_000_000  # bytes a second
PULSAR_LIMIT = 100_000  # a message of theirs takes ten times the processor time, and what red may send is not to count
VALUE = os.urandom(1_000)
AT_ONCE = 500


async def send_all(producer: engine.AsyncProducer[bytes], until: Callable[[], bool]) -> int:
    """Send without a pause; how many were stored."""
    stored = 0
    while not until():
        sent = [producer.send(VALUE) for _ in range(AT_ONCE)]
        for one in sent:
            await one
        stored += AT_ONCE
    return stored


async def rate(blue: engine.AsyncProducer[bytes], red: engine.AsyncProducer[bytes] | None, seconds: float) -> float:
    """Blue's messages in a second of processor time, of this process, which has the broker and all clients."""
    over = False
    beside = None if red is None else asyncio.ensure_future(send_all(red, lambda: over))
    begun = time.process_time()
    stored = await send_all(blue, lambda: time.process_time() - begun > seconds)
    found = stored / (time.process_time() - begun)
    over = True
    if beside is not None:
        await beside
    return found


def pulsar_send_all(producer: Any, until: Callable[[], bool]) -> int:
    """send_all() of a producer that blocks while as much waits for receipts as it may have."""
    stored = 0
    while not until():
        for _ in range(AT_ONCE):
            producer.send_async(VALUE, lambda *_: None)
        stored += AT_ONCE
    producer.flush()
    return stored


def pulsar_rate(blue: Any, red: Any, seconds: float) -> float:
    """rate() of two of them; red, which may wait for its receipts, is waited for when blue is measured."""
    over = threading.Event()
    beside = threading.Thread(target=pulsar_send_all, args=(red, over.is_set))
    if red is not None:
        beside.start()
    begun = time.process_time()
    stored = pulsar_send_all(blue, lambda: time.process_time() - begun > seconds)
    found = stored / (time.process_time() - begun)
    over.set()
    if red is not None:
        beside.join()
    return found


def pulsar_main(turns: int, seconds: float) -> None:
    from bench_pulsar import connect

    with (
        tempfile.TemporaryDirectory() as data,
        engine.open(data, listen="127.0.0.1:0", config={"durability": "os"}) as server,
    ):
        server.admin.set_limits("red", {"total_publish_bytes_per_s": PULSAR_LIMIT})
        one, other = connect(server.service_url), connect(server.service_url)
        options = {"block_if_queue_full": True, "batching_enabled": True, "send_timeout_millis": 0}
        topics = [name.replace("topic://", "persistent://") for name in (BLUE, RED, RED)]
        blue, same, apart = [
            client.create_producer(topic, max_pending_messages=pending, **options)
            for client, topic, pending in zip((one, one, other), topics, (1_000, 100, 100), strict=True)
        ]
        compared = compare(lambda *given: asyncio.to_thread(pulsar_rate, *given), blue, same, apart, turns, seconds)
        asyncio.run(compared)
        one.close()
        other.close()


async def compare(
    rate: Callable[..., Awaitable[float]], blue: Any, same: Any, apart: Any, turns: int, seconds: float
) -> None:
    """Print blue's rates, and their ratios beside red on the same connection and on another one."""
    await rate(blue, same, min(seconds, 0.2))
    ratios: dict[str, list[float]] = {"same connection": [], "another connection": []}
    for turn in range(turns):
        alone = await rate(blue, None, seconds)
        beside = list(zip(ratios, (same, apart), strict=True))
        for name, red in beside[:: 1 if turn % 2 else -1]:
            ratios[name].append(await rate(blue, red, seconds) / alone)
        print(f"alone: {alone:,.0f} messages in a second of processor time")
    for name, found in ratios.items():
        low, high = min(found), max(found)
        print(f"beside red on {name}: {statistics.median(found):.1%} ({low:.1%} to {high:.1%})")


async def main(turns: int, seconds: float) -> None:
    with tempfile.TemporaryDirectory() as data:
        async with engine.open_async(data, listen="127.0.0.1:0", config={"durability": "os"}) as server:
            await server.admin.set_limits("red", {"total_publish_bytes_per_s": LIMIT})
            url = server.service_url
            async with engine.AsyncClient(url) as one, engine.AsyncClient(url) as other:
                blue, same, apart = [await c.producer(t) for c, t in ((one, BLUE), (one, RED), (other, RED))]
                await compare(rate, blue, same, apart, turns, seconds)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--turns", type=int, default=5)
    arguments.add_argument("--seconds", type=float, default=1.0)
    arguments.add_argument("--pulsar", action="store_true")
    given = arguments.parse_args()
    if given.pulsar:
        pulsar_main(given.turns, given.seconds)
    else:
        asyncio.run(main(given.turns, given.seconds))
