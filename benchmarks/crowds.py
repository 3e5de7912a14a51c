"""A server that has much to carry and nothing to do with it: idle connections, topics and consumers (P12).

Run as a script it is the process that holds the connections, or the consumers.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import os
import re
import sys
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from processes import Child, Server, raise_file_limit, resident_bytes
from support import RUN_S_MAX, TINY, Rows, directory, rows, run
from workloads import publish_rate, warm

import engine

AT_ONCE = 50  # connections opened, or topics created, at the same time
WRITTEN = 3 if TINY else 100  # idle topics that also hold a message
FILES_SPARE = 1000
CONSUMED_TOPICS = 2 if TINY else 100
CONNECTED = re.compile(r"connected: (\d+)")
CONSUMING = re.compile(r"consuming: (\S+ \S+)")
_numbers = itertools.count(1)


@contextlib.contextmanager
def idle_connections(url: str, count: int) -> Iterator[None]:
    """`count` clients of a process of their own that have connected and do nothing: the server pays, not our client."""
    if not count:
        yield
        return
    raise_file_limit(count + FILES_SPARE)
    with Child([sys.executable, __file__, url, str(count)], CONNECTED):
        yield


async def stay_connected(url: str, count: int) -> None:
    clients = [engine.AsyncClient(url) for _ in range(count)]
    await in_parts(clients, lambda client: client.connect())
    print("connected:", count, flush=True)
    await asyncio.Event().wait()


async def in_parts(what: list[Any], do: Callable[[Any], Coroutine[Any, Any, Any]]) -> None:
    """All of them, some at once."""
    for start in range(0, len(what), AT_ONCE):
        await asyncio.gather(*(do(one) for one in what[start : start + AT_ONCE]))


async def create_topics(client: Any, count: int) -> None:
    """`count` topics; a message in each of a sample of them, by producers that are gone again."""
    mark = next(_numbers)
    names = [f"idle-{mark}-{i}" for i in range(count)]
    await in_parts(names, lambda name: client.admin.create_topic(name))
    for name in names[:: max(1, count // WRITTEN)]:
        async with await client.producer(name) as producer:
            await producer.send(b"x" * 100, key=b"k")


# -- what they cost the others ------------------------------------------------------------------------------------


def rate_among_connections(url: str, count: int, sample: Rows) -> float:
    """Messages per second of one producer while `count` connections are open, its own among them."""
    with idle_connections(url, count - 1):
        return run(rate_of_client(url, sample))


async def rate_of_client(url: str, sample: Rows, way: str = "send_nowait", **options: Any) -> float:
    """Messages per second of one producer into a topic with these options."""
    async with engine.AsyncClient(url) as client:
        await warm_up(client)
        return await publish_rate(client, way, sample, **options)


async def warm_up(client: Any) -> None:
    """So that imports are not measured."""
    if not TINY:
        await warm(client)


async def add_topics(url: str, count: int) -> None:
    """Create them through a client of their own."""
    async with engine.AsyncClient(url) as client:
        await create_topics(client, count)


# -- what they keep resident --------------------------------------------------------------------------------------


def resident_per_connection(server: Server, count: int) -> float:
    """Bytes of a fresh server for each idle connection."""
    run(rate_of_client(server.url, rows(1000, 100)))  # the code is loaded
    before = server.resident_bytes()

    with idle_connections(server.url, count):
        return (server.resident_bytes() - before) / count


def resident_per_new_topic(server: Server, count: int) -> float:
    """Bytes of a fresh server for each of `count` idle topics, which stay."""
    run(rate_of_client(server.url, rows(1000, 100)))
    before = server.resident_bytes()
    run(add_topics(server.url, count))
    return (server.resident_bytes() - before) / count


def resident_per_opened_topic(count: int) -> float:
    """The same for the next server over their directory."""
    with directory() as data:
        with Server(data) as server:
            run(rate_of_client(server.url, rows(1000, 100)))
            before = server.resident_bytes()
            run(add_topics(server.url, count))
        with Server(data) as server:
            run(rate_of_client(server.url, rows(1000, 100)))
            return (server.resident_bytes() - before) / count


def resident_per_consumer(server: Server, kind: str, count: int, connections: int) -> tuple[float, float]:
    """Bytes of a fresh server, and of the process that made them, for each of `count` idle consumers."""
    command = [sys.executable, __file__, server.url, str(connections), kind, str(count), str(server.pid)]
    with Child(command, CONSUMING, ready_s_max=RUN_S_MAX) as child:
        broker, client = child.said.split()
    return float(broker), float(client)


async def measure_consumers(url: str, connections: int, kind: str, count: int, server_pid: int) -> None:
    """What that process does: the consumers of a topic have a subscription each."""
    clients = [engine.AsyncClient(url) for _ in range(connections)]
    await in_parts(clients, lambda client: client.connect())
    names = [f"consumed-{os.getpid()}-{i}" for i in range(CONSUMED_TOPICS)]
    await in_parts(names, lambda name: clients[0].admin.create_topic(name))
    kept = []

    async def make(i: int) -> None:
        client, topic = clients[i % connections], names[i % CONSUMED_TOPICS]
        made = client.queue_consumer if kind == "queue" else client.stream_consumer
        kept.append(await made(topic, f"subscription-{i}"))

    def resident() -> list[int]:
        gc.collect()
        return [resident_bytes(pid) for pid in (server_pid, os.getpid())]

    await in_parts(list(range(CONSUMED_TOPICS)), make)  # the code is loaded, the segments are open
    before = resident()
    await in_parts(list(range(CONSUMED_TOPICS, CONSUMED_TOPICS + count)), make)
    broker, client = (now - then for now, then in zip(resident(), before, strict=True))
    print(f"consuming: {broker / count} {client / count}", flush=True)
    for one in clients:
        await one.close()


if __name__ == "__main__":
    raise_file_limit(int(sys.argv[2]) + FILES_SPARE)
    if len(sys.argv) > 3:
        run(measure_consumers(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5])))
    else:
        run(stay_connected(sys.argv[1], int(sys.argv[2])))
