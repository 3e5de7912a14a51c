"""How long a broker with many topics holds up its event loop: while it starts, measures closed segments, is scraped.

    python benchmarks/stocktaking.py --topics 100000

Topics of one segment, with a subscription and a message each, are made once, in `--directory` if it is given, so that
later runs find them. Then a broker opens the directory in this process, with the garbage collector set as by `engine
serve`. The table says for each phase how long it took, the longest pauses of the loop, and the longest collections of
garbage, which are pauses too.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import tempfile
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from slow_topics import an_entry

from engine.aio.uv import run
from engine.broker.metrics.catalogue import metrics_page
from engine.broker.server import Broker
from engine.broker.settings.config import BrokerConfig
from engine.cli.process import collect_rarely, keep_loaded
from engine.model.names import TopicName

PERIOD_S = 0.002
SCRAPES = 5
AT_ONCE = 200

T = TypeVar("T")


class Pauses:
    """The longest pauses of the loop, and of the collector, since begin()."""

    def __init__(self) -> None:
        self._late: list[float] = []
        self._collected: list[float] = []
        self._since = 0.0
        gc.callbacks.append(self._collecting)

    def _collecting(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            self._since = time.perf_counter()
        else:
            self._collected.append(time.perf_counter() - self._since)

    async def watch(self) -> None:
        """Runs until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + PERIOD_S
            await asyncio.sleep(PERIOD_S)
            self._late.append(loop.time() - due)

    async def during(self, what: str, work: Coroutine[Any, Any, T]) -> T:
        """Await it, and print a line about it."""
        self._late, self._collected = [], []
        began, processor = time.perf_counter(), time.process_time()
        result = await work
        await asyncio.sleep(2 * PERIOD_S)
        longest = " ".join(f"{late * 1e3:.0f}" for late in sorted(self._late, reverse=True)[:5])
        garbage = " ".join(f"{took * 1e3:.0f}" for took in sorted(self._collected, reverse=True)[:3])
        took, used = time.perf_counter() - began, time.process_time() - processor
        print(
            f"{what:28} {took:8.1f} s {used:8.1f} s of processor   pauses, ms: {longest}   garbage: {garbage}",
            flush=True,
        )
        return result


async def make(root: Path, topics: int) -> None:
    """Topics with a subscription and a message each."""
    broker = Broker(root, config=BrokerConfig(segment_idle_time=None))
    await broker.start()
    entry = an_entry(0)

    async def one(i: int) -> None:
        name = TopicName("public", "default", f"topic-{i:06}")
        await broker.admin.create_topic(str(name))
        await broker.admin.create_subscription(str(name), "s", initial_position="earliest")
        hosted = await broker.segments.open(await broker.service.segment_spec(name, 0), create=True)
        await hosted.segment.append(entry)
        await broker.segments.unload(hosted)

    for start in range(0, topics, AT_ONCE):
        await asyncio.gather(*(one(i) for i in range(start, min(start + AT_ONCE, topics))))
    await broker.close()


async def measured(broker: Broker) -> None:
    """Until every closed segment is measured."""
    while broker.stocktaking.waiting:  # noqa: ASYNC110 - nothing says when it ends
        await asyncio.sleep(0.1)


async def measure(root: Path) -> None:
    """Print a line for each phase."""
    collect_rarely()
    pauses = Pauses()
    watching = asyncio.create_task(pauses.watch())
    broker = Broker(root, config=BrokerConfig())
    await pauses.during("start", broker.start())
    keep_loaded()
    await pauses.during("measure closed segments", measured(broker))
    for _ in range(SCRAPES):
        page, _ = await pauses.during("scrape", metrics_page(broker))
    print(f"{len(page):,} bytes a scrape")
    await pauses.during("sweep of retention", broker.parts.retention.sweep())
    await pauses.during("five quiet seconds", asyncio.sleep(5))
    watching.cancel()
    await broker.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", type=int, default=100_000)
    parser.add_argument("--directory", type=Path, help="with the topics of an earlier run, or a new one")
    said = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root = said.directory or Path(temporary) / "data"
        if not root.exists():
            asyncio.run(make(root, said.topics))
        run(measure(root))


if __name__ == "__main__":
    main()
