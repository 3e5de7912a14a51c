"""What a segment's change of owner costs its producers: three brokers on real files and sockets, in one process.

    python benchmarks/handovers.py [--count 50] [--rate 500] [--segments 4]

A named producer sends so many messages a second, one to a batch, while segments are handed over one after the other. A
handover costs what the slowest send takes that falls into it. Read back, nothing may be missing, doubled, or out of the
order of its key.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import socket
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from engine.broker.server import Broker
from engine.broker.settings.config import BrokerConfig
from engine.client.client import AsyncClient
from engine.clock import SystemClock
from engine.metadata.memory import MemoryMetadataStore
from engine.wire.url import parse_url

BROKERS = 3
KEYS = 64
PAUSE_S = 0.2  # between two handovers


def free_url() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"engine://127.0.0.1:{probe.getsockname()[1]}"


class Load:
    """Sends at a rate until it is stopped. `sends`: (begun, ended) of each."""

    def __init__(self, producer, rate: float) -> None:
        self.sends: list[tuple[float, float]] = []
        self.count = 0
        self.stopped = False
        self._producer = producer
        self._rate = rate

    async def run(self) -> None:
        begun = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            while not self.stopped:
                while self.count < (time.perf_counter() - begun) * self._rate:
                    tasks.create_task(self._send(self.count))
                    self.count += 1
                await asyncio.sleep(0.001)

    async def _send(self, number: int) -> None:
        begun = time.perf_counter()
        await self._producer.send(b"%d" % number, key=f"key-{number % KEYS}")
        self.sends.append((begun, time.perf_counter()))


async def read(consumer, load: Load) -> list[int]:
    """All that was sent, in the order of its arrival."""
    found: list[int] = []
    while not load.stopped or len(found) < load.count:
        batch = await consumer.receive_batch(timeout=10)
        found += [int(message.value) for message in batch]
        if len(batch):
            await consumer.acknowledge_cumulative(batch)
        elif load.stopped:
            break
    return found


async def measure(path: Path, count: int, rate: float, segments: int) -> None:
    clock = SystemClock()
    root = MemoryMetadataStore(clock, leases=True)
    async with contextlib.AsyncExitStack() as stack:
        brokers = []
        for _ in range(BROKERS):
            url, handle = free_url(), root.client()
            config = BrokerConfig(service_url=url, segments=segments, balance_enabled=False)
            broker = Broker(path, config=config, metadata=handle, clock=clock)
            await broker.start()
            await broker.serve(*parse_url(url))
            stack.push_async_callback(handle.close)
            stack.push_async_callback(broker.close)
            brokers.append(broker)
        client = await stack.enter_async_context(AsyncClient(brokers[0].service_url))
        load = Load(await client.producer("orders", name="p"), rate)
        consumer = await client.stream_consumer("orders", "s", initial_position="earliest")
        sending, reading = asyncio.create_task(load.run()), asyncio.create_task(read(consumer, load))
        await asyncio.sleep(2)
        spans = await hand_over(brokers, count)
        load.stopped = True
        await sending
        report(load, spans, await reading)


async def hand_over(brokers: list[Broker], count: int) -> list[tuple[float, float]]:
    """(begun, ended) of each."""
    rng, spans = random.Random(1), []
    for _ in range(count):
        owner, name = rng.choice([(broker, hosted.name) for broker in brokers for hosted in broker.segments])
        to = rng.choice([broker for broker in brokers if broker is not owner])
        begun = time.perf_counter()
        await owner.cluster.handovers.hand_over(name, to.service_url)
        spans.append((begun, time.perf_counter()))
        await asyncio.sleep(PAUSE_S)
    return spans


def report(load: Load, spans: list[tuple[float, float]], found: list[int]) -> None:
    firsts = {number: at for at, number in reversed(list(enumerate(found)))}
    turned = sum(
        firsts[number] < firsts[number - KEYS] for number in firsts if number >= KEYS and number - KEYS in firsts
    )
    print(f"{load.count} sent, {load.count - len(firsts)} missing, {turned} out of order", end=", ")
    print(f"{len(found) - len(firsts)} delivered again")
    slowest = [max((b - a for a, b in load.sends if b > begun and a < ended), default=0.0) for begun, ended in spans]
    apart = [b - a for a, b in load.sends if all(b < begun or a > ended for begun, ended in spans)]
    for what, times in (
        ("a send, apart from handovers", apart),
        ("a handover, at its broker", [b - a for a, b in spans]),
        ("the slowest send of a handover", slowest),
    ):
        cuts = statistics.quantiles(times, n=100, method="inclusive")
        print(f"{what}: p50 {cuts[49] * 1000:.1f}, p99 {cuts[98] * 1000:.1f}, max {max(times) * 1000:.1f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--rate", type=float, default=500.0, help="messages per second")
    parser.add_argument("--segments", type=int, default=4)
    chosen = parser.parse_args()
    with TemporaryDirectory() as directory:
        asyncio.run(measure(Path(directory), chosen.count, chosen.rate, chosen.segments))


if __name__ == "__main__":
    main()
