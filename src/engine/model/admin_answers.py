"""What the admin API answers with and takes, field by field: the types from which its description is made.

Clients get these answers as plain dictionaries. Rates are per second, sizes bytes, times milliseconds since 1970.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from engine.errors import EngineError
from engine.model.autoscale import NAMES, AutoScalePolicy, is_share, is_size, is_time
from engine.model.limits import NAMES as LIMIT_NAMES

Natural = Annotated[int, Meta(ge=0)]
Rate = Annotated[float, Meta(ge=0)]


class Answer(msgspec.Struct, rename="camel", kw_only=True):
    """By the names of the specification."""


class Error(Answer):
    """Why a request was refused; `code` is the same in the wire protocol."""

    reason: str
    code: Natural = EngineError.code


# -- the shape of a topic --------------------------------------------------------------------------------------------


class HashRange(Answer):
    """Of a segment, both ends included."""

    start: Natural
    end: Natural


class SegmentMetadata(Answer):
    """A segment in a topic's layout."""

    segment_id: Natural
    hash_range: HashRange
    state: Literal["ACTIVE", "SEALED"]
    parent_ids: list[Natural]
    child_ids: list[Natural]
    created_at_epoch: Natural
    sealed_at_epoch: Annotated[int, Meta(description="0 while it is active")]
    created_at_ms: Natural
    bucket_boundaries: Annotated[list[Natural], Meta(description="the last hash of each entry bucket")]
    sealed_at_ms: Natural | UnsetType = UNSET


class PendingChange(Answer):
    """A change of shape that was begun and has not ended."""

    kind: str
    phase: str
    details: dict[str, Any] | UnsetType = UNSET


class TopicMetadata(Answer):
    """A topic's layout and properties."""

    epoch: Annotated[int, Meta(ge=0, description="version of the layout")]
    next_segment_id: Natural
    segments: Annotated[dict[str, SegmentMetadata], Meta(description="by id, sealed ones too")]
    properties: dict[str, str]
    key_hash: str
    durability: str
    created_at_ms: Natural
    entry_buckets: Annotated[int, Meta(ge=1, description="over the whole topic")]
    auto_scale_policy: dict[str, Any] | UnsetType = UNSET
    policies: dict[str, Any] | UnsetType = UNSET
    change: PendingChange | UnsetType = UNSET


# -- a topic's numbers -----------------------------------------------------------------------------------------------


class Publisher(Answer):
    """A producer that is attached to a segment."""

    producer_name: str
    access_mode: str
    properties: dict[str, str]


class SegmentLoad(Answer):
    """The last load report of a segment's owner."""

    msg_rate_in: Rate
    bytes_rate_in: Rate
    msg_rate_out: Rate
    bytes_rate_out: Rate
    modified_at_ms: int
    age_ms: Natural


class SegmentNumbers(Answer):
    """A segment as its owner sees it."""

    state: Literal["ACTIVE", "SEALED"]
    owner: Annotated[str, Meta(description="the URL of its broker; while none has it open, of the one that would")]
    hash_range: HashRange
    parent_ids: list[Natural]
    child_ids: list[Natural]
    created_at_ms: Natural
    sealed_at_ms: Annotated[int | None, Meta(description="null while it is active")]
    unavailable: Annotated[str | None, Meta(description="why its owner has not answered; null when it has")]
    first_offset: Natural
    next_offset: Natural
    gap_offsets: Annotated[int, Meta(description="between the two, of which none names a message")]
    readable_offset: Natural
    held_back_by: Annotated[str | None, Meta(description="the open transaction that readers wait for")]
    storage_size: Natural
    producer_count: Natural
    publishers: list[Publisher]
    consumer_count: Natural
    consumers: Annotated[dict[str, list[str]], Meta(description="those attached to it, by subscription")]
    bucket_count: Natural
    backlog: Annotated[dict[str, Natural], Meta(description="in messages, by subscription")]
    msg_rate_in: Rate
    bytes_rate_in: Rate
    msg_rate_out: Rate
    bytes_rate_out: Rate
    load: Annotated[SegmentLoad | None, Meta(description="null: no report yet")]


class Sharing(Answer):
    """How consumers of one subscription share a segment."""

    mode: Annotated[str | None, Meta(description="null: no consumer is attached")]
    sharers: Natural
    reassignments: Natural
    withheld_buckets: Natural
    drain: bool


class AttachedConsumer(Answer):
    """A consumer that is attached to a segment."""

    unacked_messages: Natural
    buckets: Annotated[int, Meta(ge=0, description="of the segment, if it is shared")]
    msg_rate_out: Rate
    bytes_rate_out: Rate


class SegmentSubscription(Sharing):
    """A subscription in one segment."""

    backlog: Annotated[int, Meta(ge=0, description="messages that it has not acknowledged")]
    position: Annotated[int, Meta(ge=0, description="the first offset that it has not acknowledged")]
    acknowledged_above: Annotated[int, Meta(ge=0, description="messages that it has acknowledged behind that")]
    delayed: Natural
    msg_rate_out: Rate
    bytes_rate_out: Rate
    consumer_count: Natural
    consumers: dict[str, AttachedConsumer]


class SegmentDetails(SegmentNumbers):
    """One segment, with each subscription's part in it."""

    segment: Annotated[str, Meta(description="its whole name, segment://…")]
    subscriptions: dict[str, SegmentSubscription]


class ConsumerNumbers(Answer):
    """A consumer of a subscription."""

    connected: bool
    segments: list[Natural]
    buckets: Annotated[dict[str, Natural], Meta(description="of segments that it shares, by id")]
    unacked_messages: Natural
    msg_rate_out: Rate
    bytes_rate_out: Rate


class SubscriptionNumbers(Answer):
    """A subscription, over all segments."""

    kind: Annotated[Literal["stream", "queue"] | None, Meta(description="null: not known yet")]
    state: str
    backlog: Annotated[int, Meta(ge=0, description="messages that it has not acknowledged")]
    delayed: Natural
    segment_backlog: dict[str, Natural]
    segment_sharing: dict[str, Sharing]
    msg_rate_out: Rate
    bytes_rate_out: Rate
    consumer_count: Natural
    consumers: dict[str, ConsumerNumbers]


class GroupMember(Answer):
    """A checkpoint consumer of a group."""

    connected: bool
    segments: list[Natural]


class GroupNumbers(Answer):
    """Checkpoint consumers that share a topic's segments."""

    consumer_count: Natural
    consumers: dict[str, GroupMember]


class AutoScaleCounts(Answer):
    """How often auto-scale changed the topic, or did not because of a limit."""

    splits: Natural
    merges: Natural
    rebuckets: Natural
    failures: Natural
    splits_suppressed_max_segments: Natural
    merges_suppressed_max_depth: Natural


class AutoScaleDecision(Answer):
    """What auto-scale decided, `times` in a row."""

    action: str
    segments: list[Natural]
    reason: str
    suppressed: Annotated[list[str], Meta(description="what held other changes back")]
    cause: Annotated[dict[str, Any] | None, Meta(description="the rate for which a segment was split")]
    at_ms: Natural
    last_ms: Natural
    times: Natural
    changed: Annotated[bool, Meta(description="whether the topic was changed")]
    failure: Annotated[str | None, Meta(description="why it was not")]


class AutoScaleHistory(Answer):
    """Decisions about a topic, the newest first."""

    leading: Annotated[bool, Meta(description="false: no leader answered, which alone knows of decisions")]
    decisions: list[AutoScaleDecision]


class AutoScaleNumbers(Answer):
    """What is in effect of auto-scale, and what it did."""

    policy: Annotated[dict[str, Any], Meta(description="AutoScaleOverrides with no field left out, and `problem`")]
    leading: Annotated[bool, Meta(description="false: another broker knows of decisions and counts")]
    decision: dict[str, Any] | None
    last_change: dict[str, Any] | None
    counts: AutoScaleCounts


class LimitNumbers(Answer):
    """A limit of a topic, and the resource that says it."""

    value: int | str
    origin: str


class TopicNumbers(Answer):
    """Counts, rates, backlogs and consumers of a topic."""

    topic: str
    epoch: Natural
    pending_change: str | None
    segment_count: Natural
    active_segment_count: Natural
    sealed_segment_count: Natural
    msg_rate_in: Rate
    bytes_rate_in: Rate
    msg_rate_out: Rate
    bytes_rate_out: Rate
    storage_size: Natural
    segments: dict[str, SegmentNumbers]
    subscriptions: dict[str, SubscriptionNumbers]
    checkpoint_groups: Annotated[dict[str, GroupNumbers], Meta(description="those with members, by name")]
    limits: Annotated[dict[str, LimitNumbers], Meta(description="those in effect, by name")]
    auto_scale: AutoScaleNumbers


# -- transactions ----------------------------------------------------------------------------------------------------


class TransactionFacts(Answer):
    """How a transaction stands."""

    id: str
    name: str | None
    state: Literal["OPEN", "COMMITTED", "ABORTED"]
    partition: Natural
    created_at_ms: int
    deadline_ms: Annotated[int, Meta(description="when it is aborted, unless it has ended")]
    open_for_ms: Annotated[int | None, Meta(description="null: it has ended")]
    aborted_in_ms: Annotated[int | None, Meta(description="null: it has ended, or it cannot be told")]
    finalized_at_ms: Annotated[int | None, Meta(description="null while it is open")]
    accepted_attempts: Annotated[int | None, Meta(description="null: all of them")]


class TransactionPart(Answer):
    """Operations of a transaction in one segment that did not take effect yet."""

    segment: str
    kind: str
    subscription: str | None
    records: Natural
    messages: Natural


class TransactionDetails(TransactionFacts):
    """How a transaction stands, and where it has operations."""

    operations: list[TransactionPart]


# -- policies, settings, health --------------------------------------------------------------------------------------


class TopicPolicy(msgspec.Struct, kw_only=True):
    """What a topic says about itself; -1 is without end or limit, null: as its namespace has it."""

    retention_time_s: Annotated[int, Meta(ge=-1)] | None = None
    retention_size_bytes: Annotated[int, Meta(ge=-1)] | None = None
    message_ttl_s: Annotated[int, Meta(ge=-1)] | None = None
    encryption_required: bool | None = None
    flush_interval_ms: Annotated[int, Meta(ge=10, le=1000)] | None = None


class NamespacePolicy(TopicPolicy, kw_only=True):
    """What a namespace says about its topics; -1 is without end or limit, null: as the broker has it."""

    durability: Literal["fsync", "interval", "os", "object"] | None = None
    auto_create_topics: bool | None = None


_OF_TEXT: dict[str, Any] = {
    "bool": bool,
    "int": Natural,
    "float": Annotated[float, Meta(ge=0)],
}
_TYPES = {field.name: _OF_TEXT[str(field.type)] for field in fields(AutoScalePolicy) if field.name in NAMES}
_TYPES |= {
    name: kind | str for name, kind in _TYPES.items() if is_time(name) or is_size(name) or is_share(name)
}  # "1m", "50MB"

AutoScaleOverrides = msgspec.defstruct(
    "AutoScaleOverrides",
    [(name, kind | None | UnsetType, UNSET) for name, kind in _TYPES.items()],
    rename="camel",
    namespace={
        "__doc__": "What is overridden of how a topic changes its shape by itself. What is missing is not overridden. "
        "Times are seconds, rates per second and segment; text as 5m and 50MB is taken, too."
    },
)


class Reason(Answer):
    """Why a broker should not be sent work."""

    what: Literal["starting", "closing", "metadata", "session", "disk", "loop"]
    why: str


class Health(Answer):
    """Whether the broker lives."""

    status: Literal["ok", "starting", "closing"]
    broker: str


class Welcome(Answer):
    """What is served here, as paths below this one."""

    product: Literal["engine"]
    version: Annotated[str, Meta(description="empty where roles have rights of their own")]
    health: str
    ready: str
    metrics: str
    openapi: str
    console: Annotated[str, Meta(description="the command that shows this broker in a browser")]


class Readiness(Answer):
    """Whether to send work to the broker."""

    ready: bool
    broker: str
    reasons: list[Reason]


LimitsSaid = msgspec.defstruct(
    "LimitsSaid",
    [
        (name, (Literal["refuse", "evict"] if name == "backlog_action" else Annotated[int, Meta(ge=-1)]) | None, None)
        for name in LIMIT_NAMES
    ],
    kw_only=True,
    namespace={"__doc__": "Limits of a resource or a role; -1 is no limit, null: it says nothing."},
)


class Tenant(Answer):
    """A tenant that was created."""

    tenant: str
    roles: Annotated[list[str] | None, Meta(description="that may be granted rights in it; null: any")]


class GrantFacts(msgspec.Struct, kw_only=True):
    """What a role may do on a resource and below it."""

    resource: str
    role: str
    rights: list[str]
    subscription_prefix: Annotated[str | None, Meta(description="consume is of subscriptions that begin so")]


class Permissions(Answer):
    """What the caller may do on a resource and what lies below it."""

    role: Annotated[str, Meta(description="empty for a caller that has none, which may do everything")]
    resource: str
    rights: list[str]
    subscription_prefixes: Annotated[
        list[str] | None, Meta(description="consume is of subscriptions that begin with one of these; null: of all")
    ]


class BrokerNumbers(Answer):
    """A live broker."""

    url: str
    admin_url: str | None
    draining: Annotated[bool, Meta(description="it takes no segments, and hands over those that it has")]
    balancer: Annotated[bool, Meta(description="it moves segments between brokers")]
    segments: Annotated[int, Meta(ge=0, description="that it owns")]
    topics_led: Annotated[int | None, Meta(description="null: it does not answer")]
    load: Annotated[float, Meta(ge=0, description="1 for a segment, for 10,000 messages/s, for 1 MiB/s")]
    msg_rate_in: Rate
    bytes_rate_in: Rate
    msg_rate_out: Rate
    bytes_rate_out: Rate


class SegmentMove(Answer):
    """A segment that went from one broker to another."""

    segment: str
    source: str
    target: str
    load: Rate
    error: Annotated[str | UnsetType, Meta(description="why it did not go")] = UNSET


class ObjectSweep(Answer):
    """What a sweep of the object store deleted, or would."""

    sessions: Annotated[int, Meta(ge=0, description="ended sessions with objects of their log")]
    log_objects: Annotated[int, Meta(ge=0, description="of those logs")]
    files: Annotated[int, Meta(ge=0, description="uploaded files that no record names")]
    size_bytes: Annotated[int, Meta(ge=0, description="of all these objects")]
    names: Annotated[list[str], Meta(description="of the first 1,000 of them, below the store's prefix")]


class BegunBackup(Answer):
    """A backup that has begun."""

    backup: Annotated[str, Meta(description="its number")]
    directory: Annotated[str, Meta(description="on the broker's machine: the kept files")]


class BalanceRound(Answer):
    """What a round of balance found."""

    imbalance: Annotated[
        float, Meta(ge=0, description="by how much of the mean load the most loaded broker is above it")
    ]
    moves: list[SegmentMove]
