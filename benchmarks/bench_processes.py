"""`engine serve --processes N` on 127.0.0.1, the public client here: bar P18, and rates.

python benchmarks/bench_processes.py    # three tables: each row in turn, five times

Each is read twice: with acknowledgements that are awaited, every 10,000 messages, and with such that are not.

Processor time is that of all of the server's processes, the parent included, less what the same server takes when it is
idle for as long, which has a column of its own.

the same work      one client publishes as fast as it can into one topic, and reads it: each of N processes has an Nth
N times the work   each process has two segments and RATE messages a second, however many there are
an Nth alone       one process, with an Nth of the segments and messages a second of the first table: what a process is
                   compared with that has an Nth of the same work
"""

from __future__ import annotations

import asyncio
import math
import statistics
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, ClassVar, NamedTuple

import workloads
from pace import Ticker
from processes import Server
from support import ROUNDS, TINY, Rows, rows, run, sized

import engine

COUNT = sized(300_000, 300)  # of one turn
TURNS = sized(20, 1)
SIZE = 100
SEGMENTS = 8
SEGMENTS_EACH = 2
RATE = sized(200_000, 1_000)
FULL_RATE = sized(2_600_000, 4_000)  # of one client that publishes as fast as it can, on the machine of the docs
TICKS = 250  # a second, at which each producer sends what is due
PACED_S = sized(3.0, 0.1)
PRODUCERS = 4
IDLE_S = sized(2.0, 0.01)
NUMBERS = [1, 2] if TINY else [1, 2, 4]


class Load(NamedTuple):
    """Of a server. `rate`: messages a second; None: as many as the client can send."""

    segments: int
    rate: float | None

    @classmethod
    def same(cls) -> Load:
        return cls(SEGMENTS, None)

    @classmethod
    def times(cls, processes: int) -> Load:
        return cls(SEGMENTS_EACH * processes, RATE * processes)

    @classmethod
    def part(cls, processes: int) -> Load:
        return cls(SEGMENTS // processes, FULL_RATE / processes)


class Figures:
    """Of one run. `in_us`, `out_us`: processor time of the server for a message; `idle`: of a core, without any.

    `unawaited_us`: as `out_us`, with acknowledgements that are not awaited; nan: not measured.
    """

    def __init__(
        self,
        count: int,
        spent_in: tuple[float, float],
        spent_out: tuple[float, float],
        unawaited: tuple[float, float] | None,
        idle: float,
    ) -> None:
        """(seconds, seconds of processor time) of publishing `count` messages, and of reading them in both ways."""
        self.rate_in, self.rate_out = count / spent_in[0], count / spent_out[0]
        self.in_us, self.out_us, self.unawaited_us = (
            (busy - idle * s) / count * 1e6 for s, busy in (spent_in, spent_out, unawaited or (math.nan, math.nan))
        )
        self.idle = idle

    @property
    def server_us(self) -> float:
        """In and out."""
        return self.in_us + self.out_us


async def _spent(server: Server, work: Coroutine[Any, Any, Any]) -> tuple[float, float]:
    """Seconds that pass, and that the server works, until this is done."""
    taken, began = server.processor_s(), time.perf_counter()
    await work
    return time.perf_counter() - began, server.processor_s() - taken


async def _same(client: Any, topic: str, parts: list[Rows]) -> None:
    for _ in range(TURNS):
        await asyncio.gather(*(workloads.publish_each(client, topic, part) for part in parts))


async def _paced(client: Any, topic: str, part: Rows, rate: float) -> None:
    """Publish from one producer at a rate."""
    ticker, sent, count, each = Ticker(TICKS), 0, int(rate * PACED_S), int(rate / TICKS)
    async with await client.producer(topic) as producer:
        while sent < count:
            due = min(await ticker.wait() * each, count)
            for number in range(sent, due):
                key, value = part[number % len(part)]
                producer.send_nowait(value, key=key)
            sent = due
            await producer.writable()
        await producer.flush()
    ticker.close()


async def _more(client: Any, topic: str, parts: list[Rows], rate: float) -> None:
    await asyncio.gather(*(_paced(client, topic, part, rate / PRODUCERS) for part in parts))


async def _work(server: Server, load: Load, sample: Rows, ways: Sequence[bool]) -> Figures:
    """Publish from several producers, read everything in these ways (acknowledgements are awaited); be idle."""
    async with engine.AsyncClient(server.url) as client:
        if not TINY:
            await workloads.warm(client)
        async with workloads.new_topic(client, segments=load.segments) as topic:
            first = sample[: len(sample) // 20 or 1]
            await workloads.publish_columns(client, topic, first)  # segments are open
            parts = [sample[i::PRODUCERS] for i in range(PRODUCERS)]
            if load.rate is None:
                count, publishing = COUNT * TURNS, _same(client, topic, parts)
            else:
                count = PRODUCERS * int(load.rate / PRODUCERS * PACED_S)
                publishing = _more(client, topic, parts, load.rate)
            spent_in = await _spent(server, publishing)
            spent_out = {
                awaited: await _spent(
                    server,
                    workloads.consume_seconds(client, topic, "messages", count + len(first), SIZE, awaited=awaited),
                )
                for awaited in ways
            }
            seconds, busy = await _spent(server, asyncio.sleep(IDLE_S))
            return Figures(count, spent_in, spent_out[True], spent_out.get(False), busy / seconds)


def figures(processes: int, load: Load, sample: Rows, ways: Sequence[bool] = (True, False)) -> Figures:
    """Of a server of so many processes."""
    with Server(processes=processes) as server:
        return run(_work(server, load, sample, ways))


class Processes:
    """P18: processor time a message, within 10 % of one process; and what several processes reach."""

    params: ClassVar = [NUMBERS, [False, True]]
    param_names: ClassVar = ["processes", "paced"]
    timeout = 600

    def track_server_us(self, count: int, paced: bool) -> float:
        sample, load = rows(COUNT, SIZE), Load.times(count) if paced else Load.same()
        return statistics.median(figures(count, load, sample, (True,)).server_us for _ in range(ROUNDS))

    track_server_us.unit = "us of processor time/message"  # type: ignore[attr-defined]


def table(title: str, sample: Rows, loads: dict[int, tuple[int, Load]]) -> None:
    """Print it: each row's (processes, load) in turn; of columns medians, of ratios to the first row the median within
    a turn.
    """
    found: dict[int, list[Figures]] = {row: [] for row in loads}
    for _ in range(ROUNDS):
        for row, runs in found.items():
            runs.append(figures(*loads[row], sample))
    columns: list[tuple[str, str, Callable[[Figures, Figures], float]]] = [
        ("us a message", ">13.3f", lambda one, base: one.server_us),
        ("of one", ">7.2f", lambda one, base: one.server_us / base.server_us),
        ("in", ">7.3f", lambda one, base: one.in_us),
        ("of one", ">7.2f", lambda one, base: one.in_us / base.in_us),
        ("out", ">7.3f", lambda one, base: one.out_us),
        ("of one", ">7.2f", lambda one, base: one.out_us / base.out_us),
        ("unawaited", ">10.3f", lambda one, base: one.unawaited_us),
        ("of one", ">7.2f", lambda one, base: one.unawaited_us / base.unawaited_us),
        ("idle", ">7.1%", lambda one, base: one.idle),
        ("in msg/s", ">11,.0f", lambda one, base: one.rate_in),
        ("out msg/s", ">11,.0f", lambda one, base: one.rate_out),
    ]
    print(title)
    print("        N" + "".join(f"{name:>{form[1:].split('.')[0].rstrip(',')}}" for name, form, _ in columns))
    for count, runs in found.items():
        pairs = list(zip(runs, found[min(loads)], strict=True))
        medians = [(statistics.median(of(*pair) for pair in pairs), form) for _, form, of in columns]
        print(f"{count:>9}" + "".join(f"{value:{form}}" for value, form in medians), flush=True)


def main() -> None:
    """All tables."""
    sample = rows(COUNT, SIZE)
    table("the same work", sample, {n: (n, Load.same()) for n in NUMBERS})
    table("N times the work", sample, {n: (n, Load.times(n)) for n in NUMBERS})
    table("an Nth alone", sample, {n: (1, Load.part(n)) for n in NUMBERS[1:]})


if __name__ == "__main__":
    main()
