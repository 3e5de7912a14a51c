"""What the pages show, as records, and how they are made of the admin API's answers. No browser, no network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from engine.client.admin.exposition import Metrics
from engine.model.admin_dictionaries import SegmentMetadata, SegmentStatistics, TopicMetadata, TopicStatistics
from engine.model.names import SegmentName

PAGE_ROWS = 50
SORTS = ("backlog", "in", "out", "stored", "name")


@dataclass(frozen=True, slots=True)
class TopicLine:
    """A topic in the list. Rates are messages per second, `stored` bytes. `unread`: subscriptions that have a backlog,
    and to which nothing is delivered.
    """

    topic: str
    segments: int
    sealed: int
    rate_in: float
    rate_out: float
    backlog: int
    stored: int
    producers: int
    consumers: int
    changing: bool = False
    unread: tuple[str, ...] = ()

    @property
    def lag(self) -> str:
        """Why its backlog does not shrink, or how long it takes at the present rate; "" without backlog."""
        if not self.backlog:
            return ""
        if not self.consumers:
            return "no consumer is connected"
        if not self.rate_out:
            return "its consumers take nothing"
        if self.unread:
            return f"nothing is delivered to {', '.join(self.unread)}"
        if self.rate_in > self.rate_out:
            return "more comes in than goes out"
        return f"{duration(self.backlog / self.rate_out)} at this rate"


@dataclass(frozen=True, slots=True)
class Page:
    """Some rows of a list: the part of it that a browser gets."""

    rows: Sequence[TopicLine]
    number: int  # from 1
    pages: int
    found: int  # rows of all pages


@dataclass(frozen=True, slots=True)
class SegmentLine:
    """A segment, with its place in the topic's history."""

    ident: int
    start: int
    end: int
    active: bool
    parents: tuple[int, ...]
    created_epoch: int
    sealed_epoch: int  # 0 while it is active
    owner: str = ""
    unavailable: str = ""
    rate_in: float = 0.0
    rate_out: float = 0.0
    backlog: int = 0
    stored: int = 0
    buckets: int = 0
    producers: int = 0
    held_back_by: str = ""
    readers: tuple[str, ...] = ()  # "subscription: consumer"


@dataclass(frozen=True, slots=True)
class Reader:
    """A consumer of a subscription."""

    name: str
    connected: bool
    segments: tuple[int, ...]
    unacked: int
    rate_out: float


@dataclass(frozen=True, slots=True)
class SubscriptionLine:
    """A subscription. `draining`: segments whose successors wait until it has read them."""

    name: str
    kind: str
    backlog: int
    delayed: int
    rate_out: float
    draining: tuple[int, ...]
    readers: tuple[Reader, ...]


@dataclass(frozen=True, slots=True)
class TopicPage:
    """All about one topic."""

    name: str
    epoch: int
    change: str
    line: TopicLine
    properties: Mapping[str, str]
    segments: Sequence[SegmentLine]
    subscriptions: Sequence[SubscriptionLine]
    groups: Mapping[str, Sequence[Reader]]
    decision: str
    last_change: str
    limits: Mapping[str, str]
    causes: Sequence[str]


@dataclass(frozen=True, slots=True)
class Behind:
    """A topic with a backlog on the overview: why, and the owner to ask.

    `owner`: "" where none is named, None where this person does not see it.
    """

    line: TopicLine
    causes: Sequence[str]
    owner: str | None


@dataclass(frozen=True, slots=True)
class NamespaceLine:
    """The sums of a namespace's topics."""

    name: str
    topics: int = 0
    segments: int = 0
    rate_in: float = 0.0
    rate_out: float = 0.0
    backlog: int = 0
    stored: int = 0


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool of a broker. `size`: whether its numbers are bytes."""

    name: str
    used: float
    limit: float
    waiting: float
    refused: float
    size: bool


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision of auto-scale on the time line. `kind`: "changed", "failed" or "held"."""

    at: str
    text: str
    kind: str
    note: str


def topic_lines(now: Metrics) -> list[TopicLine]:
    """The topics whose segments have series of their own in a broker's metrics."""
    stored = now.by("storage_size", "topic")
    segments: dict[str, int] = {}
    for labels, _ in now.of("storage_size"):
        segments[labels.get("topic", "")] = segments.get(labels.get("topic", ""), 0) + 1
    sealed, rate_in = now.by("segment_sealed", "topic"), now.by("rate_in", "topic")
    rate_out, backlog = now.by("subscription_rate_out", "topic"), now.by("subscription_back_log", "topic")
    producers, consumers = now.by("segment_producers", "topic"), now.by("segment_consumers", "topic")
    changing = now.by("scalable_topic_change_pending", "topic")
    unread: dict[str, list[str]] = {}
    delivered = now.by("subscription_rate_out", "topic", "subscription")
    for (topic, name), size in sorted(now.by("subscription_back_log", "topic", "subscription").items()):
        if size and not delivered.get((topic, name)):
            unread.setdefault(topic, []).append(name)
    return [
        TopicLine(
            at[0], segments[at[0]], int(sealed.get(at, 0)), rate_in.get(at, 0.0), rate_out.get(at, 0.0),
            int(backlog.get(at, 0)), int(size), int(producers.get(at, 0)), int(consumers.get(at, 0)),
            changing.get(at, 0) > 0, tuple(unread.get(at[0], ())),
        )
        for at, size in stored.items() if at[0]
    ]  # fmt: skip


def page_of(lines: Sequence[TopicLine], text: str = "", sort: str = "backlog", number: int = 1) -> Page:
    """The rows of one page, of those whose names have `text`. A page that is not there is the nearest one."""
    fields = {"backlog": "backlog", "in": "rate_in", "out": "rate_out", "stored": "stored"}
    found = [line for line in lines if text.lower() in line.topic.lower()]
    found.sort(key=lambda line: (-getattr(line, fields[sort]) if sort in fields else 0, line.topic))
    pages = max(1, -(-len(found) // PAGE_ROWS))
    number = min(max(number, 1), pages)
    return Page(found[(number - 1) * PAGE_ROWS : number * PAGE_ROWS], number, pages, len(found))


def topic_line(stats: TopicStatistics) -> TopicLine:
    """The sums of a topic."""
    segments, subscriptions = stats["segments"].values(), stats["subscriptions"].values()
    return TopicLine(
        stats["topic"], stats["segmentCount"], stats["sealedSegmentCount"], stats["msgRateIn"], stats["msgRateOut"],
        sum(one["backlog"] for one in subscriptions), stats["storageSize"],
        sum(one["producerCount"] for one in segments), sum(one["consumerCount"] for one in segments),
        stats["pendingChange"] is not None,
        tuple(name for name, one in stats["subscriptions"].items() if one["backlog"] and not one["msgRateOut"]),
    )  # fmt: skip


def topic_page(metadata: TopicMetadata, stats: TopicStatistics) -> TopicPage:
    """One look at a topic. The two answers may be of different epochs: what only one of them has is left empty."""
    segments = [segment_line(one, stats["segments"].get(key)) for key, one in metadata["segments"].items()]
    scale = stats["autoScale"]
    return TopicPage(
        name=stats["topic"],
        epoch=metadata["epoch"],
        change=stats["pendingChange"] or "",
        line=topic_line(stats),
        properties=metadata["properties"],
        segments=sorted(segments, key=lambda one: one.ident),
        subscriptions=[
            SubscriptionLine(
                name, one["kind"] or "not known yet", one["backlog"], one["delayed"], one["msgRateOut"],
                tuple(sorted(int(key) for key, shared in one["segmentSharing"].items() if shared["drain"])),
                tuple(
                    Reader(who, c["connected"], tuple(c["segments"]), c["unackedMessages"], c["msgRateOut"])
                    for who, c in one["consumers"].items()
                ),
            )
            for name, one in sorted(stats["subscriptions"].items())
        ],
        groups={
            name: [Reader(who, c["connected"], tuple(c["segments"]), 0, 0.0) for who, c in one["consumers"].items()]
            for name, one in sorted(stats["checkpointGroups"].items())
        },
        decision=spoken(scale["decision"]),
        last_change=spoken(scale["lastChange"]),
        limits={name: f"{one['value']} (of {one['origin']})" for name, one in stats["limits"].items()},
        causes=causes(stats),
    )  # fmt: skip


def segment_line(said: SegmentMetadata, seen: SegmentStatistics | None) -> SegmentLine:
    """A segment of the layout, with what its owner says of it."""
    place = (
        said["segmentId"], said["hashRange"]["start"], said["hashRange"]["end"], said["state"] == "ACTIVE",
        tuple(said["parentIds"]), said["createdAtEpoch"], said["sealedAtEpoch"],
    )  # fmt: skip
    if seen is None:
        return SegmentLine(*place)
    readers = tuple(f"{name}: {who}" for name, all_of_it in sorted(seen["consumers"].items()) for who in all_of_it)
    return SegmentLine(
        *place, seen["owner"], seen["unavailable"] or "", seen["msgRateIn"], seen["msgRateOut"],
        sum(seen["backlog"].values()), seen["storageSize"], seen["bucketCount"], seen["producerCount"],
        seen["heldBackBy"] or "", readers,
    )  # fmt: skip


def spoken(decision: Mapping[str, object] | None) -> str:
    """A decision of auto-scale in a line."""
    if decision is None:
        return "none yet"
    segments = decision.get("segments")
    of = f" of {', '.join(map(str, segments))}" if isinstance(segments, list) and segments else ""
    return f"{decision.get('action')}{of}: {decision.get('reason')}"


def held_by(transaction: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What an open transaction holds back: (topic, what of it), by its operations."""
    found = []
    for one in transaction["operations"]:
        name, count = SegmentName.parse(one["segment"]), one["messages"]
        what = "1 message" if count == 1 else f"{count:,} messages"
        if one["subscription"] is None:
            text = f"segment {name.segment_id}: {what} of its own, and what was sent behind them"
        else:
            text = f"segment {name.segment_id}: {what} that {one['subscription']} has acknowledged in it"
        found.append((str(name.topic), text))
    return found


OWNERS = ("owner", "contact", "team")  # properties that name the owner to ask, the first that is there
KEEPS_UP_S = 1.0  # what is read within this time at the present rate is on its way, and not behind
NEAR = 0.9  # of a limit: what goes out is held by it
_OUT = {
    "dispatch_messages_per_s": "msgRateOut", "total_dispatch_messages_per_s": "msgRateOut",
    "dispatch_bytes_per_s": "bytesRateOut", "total_dispatch_bytes_per_s": "bytesRateOut",
}  # fmt: skip


def causes(stats: TopicStatistics) -> list[str]:
    """Why subscriptions are behind, a sentence each; none where all keep up."""
    every = sorted(stats["subscriptions"].items())
    behind = {name: one for name, one in every if one["backlog"] > KEEPS_UP_S * one["msgRateOut"]}
    found = [f"{name}: {_cause(one, stats)}" for name, one in behind.items()]
    if not behind:
        return []
    for name, one in behind.items():
        draining = sorted(int(key) for key, shared in one["segmentSharing"].items() if shared["drain"])
        if draining:
            which = f"segment {draining[0]}" if len(draining) == 1 else f"segments {', '.join(map(str, draining[:5]))}"
            found.append(f"{name}: what follows {which} is delivered when all of it is acknowledged")
    for key, segment in stats["segments"].items():
        if segment["unavailable"]:
            found.append(f"segment {key} is not served: {segment['unavailable']}")
        if segment["heldBackBy"]:
            found.append(f"readers of segment {key} wait for transaction {segment['heldBackBy']}")
    numbers: Mapping[str, Any] = stats
    for name, field in _OUT.items():
        limit = stats["limits"].get(name)
        most = -1 if limit is None or isinstance(limit["value"], str) else limit["value"]
        if limit is not None and 0 <= NEAR * most <= numbers[field]:
            found.append(f"the limit {name} of {most:,} (of {limit['origin']}) holds what goes out")
    return found


def _cause(one: Any, stats: TopicStatistics) -> str:
    readers = {name: c for name, c in one["consumers"].items() if c["connected"]}
    if not readers:
        return "no consumer is connected"
    holding = {name: c["unackedMessages"] for name, c in readers.items() if c["unackedMessages"]}
    who = ", ".join(f"{name} ({count:,})" for name, count in sorted(holding.items())[:3])
    if holding and (not one["msgRateOut"] or sum(holding.values()) >= one["backlog"]):
        return f"consumers have messages that they do not acknowledge: {who}"
    if not one["msgRateOut"]:
        if one["delayed"] >= one["backlog"]:
            return "its messages are delayed until their time"
        return f"its consumers take nothing: {', '.join(sorted(readers)[:3])}"
    if stats["msgRateIn"] > one["msgRateOut"]:
        taken = f"; not acknowledged yet: {who}" if who else ""
        return f"more comes in ({stats['msgRateIn']:,.0f}/s) than goes out ({one['msgRateOut']:,.0f}/s){taken}"
    return f"it is read in {duration(one['backlog'] / one['msgRateOut'])} at this rate"


def owner_of(properties: Mapping[str, str]) -> str:
    """The person or team to ask about a topic; "" where its properties name none."""
    return next((properties[name] for name in OWNERS if properties.get(name)), "")


def namespace_lines(names: Sequence[str], lines: Sequence[TopicLine]) -> list[NamespaceLine]:
    """The namespaces, those without topics too."""
    sums: dict[str, list[float]] = {name: [0] * 6 for name in names}
    for one in lines:
        sums_of = sums.setdefault(one.topic.removeprefix("topic://").rpartition("/")[0], [0] * 6)
        values = (1, one.segments - one.sealed, one.rate_in, one.rate_out, one.backlog, one.stored)
        sums_of[:] = [before + more for before, more in zip(sums_of, values, strict=True)]
    return [
        NamespaceLine(name, int(n), int(segments), rate_in, rate_out, int(backlog), int(stored))
        for name, (n, segments, rate_in, rate_out, backlog, stored) in sorted(sums.items())
    ]


def pools(now: Metrics) -> list[Pool]:
    """Of the broker whose metrics these are."""
    waiting, refused = now.by("pool_queue_size", "pool"), now.by("pool_refused_total", "pool")
    found = []
    for name, size in (("memory_pool_used_bytes", True), ("pool_used", False)):
        limits = now.by(name.replace("used", "limit"), "pool")
        for at, used in now.by(name, "pool").items():
            found.append(Pool(at[0], used, limits.get(at, 0.0), waiting.get(at, 0.0), refused.get(at, 0.0), size))
    return found


def timeline(decisions: Sequence[Mapping[str, Any]]) -> list[Decided]:
    """As the leader has told them."""
    rows = []
    for one in decisions:
        kind = "changed" if one["changed"] else "failed" if one["failure"] else "held"
        cause = one["cause"]
        above = "" if cause is None else f"; {cause['rate']} is {cause['value']:,.0f}, above {cause['threshold']:,.0f}"
        others = [reason for reason in one["suppressed"] if reason != one["reason"]]
        held = f"; held back by {', '.join(others)}" if others else ""
        repeated = f"{one['times']} times until {_clock(one['lastMs'])}" if one["times"] > 1 else ""
        note = "; ".join(text for text in (one["failure"] or "", repeated) if text)
        rows.append(Decided(_clock(one["atMs"]), spoken(one) + above + held, kind, note))
    return rows


def _clock(milliseconds: int) -> str:
    return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%d %H:%M:%S}"


def duration(seconds: float) -> str:
    """In its largest unit."""
    for unit, size in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"
