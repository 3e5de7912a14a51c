"""What the bars ask for: which figure, against which reference, by which factor."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench_open import GIB
from measures import CONNECTIONS, SEGMENTS, SUSTAINED_GB, TOPICS
from transaction_rates import AT_ONCE, OPEN

# Adapters of the peers' harness that are not other projects' servers.
NOT_SERVERS = ("engine", "limit-", "lmdb", "sqlite", "persist-queue", "litequeue")


@dataclass(frozen=True)
class Peer:
    """The best server of the peers' run in a workload, by a field: the highest rate, or the least of anything else.

    `synced`: only those that sync before they acknowledge, only those that do not; None: either. `only`: that one.
    """

    workload: str
    field: str = "rate"
    synced: bool | None = None
    only: str = ""

    @property
    def name(self) -> str:
        return self.only or {None: "best peer", True: "best synced peer", False: "best unsynced peer"}[self.synced]

    def figure(self, row: dict[str, Any]) -> float:
        """The field; "server_us" is the server's processor time of a message."""
        return float(row["cpu_server"] / row["n"] * 1e6 if self.field == "server_us" else row[self.field])


@dataclass(frozen=True)
class Peers:
    """A peers' run: {(workload, adapter): rows of its repetitions}."""

    rows: dict[tuple[str, str], list[dict[str, Any]]]
    synced: frozenset[str] = frozenset()  # those that say with any of their rows that they sync first

    @classmethod
    def load(cls, path: str, *, pinned: bool) -> Peers:
        """The rows of a results file that were measured pinned as we are."""
        rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for run in json.loads(Path(path).read_text())["runs"]:
            if run["pin"] == pinned and not run["name"].startswith(NOT_SERVERS):
                for row in run.get("rows", ()):
                    rows.setdefault((row["workload"], run["name"]), []).append(row)
        synced = {name for (_, name), found in rows.items() if any(row.get("fsync") for row in found)}
        return cls(rows, frozenset(synced))

    def best(self, peer: Peer) -> tuple[float, str] | None:
        """(median of its repetitions, its name); None when no server ran that workload."""
        found = [
            (statistics.median(map(peer.figure, rows)), name)
            for (workload, name), rows in self.rows.items()
            if workload == peer.workload and peer.synced in (None, name in self.synced) and peer.only in ("", name)
        ]
        if not found:
            return None
        return max(found) if peer.field == "rate" else min(found)


@dataclass(frozen=True)
class Bar:
    """A figure, what it is held against, and by which factor. Without a factor it is shown, not judged.

    `reference`: a number, the name of a figure of the same repetition, or a Peer.
    """

    id: str
    what: str
    ours: str
    reference: float | str | Peer
    at_least: float | None = None
    at_most: float | None = None
    unit: str = "msg/s"
    name: str = ""  # the reference's, where the figure's own says too little

    def find_reference(self, values: dict[str, list[float]], peers: Peers | None) -> tuple[list[float], str]:
        """(a value for each of our repetitions or none at all, what it is)."""
        count = len(values.get(self.ours, []))
        if isinstance(self.reference, Peer):
            best = peers.best(self.reference) if peers else None
            return ([best[0]] * count, f"{self.reference.name}, {best[1]}") if best else ([], self.reference.name)
        if isinstance(self.reference, str):
            measured = values.get(self.reference, [])
            return (measured if len(measured) == count else []), self.name or self.reference
        return [self.reference] * count, self.name or "fixed"

    def is_met(self, ratio: float) -> bool | None:
        """None when nothing is asked for."""
        if self.at_least is not None:
            return ratio >= self.at_least
        return ratio <= self.at_most if self.at_most is not None else None

    def asked(self) -> str:
        if self.at_least is not None:
            return f"≥ {self.at_least:g} ×"
        return f"≤ {self.at_most:g} ×" if self.at_most is not None else ""


LOOP_W, LOOP_R = "Python file loop, writing", "Python file loop, reading"
PLAIN = "the same without"
PARQUET = "Parquet"
BASE = "the build of ENGINE_BENCH_BASE"
PULSAR_US, PULSAR_READ_US = (Peer(work, "server_us", only="pulsar") for work in ("W1", "W3 of W1"))
WRITEV, TCP = "writev + fdatasync", "loopback TCP, 64 KiB"

BARS = [
    Bar("P1", "send_nowait into entries, 100 B", "batcher send_nowait", 3.5e6, at_least=1),
    Bar("P1", "the same", "batcher send_nowait", "file loop", at_least=0.8, name=LOOP_W),
    Bar("P2", "Arrow columns into entries, 100 B", "batcher arrow", 15e6, at_least=1),
    Bar("P2", "NumPy columns into entries, 100 B", "batcher numpy", 15e6, at_least=1),
    Bar("P2", "lists into entries, 100 B", "batcher list", "batcher send_nowait", at_least=1.2, name="send_nowait"),
    Bar("P3", "publish 100 B, send_nowait", "publish send_nowait 100", Peer("W1"), at_least=10),
    Bar("P3", "the same", "publish send_nowait 100", "file write 100", name=LOOP_W),
    Bar("P3", "the same", "publish send_nowait 100", "writev 100", name=WRITEV),
    Bar("P3", "publish 100 B, send_batch", "publish send_batch 100", Peer("W1")),
    Bar("P4", "publish 1 KiB, send_nowait", "publish send_nowait 1024", Peer("W2"), at_least=6),
    Bar("P4", "the same", "publish send_nowait 1024", "writev 1024", at_least=0.6, name=WRITEV),
    Bar("P4", "publish 1 KiB, send_batch", "publish send_batch 1024", "writev 1024", name=WRITEV),
    Bar("P4", f"1 KiB, {SUSTAINED_GB} GB in a row", "sustained", "sustained first", at_least=0.8, name="the first GB"),
    Bar("P5", "consume 100 B, messages", "consume messages 100", Peer("W3 of W1"), at_least=5),
    Bar("P5", "the same", "consume messages 100", "file read 100", name=LOOP_R),
    Bar("P5", "consume 1 KiB, messages", "consume messages 1024", Peer("W3 of W2")),
    Bar("P6", "consume 100 B, columns", "consume columns 100", Peer("W3 of W1"), at_least=12),
    Bar("P6", "the same", "consume columns 100", "tcp 100", name=TCP),
    Bar("P6", "consume 1 KiB, columns", "consume columns 1024", "tcp 1024", at_least=0.5, name=TCP),
    Bar("P7", "2,000 msg/s to receipt, p50", "delay p50", Peer("W4", "p50_ms", True), at_most=0.5, unit="ms"),
    Bar("P7", "the same", "delay p50", "echo p50", unit="ms", name="TCP echo"),
    Bar("P7", "the same, unsynced, p50", "delay os p50", Peer("W4", "p50_ms", False), at_most=1, unit="ms"),
    Bar("P7", "the same, unsynced, p99", "delay os p99", "echo p99", at_most=2, unit="ms", name="TCP echo"),
    Bar("P7", "2,000 msg/s to receipt, p99", "delay p99", "echo p99", at_most=2, unit="ms", name="TCP echo"),
    Bar("P8", "64 publishers, over TCP", "publishers", Peer("W5", synced=True), at_least=3),
    Bar("P8", "the same", "publishers", Peer("W5", synced=False), at_least=1.5),
    Bar("P8", "the same", "publishers", "publishers file", name="file, synced per 64"),
    Bar("P8", "64 publishers, embedded", "embedded publishers", "sqlite publishers", at_least=1, name="SQLite"),
    Bar("P8", "the same", "embedded publishers", "lmdb publishers", name="LMDB"),
    Bar("P9", "embedded publish 100 B", "embedded publish", "lmdb publish", at_least=3, name="LMDB"),
    Bar("P9", "the same", "embedded publish", "sqlite publish", name="SQLite"),
    Bar("P9", "embedded consume 100 B, messages", "embedded consume", "lmdb consume", at_least=3, name="LMDB"),
    Bar("P9", "embedded consume 100 B, columns", "embedded columns", "lmdb consume", name="LMDB"),
    Bar("P10", "segment log, 64 KiB entries", "log bytes", "log writev bytes", at_least=0.8, unit="B/s", name=WRITEV),
    Bar("P11", "dispatch, 1,024 buckets", "dispatch ns", 100.0, at_most=1, unit="ns/entry"),
    Bar("P12", f"{SEGMENTS} segments", f"segments {SEGMENTS}", "segments 1", at_least=0.8, name="one"),
    Bar("P12", f"{SEGMENTS} segments, open", f"open segments {SEGMENTS}", "open segments 1", name="one"),
    Bar("P12", f"{CONNECTIONS:,} connections", f"connections {CONNECTIONS}", "connections 1", at_least=0.8, name="one"),
    Bar("P12", f"{TOPICS:,} topics", f"topics {TOPICS}", "topics 1", at_least=0.8, name="one"),
    Bar("P12", "resident, an idle connection", "connection bytes", 20e3, at_most=1, unit="B"),
    Bar("P12", "resident, an idle topic", "topic bytes", 20e3, at_most=1, unit="B"),
    Bar("P13", f"open {GIB} GiB after a crash", "open large", 2.0, at_most=1, unit="s"),
    Bar("P13", "the same", "open large", "open small", at_most=2, unit="s", name="the same tail alone"),
    Bar("P14", "a split under full load adds to p99", "split added p99", 20.0, at_most=1, unit="ms"),
    Bar("P14", "send to acknowledgement, p99", "split p99", "usual p99", unit="ms", name="without a split"),
    Bar("P14", "pause, p99", "split pause p99", "split usual pause p99", unit="ms", name="without a split"),
    Bar("P14", "rate a second after the split", "split rate after", "split rate before", at_least=0.8, name="before"),
    Bar("P15", "transactions of 100 messages, one at a time", "transactions 1", "groups 1", at_least=0.5, name=PLAIN),
    Bar(
        "P15",
        f"the same, {AT_ONCE} at a time",
        f"transactions {AT_ONCE}",
        f"groups {AT_ONCE}",
        at_least=0.5,
        name=PLAIN,
    ),
    Bar("P15", "the same", f"transactions {AT_ONCE}", "stream", name="a stream without waits"),
    Bar("P15", "a commit, p50", "commit p50", "metadata commit", at_most=2, unit="ms", name="a metadata commit"),
    Bar("P15", f"resident, one of {OPEN:,} open ones", "open transaction bytes", 20e3, unit="B"),
    Bar("P15", f"publish beside {OPEN:,} open ones", "plain, many open", "plain, none open", at_least=0.8, name="none"),
    Bar(
        "P15",
        "transactions beside them",
        "transactions, many open",
        "transactions, none open",
        at_least=0.8,
        name="none",
    ),
    Bar("P16", "Spark reads into a count", "spark count", "parquet count", at_least=0.5, unit="rows/s", name=PARQUET),
    Bar("P16", "Spark writes, exactly once", "spark write", "parquet write", at_least=0.5, unit="rows/s", name=PARQUET),
    Bar("P16", "Arrow batches", "spark arrow", "spark messages", at_least=3, unit="rows/s", name="yielding rows"),
    Bar(
        "P16", "a micro-batch without data", "spark idle", "rate source idle", at_most=1, unit="ms", name="rate source"
    ),
    Bar("P17", "a small entry, one at a time", "small alone", "small alone, base", at_most=0.5, unit="us", name=BASE),
    Bar("P17", "of 64 producers", "small crowd", "small crowd, base", at_most=0.5, unit="us", name=BASE),
    Bar("P17", "64 at a time", "small pipeline", "small pipeline, base", at_most=0.5, unit="us", name=BASE),
    Bar("P18", "a message, 2 processes", "processes 2 us", "processes 1 us", at_most=1.1, unit="us", name="one"),
    Bar("P18", "a message, 4 processes", "processes 4 us", "processes 1 us", at_most=1.1, unit="us", name="one"),
    Bar("P18", "a put over the socket", "put one remote us", "put one local us", at_most=2, unit="us", name="local"),
    Bar("P18", "the same, 64 at a time", "put many remote us", "put many local us", at_most=2, unit="us", name="local"),
    Bar("P19", "publish 1 KiB on objects", "object publish", "object fsync publish", at_least=0.5, name="fsync"),
    Bar(
        "P19",
        "the same, acknowledgement p50",
        "object ack p50",
        "object flush and put",
        at_most=1,
        unit="ms",
        name="flush + PUT + 20 ms",
    ),
    Bar("P19", "PUTs of an idle broker", "object idle puts", 1.0, at_most=0, unit="PUTs in 30 s"),
    Bar("P20", "pause when a broker of three is lost", "lost broker pause", 10.0, at_most=1, unit="s"),
    Bar("P21", "Apache Pulsar's client publishes", "pulsar publish", Peer("W1", only="pulsar"), at_least=1),
    Bar("P21", "the same consumes", "pulsar consume", Peer("W3 of W1", only="pulsar"), at_least=1),
    Bar("P21", "server's processor time, publishing", "pulsar publish us", PULSAR_US, at_most=0.5, unit="us"),
    Bar("P21", "the same, consuming", "pulsar consume us", PULSAR_READ_US, at_most=0.5, unit="us"),
    Bar("–", "metadata, one put at a time", "metadata single", "metadata raw", unit="puts/s", name="SQLite commit"),
    Bar("–", "metadata, 100 at a time", "metadata concurrent", "metadata raw", unit="puts/s", name="SQLite commit"),
]
