"""`get_stats`: one topic's statistics, collected from its segments' owners and its consumers' sessions (PIP-468)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.control.base.ports import (
    LEFT,
    HostedConsumerStatistics,
    HostedSegmentStatistics,
    SegmentHost,
    SegmentSpec,
    SubscriptionStatistics,
    segment_spec,
)
from engine.control.base.topic_records import ScalableTopicResources
from engine.control.shape.topic_scaling import AutoScaleCounts, AutoScaleStatus
from engine.errors import EngineError
from engine.model.autoscale import AutoScalePolicyOverride
from engine.model.layout import SegmentLayout
from engine.model.limits import TOTALS, with_policies
from engine.model.load import ReportedLoad
from engine.model.names import TopicName
from engine.model.policies import NOTHING_SAID, TopicPolicies
from engine.model.segment import SegmentInfo
from engine.model.subscriptions import ConsumerRegistration, DeliveryMode, SubscriptionKind, SubscriptionMetadata

_ASKED_AT_ONCE = 32

Sessions = Mapping[str, tuple[bool, tuple[int, ...]]]  # {consumer name: (connected, segment ids)}
Consumers = Callable[[str], Sessions]  # of a subscription
Groups = Mapping[str, Sessions]  # checkpoint groups by name


@dataclass(frozen=True, slots=True)
class ControlStatistics:
    """One broker's control plane. `reshapes`: (topic, kind, "done" or "undone") -> changes that ended here.

    `scaling`: by topic, for topics led here.
    """

    led: Sequence[tuple[TopicName, SegmentLayout]]
    reshapes: Mapping[tuple[str, str, str], int]
    scaling: Mapping[str, AutoScaleStatus] = field(default_factory=dict)


async def topic_stats(
    topic: TopicName,
    layout: SegmentLayout,
    subscriptions: Sequence[SubscriptionMetadata],
    consumers: Consumers,
    groups: Groups,
    host: SegmentHost,
) -> dict[str, Any]:
    """Segment counts, per-segment rates, per-subscription backlog and consumers, groups; rates per second.

    A segment whose owner does not answer counts as empty, with the reason under `unavailable`.
    """
    segments = list(layout.segments.values())
    asked = []
    for first in range(0, len(segments), _ASKED_AT_ONCE):  # the loop serves other work in between
        some = segments[first : first + _ASKED_AT_ONCE]
        asked += await asyncio.gather(*(_ask(host, segment_spec(topic, layout, s)) for s in some))
    found = [now for now, _ in asked]
    by_id = dict(zip(layout.segments, found, strict=True))
    errors = {s.segment_id: error for s, (_, error) in zip(segments, asked, strict=True)}
    urls = await host.segment_urls([topic.segment(s.hash_range, s.segment_id) for s in segments])
    owners = dict(zip(layout.segments, urls, strict=True))
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
        "segments": {
            str(i): _segment(s, by_id[i], owners[i], errors[i]) for i, s in ((s.segment_id, s) for s in segments)
        },
        "subscriptions": {f.name: _subscription(f, consumers(f.name), by_id) for f in subscriptions},
        "checkpointGroups": {name: _group(members) for name, members in sorted(groups.items())},
    }


async def segment_stats(spec: SegmentSpec, info: SegmentInfo, host: SegmentHost) -> dict[str, Any]:
    """One segment as in topic_stats(), with its name, and each subscription's part in it. Raises as its owner does."""
    now = await host.statistics(spec)
    (owner,) = await host.segment_urls([spec.name])
    return {
        "segment": str(spec.name),
        **_segment(info, now, owner, None),
        "subscriptions": {name: _part(part) for name, part in sorted(now.subscriptions.items())},
    }


async def shown_limits(resources: ScalableTopicResources, topic: TopicName, own: TopicPolicies) -> dict[str, Any]:
    """{name: {"value", "origin"}} of the limits in effect; of a sum that several levels limit, those of the lowest.

    How long messages live and are kept is among them where anything but the brokers' configuration says it.
    `own`: the policies of the topic.
    """
    namespace = await resources.load_policies(topic.tenant, topic.namespace) or NOTHING_SAID
    if (known := await resources.limits_of(topic.tenant)) is None:
        found = with_policies(topic, own, namespace, lambda _: None)
    else:
        found = known.of_topic(topic) | known.with_policies(topic, own, namespace)
        for name in TOTALS:
            for limit in known.totals(topic, name)[:1]:
                found[name] = limit
    return {name: {"value": limit.value, "origin": limit.origin} for name, limit in found.items()}


def groups_of(registered: Iterable[tuple[str, ConsumerRegistration]]) -> Groups:
    """The checkpoint groups of a topic without a leader, from its registrations: none of their members is connected."""
    groups: dict[str, dict[str, tuple[bool, tuple[int, ...]]]] = {}
    for name, facts in registered:
        if facts.kind is SubscriptionKind.CHECKPOINT:
            groups.setdefault(name, {})[facts.consumer_name] = (False, facts.segment_ids)
    return groups


def with_scaling(stats: dict[str, Any], status: AutoScaleStatus, now_ms: int) -> dict[str, Any]:
    """The statistics with auto-scale's policy and state, and each segment's last load report (null: none yet)."""
    policy = AutoScalePolicyOverride.of(status.policy.to_mapping()).to_json()
    segments = {name: with_load(s, status, int(name), now_ms) for name, s in stats["segments"].items()}
    scaling = {
        "policy": {**policy, "problem": status.policy.problem or None},
        "leading": status.leading,  # if false, another broker knows decisions and counts
        "decision": status.decision,
        "lastChange": status.last_change,
        "counts": _counts(status.counts),
    }
    return {**stats, "segments": segments, "autoScale": scaling}


def with_load(stats: dict[str, Any], status: AutoScaleStatus, segment_id: int, now_ms: int) -> dict[str, Any]:
    """A segment's statistics with its last load report (null: none yet)."""
    return {**stats, "load": _load(status.loads.get(segment_id), now_ms)}


def _counts(counts: AutoScaleCounts) -> dict[str, int]:
    return {
        "splits": counts.splits,
        "merges": counts.merges,
        "rebuckets": counts.rebuckets,
        "failures": counts.failures,
        "splitsSuppressedMaxSegments": counts.suppressed_max_segments,
        "mergesSuppressedMaxDepth": counts.suppressed_max_depth,
    }


def _load(report: ReportedLoad | None, now_ms: int) -> dict[str, Any] | None:
    if report is None:
        return None
    age_ms = max(0, now_ms - report.modified_ms)
    return {**report.stats.to_mapping(), "modifiedAtMs": report.modified_ms, "ageMs": age_ms}


async def _ask(host: SegmentHost, spec: SegmentSpec) -> tuple[HostedSegmentStatistics, str | None]:
    try:
        return await host.statistics(spec), None
    except EngineError as e:
        return HostedSegmentStatistics(sealed=spec.sealed), str(e)


def _total(rates: Iterable[float]) -> float:
    return sum(rates, 0.0)  # 0.0 also for no rates


def _segment(info: SegmentInfo, now: HostedSegmentStatistics, owner: str, error: str | None) -> dict[str, Any]:
    parts = sorted(now.subscriptions.items())
    return {
        "state": str(info.state),
        "owner": owner,  # or the broker that placement names, while no broker has it open
        "hashRange": {"start": info.hash_range.start, "end": info.hash_range.end},
        "parentIds": list(info.parent_ids),
        "childIds": list(info.child_ids),
        "createdAtMs": info.created_at_ms,
        "sealedAtMs": info.sealed_at_ms,  # null while active
        "unavailable": error,  # null when its owner has answered
        "firstOffset": now.first_offset,
        "nextOffset": now.next_offset,
        "gapOffsets": now.gap_offsets,  # between the two, given up after a crash: they name no message
        "readableOffset": now.next_offset if now.readable is None else now.readable,
        "heldBackBy": now.held_by,  # id of the open transaction that readers wait for; null: none
        "storageSize": now.size_bytes,
        "producerCount": now.producers,
        "publishers": list(now.publishers),
        "consumerCount": sum(part.consumers for _, part in parts),
        "consumers": {name: attached for name, part in parts if (attached := _attached(part))},
        "bucketCount": info.bucket_count,
        "backlog": {name: part.backlog for name, part in parts},
        "msgRateIn": now.msg_rate_in,
        "bytesRateIn": now.bytes_rate_in,
        "msgRateOut": _total(u.msg_rate_out for u in now.subscriptions.values()),
        "bytesRateOut": _total(u.bytes_rate_out for u in now.subscriptions.values()),
    }


def _attached(part: SubscriptionStatistics) -> list[str]:
    """The names of its consumers that are attached, in order of arrival."""
    return [member.name for member in part.members if member.mode != LEFT]


def _part(part: SubscriptionStatistics) -> dict[str, Any]:
    """A subscription in one segment."""
    return {
        **_sharing(part),
        "backlog": part.backlog,
        "position": part.position,  # everything before it is acknowledged
        "acknowledgedAbove": part.acknowledged_above,
        "delayed": part.delayed,
        "msgRateOut": part.msg_rate_out,
        "bytesRateOut": part.bytes_rate_out,
        "consumerCount": part.consumers,
        "consumers": {
            member.name: {
                "unackedMessages": member.unacknowledged,
                "buckets": member.buckets,
                "msgRateOut": member.msg_rate_out,
                "bytesRateOut": member.bytes_rate_out,
            }
            for member in part.members
            if member.mode != LEFT
        },
    }


def _group(members: Sessions) -> dict[str, Any]:
    return {
        "consumerCount": len(members),
        "consumers": {
            name: {"connected": connected, "segments": list(ids)} for name, (connected, ids) in sorted(members.items())
        },
    }


def _kind(facts: SubscriptionMetadata, parts: Iterable[SubscriptionStatistics]) -> str | None:
    """As it was created; of one created without a kind, that of the consumers that are attached."""
    if facts.kind is not None:
        return str(facts.kind)
    modes = {part.mode for part in parts if part.mode is not None}
    if not modes:
        return None
    return str(SubscriptionKind.QUEUE if DeliveryMode.QUEUE in modes else SubscriptionKind.STREAM)


def _subscription(
    facts: SubscriptionMetadata,
    sessions: Sessions,
    segments: Mapping[int, HostedSegmentStatistics],
) -> dict[str, Any]:
    parts = {i: s.subscriptions[facts.name] for i, s in segments.items() if facts.name in s.subscriptions}
    consumers = _consumers(sessions, parts)
    return {
        "kind": _kind(facts, parts.values()),
        "state": str(facts.state),
        "backlog": sum(p.backlog for p in parts.values()),
        "delayed": sum(p.delayed for p in parts.values()),
        "segmentBacklog": {str(i): p.backlog for i, p in parts.items()},
        "segmentSharing": {str(i): _sharing(p) for i, p in parts.items()},
        "msgRateOut": _total(p.msg_rate_out for p in parts.values()),
        "bytesRateOut": _total(p.bytes_rate_out for p in parts.values()),
        "consumerCount": len(consumers) or max((p.consumers for p in parts.values()), default=0),
        "consumers": consumers,
    }


def _sharing(part: SubscriptionStatistics) -> dict[str, Any]:
    return {
        "mode": part.mode,  # null: no consumer is attached
        "sharers": part.sharers,
        "reassignments": part.reassignments,
        "withheldBuckets": part.withheld_buckets,
        "drain": part.drain,
    }


def _consumers(sessions: Sessions, parts: Mapping[int, SubscriptionStatistics]) -> dict[str, dict[str, Any]]:
    """Members with their shares, and consumers attached to segments, by name."""
    seen: dict[str, list[tuple[int, HostedConsumerStatistics]]] = {}
    for segment_id, part in parts.items():
        for member in part.members:
            seen.setdefault(member.name, []).append((segment_id, member))
    attached = {name for name, members in seen.items() if any(m.mode != LEFT for _, m in members)}
    return {name: _consumer(sessions.get(name), seen.get(name, [])) for name in sorted(sessions.keys() | attached)}


def _consumer(
    session: tuple[bool, tuple[int, ...]] | None, members: Sequence[tuple[int, HostedConsumerStatistics]]
) -> dict[str, Any]:
    """Also counts what it got from segments that it left a moment ago."""
    connected, ids = session or (True, tuple(dict.fromkeys(i for i, m in members if m.mode != LEFT)))
    return {
        "connected": connected,
        "segments": list(ids),
        "buckets": {str(i): m.buckets for i, m in members if m.buckets},  # of shared segments
        "unackedMessages": sum(m.unacknowledged for _, m in members),
        "msgRateOut": _total(m.msg_rate_out for _, m in members),
        "bytesRateOut": _total(m.bytes_rate_out for _, m in members),
    }
