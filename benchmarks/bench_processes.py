"""`engine serve --processes N` on 127.0.0.1, the public client here: bar P18, and rates.

python benchmarks/bench_processes.py    # a table: each N in turn, five times
"""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any, ClassVar

import workloads
from processes import Server
from support import TINY, rows, run, sized

import engine

COUNT = sized(300_000, 300)
SIZE = 100
SEGMENTS = 8
PRODUCERS = 4
ROUNDS = 5
NUMBERS = [1, 2] if TINY else [1, 2, 4]


class Figures:
    """Of one run. `server_us`: processor time of all of the server's processes for a message, in and out."""

    def __init__(self, seconds_in: float, seconds_out: float, server_s: float) -> None:
        self.rate_in = COUNT / seconds_in
        self.rate_out = COUNT / seconds_out
        self.server_us = server_s / COUNT * 1e6


async def _work(server: Server, sample: Any) -> Figures:
    """Publish from several producers, read everything once, and count processor time of both."""
    async with engine.AsyncClient(server.url) as client:
        if not TINY:
            await workloads.warm(client)
        async with workloads.new_topic(client, segments=SEGMENTS) as topic:
            await workloads.publish_columns(client, topic, sample[: len(sample) // 20 or 1])  # segments are open
            taken, began = server.processor_s(), time.perf_counter()
            parts = [sample[i::PRODUCERS] for i in range(PRODUCERS)]
            await asyncio.gather(*(workloads.publish_each(client, topic, part) for part in parts))
            between = time.perf_counter()
            await workloads.consume_seconds(client, topic, "messages", COUNT + (COUNT // 20 or 1), SIZE)
            return Figures(between - began, time.perf_counter() - between, server.processor_s() - taken)


def figures(count: int) -> Figures:
    """Of a server of so many processes."""
    with Server(processes=count) as server:
        return run(_work(server, rows(COUNT, SIZE)))


class Processes:
    """P18: processor time a message, within 10 % of one process; and what several processes reach."""

    params: ClassVar = NUMBERS
    param_names: ClassVar = ["processes"]
    timeout = 600

    def track_server_us(self, count: int) -> float:
        return statistics.median(figures(count).server_us for _ in range(1 if TINY else ROUNDS))

    track_server_us.unit = "us of processor time/message"  # type: ignore[attr-defined]


def main() -> None:
    """The table."""
    found: dict[int, list[Figures]] = {count: [] for count in NUMBERS}
    for _ in range(ROUNDS):
        for count, runs in found.items():
            runs.append(figures(count))
    print(f"{'processes':>9} {'us a message':>14} {'of one':>7} {'in msg/s':>10} {'out msg/s':>10}")
    for count, runs in found.items():
        ratio = statistics.median(one.server_us / base.server_us for one, base in zip(runs, found[1], strict=True))
        us = statistics.median(one.server_us for one in runs)
        rate_in, rate_out = (statistics.median(getattr(one, name) for one in runs) for name in ("rate_in", "rate_out"))
        print(f"{count:>9} {us:>14.3f} {ratio:>7.2f} {rate_in:>10,.0f} {rate_out:>10,.0f}")


if __name__ == "__main__":
    main()
