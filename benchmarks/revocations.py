"""How long a right that is taken away is still used: two brokers on real files and sockets, in one process.

    python benchmarks/revocations.py [--count 50]

A role's producer and its consumer are attached at both brokers. The grant is revoked at the first one. Each broker is
timed from before that call, which writes the record, until nothing of the role is attached there.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import time
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from handovers import free_url

from engine.broker.rights.token_file import line_of
from engine.broker.server import Broker
from engine.broker.settings.config import BrokerConfig
from engine.client.client import AsyncClient
from engine.clock import SystemClock
from engine.errors import EngineError
from engine.metadata.memory import MemoryMetadataStore
from engine.wire.url import parse_url

BROKERS = 2
ROLE, TOKEN, TOPIC = "ann", "a token of ann, for this run alone", "orders"
RESOURCE = f"public/default/{TOPIC}"
SEGMENTS = 4
WAIT_S = 60


async def started(stack: AsyncExitStack, path: Path) -> list[Broker]:
    clock = SystemClock()
    root = MemoryMetadataStore(clock, leases=True)
    (path / "roles").write_text(line_of(ROLE, TOKEN) + "\n")
    found = []
    for _ in range(BROKERS):
        url, handle = free_url(), root.client()
        config = BrokerConfig(service_url=url, roles_file=str(path / "roles"), cluster_token="a token of the brokers")
        broker = Broker(path / "data", config=config, metadata=handle, clock=clock)
        stack.push_async_callback(handle.close)
        stack.push_async_callback(broker.close)
        await broker.start()
        await broker.serve(*parse_url(url))
        found.append(broker)
    return found


def attached(broker: Broker) -> int:
    """Producers and consumers of the role at a broker."""
    return sum(len(c.producers) + len(c.consumers) for c in broker.connections if c.role == ROLE)


async def until(done, what: str) -> None:
    async with asyncio.timeout(WAIT_S):
        while not done():  # noqa: ASYNC110 - the time of each broker is taken
            await asyncio.sleep(0.0005)
    assert done(), what


async def one_round(brokers: list[Broker], client: AsyncClient) -> list[float]:
    """Seconds until nothing of the role is attached, at each broker."""
    await brokers[0].admin.grant(RESOURCE, ROLE, ["produce", "consume"])
    async with AsyncExitStack() as ended:
        while True:
            try:
                producer = await client.producer(TOPIC)
                consumer = await client.queue_consumer(TOPIC, "q")
                for i in range(8 * SEGMENTS):
                    await producer.send(b"x", key=f"key-{i}")
                break
            except EngineError:
                await asyncio.sleep(0.05)  # the other broker has not heard of the grant
        for one in (producer, consumer):
            ended.push_async_callback(closed, one)
        await until(lambda: sum(map(attached, brokers)) == 2 * SEGMENTS, "attached to all segments")
        assert all(map(attached, brokers)), "each broker has a segment"
        begun, found = time.perf_counter(), dict[str, float]()
        revoking = asyncio.ensure_future(brokers[0].admin.revoke(RESOURCE, ROLE))

        def look() -> bool:
            for broker in brokers:
                if broker.service_url not in found and not attached(broker):
                    found[broker.service_url] = time.perf_counter() - begun
            return len(found) == len(brokers)

        await until(look, "nothing is attached")
        await revoking
    return list(found.values())


async def closed(one) -> None:
    with contextlib.suppress(EngineError):  # with that of the right that it has lost
        await one.close()


async def main(count: int) -> None:
    with TemporaryDirectory() as folder:
        async with AsyncExitStack() as stack:
            brokers = await started(stack, Path(folder))
            await brokers[0].admin.create_topic(TOPIC, segments=SEGMENTS)
            urls = ",".join(b.service_url.removeprefix("engine://") for b in brokers)
            client = await stack.enter_async_context(AsyncClient(f"engine://{urls}", token=TOKEN))
            taken = sorted([s * 1000 for _ in range(count) for s in await one_round(brokers, client)])
    median, p99 = statistics.median(taken), taken[int(len(taken) * 0.99)]
    print(f"{len(taken)} ends at {BROKERS} brokers: median {median:.1f} ms, p99 {p99:.1f} ms, most {taken[-1]:.1f} ms")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=50)
    asyncio.run(main(parser.parse_args().count))
