"""What a flush interval costs and gives: one broker on object storage (SeaweedFS on this machine) at several intervals.

`python tools/latency_classes.py [SECONDS]` prints a table in Markdown: how long an acknowledgement of one message takes
where 50 senders each wait for theirs, and how many objects were written a second, by the broker's own count.
"""

from __future__ import annotations

import asyncio
import re
import sys
import tempfile
import time
from pathlib import Path

from engine.cli.demo_servers import HERE, running_cluster
from engine.client.client import AsyncClient

INTERVALS_MS = (10, 25, 50, 100, 250, 500, 1000)
SENDERS = 50
SIZE = 1_000
WARM_S = 1.0


async def measure(url: str, seconds: float) -> tuple[list[float], float, float]:
    """Latencies in seconds, sorted; messages and PUTs a second."""
    async with AsyncClient(url) as client, await client.producer("orders") as producer:
        latencies: list[float] = []

        async def sender(number: int, until: float) -> None:
            while (start := time.perf_counter()) < until:
                await producer.send(b"x" * SIZE, key=f"k{number}")
                latencies.append(time.perf_counter() - start)

        async def all_of_them(span: float) -> float:
            started = time.perf_counter()
            await asyncio.gather(*(sender(n, started + span) for n in range(SENDERS)))
            return time.perf_counter() - started

        await all_of_them(WARM_S)
        latencies.clear()
        before = puts(await client.admin.get_metrics())
        took = await all_of_them(seconds)
        after = puts(await client.admin.get_metrics())
        return sorted(latencies), len(latencies) / took, (after - before) / took


def puts(metrics: str) -> float:
    """Objects written, of /metrics."""
    return sum(
        float(value) for value in re.findall(r"(?m)^engine_object\w*_total\{[^}]*put[^}]*\} (\S+)", metrics, re.I)
    )


def main(seconds: float) -> None:
    print("| flush interval | ack p50 | ack p99 | messages/s | PUTs/s |\n|---|---|---|---|---|")
    for interval in INTERVALS_MS:
        settings = {"ENGINE_OBJECT_FLUSH_INTERVAL": str(interval / 1000)}
        with (
            tempfile.TemporaryDirectory() as folder,
            running_cluster(Path(folder), (HERE,), settings=settings) as cluster,
        ):
            found, rate, written = asyncio.run(measure(cluster.url, seconds))
        p50, p99 = (found[int(len(found) * part)] * 1000 for part in (0.5, 0.99))
        print(f"| {interval} ms | {p50:.0f} ms | {p99:.0f} ms | {rate:,.0f} | {written:.1f} |", flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 10.0)
