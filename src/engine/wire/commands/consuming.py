"""Consumers of one segment, on its owner."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from msgspec import Meta

from engine.wire.commands.command import Command
from engine.wire.commands.header import Closing, Count, Header, Range, Ranges, Request, Salt, SoundIf, disorder

Times = Annotated[int, Meta(ge=0, le=2**32 - 1)]


class SubscribeSuccess(Header, frozen=True, kw_only=True):
    """A consumer is attached.

    `position`: the offset delivery starts at: the cursor's first unacknowledged one, or `start` clamped. `first`: the
    first retained offset of the segment. `seeks`: how often a seek moved the cursor since the broker opened the
    segment. `created_ms`: as in SCALABLE_TOPIC_ASSIGNMENT. `gaps`: runs [start, stop) of offsets that name no message,
    those that end at `position` or above it; a reader passes them.
    """

    command = Command.SUBSCRIBE_SUCCESS
    request_id: Count
    consumer_id: Count
    position: Count
    first: Count
    seeks: Count | None = None
    gaps: list[Range] | None = None
    created_ms: Count | None = None

    def fault(self) -> str | None:
        return disorder("gaps", self.gaps)


class Subscribe(Request[SubscribeSuccess], frozen=True, kw_only=True):
    """Attach a consumer. `topic` is the segment's name.

    `mode`: "exclusive" | "shared" (a stream consumer, bucket-shared) | "queue" | "reader" (no cursor). `start`: for
    "reader", the first offset wanted. `initial_position`, `created_ms`: as in SCALABLE_TOPIC_SUBSCRIBE.
    `bucketBoundaries`: for "shared", as assigned; others than the segment's are answered with NotOwnerError.
    `transactions`: for "exclusive", ids of open ones in which the consumer has acknowledged here before it lost its
    attachment: delivery goes on behind that. It waits for the end of all others that hold something here.
    """

    command = Command.SUBSCRIBE
    answer = SubscribeSuccess
    consumer_id: int
    topic: str
    subscription: str | None = None
    consumer_name: str
    mode: str
    start: int | None = None
    initial_position: str | None = None
    created_ms: int | None = None
    bucketBoundaries: list[Any] | None = None  # noqa: N815 - the specification's name
    transactions: list[Any] | None = None
    priority: int | None = None


class Flow(Header, frozen=True, kw_only=True):
    """Adds credit. The broker sends while both are positive, and may exceed the bytes by one block.

    `window`: the consumer's present window in messages, where that follows its pace. The broker may exceed such a
    window, where a part of an entry would cost too much.
    """

    command = Command.FLOW
    consumer_id: int
    messages: int
    bytes: int
    window: int | None = None


class Message(Header, frozen=True, kw_only=True):
    """Payload: entries of one segment in offset order, or parts of them. `salt` verifies their stamps.

    `messages`: in the payload, without the skipped. For queue consumers `skip` lists inclusive offset ranges of these
    entries not to deliver, and `redelivered` lists [first, last, count] for messages whose redelivery count is not 0.
    """

    command = Command.MESSAGE
    consumer_id: Count
    segment_id: Count
    salt: Salt
    messages: Count
    skip: list[Range] | None = None
    redelivered: list[tuple[Count, Count, Times]] | None = None

    sound_if: ClassVar[SoundIf | None] = (), ("skip", "redelivered")

    def fault(self) -> str | None:
        return disorder("skip", self.skip) or disorder("redelivered", self.redelivered)


class Ack(Request[None], frozen=True, kw_only=True):
    """Answered once it is durable.

    `ack_type` "cumulative": `position` is the first offset not acknowledged; or, of a segment's buckets one by one,
    `buckets`: [[bucket, position], ...]. FencedError when a bucket that is not acknowledged so far belongs to another
    consumer; what the others say is saved all the same. "individual": `ranges`.
    `transaction`, `attempt`: it is only recorded, and takes effect when that transaction is committed, and accepts the
    attempt. TransactionConflictError: it has ended, or another open one acknowledges one of these messages.
    `lazy`: nothing waits for the answer, so the broker may save it later, with others. "settle": nothing new is
    acknowledged; save now what was acknowledged lazily.
    """

    command = Command.ACK
    consumer_id: int
    ack_type: str
    position: int | None = None
    ranges: Ranges | None = None
    buckets: list[Any] | None = None
    transaction: str | None = None
    attempt: str | None = None
    lazy: bool | None = None


class Redeliver(Header, frozen=True, kw_only=True):
    """Queue consumers hand back: inclusive ranges to deliver again; count + 1 each.

    At once, or kept back as `backoff` says: [min, max seconds, multiplier], by how often each came back before.
    """

    command = Command.REDELIVER
    consumer_id: int
    ranges: Ranges
    backoff: list[Any] | None = None


class ReachedEnd(Header, frozen=True, kw_only=True):
    """The segment is sealed at `end` and everything before it was sent to this consumer."""

    command = Command.REACHED_END
    consumer_id: Count
    end: Count


class CloseConsumer(Closing, frozen=True, kw_only=True):
    """From a broker: the attachment or the registration has ended.

    The codes that are not passing end the consumer: SubscriptionNotFoundError when its subscription was deleted.
    `seen`, of a queue consumer: what it holds that its user has received. The rest goes to the others without being
    counted as delivered.
    """

    command = Command.CLOSE_CONSUMER
    consumer_id: Count
    seen: Ranges | None = None
