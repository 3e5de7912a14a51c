"""`get_stats`: one topic's numbers, put together from its segments' owners and its consumers' sessions (PIP-468)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.control.ports import (
    ConsumerStatistics,
    SegmentHost,
    SegmentStatistics,
    SubscriptionStatistics,
    segment_spec,
)
from engine.model.layout import SegmentLayout
from engine.model.names import TopicName
from engine.model.segment import SegmentInfo
from engine.model.subscriptions import SubscriptionMetadata

Consumers = Callable[[str], Mapping[str, tuple[bool, tuple[int, ...]]]]


@dataclass(frozen=True, slots=True)
class ControlStatistics:
    """One broker's control plane. `reshapes`: how often a change, (topic, kind, "done" or "undone"), ended here."""

    led: Sequence[tuple[TopicName, SegmentLayout]]
    reshapes: Mapping[tuple[str, str, str], int]


async def topic_stats(
    topic: TopicName,
    layout: SegmentLayout,
    subscriptions: Sequence[SubscriptionMetadata],
    consumers: Consumers,
    host: SegmentHost,
) -> dict[str, Any]:
    """Segment counts, per-segment rates, per-subscription backlog and consumers; rates per second."""
    segments = list(layout.segments.values())
    found = await asyncio.gather(*(host.statistics(segment_spec(topic, layout, s)) for s in segments))
    by_id = dict(zip(layout.segments, found, strict=True))
    return {
        "topic": str(topic),
        "epoch": layout.epoch,
        "pendingChange": None if layout.change is None else layout.change.kind,
        "segmentCount": len(segments),
        "activeSegmentCount": len(layout.active),
        "sealedSegmentCount": len(segments) - len(layout.active),
        "msgRateIn": _total(s.msg_rate_in for s in found),
        "bytesRateIn": _total(s.bytes_rate_in for s in found),
        "msgRateOut": _total(u.msg_rate_out for s in found for u in s.subscriptions.values()),
        "bytesRateOut": _total(u.bytes_rate_out for s in found for u in s.subscriptions.values()),
        "storageSize": sum(s.size_bytes for s in found),
        "segments": {str(s.segment_id): _segment(s, by_id[s.segment_id]) for s in segments},
        "subscriptions": {f.name: _subscription(f, consumers(f.name), by_id) for f in subscriptions},
    }


def _total(rates: Iterable[float]) -> float:
    return sum(rates, 0.0)  # of nothing too it is a float


def _segment(info: SegmentInfo, now: SegmentStatistics) -> dict[str, Any]:
    return {
        "state": str(info.state),
        "hashRange": {"start": info.hash_range.start, "end": info.hash_range.end},
        "parentIds": list(info.parent_ids),
        "childIds": list(info.child_ids),
        "createdAtMs": info.created_at_ms,
        "sealedAtMs": info.sealed_at_ms,  # null while it is active
        "firstOffset": now.first_offset,
        "nextOffset": now.next_offset,
        "storageSize": now.size_bytes,
        "producerCount": now.producers,
        "bucketCount": info.bucket_count,
        "backlog": {name: part.backlog for name, part in sorted(now.subscriptions.items())},
        "msgRateIn": now.msg_rate_in,
        "bytesRateIn": now.bytes_rate_in,
        "msgRateOut": _total(u.msg_rate_out for u in now.subscriptions.values()),
        "bytesRateOut": _total(u.bytes_rate_out for u in now.subscriptions.values()),
    }


def _subscription(
    facts: SubscriptionMetadata,
    sessions: Mapping[str, tuple[bool, tuple[int, ...]]],
    segments: Mapping[int, SegmentStatistics],
) -> dict[str, Any]:
    parts = {i: s.subscriptions[facts.name] for i, s in segments.items() if facts.name in s.subscriptions}
    consumers = _consumers(sessions, parts)
    return {
        "kind": None if facts.kind is None else str(facts.kind),
        "state": str(facts.state),
        "backlog": sum(p.backlog for p in parts.values()),
        "segmentBacklog": {str(i): p.backlog for i, p in parts.items()},
        "msgRateOut": _total(p.msg_rate_out for p in parts.values()),
        "bytesRateOut": _total(p.bytes_rate_out for p in parts.values()),
        "consumerCount": len(consumers) or max((p.consumers for p in parts.values()), default=0),
        "consumers": consumers,
    }


def _consumers(
    sessions: Mapping[str, tuple[bool, tuple[int, ...]]], parts: Mapping[int, SubscriptionStatistics]
) -> dict[str, dict[str, Any]]:
    """Those that share segments, with their share, and those that are attached to segments, with these; by name."""
    attached: dict[str, dict[int, ConsumerStatistics]] = {}
    for segment_id, part in parts.items():
        for member in part.members:
            attached.setdefault(member.name, {})[segment_id] = member
    return {
        name: _consumer(sessions.get(name), attached.get(name, {}))
        for name in sorted(sessions.keys() | attached.keys())
    }


def _consumer(
    session: tuple[bool, tuple[int, ...]] | None, attached: Mapping[int, ConsumerStatistics]
) -> dict[str, Any]:
    connected, ids = session or (True, tuple(attached))
    return {
        "connected": connected,
        "segments": list(ids),
        "unackedMessages": sum(m.unacknowledged for m in attached.values()),
        "msgRateOut": _total(m.msg_rate_out for m in attached.values()),
        "bytesRateOut": _total(m.bytes_rate_out for m in attached.values()),
    }
