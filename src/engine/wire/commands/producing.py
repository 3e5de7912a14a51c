"""Producers of one segment, on its owner; and the schema of what they write."""

from __future__ import annotations

from typing import Any, ClassVar

from engine.wire.commands.command import Command
from engine.wire.commands.header import Closing, Count, CountOrNone, ErrorCode, Header, Map, Part, Request, SoundIf


class ProducerSuccess(Header, frozen=True, kw_only=True):
    """A producer is attached.

    `last_sequence`: the highest sequence of this producer that is durable in the segment, -1 for none. `durability`:
    "fsync" | "interval" | "os". `end`: the offset of the segment's next message; what is acknowledged with a lower one
    was there before.
    """

    command = Command.PRODUCER_SUCCESS
    request_id: Count
    producer_id: Count
    producer_name: str
    last_sequence: CountOrNone
    floor: Count | None = None
    durability: str
    claim: list[Count] | None = None
    end: Count | None = None


class Producer(Request[ProducerSuccess], frozen=True, kw_only=True):
    """Attach a producer. `topic` is the segment's name. `name_proof`: the secret of which its name was generated.

    `access_mode`: "shared" | "exclusive" | "exclusive_with_fencing" | "wait_for_exclusive". `claim`: what the owner of
    the topic's first segment gave, for the others. `renewal`: it was let in before. `waited_ms`: so far, elsewhere.
    `properties`: text to text, for statistics.
    """

    command = Command.PRODUCER
    answer = ProducerSuccess
    producer_id: int
    topic: str
    producer_name: str
    access_mode: str
    claim: list[Any] | None = None
    renewal: bool | None = None
    waited_ms: int | None = None
    properties: Map | None = None
    name_proof: bytes | None = None


class Send(Header, frozen=True, kw_only=True):
    """Payload: `entries` whole entries back to back, in send order.

    Each is acknowledged in a SEND_RECEIPT, in the same order; a failure is a SEND_ERROR for the entry whose first
    sequence is given, and (unless the error is about that entry alone: MessageTooLargeError, CorruptionError,
    InvalidArgumentError) for all after it. PartlyStoredError: some of its messages are stored and others are not; send
    them one by one, then what was behind. `transaction`: the id of the one that all of these entries belong to, as each
    of them says; `attempt`: the name of the attempt in it. `several`: each entry is in the transaction and the attempt
    that its header names, and entries that follow each other in one are like a frame of it.
    TransactionConflictError and TransactionNotFoundError end the attachment like any other.
    """

    command = Command.SEND
    producer_id: int
    entries: int
    transaction: str | None = None
    attempt: str | None = None
    several: bool | None = None


class Receipt(Header, frozen=True, kw_only=True):
    """Entries of one producer are acknowledged.

    Parallel lists, one item an entry: first sequence, first offset (-1: a duplicate whose offset is no longer known).
    `durability` says what the acknowledgement means.
    """

    command = Command.SEND_RECEIPT
    producer_id: Count
    sequences: list[Count]
    offsets: list[CountOrNone]
    durability: str

    sound_if: ClassVar[SoundIf | None] = ("sequences", "offsets"), ()

    def fault(self) -> str | None:
        given, needed = len(self.offsets), len(self.sequences)
        return None if given == needed else f"offsets must have {needed} items, as sequences, got {given}"


class SendReceipt(Receipt, frozen=True, kw_only=True):
    """`more`: such receipts of other producers; only where an END_TXN with `sent` has come."""

    more: list[Receipt] | None = None

    sound_if: ClassVar[SoundIf | None] = ("sequences", "offsets"), ("more",)

    def fault(self) -> str | None:
        if self.more is None:
            return Receipt.fault(self)
        return next(filter(None, map(Receipt.fault, (self, *self.more))), None)


class SendError(Header, frozen=True, kw_only=True):
    """An entry was refused."""

    command = Command.SEND_ERROR
    producer_id: Count
    sequence: Count
    code: ErrorCode
    message: str


class CloseProducer(Closing, frozen=True, kw_only=True):
    """From a broker: the segment is sealed or moved."""

    command = Command.CLOSE_PRODUCER
    producer_id: Count


class PublishCredit(Header, frozen=True, kw_only=True):
    """A producer may send so much more: whole entries while both of its credits are above 0. To peers with the feature.

    One without a value has no limit, as before the first PUBLISH_CREDIT, which begins at 0. The last entry may exceed
    the credit, which is then below 0.
    """

    command = Command.PUBLISH_CREDIT
    producer_id: Count
    messages: Count | None = None
    bytes: Count | None = None


class SchemaVersion(Part, frozen=True, kw_only=True):
    """One version of a topic's schema."""

    type: str
    definition: str = ""


class Schemas(Part, frozen=True, kw_only=True):
    """The schemas that the topic's values may have been written with, oldest first."""

    versions: list[SchemaVersion]


class TopicSchema(Request[Schemas], frozen=True, kw_only=True, omit_defaults=False):
    """At any broker. `schema`: {"type", "definition"} that the client declares, None: it only asks.

    `producer`: whether it will write by it, or read. SchemaError when it does not go together with what is there.
    """

    command = Command.TOPIC_SCHEMA
    answer = Schemas
    topic: str
    schema: Map | None = None
    producer: bool
