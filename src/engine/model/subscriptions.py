"""The records of subscriptions and their consumers, and the shares of consumers."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from engine.errors import InvalidArgumentError
from engine.model.fields import Fields, dump
from engine.model.names import SegmentName

S = TypeVar("S", bound=enum.StrEnum)


def _parse(kind: type[S], text: str, what: str, said: Iterable[S] | None = None) -> S:
    """`said`: what people and clients say; all, unless given."""
    try:
        return kind(text)
    except ValueError:
        right = ", ".join(kind if said is None else said)
        raise InvalidArgumentError(f"{what} must be one of {right}, got {text!r:.80}") from None


class SubscriptionKind(enum.StrEnum):
    """How a subscription's consumers read it. The values stand in metadata and on the wire: do not change."""

    STREAM = "stream"  # ordered, cumulative acks, segments assigned by the controller
    QUEUE = "queue"  # unordered, individual acks, every consumer attaches to every segment
    CHECKPOINT = "checkpoint"  # a group of readers that keep their own positions: no cursor, no subscription record

    @classmethod
    def parse(cls, text: str) -> SubscriptionKind:
        """Raises InvalidArgumentError for any other text."""
        return _parse(cls, text, "subscription kind")


class InitialPosition(enum.StrEnum):
    """Where a new subscription starts in existing segments."""

    EARLIEST = "earliest"
    LATEST = "latest"
    # As from the earliest, until the first consumer that attaches to a segment says which of the two it is.
    UNDECIDED = "undecided"

    @classmethod
    def parse(cls, text: str) -> InitialPosition:
        """Raises InvalidArgumentError for any other text."""
        return _parse(cls, text, "initial position", (cls.EARLIEST, cls.LATEST))


class SubscriptionState(enum.StrEnum):
    """CREATING and DELETING are completed by the topic's next leader."""

    CREATING = "CREATING"
    ACTIVE = "ACTIVE"
    DELETING = "DELETING"


class DeliveryMode(enum.StrEnum):
    """How a consumer gets the messages of one segment. The values stand in metadata and on the wire: do not change.

    Assignments have EXCLUSIVE and SHARED (semantics 16).
    """

    EXCLUSIVE = "exclusive"  # one stream consumer, in order
    SHARED = "shared"  # several stream consumers, each with some of the buckets
    QUEUE = "queue"  # several queue consumers, in any order
    READER = "reader"  # in order, without a subscription

    @classmethod
    def parse(cls, text: str) -> DeliveryMode:
        """Raises InvalidArgumentError for any other text."""
        return _parse(cls, text, "mode")


class Share(NamedTuple):
    """One segment that a consumer reads, and how."""

    segment_id: int
    mode: DeliveryMode = DeliveryMode.EXCLUSIVE


Shares = tuple[Share, ...]


@dataclass(frozen=True, slots=True)
class AssignedSegment:
    """One segment of a consumer's share. `name` contains its id and hash range.

    `bucket_ends`: all inclusive bucket ends of the segment, for SHARED only (semantics 16).
    """

    name: SegmentName
    mode: DeliveryMode = DeliveryMode.EXCLUSIVE
    bucket_ends: tuple[int, ...] = ()

    @property
    def segment_id(self) -> int:
        """The segment's id within its topic."""
        return self.name.segment_id


@dataclass(frozen=True, slots=True)
class ConsumerAssignment:
    """A consumer's whole share, which may be empty (semantics 15), and the layout it was computed from.

    `created_ms`: in the answer to a registration, when the subscription was created.
    """

    layout_epoch: int
    segments: tuple[AssignedSegment, ...]
    created_ms: int | None = None


@dataclass(frozen=True, slots=True)
class SubscriptionMetadata:
    """The value of `keys.subscription`. `kind`: None when it was created without one."""

    name: str
    initial_position: InitialPosition
    created_at_ms: int
    kind: SubscriptionKind | None = None
    state: SubscriptionState = SubscriptionState.ACTIVE

    def to_json(self) -> bytes:
        fields = {
            "subscription": self.name,
            "kind": self.kind,
            "state": self.state,
            "initialPosition": self.initial_position,
            "createdAtMs": self.created_at_ms,
        }
        return dump(fields)

    @classmethod
    def from_json(cls, value: bytes) -> SubscriptionMetadata:
        """Undo to_json(). Raises CorruptionError naming the field."""
        record = Fields.parse("subscription record", value)
        return cls(
            record.text("subscription"),
            record.choice("initialPosition", InitialPosition),
            record.number("createdAtMs"),
            None if record.values.get("kind") is None else record.choice("kind", SubscriptionKind),
            record.choice("state", SubscriptionState),
        )


@dataclass(frozen=True, slots=True)
class ConsumerRegistration:
    """The value of `keys.consumer`: the durable session of one consumer name, and its share when it last changed.

    `instance` distinguishes consumers of the same name (semantics 13); `term` is that of the leader that wrote it;
    `role` is the one that the name belongs to, empty for none.
    """

    consumer_name: str
    instance: str
    kind: SubscriptionKind
    term: int
    layout_epoch: int = 0
    shares: Shares = ()
    role: str = ""

    @property
    def segment_ids(self) -> tuple[int, ...]:
        return tuple(share.segment_id for share in self.shares)

    def to_json(self) -> bytes:
        assignment: dict[str, object] = {
            "layoutEpoch": self.layout_epoch,
            "segmentIds": self.segment_ids,
        }
        if shared := [segment_id for segment_id, mode in self.shares if mode is DeliveryMode.SHARED]:
            assignment["sharedSegmentIds"] = shared
        fields = {
            "consumerName": self.consumer_name,
            "instance": self.instance,
            "kind": self.kind,
            "term": self.term,
            "assignment": assignment,
        }
        return dump(fields | ({"role": self.role} if self.role else {}))

    @classmethod
    def from_json(cls, value: bytes) -> ConsumerRegistration:
        """Undo to_json(). Raises CorruptionError naming the field."""
        record = Fields.parse("consumer registration", value)
        assignment = record.fields("assignment")
        shared = frozenset(assignment.numbers("sharedSegmentIds", []))
        modes = {True: DeliveryMode.SHARED, False: DeliveryMode.EXCLUSIVE}
        return cls(
            record.text("consumerName"),
            record.text("instance"),
            record.choice("kind", SubscriptionKind),
            record.number("term"),
            assignment.number("layoutEpoch"),
            tuple(Share(i, modes[i in shared]) for i in assignment.numbers("segmentIds")),
            record.text("role", ""),
        )
