"""What control needs of other rooms: of the owners of segments, and of the connections to consumers.

Segments are named in full (`SegmentName`); all methods run on the loop thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from engine.errors import EngineError
from engine.model.layout import SegmentLayout
from engine.model.names import SegmentName, TopicName
from engine.model.segment import SegmentInfo
from engine.model.subscriptions import ConsumerAssignment, InitialPosition


@dataclass(frozen=True, slots=True)
class SegmentSpec:
    """The facts that a segment's owner needs to create or open it."""

    name: SegmentName
    durability: str
    bucket_ends: tuple[int, ...]  # inclusive, ascending, the last is 65535
    sealed: bool = False  # in the layout: the seal was durable before


def segment_spec(topic: TopicName, layout: SegmentLayout, segment: SegmentInfo) -> SegmentSpec:
    name = topic.segment(segment.hash_range, segment.segment_id)
    return SegmentSpec(name, layout.durability, segment.bucket_ends, sealed=not segment.active)


LEFT = "left"


@dataclass(frozen=True, slots=True)
class HostedConsumerStatistics:
    """One consumer attached to one segment, or detached a moment ago. Rates are per second."""

    name: str
    mode: str  # a DeliveryMode; LEFT: detached
    unacknowledged: int = 0  # messages sent and not acknowledged
    msg_rate_out: float = 0.0
    bytes_rate_out: float = 0.0
    buckets: int = 0  # buckets of a shared segment that it owns


@dataclass(frozen=True, slots=True)
class SubscriptionStatistics:
    """One subscription in one segment. Rates are per second.

    `reassignments` counts since the broker opened the segment; all other fields are present values. `withheld_buckets`
    wait for acknowledgements of an earlier owner. `drain`: a sealed segment is shared. `delayed`: messages of the
    backlog that are not due for queue consumers yet, as far as the broker has read, while such consumers are attached.
    """

    mode: str | None = None  # of its consumers; None without any
    sharers: int = 0
    reassignments: int = 0
    withheld_buckets: int = 0
    drain: bool = False
    backlog: int = 0  # messages not acknowledged
    position: int = 0  # the first offset not acknowledged
    acknowledged_above: int = 0  # messages acknowledged behind it
    delayed: int = 0
    consumers: int = 0
    msg_rate_out: float = 0.0
    bytes_rate_out: float = 0.0
    members: tuple[HostedConsumerStatistics, ...] = ()  # attached consumers, in order of arrival


@dataclass(frozen=True, slots=True)
class HostedSegmentStatistics:
    """One segment as its owner sees it. Rates are per second."""

    first_offset: int = 0
    next_offset: int = 0
    gap_offsets: int = 0  # offsets between them without a message
    size_bytes: int = 0
    producers: int = 0
    msg_rate_in: float = 0.0
    bytes_rate_in: float = 0.0
    publishers: Sequence[Mapping[str, object]] = ()  # each producer's "producerName", "accessMode", "properties"
    readable: int | None = None  # the last stable offset, if an open transaction holds it back
    held_by: str | None = None  # the id of that transaction
    sealed: bool = False  # by its owner; after a crash it may be ahead of the layout
    subscriptions: Mapping[str, SubscriptionStatistics] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SegmentEnd:
    """A sealed segment's end: the offset behind its last message, and its producer snapshot for the children."""

    offset: int
    producers: bytes  # for `SegmentHost.inherit`


class SegmentHost(Protocol):
    """The owners of segments, on any broker; calls are routed to the owner of the named segment.

    Every method that changes something is idempotent. `term` is that of the calling leader; a host that has seen a
    larger one for the topic raises FencedError. A temporary failure is raised as a retryable EngineError.
    """

    async def create_segment(self, spec: SegmentSpec, subscriptions: Sequence[str], *, term: int) -> None:
        """Create the segment, empty, with a cursor at the earliest position for each subscription.

        Segments of a new topic are not announced: a host creates the missing store of an active segment on first use.
        """

    async def terminate_segment(self, spec: SegmentSpec, *, term: int) -> SegmentEnd:
        """Seal it durably: no append succeeds after the return."""

    async def inherit(self, spec: SegmentSpec, producers: Sequence[bytes], *, term: int) -> None:
        """Give a child the producer snapshots of its parents, durably, before it takes writes (semantics 24)."""

    async def delete_segment(self, spec: SegmentSpec, *, term: int) -> None:
        """Delete its store and cursors; attached producers and consumers get NotFoundError."""

    async def stored(self, topic: TopicName) -> list[SegmentName]:
        """The segments of a topic that have a store, by id, also those that are not in the layout."""

    async def subscriptions(self, spec: SegmentSpec) -> list[str]:
        """The subscriptions that have a cursor in the segment."""

    async def create_subscription(
        self, spec: SegmentSpec, subscription: str, position: InitialPosition, *, term: int
    ) -> None:
        """Create a durable cursor. An existing one is not moved. Latest is resolved now."""

    async def delete_subscription(self, spec: SegmentSpec, subscription: str, *, term: int) -> None:
        """Delete the cursor; attached consumers get NotFoundError."""

    async def seek_subscription(self, spec: SegmentSpec, subscription: str, offset: int | InitialPosition) -> None:
        """Move the cursor in either direction; attached consumers are reset to it."""

    async def skip_messages(self, spec: SegmentSpec, subscription: str, first: int, last: int) -> None:
        """Acknowledge the offsets first..last, durably; attached consumers go on behind them."""

    async def offset_at(self, spec: SegmentSpec, time_ms: int) -> int:
        """The first offset published at or after a wall-clock time; the segment's end when there is none."""

    async def backlog(self, spec: SegmentSpec, subscription: str) -> int:
        """The messages that the subscription has not acknowledged (semantics 7); 0 once that is durable."""

    def watch_drained(self, spec: SegmentSpec, subscription: str, drained: Callable[[], None]) -> Callable[[], None]:
        """Call `drained` once, on the loop, when the subscription's backlog in a sealed segment is zero, now or later.

        A segment without a cursor of the subscription is drained. `drained` is never called from inside this call. The
        result cancels the watch, and may be called at any time.
        """

    async def statistics(self, spec: SegmentSpec) -> HostedSegmentStatistics:
        """The segment's present statistics; zeros for one that was never used."""

    async def segment_urls(self, names: Sequence[SegmentName]) -> list[str]:
        """The service URL of the broker that owns each of these segments of one topic, as clients dial it."""


class ConsumerChannel(Protocol):
    """The way to one registered consumer. Must not block or raise; calls arrive in order."""

    @property
    def role(self) -> str:
        """The role that it is registered for; empty where there are none, and for what may do everything."""

    def denial(self, reason: str) -> EngineError:
        """The AuthorizationError with which its registration is refused for this reason, once it is written down."""

    def push_assignment(self, assignment: ConsumerAssignment) -> None:
        """Send the consumer's new share, complete. Never called before `register_consumer` has returned the first
        share.
        """

    def close(self, error: EngineError) -> None:
        """The registration has ended, other than by the consumer itself. Called at most once; nothing follows.

        NotOwnerError: look the topic up and register again. ConsumerBusyError: a newer consumer took the name.
        NotFoundError: the topic or the subscription was deleted. AlreadyClosedError: this broker is closing.
        """


@dataclass(frozen=True, slots=True)
class TopicView:
    """A topic as clients see it: its newest layout, and the URL of its controller."""

    topic: TopicName
    layout: SegmentLayout
    controller_url: str


class TopicListener(Protocol):
    """A listener for changes of one topic. Must not block or raise; calls run on the loop."""

    def topic_changed(self, view: TopicView) -> None:
        """The newest view. The layout's epoch never decreases; several changes may come as one (semantics 37)."""

    def topic_deleted(self) -> None:
        """The topic was deleted. Called at most once; nothing follows, even if a topic of that name is created anew."""


class TopicWatch(Protocol):
    """A running watch of one topic."""

    @property
    def view(self) -> TopicView:
        """The newest view."""

    def close(self) -> None:
        """End the watch. Idempotent."""
