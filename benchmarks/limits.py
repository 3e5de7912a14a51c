"""What a tenant at its limit costs another one: the other's rate of publishing alone, and beside it, in turns.

    python benchmarks/limits.py                # five turns of a second of processor time each
    python benchmarks/limits.py --turns 1 --seconds 0.05

`red` sends as much as it can, and is limited to 1 MB/s; `blue` has no limit. Each turn measures blue without red, with
red on the same connection, and with red on another one. The ratios are those of blue's rates within a turn.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Callable

import engine

RED, BLUE = "topic://red/app/orders", "topic://blue/app/orders"
LIMIT = 1_000_000  # bytes a second
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


async def main(turns: int, seconds: float) -> None:
    with tempfile.TemporaryDirectory() as data:
        async with engine.open_async(data, listen="127.0.0.1:0", config={"durability": "os"}) as server:
            await server.admin.set_limits("red", {"total_publish_bytes_per_s": LIMIT})
            url = server.service_url
            async with engine.AsyncClient(url) as one, engine.AsyncClient(url) as other:
                blue, same, apart = [await c.producer(t) for c, t in ((one, BLUE), (one, RED), (other, RED))]
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


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--turns", type=int, default=5)
    arguments.add_argument("--seconds", type=float, default=1.0)
    given = arguments.parse_args()
    asyncio.run(main(given.turns, given.seconds))
