"""What a flush interval costs and gives: one broker on object storage (SeaweedFS on this machine) at several intervals.

`python tools/latency_classes.py [SECONDS]` prints a table in Markdown: how long an acknowledgement of one message takes
where 50 senders each wait for theirs, and how many objects were written a second, by the broker's own count.

`python tools/latency_classes.py [SECONDS] topics`: the same of two topics of one broker, each with an interval of its
own, alone and at once.
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
TOPICS_MS = {"urgent": 20, "patient": 500}
SENDERS = 50
SIZE = 1_000
WARM_S = 1.0


async def measure(url: str, seconds: float) -> tuple[list[float], float, float]:
    """Latencies in seconds, sorted; messages and PUTs a second."""
    async with AsyncClient(url) as client:
        latencies, took, written = await load(client, ["orders"], seconds)
        return latencies["orders"], len(latencies["orders"]) / took, written / took


async def load(client: AsyncClient, topics: list[str], seconds: float) -> tuple[dict[str, list[float]], float, float]:
    """Latencies by topic, sorted; the seconds that it took, and the PUTs."""
    producers = {topic: await client.producer(topic) for topic in topics}
    latencies: dict[str, list[float]] = {topic: [] for topic in topics}

    async def sender(topic: str, number: int, until: float) -> None:
        while (start := time.perf_counter()) < until:
            await producers[topic].send(b"x" * SIZE, key=f"k{number}")
            latencies[topic].append(time.perf_counter() - start)

    async def all_of_them(span: float) -> float:
        started = time.perf_counter()
        await asyncio.gather(*(sender(topic, n, started + span) for topic in topics for n in range(SENDERS)))
        return time.perf_counter() - started

    await all_of_them(WARM_S)
    for each in latencies.values():
        each.clear()
    before = puts(await client.admin.get_metrics())
    took = await all_of_them(seconds)
    written = puts(await client.admin.get_metrics()) - before
    for producer in producers.values():
        await producer.close()
    return {topic: sorted(each) for topic, each in latencies.items()}, took, written


async def measure_topics(url: str, seconds: float) -> None:
    """Print a row for each topic alone, and for each of all at once."""
    async with AsyncClient(url) as client:
        for topic, interval in TOPICS_MS.items():
            await client.admin.create_topic(topic, segments=1)
            await client.admin.set_topic_policies(topic, {"flush_interval_ms": interval})
        for topics in (*([topic] for topic in TOPICS_MS), list(TOPICS_MS)):
            found, took, written = await load(client, topics, seconds)
            for topic in topics:
                p50, p99 = (found[topic][int(len(found[topic]) * part)] * 1000 for part in (0.5, 0.99))
                name = f"{TOPICS_MS[topic]} ms, " + ("alone" if len(topics) == 1 else "beside the other")
                print(f"| {name} | {p50:.0f} ms | {p99:.0f} ms | {written / took:.1f} |", flush=True)


def main_of_topics(seconds: float) -> None:
    print("| topic's interval | ack p50 | ack p99 | the broker's PUTs/s |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder, running_cluster(Path(folder), (HERE,)) as cluster:
        asyncio.run(measure_topics(cluster.url, seconds))


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
    of = main_of_topics if "topics" in sys.argv[2:] else main
    of(float(sys.argv[1]) if len(sys.argv) > 1 else 10.0)
