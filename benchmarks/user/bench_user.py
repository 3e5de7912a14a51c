"""What a user's program does, over a server and embedded, by the public API alone: the set whose history is kept.

Every release since the first can run these, so that `make bench-history` compares them. Bars with their ceilings are in
the other files; here is only what a person would notice.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar

from bench_start import PROGRAMS, processor_s
from crashes import open_seconds
from processes import server
from support import TINY, directory, median, percentile, rows, run, sized
from transaction_rates import group_rate
from workloads import (
    RECEIVE_S_MAX,
    consume_rate,
    filled_topic,
    publish_rate,
    publishers_rate,
    warm,
    warmed_delays,
)

import engine

COUNT = sized(300_000, 300)
QUEUED = sized(20_000, 200)
IN_TRANSACTIONS = sized(20_000, 400)
RATE, DELAYS = 2000, sized(3000, 40)
PUBLISH_S = 0.05 if TINY else 1.0
ROUNDS = 1 if TINY else 3
AT_HAND = 100  # messages of a queue that are asked for at once

Use = Callable[[Any], Coroutine[Any, Any, float]]


def measured(where: str, use: Use) -> float:
    """The median of what `use` returns for a client of a new server, or for an engine on a new directory."""

    async def asked(opened: Any) -> list[float]:
        async with opened as client:
            if not TINY:
                await warm(client)
            return [await use(client) for _ in range(ROUNDS)]

    with contextlib.ExitStack() as stack:
        if where == "embedded":
            path = stack.enter_context(directory())
            found = run(_opened(asked, lambda: engine.open_async(path)))
        else:
            broker = stack.enter_context(server())
            found = run(_opened(asked, lambda: engine.AsyncClient(broker.url)))
    return percentile(found, 0.5)


async def _opened(asked: Callable[[Any], Coroutine[Any, Any, list[float]]], make: Callable[[], Any]) -> list[float]:
    """Clients are made where a loop runs."""
    return await asked(make())


class _Program:
    timeout = 600
    params: ClassVar = ["served", "embedded"]
    param_names: ClassVar = ["engine"]
    unit = "messages/s"

    def setup(self, *_: Any) -> None:
        self.sample = rows(COUNT, 100)


class SendOneByOne(_Program):
    """`send_nowait` of 100 B each, until all are on disk."""

    def track_rate(self, where: str) -> float:
        return measured(where, lambda client: publish_rate(client, "send_nowait", self.sample))


class SendInBulk(_Program):
    """`send_batch` of ten thousand at a time."""

    def track_rate(self, where: str) -> float:
        return measured(where, lambda client: publish_rate(client, "send_batch", self.sample))


class SendAndWait(_Program):
    """64 tasks that each await one `send` before the next, as requests of a web application do."""

    def track_rate(self, where: str) -> float:
        return measured(where, lambda client: publishers_rate(client, self.sample, PUBLISH_S))


class ReceiveOneByOne(_Program):
    """A stream consumer that looks at each message and acknowledges batch by batch."""

    def track_rate(self, where: str) -> float:
        return measured(where, lambda client: consume_rate(client, "messages", self.sample))


class ReceiveTables(_Program):
    """The same, each batch an Arrow table."""

    def track_rate(self, where: str) -> float:
        return measured(where, lambda client: consume_rate(client, "columns", self.sample))


class WorkAQueue(_Program):
    """A queue consumer that receives one message at a time and acknowledges it without waiting."""

    def setup(self, *_: Any) -> None:
        self.sample = rows(QUEUED, 100)

    def track_rate(self, where: str) -> float:
        return measured(where, self.worked)

    async def worked(self, client: Any) -> float:
        async with filled_topic(client, self.sample) as topic:
            started = time.perf_counter()
            consumer = await client.queue_consumer(topic, "work", initial_position="earliest")
            pending: list[Any] = []
            for _ in self.sample:
                message = await consumer.receive(timeout=RECEIVE_S_MAX)
                pending.append(asyncio.ensure_future(consumer.acknowledge(message)))
                if len(pending) == AT_HAND:
                    await asyncio.gather(*pending)
                    pending.clear()
            await asyncio.gather(*pending)
            seconds = time.perf_counter() - started
            await consumer.close()
            return len(self.sample) / seconds


class CommitTransactions(_Program):
    """A hundred messages over four segments in each, one transaction after the other."""

    def setup(self, *_: Any) -> None:
        self.sample = rows(IN_TRANSACTIONS, 100)

    def track_rate(self, where: str) -> float:
        return measured(where, lambda client: group_rate(client, self.sample, 1, True))


class SendToReceive(_Program):
    """From when a message was due to when it was received, at 2,000 a second: the slowest but one in a hundred."""

    unit = "ms"

    def track_p99(self, where: str) -> float:
        return measured(where, self.slowest)

    async def slowest(self, client: Any) -> float:
        return percentile(await warmed_delays(client, RATE, DELAYS, 100), 0.99) * 1e3


class Start:
    """Processor time of a program that imports, opens an embedded engine, sends one message and receives it."""

    timeout = 600
    unit = "ms"

    def track_processor_ms(self) -> float:
        program = PROGRAMS["engine.open, send, receive"]
        with directory() as modules:
            processor_s(program, modules)  # compiles them
            return median(lambda: processor_s(program, modules)) * 1e3


class OpenAfterACrash:
    """From opening a directory of 64 MiB, whose writer was killed, to the first acknowledged message."""

    timeout = 600
    unit = "s"

    def track_seconds(self) -> float:
        return median(lambda: open_seconds(sized(64, 1), sized(16, 1)), ROUNDS)
