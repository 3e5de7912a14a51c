"""What control needs from the others: from whoever serves segments, and from whoever talks to consumers.

All names of segments are whole (`SegmentName`); all methods run on the loop thread.
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
    """All that a segment's owner must know to create or open it."""

    name: SegmentName
    durability: str
    bucket_ends: tuple[int, ...]  # inclusive, rising, the last is 65535
    sealed: bool = False  # the layout says so: that was durable before it did


def segment_spec(topic: TopicName, layout: SegmentLayout, segment: SegmentInfo) -> SegmentSpec:
    """The spec of one of a topic's segments."""
    name = topic.segment(segment.hash_range, segment.segment_id)
    return SegmentSpec(name, layout.durability, segment.bucket_ends, sealed=not segment.active)


LEFT = "left"


@dataclass(frozen=True, slots=True)
class HostedConsumerStatistics:
    """One consumer attached to one segment, or that was so a moment ago. Rates are per second."""

    name: str
    mode: str  # "exclusive", "shared" or "queue"; LEFT: not attached any more
    unacknowledged: int = 0  # messages it was sent and has not acknowledged
    msg_rate_out: float = 0.0
    bytes_rate_out: float = 0.0
    buckets: int = 0  # that it owns of a shared segment


@dataclass(frozen=True, slots=True)
class SubscriptionStatistics:
    """One subscription in one segment. Rates are per second.

    `reassignments` are counted since the broker opened the segment; of the rest, what is so now. `withheld_buckets`
    wait for an earlier owner's acknowledgements. `drain`: a sealed segment is shared. `delayed`: messages of the
    backlog that queue consumers do not get yet, as far as the broker has read, while such consumers are attached.
    """

    mode: str | None = None  # of its consumers; None: there are none
    sharers: int = 0
    reassignments: int = 0
    withheld_buckets: int = 0
    drain: bool = False
    backlog: int = 0  # messages not acknowledged
    delayed: int = 0
    consumers: int = 0
    msg_rate_out: float = 0.0
    bytes_rate_out: float = 0.0
    members: tuple[HostedConsumerStatistics, ...] = ()  # the consumers, in the order in which they came


@dataclass(frozen=True, slots=True)
class HostedSegmentStatistics:
    """One segment as its owner sees it now. Rates are per second."""

    first_offset: int = 0
    next_offset: int = 0
    gap_offsets: int = 0  # between them, that name no message
    size_bytes: int = 0
    producers: int = 0
    msg_rate_in: float = 0.0
    bytes_rate_in: float = 0.0
    publishers: Sequence[Mapping[str, object]] = ()  # each producer's "producerName", "accessMode", "properties"
    readable: int | None = None  # where reading ends before that: a transaction wrote here and is open
    held_by: str | None = None  # its id
    sealed: bool = False  # as its owner has it; a crash may leave it ahead of the layout
    subscriptions: Mapping[str, SubscriptionStatistics] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SegmentEnd:
    """How a sealed segment ends: the offset behind its last message, and what its children must know of producers."""

    offset: int
    producers: bytes  # for `SegmentHost.inherit`


class SegmentHost(Protocol):
    """The owners of segments, wherever they are; calls are routed to the owner of the named segment.

    Every method that changes something is idempotent: what is already so succeeds. `term` is that of the topic
    leadership that asks; a host that has seen a larger one for the topic raises FencedError. "Temporarily
    unavailable" surfaces as a retryable EngineError.
    """

    async def create_segment(self, spec: SegmentSpec, subscriptions: Sequence[str], *, term: int) -> None:
        """The segment exists, empty, with a cursor at the earliest position for each subscription.

        Segments of a new topic are not announced: a host creates the missing store of an active segment on first use.
        """

    async def terminate_segment(self, spec: SegmentSpec, *, term: int) -> SegmentEnd:
        """Seal it durably: no append succeeds after the return."""

    async def inherit(self, spec: SegmentSpec, producers: Sequence[bytes], *, term: int) -> None:
        """A child knows durably what its parents knew of producers, before anybody writes to it (semantics 24)."""

    async def delete_segment(self, spec: SegmentSpec, *, term: int) -> None:
        """Its store and its cursors are gone; producers and consumers attached to it are told NotFoundError."""

    async def stored(self, topic: TopicName) -> list[SegmentName]:
        """The segments of a topic that have a store, by id, whether or not the layout names them."""

    async def subscriptions(self, spec: SegmentSpec) -> list[str]:
        """The subscriptions that have a cursor in it."""

    async def create_subscription(
        self, spec: SegmentSpec, subscription: str, position: InitialPosition, *, term: int
    ) -> None:
        """The subscription has a durable cursor in it. One that exists is not moved. Latest is resolved now."""

    async def delete_subscription(self, spec: SegmentSpec, subscription: str, *, term: int) -> None:
        """Its cursor is gone and its consumers are told NotFoundError."""

    async def seek_subscription(self, spec: SegmentSpec, subscription: str, offset: int | InitialPosition) -> None:
        """Move its cursor, in either direction; consumers attached start again from there."""

    async def skip_messages(self, spec: SegmentSpec, subscription: str, first: int, last: int) -> None:
        """Its offsets first..last are acknowledged, durably; consumers attached go on behind them."""

    async def offset_at(self, spec: SegmentSpec, time_ms: int) -> int:
        """The first offset published at or after that wall-clock time; the segment's end when there is none."""

    async def backlog(self, spec: SegmentSpec, subscription: str) -> int:
        """How many messages it has not acknowledged (semantics 7); 0 once that is durable."""

    def watch_drained(self, spec: SegmentSpec, subscription: str, drained: Callable[[], None]) -> Callable[[], None]:
        """Call `drained` once, on the loop, when a sealed segment's backlog for it is zero (at once if it is so now).

        A segment in which it has no cursor is drained. `drained` is never called from inside this call. The result
        cancels the watch; it may be called at any time.
        """

    async def statistics(self, spec: SegmentSpec) -> HostedSegmentStatistics:
        """What it is doing now. A segment that was never used has the record of zeros."""

    def segment_url(self, name: SegmentName) -> str:
        """The service URL of the broker that owns it, as clients should dial it."""


class ConsumerChannel(Protocol):
    """The way to one registered consumer. Must not block or raise; calls arrive in order."""

    def push_assignment(self, assignment: ConsumerAssignment) -> None:
        """Its share has changed to this, whole. Never called before `register_consumer` has returned the first one."""

    def close(self, error: EngineError) -> None:
        """It is registered no more, for another reason than its own leave. Called at most once; nothing follows.

        NotOwnerError: look the topic up and register again. ConsumerBusyError: a newer consumer took the name.
        NotFoundError: the topic or the subscription was deleted. AlreadyClosedError: this broker is closing.
        """


@dataclass(frozen=True, slots=True)
class TopicView:
    """What clients are told about a topic: its newest layout, and where its controller is."""

    topic: TopicName
    layout: SegmentLayout
    controller_url: str


class TopicListener(Protocol):
    """Wants to know how a topic changes. Must not block or raise; calls run on the loop."""

    def topic_changed(self, view: TopicView) -> None:
        """The newest view. The layout's epoch never goes back; several changes may come as one (semantics 37)."""

    def topic_deleted(self) -> None:
        """The topic is gone. Called at most once; nothing follows, also when a topic of that name is created anew."""


class TopicWatch(Protocol):
    """A running watch of one topic."""

    @property
    def view(self) -> TopicView:
        """The newest view."""

    def close(self) -> None:
        """The listener is not called any more. Idempotent."""
