"""One repetition of every bar's figures, each beside its ceiling: what bars.py runs, a group to a process.

A group returns {name: number}; rates are per second, delays milliseconds, sizes bytes. With `pinned`, a server has
core 0 and the client core 1, as in the comparison with other brokers; Spark, servers of several processes and clusters
have all cores.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import bench_batcher
import bench_dispatch
import bench_log
import bench_metadata
import bench_objects
import bench_processes
import bench_pulsar
import bench_reshape
import ceilings
import crowds
import embedded_stores
import loopback
import small_entries
import transaction_rates
import workloads
from bench_open import GIB, TAIL_MIB
from crashes import open_seconds
from processes import far_end, pin, server
from support import ROUNDS, TINY, Rows, byte_count, directory, percentile, rows, run, sized

import engine

Figures = dict[str, float]
SERVER_CPU, CLIENT_CPU = 0, 1
SMALL, LARGE = 100, 1024
COUNT = {SMALL: sized(500_000, 300), LARGE: sized(250_000, 200)}
SPREAD = sized(1_000_000, 300)  # messages over many segments
RATE, DELAYS = 2000, sized(4000, 40)
PUBLISH_S = 0.05 if TINY else 1.0
SUSTAINED_GB = sized(int(os.environ.get("ENGINE_BENCH_SUSTAINED_GB", "20")), 1)
SPARK_RUNS = sized(3, 1)  # of each side, in turn
BASE = os.environ.get("ENGINE_BENCH_BASE")  # the Python of another build
PROCESSES = (1, 2, 4)
LOST_FLIGHTS = sized(336_776, 3_000)
SEGMENTS, CONNECTIONS, TOPICS = sized(64, 4), sized(1000, 5), sized(10_000, 8)


def native(pinned: bool) -> Figures:
    """P1, P2, P11: no I/O, one thread."""
    batcher = bench_batcher
    sample, count = batcher.records(SMALL), batcher.SIZES["messages"]
    pairs = [
        (count / batcher.send_all(batcher.open_batcher(), sample), count / ceilings.file_write_seconds(sample))
        for _ in range(ROUNDS)
    ]
    ours, loop = (statistics.median(side) for side in zip(*pairs, strict=True))
    figures = {"batcher send_nowait": ours, "file loop": loop}
    for kind in ("arrow", "numpy", "list"):
        columns = batcher.AddColumns()
        columns.setup(kind, SMALL)
        figures[f"batcher {kind}"] = columns.track_rate() * 1e6
    dispatch = bench_dispatch.Route()
    dispatch.setup(1024, "an owner a bucket")
    return figures | {"dispatch ns": dispatch.track_route(1024, "an owner a bucket")}


def log(pinned: bool) -> Figures:
    """P10: bytes per second of the segment log and of the system calls under it, medians of several in turn."""
    count = bench_log.GroupCommit.count
    total = count * bench_log.ENTRY_BYTES

    def ours() -> float:
        return bench_log.with_segment(lambda segment: bench_log.append_many(segment, count, bench_log.ENTRY_BYTES))

    pairs = [(total / ours(), total / ceilings.writev_seconds(total)) for _ in range(ROUNDS)]
    return dict(zip(("log bytes", "log writev bytes"), map(statistics.median, zip(*pairs, strict=True)), strict=True))


def serve(pinned: bool) -> Figures:
    """P3 to P8 over loopback."""
    cores = _pin(pinned)
    figures: Figures = {}
    with server(cpu=cores) as broker, far_end(cpu=cores) as far:
        for size in (SMALL, LARGE):
            figures |= run(_published_and_consumed(broker.url, size)) | _sized_ceilings(far.port, size)
        figures |= _quantiles("delay", run(_over(broker.url, _delays)))
        figures |= _quantiles("delay os", run(_over(broker.url, _unsynced_delays)))
        figures |= _quantiles("echo", run(loopback.echo_latencies(far.port, RATE, DELAYS, SMALL)))
        figures["publishers"] = run(_over(broker.url, _publishers))
    figures["publishers file"] = ceilings.synced_groups_rate(rows(1000, SMALL), PUBLISH_S)
    return figures


def _pin(pinned: bool) -> int | None:
    """Take the client's core; the server's."""
    if not pinned or (os.cpu_count() or 1) < 2:
        return None
    pin(CLIENT_CPU)
    return SERVER_CPU


async def _over(url: str, use: Callable[[Any], Any]) -> Any:
    async with engine.AsyncClient(url) as client:
        await crowds.warm_up(client)
        return await use(client)


async def _published_and_consumed(url: str, size: int) -> Figures:
    sample = rows(COUNT[size], size)
    figures: Figures = {}

    async def use(client: Any) -> None:
        for way in workloads.PUBLISH:
            figures[f"publish {way} {size}"] = await workloads.publish_rate(client, way, sample)
        for way in workloads.CONSUME:
            figures[f"consume {way} {size}"] = await workloads.consume_rate(client, way, sample)

    await _over(url, use)
    return figures


def _sized_ceilings(port: int, size: int) -> Figures:
    """Messages per second that the machine allows."""
    sample, total = rows(COUNT[size], size), byte_count(COUNT[size], size)
    return {
        f"writev {size}": len(sample) / ceilings.writev_seconds(total),
        f"tcp {size}": len(sample) / run(loopback.pull_seconds(port, total)),
        f"file write {size}": len(sample) / ceilings.file_write_seconds(sample),
        f"file read {size}": len(sample) / ceilings.file_read_seconds(sample),
    }


async def _delays(client: Any) -> list[float]:
    return await workloads.warmed_delays(client, RATE, DELAYS, SMALL)


async def _unsynced_delays(client: Any) -> list[float]:
    return await workloads.warmed_delays(client, RATE, DELAYS, SMALL, durability="os")


async def _publishers(client: Any) -> float:
    return await workloads.publishers_rate(client, rows(10_000, SMALL), PUBLISH_S)


def _quantiles(name: str, waits: list[float]) -> Figures:
    return {f"{name} p50": percentile(waits, 0.5) * 1e3, f"{name} p99": percentile(waits, 0.99) * 1e3}


def sustained(pinned: bool) -> Figures:
    """P4 for so long that no page cache holds it: messages per second of all, and of the first GB."""
    sample = rows(COUNT[LARGE], LARGE)
    each = byte_count(1, LARGE)
    first, total = (sized(int(gb * 1e9 / each), 2000) for gb in (1, SUSTAINED_GB))
    with server(cpu=_pin(pinned)) as broker:
        seconds = run(_over(broker.url, lambda client: workloads.publish_long(client, sample, (first, total))))
    return {"sustained first": first / seconds[0], "sustained": total / seconds[1]}


def embedded(pinned: bool) -> Figures:
    """P8 and P9 in one process, on all cores."""
    sample = rows(COUNT[SMALL], SMALL)

    async def ours(path: str) -> Figures:
        async with engine.open_async(path, shared=False) as opened:
            await crowds.warm_up(opened)
            return {
                "embedded publish": await workloads.publish_rate(opened, "send_nowait", sample),
                "embedded consume": await workloads.consume_rate(opened, "messages", sample),
                "embedded columns": await workloads.consume_rate(opened, "columns", sample),
                "embedded publishers": await _publishers(opened),
            }

    with directory() as path:
        figures: Figures = run(ours(path))
    return figures | _store("sqlite") | _store("lmdb")


def _store(kind: str) -> Figures:
    """Its rows; none where it is not installed."""
    try:
        published, consumed = embedded_stores.publish_and_consume_rates(kind, rows(COUNT[SMALL], SMALL))
        together = run(embedded_stores.publishers_rate(kind, rows(10_000, SMALL), PUBLISH_S))
    except NotImplementedError:
        return {}
    return {f"{kind} publish": published, f"{kind} consume": consumed, f"{kind} publishers": together}


def size(pinned: bool) -> Figures:
    """P12. Memory is measured before the server has worked, since that leaves free room that idle things would fill."""
    cores = _pin(pinned)
    sample = rows(SPREAD, SMALL)
    figures: Figures = {}
    with server(cpu=cores) as broker:
        figures["connection bytes"] = crowds.resident_per_connection(broker, CONNECTIONS)
        figures |= in_turn(
            "segments {}", (1, SEGMENTS), lambda n: run(crowds.rate_of_client(broker.url, sample, segments=n))
        )
        figures |= in_turn(
            "open segments {}",
            (1, SEGMENTS),
            lambda n: run(crowds.rate_of_client(broker.url, sample, workloads.AGAIN, segments=n)),
        )
        figures |= in_turn(
            "connections {}", (1, CONNECTIONS), lambda n: crowds.rate_among_connections(broker.url, n, sample)
        )
    with server(cpu=cores) as many, server(cpu=cores) as one:
        figures["topic bytes"] = crowds.resident_per_new_topic(many, TOPICS)
        figures["topics 1"] = run(crowds.rate_of_client(one.url, sample))
        figures[f"topics {TOPICS}"] = run(crowds.rate_of_client(many.url, sample))
    return figures


def in_turn(name: str, sizes: tuple[int, ...], rate: Callable[[int], float]) -> Figures:
    """The median rate at each size, measured in turn: one run is a quarter of a second, mostly the disk's."""
    rounds = [[rate(size) for size in sizes] for _ in range(ROUNDS)]
    return {name.format(n): statistics.median(side) for n, side in zip(sizes, zip(*rounds, strict=True), strict=True)}


def opening(pinned: bool) -> Figures:
    small, large = open_seconds(0, TAIL_MIB), open_seconds(GIB * 1024 if not TINY else 0, TAIL_MIB)
    return {"open small": small, "open large": large}


def metadata(pinned: bool) -> Figures:
    return {
        "metadata single": 1 / bench_metadata.single(),
        "metadata raw": 1 / bench_metadata.raw(),
        "metadata concurrent": 1 / bench_metadata.concurrent(),
    }


def reshape(pinned: bool) -> Figures:
    """P14: milliseconds from sending to the acknowledgement, and without any; rates."""
    with server(cpu=_pin(pinned)) as broker:
        splits = bench_reshape.splits_of(broker.url)
    return {
        "split pause p99": percentile([s.pause for s in splits], 0.99) * 1e3,
        "split usual pause p99": percentile([s.usual_pause for s in splits], 0.99) * 1e3,
        "split p99": (p99 := percentile([wait for s in splits for wait in s.waits], 0.99) * 1e3),
        "usual p99": (usual := percentile([wait for s in splits for wait in s.usual_waits], 0.99) * 1e3),
        "split added p99": p99 - usual,
        "split rate before": statistics.median(s.rate_before for s in splits),
        "split rate after": statistics.median(s.rate_after for s in splits),
    }


def transactions(pinned: bool) -> Figures:
    """P15: messages per second; commits in milliseconds; what many open transactions cost."""
    sample = rows(sized(100_000, 300), SMALL)
    few = sample[: sized(50_000, 200)]
    with server(cpu=_pin(pinned)) as broker:
        figures: Figures = run(_over(broker.url, lambda client: _groups(client, sample, few)))
        waits = run(_over(broker.url, lambda client: transaction_rates.commit_seconds(client, sized(1000, 5))))
        figures |= _quantiles("commit", waits) | {"metadata commit": bench_metadata.single() * 1e3}
        figures |= run(_over(broker.url, lambda client: transaction_rates.many_open(client, broker, sample)))
    return figures


async def _groups(client: Any, sample: Rows, few: Rows) -> Figures:
    """One group at a time, and many; in turn, with transactions and without."""
    figures: Figures = {"stream": await transaction_rates.stream_rate(client, sample)}
    for at_once, some in ((1, few), (transaction_rates.AT_ONCE, sample)):
        pairs = [
            [
                await transaction_rates.group_rate(client, some, at_once, transactional)
                for transactional in (True, False)
            ]
            for _ in range(ROUNDS)
        ]
        names = (f"transactions {at_once}", f"groups {at_once}")
        figures |= dict(zip(names, map(statistics.median, zip(*pairs, strict=True)), strict=True))
    return figures


def pulsar_clients(pinned: bool) -> Figures:
    """P21: Apache Pulsar's own client on our port; messages per second, and the server's microseconds a message."""
    with server(cpu=_pin(pinned)) as broker:
        return bench_pulsar.published_and_consumed(broker, rows(sized(200_000, 300), SMALL))


def spark(pinned: bool) -> Figures:
    """P16: rows per second, by the median of the seconds; milliseconds of a micro-batch without data."""
    import bench_spark  # needs a JVM
    from spark_sample import ROWS

    ours, parquet, _ = bench_spark.medians(bench_spark.read_rounds("count", SPARK_RUNS))
    written, to_parquet, _ = bench_spark.write_pair("exactly once", SPARK_RUNS)
    arrow, messages, _ = bench_spark.arrow_pair("messages", SPARK_RUNS)
    idle, rate_source, *_ = bench_spark.idle_trio(SPARK_RUNS)
    seconds = {
        "spark count": ours,
        "parquet count": parquet,
        "spark write": written,
        "parquet write": to_parquet,
        "spark arrow": arrow,
        "spark messages": messages,
    }
    rates = {name: ROWS / took for name, took in seconds.items()}
    return rates | {"spark idle": idle, "rate source idle": rate_source}


def small(pinned: bool) -> Figures:
    """P17: microseconds of processor time of a small entry, in turn with the build of ENGINE_BENCH_BASE."""
    pythons = {"": sys.executable} | ({", base": BASE} if BASE else {})
    found: Figures = {}
    for way in ("alone", "crowd", "pipeline"):
        count = sized(small_entries.COUNTS[way], 3)
        turns = [[small_entries.seconds_in_child(one, way, count) for one in pythons.values()] for _ in range(ROUNDS)]
        medians = (statistics.median(side) * 1e6 for side in zip(*turns, strict=True))
        found |= {f"small {way}{name}": one for name, one in zip(pythons, medians, strict=True)}
    return found


def processes(pinned: bool) -> Figures:
    """P18: microseconds of the server's processor time a message, by processes with the work of one each; of a put."""
    sample = rows(bench_processes.COUNT, bench_processes.SIZE)
    found = {
        f"processes {count} us": bench_processes.figures(count, bench_processes.Load.times(count), sample).server_us
        for count in PROCESSES
    }
    for name, at_once in (("one", 1), ("many", bench_metadata.AT_ONCE)):
        for side, put in (("remote", bench_metadata.remote), ("local", bench_metadata.local)):
            found[f"put {name} {side} us"] = statistics.median(put(at_once, worked=True) for _ in range(ROUNDS)) * 1e6
    return found


def objects(pinned: bool) -> Figures:
    """P19, on SeaweedFS: messages per second, milliseconds, PUTs."""
    found = bench_objects.both()
    return {
        "object publish": found["object msg/s"],
        "object fsync publish": found["fsync msg/s"],
        "object ack p50": found["ack p50 ms"],
        "object flush and put": bench_objects.FLUSH_MS + found["PUT p50 ms"] + 20,
        "object idle puts": found["idle PUTs"],
    }


def cluster(pinned: bool) -> Figures:
    """P20: seconds. Raises RuntimeError where something acknowledged was lost."""
    from engine.cli import flights
    from engine.cli.demo_cluster import Seen, first_of, run_cluster

    sample = first_of(flights.load(), LOST_FLIGHTS)
    with directory() as folder:
        seen = Seen(len(sample))
        checks = run_cluster(Path(folder).resolve(), "flights", sample, partial(print, file=sys.stderr), seen)
    if failed := [check.name for check in checks if not check.good]:
        raise RuntimeError(f"must all hold, got failures of: {', '.join(failed)}")
    return {"lost broker pause": seen.pause}


GROUPS: dict[str, Callable[[bool], Figures]] = {
    "native": native,
    "log": log,
    "serve": serve,
    "sustained": sustained,
    "embedded": embedded,
    "size": size,
    "open": opening,
    "metadata": metadata,
    "reshape": reshape,
    "transactions": transactions,
    "small": small,
    "processes": processes,
    "pulsar": pulsar_clients,
    "spark": spark,
    "objects": objects,
    "cluster": cluster,
}
