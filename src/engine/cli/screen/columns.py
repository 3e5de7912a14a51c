"""What the live screen shows at each of its levels: records of rows, and the columns that are made of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from engine.cli.looks import Asked
from engine.cli.top_view import TopicRow
from engine.model.hashrange import HashRange
from engine.model.names import TOPIC_SCHEME, SegmentName, TopicName
from engine.model.text import plain
from engine.model.units import size_text

R = TypeVar("R")

WIDE = 110  # characters of a screen that has room for the further columns
DEFAULT_NAMESPACE = f"{TOPIC_SCHEME}public/default/"


@dataclass(frozen=True, slots=True)
class Column(Generic[R]):
    """`name`: what `--sort` calls it. `width` 0: what the others leave. `value`: sorted by; numbers, largest first."""

    name: str
    title: str
    width: int
    value: Callable[[R], Any]
    show: Callable[[Any], str] = str
    only_wide: bool = False

    @property
    def numeric(self) -> bool:
        """Whether it is aligned to the right, and sorted from the largest on."""
        return self.show is not str


@dataclass(frozen=True, slots=True)
class SegmentLine:
    """One segment of a topic, from the topic's statistics."""

    name: str
    ident: int
    title: str
    state: str
    msg_rate_in: float
    bytes_rate_in: float
    msg_rate_out: float
    bytes_rate_out: float
    backlog: int
    stored: int
    producers: int
    consumers: int
    owner: str


@dataclass(frozen=True, slots=True)
class ClientLine:
    """A consumer of a segment, a subscription without one, or a producer (which has no subscription)."""

    client: str
    subscription: str
    role: str
    backlog: int
    unacked: int
    buckets: int
    msg_rate_out: float
    bytes_rate_out: float


def short(count: float) -> str:
    """A number in 6 characters: 999.9, 12,345, 123.4k, 99.9M."""
    if count < 100_000:
        return f"{count:,.1f}" if 0 < count < 1_000 and isinstance(count, float) else f"{count:,.0f}"
    for unit in ("k", "M", "G"):
        count /= 1_000
        if count < 999.95:
            return f"{count:.1f}{unit}"
    return f"{count / 1_000:.1f}T"


def per_second(count: float) -> str:
    return f"{size_text(count)}/s"


def short_name(topic: str) -> str:
    """A topic without what most names have in common."""
    return plain(topic.removeprefix(DEFAULT_NAMESPACE).removeprefix(TOPIC_SCHEME))


def _topic_title(row: TopicRow) -> str:
    return f"{short_name(row.topic)} (changing)" if row.changing else short_name(row.topic)


TOPICS: tuple[Column[TopicRow], ...] = (
    Column("name", "topic", 0, _topic_title),
    Column("segments", "seg.", 6, lambda row: row.segments, short),
    Column("in", "in/s", 7, lambda row: row.msg_rate_in, short),
    Column("bytes in", "in", 11, lambda row: row.bytes_rate_in, per_second, only_wide=True),
    Column("out", "out/s", 7, lambda row: row.msg_rate_out, short),
    Column("bytes out", "out", 11, lambda row: row.bytes_rate_out, per_second, only_wide=True),
    Column("backlog", "backlog", 8, lambda row: row.backlog, short),
    Column("stored", "stored", 10, lambda row: row.stored, size_text),
    Column("producers", "prod.", 6, lambda row: row.producers, short),
    Column("consumers", "cons.", 6, lambda row: row.consumers, short),
)

SEGMENTS: tuple[Column[SegmentLine], ...] = (
    Column("name", "segment", 0, lambda row: row.title),
    Column("state", "state", 6, lambda row: row.state),
    Column("in", "in/s", 7, lambda row: row.msg_rate_in, short),
    Column("bytes in", "in", 11, lambda row: row.bytes_rate_in, per_second, only_wide=True),
    Column("out", "out/s", 7, lambda row: row.msg_rate_out, short),
    Column("bytes out", "out", 11, lambda row: row.bytes_rate_out, per_second, only_wide=True),
    Column("backlog", "backlog", 8, lambda row: row.backlog, short),
    Column("stored", "stored", 10, lambda row: row.stored, size_text),
    Column("producers", "prod.", 6, lambda row: row.producers, short),
    Column("consumers", "cons.", 6, lambda row: row.consumers, short),
    Column("owner", "owner", 30, lambda row: row.owner, only_wide=True),
)

CLIENTS: tuple[Column[ClientLine], ...] = (
    Column("name", "consumer or producer", 0, lambda row: row.client),
    Column("subscription", "subscription", 14, lambda row: row.subscription),
    Column("role", "mode", 9, lambda row: row.role),
    Column("backlog", "backlog", 8, lambda row: row.backlog, short),
    Column("unacked", "unacked", 8, lambda row: row.unacked, short),
    Column("buckets", "buckets", 8, lambda row: row.buckets, short),
    Column("out", "out/s", 7, lambda row: row.msg_rate_out, short),
    Column("bytes out", "out", 11, lambda row: row.bytes_rate_out, per_second, only_wide=True),
)


def segment_lines(topic: str, stats: Mapping[str, Any]) -> list[SegmentLine]:
    """Of a topic's statistics, in the order of their ids."""
    found = sorted(stats.get("segments", {}).items(), key=lambda item: int(item[0]))
    return [_segment_line(TopicName.parse(topic), int(ident), numbers) for ident, numbers in found]


def _segment_line(topic: TopicName, ident: int, numbers: Mapping[str, Any]) -> SegmentLine:
    spread = HashRange(numbers["hashRange"]["start"], numbers["hashRange"]["end"])
    lost = numbers.get("unavailable") is not None
    return SegmentLine(
        name=str(SegmentName(topic, spread, ident)),
        ident=ident,
        title=f"{ident} [{spread.start:04x}-{spread.end:04x}]",
        state="away" if lost else str(numbers["state"]).lower(),
        msg_rate_in=numbers["msgRateIn"],
        bytes_rate_in=numbers["bytesRateIn"],
        msg_rate_out=numbers["msgRateOut"],
        bytes_rate_out=numbers["bytesRateOut"],
        backlog=sum(numbers["backlog"].values()),
        stored=numbers["storageSize"],
        producers=numbers["producerCount"],
        consumers=numbers["consumerCount"],
        owner=plain(numbers["owner"]),
    )


def client_lines(stats: Mapping[str, Any]) -> list[ClientLine]:
    """Of a segment's statistics: consumers by subscription, subscriptions without any, then producers."""
    lines: list[ClientLine] = []
    for name, part in sorted(stats.get("subscriptions", {}).items()):
        role, backlog, shown = part.get("mode") or "-", part["backlog"], plain(name)
        lines += [
            ClientLine(
                plain(consumer), shown, role, backlog, numbers["unackedMessages"], numbers["buckets"],
                numbers["msgRateOut"], numbers["bytesRateOut"],
            )
            for consumer, numbers in sorted(part["consumers"].items())
        ] or [ClientLine("(no consumer)", shown, role, backlog, 0, 0, 0.0, 0.0)]  # fmt: skip
    for one in stats.get("publishers", ()):
        lines.append(ClientLine(plain(one["producerName"]), "-", "producer", 0, 0, 0, 0.0, 0.0))
    return lines


def ordered(rows: Sequence[R], column: Column[R], reverse: bool) -> list[R]:
    """Largest numbers first and texts from A on, or the other way round; equal ones stay as they are."""
    return sorted(rows, key=column.value, reverse=column.numeric != reverse)


def topic_asked(row: TopicRow) -> Asked | None:
    """None: the row is the sum of a namespace's other topics."""
    return Asked(row.topic) if row.topic.startswith(TOPIC_SCHEME) else None
