"""Following a topic's layout, and registering with its controller."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal

from msgspec import Meta

from engine.limits import HASH_RING_SIZE
from engine.wire.commands.command import Command
from engine.wire.commands.header import Count, Hash, Header, Part, Request


class Ring(Part, frozen=True, kw_only=True):
    """A range of hashes, inclusive."""

    start: Hash
    end: Hash


class Segment(Part, frozen=True, kw_only=True, omit_defaults=True):
    """One segment of a layout. `bucketBoundaries`: inclusive ends, the last is 65535."""

    segmentId: Count  # noqa: N815 - the specification's names
    hashRange: Ring  # noqa: N815
    state: str
    createdAtEpoch: Count | None = None  # noqa: N815
    sealedAtEpoch: Count | None = None  # noqa: N815
    createdAtMs: Count | None = None  # noqa: N815
    sealedAtMs: Count | None = None  # noqa: N815
    parentIds: list[Count] | None = None  # noqa: N815
    childIds: list[Count] | None = None  # noqa: N815
    bucketBoundaries: Annotated[list[Hash], Meta(min_length=1)]  # noqa: N815


class Dag(Part, frozen=True, kw_only=True):
    """A topic's layout: every segment, active and sealed.

    `createdAtMs`: of the topic, which tells it from a later one of its name. `segmentBrokers`: the URL of each
    segment's owner, by its id as text.
    """

    epoch: Count
    keyHash: str = "xxh64"  # noqa: N815
    durability: str = "fsync"
    createdAtMs: Count | None = None  # noqa: N815
    segments: Annotated[list[Segment], Meta(min_length=1)]
    segmentBrokers: dict[str, str] | None = None  # noqa: N815
    controllerBrokerUrl: str | None = None  # noqa: N815

    def fault(self) -> str | None:
        for s in self.segments:
            ring, ends = s.hashRange, s.bucketBoundaries
            if ring.start > ring.end:
                return f"hashRange of segment {s.segmentId} must have start <= end, got {ring.start}..{ring.end}"
            if ends[-1] != HASH_RING_SIZE - 1 or any(a >= b for a, b in pairwise(ends)):
                return f"bucketBoundaries of segment {s.segmentId} must rise to {HASH_RING_SIZE - 1}, got {ends!r:.80}"
        return None


class ScalableTopicUpdate(Header, frozen=True, kw_only=True):
    """A layout, or newer addresses. A deleted topic: ERROR with NotFoundError under request_id 0 and `session_id`."""

    command = Command.SCALABLE_TOPIC_UPDATE
    request_id: Count | None = None
    session_id: Count
    topic: str
    epoch: Count
    dag: Dag

    def fault(self) -> str | None:
        return self.dag.fault()


class ScalableTopicLookup(Request[ScalableTopicUpdate], frozen=True, kw_only=True):
    """A session that follows a layout: one more answer per layout, without the id.

    `create`: create the topic with the broker's defaults when it does not exist.
    """

    command = Command.SCALABLE_TOPIC_LOOKUP
    answer = ScalableTopicUpdate
    session_id: int
    topic: str
    create: bool


class ScalableTopicClose(Header, frozen=True, kw_only=True):
    """The end of such a session."""

    command = Command.SCALABLE_TOPIC_CLOSE
    session_id: int


class AssignedSegment(Part, frozen=True, kw_only=True, omit_defaults=True):
    """One segment of a share. `bucketBoundaries`, of "shared" ones: all of the segment's."""

    segment_id: Count
    topic: str
    mode: Literal["exclusive", "shared"]
    bucketBoundaries: list[Hash] | None = None  # noqa: N815


class ScalableTopicAssignment(Header, frozen=True, kw_only=True):
    """A consumer's whole share.

    `created_ms`, in an answer: when the subscription was created, which tells it from a later one of its name.
    """

    command = Command.SCALABLE_TOPIC_ASSIGNMENT
    request_id: Count | None = None
    consumer_id: Count
    layout_epoch: Count
    segments: list[AssignedSegment]
    created_ms: Count | None = None


class ScalableTopicSubscribe(Request[ScalableTopicAssignment], frozen=True, kw_only=True):
    """A stream consumer or a checkpoint group member registers with the topic's controller.

    One more answer per change, without the id. `kind`: "stream" | "checkpoint". `instance`: unique per consumer object,
    so that a stale leave is harmless. `initial_position`: "earliest" | "latest", used when the subscription does not
    exist yet. `created_ms`: None from a fresh consumer, for which a missing subscription is created; from one that had
    an answer, what that said: no subscription is created, and SubscriptionNotFoundError says that it was deleted,
    whatever has its name now.
    """

    command = Command.SCALABLE_TOPIC_SUBSCRIBE
    answer = ScalableTopicAssignment
    consumer_id: int
    topic: str
    subscription: str
    consumer_name: str
    instance: str
    kind: str
    initial_position: str
    created_ms: int | None = None


class SeekSubscription(Request[None], frozen=True, kw_only=True):
    """Move a subscription in all segments. `when`: "earliest" | "latest" | milliseconds."""

    command = Command.SEEK_SUBSCRIPTION
    topic: str
    subscription: str
    when: str | int


class DeleteSubscription(Request[None], frozen=True, kw_only=True):
    """Delete a subscription in all segments."""

    command = Command.DELETE_SUBSCRIPTION
    topic: str
    subscription: str


class ScalableTopicUnsubscribe(Request[None], frozen=True, kw_only=True):
    """It leaves. The rest names the consumer when it is not registered over this connection (any more)."""

    command = Command.SCALABLE_TOPIC_UNSUBSCRIBE
    consumer_id: int
    instance: str
    topic: str | None = None
    subscription: str | None = None
    consumer_name: str | None = None
