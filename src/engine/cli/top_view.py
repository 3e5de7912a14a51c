"""What `engine top` shows of two looks at a broker's metrics: records, and the tables that are made of them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from math import inf
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from engine.cli.output import show
from engine.client.admin.exposition import Metrics, quantile
from engine.errors import UnsupportedError
from engine.model.text import plain
from engine.model.units import size_text

SORTS = ("in", "out", "backlog", "stored", "name")
BAR_WIDTH = 20
NEARLY_FULL = 0.8
_TIMES = {
    "publish to durable": "publish_to_durable_seconds",
    "durable to delivered": "durable_to_delivered_seconds",
    "log sync": "storage_sync_seconds",
    "metadata commit": "metadata_commit_seconds",
    "event loop lag": "event_loop_lag_seconds",
}


@dataclass(frozen=True, slots=True)
class SegmentRow:
    """One segment that the broker answers for, with all of its subscriptions."""

    topic: str
    segment: str
    sealed: bool
    buckets: int
    msg_rate_in: float
    bytes_rate_in: float
    msg_rate_out: float
    bytes_rate_out: float
    backlog: int
    stored: int
    producers: int
    consumers: int


@dataclass(frozen=True, slots=True)
class TopicRow:
    """The sums of a topic's segments that this broker answers for; or of a namespace's that are not listed."""

    topic: str
    segments: int
    sealed: int
    msg_rate_in: float
    bytes_rate_in: float
    msg_rate_out: float
    bytes_rate_out: float
    backlog: int
    stored: int
    producers: int
    consumers: int
    changing: bool


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """One of several processes of a server. `memory`: bytes in use. `segments`: open ones."""

    process: str
    serving: bool
    restarts: int
    memory: int
    connections: int
    segments: int
    msg_rate_in: float
    msg_rate_out: float


@dataclass(frozen=True, slots=True)
class PoolRow:
    """Something bounded. `limit`: 0 for none."""

    pool: str
    bytes: bool
    used: int
    limit: int
    waiting: int


@dataclass(frozen=True, slots=True)
class View:
    """One look. Times are {what: (median, 99 of 100)} in seconds, of what came since the look before it."""

    broker: str
    ready: bool
    connections: int
    producers: int
    consumers: int
    memory: int
    unmeasured: int  # topics whose segments may be missing
    times: dict[str, tuple[float | None, float | None]]
    topics: list[TopicRow] = field(default_factory=list)
    segments: list[SegmentRow] = field(default_factory=list)
    pools: list[PoolRow] = field(default_factory=list)
    processes: list[ProcessRow] = field(default_factory=list)  # none where there is one process only

    def to_json(self) -> dict[str, Any]:
        """For programs. What took longer than the last bound of its histogram is the text "inf"."""
        times = {what: ["inf" if t == inf else t for t in found] for what, found in self.times.items()}
        return asdict(self) | {"times": times}


def view_of(now: Metrics, before: Metrics | None = None, sort: str = "in") -> View:
    """What is there; without `before` the times are those of all that the broker has done.

    Raises UnsupportedError when it is a proxy that has served this.
    """
    if now.of("proxy_connections"):
        raise UnsupportedError("a proxy answers here, and this looks at one broker; say the broker's own --url")
    before = before or Metrics("")
    segments = _segments(now)
    info = [labels for labels, _ in now.of("broker_info")]
    processes = _processes(now)
    return View(
        broker=info[0].get("broker", "") if info else "",
        ready=now.one("broker_ready") == max(len(processes), 1),
        connections=int(now.one("connections")),
        producers=int(now.one("producers")),
        consumers=int(now.one("consumers")),
        memory=int(now.resident()),
        unmeasured=int(now.one("topics_unmeasured")),
        times={what: _times(name, now, before) for what, name in _TIMES.items()},
        topics=sorted(_topics(now, segments), key=_key(sort)) + _others(now),
        segments=sorted(segments, key=_key(sort)),
        pools=_pools(now),
        processes=processes,
    )


def _processes(now: Metrics) -> list[ProcessRow]:
    restarts, connections = now.by("process_restarts_total", "process"), now.by("connections", "process")
    segments, rate_in = now.by("segments_open", "process"), now.by("rate_in", "process")
    rate_out = now.by("subscription_rate_out", "process")
    return [
        ProcessRow(
            at[0], serving == 1, int(restarts.get(at, 0)), int(now.resident(at[0])), int(connections.get(at, 0)),
            int(segments.get(at, 0)), rate_in.get(at, 0.0), rate_out.get(at, 0.0),
        )
        for at, serving in now.by("process_serving", "process").items()
    ]  # fmt: skip


def _key(sort: str) -> Any:
    fields = {"in": "msg_rate_in", "out": "msg_rate_out", "backlog": "backlog", "stored": "stored"}
    if sort == "name":
        return lambda row: (row.topic, int(getattr(row, "segment", 0)))
    return lambda row: (-getattr(row, fields[sort]), row.topic, int(getattr(row, "segment", 0)))


def _times(name: str, now: Metrics, before: Metrics) -> tuple[float | None, float | None]:
    counts, earlier = now.buckets(name), before.buckets(name)
    return quantile(0.5, counts, earlier), quantile(0.99, counts, earlier)


def _segments(now: Metrics) -> list[SegmentRow]:
    def of(name: str) -> dict[tuple[str, ...], float]:
        return now.by(name, "topic", "segment")

    sealed, buckets, stored = of("segment_sealed"), of("segment_buckets"), of("storage_size")
    rate_in, bytes_in = of("rate_in"), of("throughput_in")
    rate_out, bytes_out = of("subscription_rate_out"), of("subscription_throughput_out")
    backlog, producers, consumers = of("subscription_back_log"), of("segment_producers"), of("segment_consumers")
    return [
        SegmentRow(
            at[0], at[1], bool(sealed.get(at, 0)), int(buckets.get(at, 0)), rate_in.get(at, 0.0), bytes_in.get(at, 0.0),
            rate_out.get(at, 0.0), bytes_out.get(at, 0.0), int(backlog.get(at, 0)), int(stored[at]),
            int(producers.get(at, 0)), int(consumers.get(at, 0)),
        )
        for at in stored if at[0]
    ]  # fmt: skip


def _topics(now: Metrics, segments: list[SegmentRow]) -> list[TopicRow]:
    changing = now.by("scalable_topic_change_pending", "topic")
    rows: dict[str, list[SegmentRow]] = {}
    for row in segments:
        rows.setdefault(row.topic, []).append(row)
    return [_topic(topic, found, changing.get((topic,), 0) > 0) for topic, found in rows.items()]


def _others(now: Metrics) -> list[TopicRow]:
    """A line for each namespace with segments that have no series of their own."""
    stored = now.by("storage_size", "namespace", "topic")
    backlog = now.by("subscription_back_log", "namespace", "topic")
    return [
        TopicRow(
            f"others of {at[0]}", int(count), 0, 0.0, 0.0, 0.0, 0.0, int(backlog.get((at[0], ""), 0)),
            int(stored.get((at[0], ""), 0)), 0, 0, changing=False,
        )
        for at, count in sorted(now.by("segments_unlisted", "namespace").items())
    ]  # fmt: skip


def _topic(topic: str, rows: list[SegmentRow], changing: bool) -> TopicRow:
    def total(name: str) -> Any:
        return sum(getattr(row, name) for row in rows)

    return TopicRow(
        topic, len(rows), total("sealed"), total("msg_rate_in"), total("bytes_rate_in"), total("msg_rate_out"),
        total("bytes_rate_out"), total("backlog"), total("stored"), total("producers"), total("consumers"), changing,
    )  # fmt: skip


def _pools(now: Metrics) -> list[PoolRow]:
    waiting = now.by("pool_queue_size", "pool")
    return [
        PoolRow(at[0], is_bytes, int(used), int(now.one(limit, pool=at[0])), int(waiting.get(at, 0)))
        for name, limit, is_bytes in (
            ("memory_pool_used_bytes", "memory_pool_limit_bytes", True),
            ("pool_used", "pool_limit", False),
        )
        for at, used in now.by(name, "pool").items()
    ]


# -- for people --------------------------------------------------------------------------------------------------------


def rendered(view: View, note: str = "", rows: int = 1_000_000, segments: bool = False) -> RenderableType:
    """All of it. `note`: what is wrong with the look itself. `rows`: lines there are for topics and segments."""
    counts = f"{view.connections:,} connections, {view.producers:,} producers, {view.consumers:,} consumers"
    head = Text.assemble(
        (plain(view.broker) or "a broker", "bold"),
        "  ",
        ("ready", "green") if view.ready else ("not ready", "bold red"),
        f"  {counts}, {size_text(view.memory)} resident",
        (f"  {view.unmeasured:,} topics to be measured", "yellow") if view.unmeasured else "",
    )
    parts: list[RenderableType] = [head, Text(plain(note), style="bold red") if note else Text("")]
    parts += [_side_by_side(pool_table(view), time_table(view)), Text("")]
    if view.processes:
        parts += [process_table(view), Text("")]
        rows = max(rows - len(view.processes) - 2, 3)
    parts.append(_topic_table(view, rows))
    if segments:
        parts += [Text(""), _segment_table(view, max(rows - len(view.topics) - 2, 3))]
    return Group(*parts)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left", no_wrap=True)
    return table


def _text(name: str) -> Text:
    return Text(plain(name))  # not the mark-up that a plain str is


def _side_by_side(left: Table, right: Table) -> Table:
    grid = Table.grid(padding=(0, 4))
    grid.add_row(left, right)
    return grid


def pool_table(view: View) -> Table:
    table = _table("pool", "used", "of", "waiting", "")
    for pool in view.pools:
        written = size_text if pool.bytes else show
        limit = written(pool.limit) if pool.limit else "-"
        table.add_row(_text(pool.pool), written(pool.used), limit, show(pool.waiting), _bar(pool.used, pool.limit))
    return table


def process_table(view: View) -> Table:
    table = _table("process", "state", "restarts", "resident", "connections", "segments", "in msg/s", "out msg/s")
    for p in view.processes:
        state = "serving" if p.serving else "down"
        counts = (show(p.restarts), size_text(p.memory), show(p.connections), show(p.segments))
        table.add_row(p.process, state, *counts, show(p.msg_rate_in), show(p.msg_rate_out))
    return table


def _bar(used: int, limit: int) -> Text:
    part = min(used / limit, 1.0) if limit else 0.0
    full = round(part * BAR_WIDTH)
    return Text("━" * full + "·" * (BAR_WIDTH - full), style="red" if part > NEARLY_FULL else "cyan")


def time_table(view: View) -> Table:
    table = _table("within", "half", "99 of 100")
    for what, found in view.times.items():
        table.add_row(what, *(duration(seconds) for seconds in found))
    return table


def _topic_table(view: View, rows: int) -> Table:
    table = _table("topic", "segments", "in msg/s", "in", "out msg/s", "out", "backlog", "stored", "prod.", "cons.")
    for t in view.topics[:rows]:
        name = f"{t.topic} (changing)" if t.changing else t.topic
        shape = f"{t.segments - t.sealed}" + (f" + {t.sealed} sealed" if t.sealed else "")
        table.add_row(_text(name), shape, *_numbers(t))
    _add_rest(table, len(view.topics) - rows)
    return table


def _segment_table(view: View, rows: int) -> Table:
    table = _table("segment of", "id", "in msg/s", "in", "out msg/s", "out", "backlog", "stored", "prod.", "cons.")
    for s in view.segments[:rows]:
        table.add_row(_text(s.topic), s.segment + (" sealed" if s.sealed else ""), *_numbers(s))
    _add_rest(table, len(view.segments) - rows)
    return table


def _add_rest(table: Table, count: int) -> None:
    if count > 0:
        table.add_row(f"… and {count:,} more")


def _numbers(row: TopicRow | SegmentRow) -> tuple[str, ...]:
    rates = (show(row.msg_rate_in), f"{size_text(row.bytes_rate_in)}/s", show(row.msg_rate_out))
    counts = (show(row.backlog), size_text(row.stored), show(row.producers), show(row.consumers))
    return (*rates, f"{size_text(row.bytes_rate_out)}/s", *counts)


def duration(seconds: float | None) -> str:
    """A bound of a histogram: 0.5 ms, 2.5 s; a dash for nothing, more than a minute for what is above the last."""
    if seconds is None:
        return "-"
    if seconds == inf:
        return "> 1 min"
    return f"{seconds * 1000:g} ms" if seconds < 1 else f"{seconds:g} s"
