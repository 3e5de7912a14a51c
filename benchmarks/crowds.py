"""A server that has much to carry and nothing to do with it: idle connections, idle topics (P12).

Run as a script it is the process that holds the connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import sys
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from processes import Child, Server, raise_file_limit
from support import TINY, Rows, directory, rows, run
from workloads import publish_rate, warm

import engine

AT_ONCE = 50  # connections opened, or topics created, at the same time
WRITTEN = 3 if TINY else 100  # idle topics that also hold a message
FILES_SPARE = 1000
CONNECTED = re.compile(r"connected: (\d+)")
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
    """What that process does."""
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


async def rate_of_client(url: str, sample: Rows, **options: Any) -> float:
    """Messages per second of one producer into a topic with these options."""
    async with engine.AsyncClient(url) as client:
        await warm_up(client)
        return await publish_rate(client, "send_nowait", sample, **options)


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


if __name__ == "__main__":
    raise_file_limit(int(sys.argv[2]) + FILES_SPARE)
    run(stay_connected(sys.argv[1], int(sys.argv[2])))
