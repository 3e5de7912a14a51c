"""Messages whose log is in object storage: one broker on etcd and SeaweedFS, beside a server that syncs its own disk.

    python benchmarks/bench_objects.py    # one table: rates in turns, delay of an acknowledgement, requests when idle
    python benchmarks/bench_objects.py /path/to/versitygw    # the same on another S3 server
    python benchmarks/bench_objects.py /path/to/s3s-fs       # on a third one

They are built by `go install github.com/versity/versitygw/cmd/versitygw@v1.8.0`, and by
`cargo install s3s-fs --version 0.14.1 --features binary`.

All servers and the client share this machine; what a store of S3's class adds to a PUT is not in these figures.
"""

from __future__ import annotations

import asyncio
import gc
import os
import re
import socket
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from obstore.store import S3Store
from processes import Server
from support import MIB, ROUNDS, directory, run, sized

from engine.cli import demo_servers
from engine.cli.demo_servers import ACCESS, BUCKET, HERE, Host, free_ports, running_cluster, start_objects
from engine.client.client import AsyncClient

VALUE = os.urandom(1024)
MESSAGES = sized(300_000, 200)
SENDERS = 50
WAITED = sized(40, 2)  # acknowledgements that each sender awaits
PUTS = sized(100, 3)
IDLE_S = sized(30, 1)
FLUSH_MS = 100  # the default


async def publish_rate(client: AsyncClient, topic: str) -> float:
    """Messages a second, acknowledged."""
    async with await client.producer(topic) as producer:
        gc.collect()
        begun = time.perf_counter()
        for number in range(MESSAGES):
            producer.send_nowait(VALUE, key=f"key-{number % 1000}")
            if not number % 64:
                await producer.writable()
        await producer.flush()
        return MESSAGES / (time.perf_counter() - begun)


async def delays_ms(client: AsyncClient, topic: str) -> list[float]:
    """Sorted: what senders that each have one message in flight wait for its acknowledgement."""
    found: list[float] = []
    async with await client.producer(topic) as producer:

        async def send(number: int) -> None:
            for _ in range(WAITED):
                begun = time.perf_counter()
                await producer.send(VALUE, key=f"key-{number}")
                found.append((time.perf_counter() - begun) * 1000)

        await asyncio.gather(*(send(number) for number in range(SENDERS)))
    return sorted(found)


def store_at(endpoint: str) -> S3Store:
    return S3Store(
        BUCKET,
        endpoint=endpoint,
        access_key_id=ACCESS["AWS_ACCESS_KEY_ID"],
        secret_access_key=ACCESS["AWS_SECRET_ACCESS_KEY"],
        region=ACCESS["AWS_REGION"],
        client_options={"allow_http": True},
    )


async def put_p50_ms(store: S3Store, size: int) -> float:
    """Median of the time that a PUT of an object of `size` bytes takes, one after the other."""
    body, found = os.urandom(size), []
    for number in range(PUTS):
        begun = time.perf_counter()
        await store.put_async(f"bench/{number}", body)
        found.append((time.perf_counter() - begun) * 1000)
    return statistics.median(found)


async def put_rate(store: S3Store) -> float:
    """Bytes a second that the store takes in objects of 4 MiB, eight at a time, while nothing else runs."""
    body, left = os.urandom(4 * MIB), iter(range(sized(100, 8)))

    async def put() -> None:
        for number in left:
            await store.put_async(f"bench/large-{number}", body, use_multipart=False)

    begun = time.perf_counter()
    await asyncio.gather(*(put() for _ in range(8)))
    return sized(100, 8) * len(body) / (time.perf_counter() - begun)


async def puts(client: AsyncClient) -> float:
    """PUTs that the broker has counted since it began."""
    text = await client.admin.get_metrics()
    return sum(float(n) for n in re.findall(r"(?m)^engine_object_requests_total\{[^}]*put[^}]*\} (\S+)", text, re.I))


async def measure(objects: str, endpoint: str, disk: str) -> dict[str, float]:
    """The figures of one run of both servers, by name."""
    async with AsyncClient(objects) as remote, AsyncClient(disk) as local:
        for client, name in ((remote, "warm"), (local, "warm")):
            await publish_rate(client, name)
        rates: list[tuple[float, float]] = []
        for turn in range(ROUNDS):
            await _settled(remote)  # files of the turn before become objects
            found = {}
            for client in (remote, local) if turn % 2 else (local, remote):
                found[client] = await publish_rate(client, f"turn-{turn}")
            rates.append((found[remote], found[local]))
        await _settled(remote)  # the delays, and the PUT beside them, are of a broker with nothing else to store
        waits = await delays_ms(remote, "waits")
        store = store_at(endpoint)
        put = await put_p50_ms(store, SENDERS * len(VALUE))
        ceiling = await put_rate(store) / len(VALUE)
        before = await _settled(remote)
        await asyncio.sleep(IDLE_S)
        return {
            "object msg/s": statistics.median(there for there, _ in rates),
            "fsync msg/s": statistics.median(here for _, here in rates),
            "ratio": statistics.median(there / here for there, here in rates),
            "ratio min": min(there / here for there, here in rates),
            "ratio max": max(there / here for there, here in rates),
            "store alone, KiB/s": ceiling,
            "ratio to the store alone": statistics.median(there for there, _ in rates) / ceiling,
            "ack p50 ms": waits[len(waits) // 2],
            "ack p99 ms": waits[len(waits) * 99 // 100],
            "PUT p50 ms": put,
            "ack p50 over flush + PUT ms": waits[len(waits) // 2] - FLUSH_MS - put,
            "idle PUTs": await puts(client=remote) - before,
        }


async def _settled(client: AsyncClient) -> float:
    """The count of PUTs, when what the load left to do (files that are made into objects) has been done."""
    count = -1.0
    while (now := await puts(client)) != count:
        count = now
        await asyncio.sleep(sized(5, 1))
    return count


def start_versitygw(folder: Path, host: Host) -> tuple[demo_servers.Server, str, str]:
    """As start_objects() does. It keeps objects as files of a directory, and needs less of the processor."""
    endpoint = f"{host.address}:{free_ports(1)[0]}"
    (folder / "versitygw" / BUCKET).mkdir(parents=True)
    keys = "--access", ACCESS["AWS_ACCESS_KEY_ID"], "--secret", ACCESS["AWS_SECRET_ACCESS_KEY"]
    options = "--port", endpoint, "--health", "/healthz", "--quiet"
    command = [sys.argv[1], *keys, *options, "posix", str(folder / "versitygw")]
    server = demo_servers.Server("versitygw", command, folder / "run", {})
    demo_servers.wait([server], f"http://{endpoint}/healthz")
    return server, f"http://{endpoint}", ""


def start_s3s(folder: Path, host: Host) -> tuple[demo_servers.Server, str, str]:
    """The same of the file system of the library s3s, which is written in Rust."""
    (port,) = free_ports(1)
    (folder / "s3s" / BUCKET).mkdir(parents=True)
    keys = "--access-key", ACCESS["AWS_ACCESS_KEY_ID"], "--secret-key", ACCESS["AWS_SECRET_ACCESS_KEY"]
    command = [sys.argv[1], *keys, "--host", host.address, "--port", str(port), str(folder / "s3s")]
    server = demo_servers.Server("s3s-fs", command, folder / "run", {"RUST_LOG": "error"})
    while True:
        server.check()
        try:
            socket.create_connection((host.address, port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return server, f"http://{host.address}:{port}", ""


def other_server() -> Callable[[Path, Host], tuple[demo_servers.Server, str, str]]:
    return start_s3s if Path(sys.argv[1]).name == "s3s-fs" else start_versitygw


def both() -> dict[str, float]:
    objects = other_server() if __name__ == "__main__" and sys.argv[1:] else start_objects
    with (
        directory() as folder,
        running_cluster(Path(folder), (HERE,), objects=objects) as cluster,
        Server() as disk,
    ):
        return run(measure(cluster.url, cluster.endpoint, disk.url))


class Objects:
    """What `durability="object"` gives and costs on this machine, beside `fsync` in the same run."""

    params: ClassVar = [["ratio", "ratio to the store alone", "ack p50 over flush + PUT ms", "idle PUTs"]]
    param_names = ("figure",)
    unit = "ratio, ms or PUTs"
    timeout = 600

    def setup_cache(self) -> dict[str, float]:
        return both()

    def track_figure(self, figures: dict[str, float], figure: str) -> float:
        return figures[figure]


if __name__ == "__main__":
    for name, value in both().items():
        print(f"{name:30} {value:12,.2f}")
