# Generated from src/engine/model/admin_answers.py by tools/generate_admin.py: do not edit.

"""Answers of the admin API as clients get them: plain dictionaries, by the names of the specification."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict


class HashRange(TypedDict):
    """Of a segment, both ends included."""

    start: int
    end: int


class SegmentMetadata(TypedDict):
    """A segment in a topic's layout."""

    segmentId: int
    hashRange: HashRange
    state: Literal["ACTIVE", "SEALED"]
    parentIds: list[int]
    childIds: list[int]
    createdAtEpoch: int
    sealedAtEpoch: int
    createdAtMs: int
    bucketBoundaries: list[int]
    sealedAtMs: NotRequired[int]


class PendingChange(TypedDict):
    """A change of shape that was begun and has not ended."""

    kind: str
    phase: str
    details: NotRequired[dict[str, Any]]


class TopicMetadata(TypedDict):
    """A topic's layout and properties."""

    epoch: int
    nextSegmentId: int
    segments: dict[str, SegmentMetadata]
    properties: dict[str, str]
    keyHash: str
    durability: str
    createdAtMs: int
    entryBuckets: int
    autoScalePolicy: NotRequired[dict[str, Any]]
    policies: NotRequired[dict[str, Any]]
    change: NotRequired[PendingChange]


class Publisher(TypedDict):
    """A producer that is attached to a segment."""

    producerName: str
    accessMode: str
    properties: dict[str, str]


class SegmentLoad(TypedDict):
    """The last load report of a segment's owner."""

    msgRateIn: float
    bytesRateIn: float
    msgRateOut: float
    bytesRateOut: float
    modifiedAtMs: int
    ageMs: int


class SegmentStatistics(TypedDict):
    """A segment as its owner sees it."""

    state: Literal["ACTIVE", "SEALED"]
    owner: str
    hashRange: HashRange
    parentIds: list[int]
    childIds: list[int]
    createdAtMs: int
    sealedAtMs: int | None
    unavailable: str | None
    firstOffset: int
    nextOffset: int
    gapOffsets: int
    readableOffset: int
    heldBackBy: str | None
    storageSize: int
    producerCount: int
    publishers: list[Publisher]
    consumerCount: int
    consumers: dict[str, list[str]]
    bucketCount: int
    backlog: dict[str, int]
    msgRateIn: float
    bytesRateIn: float
    msgRateOut: float
    bytesRateOut: float
    load: SegmentLoad | None


class Sharing(TypedDict):
    """How consumers of one subscription share a segment."""

    mode: str | None
    sharers: int
    reassignments: int
    withheldBuckets: int
    drain: bool


class ConsumerStatistics(TypedDict):
    """A consumer of a subscription."""

    connected: bool
    segments: list[int]
    buckets: dict[str, int]
    unackedMessages: int
    msgRateOut: float
    bytesRateOut: float


class SubscriptionStatistics(TypedDict):
    """A subscription, over all segments."""

    kind: Literal["stream", "queue"] | None
    state: str
    backlog: int
    delayed: int
    segmentBacklog: dict[str, int]
    segmentSharing: dict[str, Sharing]
    msgRateOut: float
    bytesRateOut: float
    consumerCount: int
    consumers: dict[str, ConsumerStatistics]


class GroupMember(TypedDict):
    """A checkpoint consumer of a group."""

    connected: bool
    segments: list[int]


class GroupStatistics(TypedDict):
    """Checkpoint consumers that share a topic's segments."""

    consumerCount: int
    consumers: dict[str, GroupMember]


class LimitStatistics(TypedDict):
    """A limit of a topic, and the resource that says it."""

    value: int | str
    origin: str


class AutoScaleCounts(TypedDict):
    """How often auto-scale changed the topic, or did not because of a limit."""

    splits: int
    merges: int
    rebuckets: int
    failures: int
    splitsSuppressedMaxSegments: int
    mergesSuppressedMaxDepth: int


class AutoScaleStatistics(TypedDict):
    """What is in effect of auto-scale, and what it did."""

    policy: dict[str, Any]
    leading: bool
    decision: dict[str, Any] | None
    lastChange: dict[str, Any] | None
    counts: AutoScaleCounts


class TopicStatistics(TypedDict):
    """Counts, rates, backlogs and consumers of a topic."""

    topic: str
    epoch: int
    pendingChange: str | None
    segmentCount: int
    activeSegmentCount: int
    sealedSegmentCount: int
    msgRateIn: float
    bytesRateIn: float
    msgRateOut: float
    bytesRateOut: float
    storageSize: int
    segments: dict[str, SegmentStatistics]
    subscriptions: dict[str, SubscriptionStatistics]
    checkpointGroups: dict[str, GroupStatistics]
    limits: dict[str, LimitStatistics]
    autoScale: AutoScaleStatistics
