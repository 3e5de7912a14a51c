"""Transactions: their states and moves, their headers, and the operations inside them.

    OPEN --compare-and-set of the header--> COMMITTED | ABORTED

The header alone decides a transaction; an operation record says that one write or acknowledgement belongs to it
(PIP-473). An operation counts when the transaction committed, when its record was written before the header was decided
or together with it (a write has a larger version than all before it; records of one write may bear the same), and when
its attempt was accepted. Every component that applies this rule to the same records comes to the same answer at any
time.
"""

from __future__ import annotations

import base64
import enum
import hashlib
import struct
from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec

from engine.errors import CorruptionError, InvalidArgumentError, TransactionConflictError, TransactionNotFoundError
from engine.model.fields import Fields, dump
from engine.model.names import SegmentName, check_name

ID_BITS = 64
PARTITIONS = 16  # of coordinators; the top four bits of an id
MARK_BITS = 63  # of the random number by which a committer recognises its own commit
ATTEMPTS_MAX = 100_000  # that one commit accepts
ACCEPTED_LISTED_MAX = 40_000  # more than these are packed, so that the header fits a record of the metadata store
BEGUN_MAX = 16  # by one request; a power of two
# What adding to a transaction, or ending it, raises when it has ended: a retry does not help.
TRANSACTION_OVER = (TransactionConflictError, TransactionNotFoundError)
HEADER_CACHED_SIZE_MAX = 1024
HEADERS_CACHED = 1024  # each is read several times soon after it was written: by every owner of its segments; ids too


class TransactionState(enum.StrEnum):
    """The state of a transaction. The values are the specification's: do not change."""

    final: bool  # whether the state never changes again

    OPEN = "OPEN"
    COMMITTED = "COMMITTED"
    ABORTED = "ABORTED"

    def __init__(self, word: str) -> None:
        self.final = word != "OPEN"


# From each state, the states that a request may ask for. Asking for the present one changes nothing (semantics 36).
MOVES: dict[TransactionState, frozenset[TransactionState]] = {
    TransactionState.OPEN: frozenset({TransactionState.COMMITTED, TransactionState.ABORTED}),
    TransactionState.COMMITTED: frozenset({TransactionState.COMMITTED}),
    TransactionState.ABORTED: frozenset({TransactionState.ABORTED}),
}


@lru_cache(HEADERS_CACHED)
def id_text(number: int) -> str:
    """A transaction's id in text, as in the API and in keys."""
    return f"{number:016x}"


def parse_id(text: str) -> int:
    """Undo id_text(). Raises InvalidArgumentError."""
    try:
        return _parsed(text)
    except (TypeError, ValueError):
        raise InvalidArgumentError(f"transaction id must be 16 hexadecimal digits, got {text!r:.80}") from None


@lru_cache(HEADERS_CACHED)
def _parsed(text: str) -> int:
    """Raises TypeError, ValueError; what raises is not kept."""
    number = int(text, 16)
    if len(text) != 16 or number < 0 or id_text(number) != text:
        raise ValueError(text)
    return number


def partition_of(number: int) -> int:
    """The coordinators' partition that has it, 0 up to PARTITIONS."""
    return number >> (ID_BITS - 4)


class TransactionHeader(msgspec.Struct, frozen=True, omit_defaults=True):
    """`/txn/{id}`. Times are wall-clock milliseconds; `timeout_ms`: when an open one is aborted.

    A wall clock may be set: sweeps measure `span_ms` from `since_ms` on by a monotonic clock. `renewed_ms`: when the
    timeout was last renewed. `expired`: whether an aborted one was ended by its timeout. `owner`: the role that has
    begun it, None where roles have no rights. `accepted`: the numbers of the attempts whose operations count after a
    commit, ascending; None: all. `mark`: lets a committer recognise its own commit.
    """

    state: TransactionState
    timeout_ms: int
    created_ms: int
    finalized_ms: int | None = None
    name: str | None = None
    accepted: tuple[int, ...] | None = None
    mark: int | None = None
    renewed_ms: int | None = None
    expired: bool | None = None
    owner: str | None = None

    def ended(
        self,
        state: TransactionState,
        now_ms: int,
        accepted: tuple[int, ...] | None = None,
        mark: int | None = None,
        *,
        expired: bool = False,
    ) -> TransactionHeader:
        """The header in that final state; itself when it is in it. Raises TransactionConflictError for the other."""
        if state not in MOVES[self.state]:
            raise TransactionConflictError(f"the transaction is already {self.standing} and cannot become {state}")
        if self.state is state:
            if accepted != self.accepted:
                raise TransactionConflictError("the transaction is already committed, with other attempts accepted")
            return self
        why = expired if state is TransactionState.ABORTED else None
        return TransactionHeader(
            state, self.timeout_ms, self.created_ms, now_ms, self.name, accepted, mark, self.renewed_ms, why, self.owner
        )

    @property
    def standing(self) -> str:
        """The state, and of an aborted transaction the reason, for messages."""
        if self.state is not TransactionState.ABORTED or self.finalized_ms is None:
            return str(self.state)
        late = self.finalized_ms >= self.timeout_ms if self.expired is None else self.expired  # older ones do not say
        return f"{self.state} ({'timed out' if late else 'on request'})"

    @property
    def since_ms(self) -> int:
        """When its timeout began."""
        return self.created_ms if self.renewed_ms is None else self.renewed_ms

    @property
    def span_ms(self) -> int:
        """Its timeout, in milliseconds."""
        return self.timeout_ms - self.since_ms

    def renewed(self, now_ms: int, span_ms: int) -> TransactionHeader:
        """With that timeout, from `now_ms` on."""
        return msgspec.structs.replace(self, timeout_ms=now_ms + span_ms, renewed_ms=now_ms)

    def counts(self, attempt: int) -> bool:
        """Whether operations of this attempt take effect, if they were recorded in time."""
        if self.accepted is None or self.state is not TransactionState.COMMITTED:
            return self.state is TransactionState.COMMITTED
        at = bisect_left(self.accepted, attempt)  # there may be many thousands, checked for each operation
        return at < len(self.accepted) and self.accepted[at] == attempt

    def to_json(self) -> bytes:
        """The record's value: fields by their names here; unset ones are left out."""
        value = dump(self if len(self.accepted or ()) <= ACCEPTED_LISTED_MAX else self._packed())
        _remember(value, self)
        return value

    def _packed(self) -> dict[str, Any]:
        """Its fields, with the accepted attempts in one text: 10 bytes each rather than 21."""
        fields = {name: field for name, field in msgspec.structs.asdict(self).items() if field is not None}
        accepted = self.accepted or ()
        return {**fields, "accepted": base64.b85encode(struct.pack(f">{len(accepted)}Q", *accepted)).decode()}

    @classmethod
    def from_json(cls, value: bytes) -> TransactionHeader:
        """Undo to_json(). Raises CorruptionError."""
        header = _headers.get(value)
        if header is None:
            header = cls._parse(value)
            _remember(value, header)
        return header

    @classmethod
    def _parse(cls, value: bytes) -> TransactionHeader:
        fields = Fields.parse("transaction header", value)
        accepted = fields.values.get("accepted")
        if isinstance(accepted, str):
            accepted = _unpacked(fields, accepted)
        if accepted is not None and not (isinstance(accepted, list) and all(type(a) is int for a in accepted)):
            fields.wrong("accepted", "is not a list of integers")
        state = fields.choice("state", TransactionState)
        return cls(
            state=state,
            timeout_ms=fields.number("timeout_ms"),
            created_ms=fields.number("created_ms"),
            finalized_ms=fields.number("finalized_ms") if state.final else None,
            name=fields.text("name") if "name" in fields.values else None,
            accepted=None if accepted is None else tuple(accepted),
            mark=fields.number("mark") if "mark" in fields.values else None,
            renewed_ms=fields.number("renewed_ms") if "renewed_ms" in fields.values else None,
            expired=fields.flag("expired") if "expired" in fields.values else None,
        )


def _unpacked(fields: Fields, accepted: str) -> list[int]:
    try:
        image = base64.b85decode(accepted)
        return list(struct.unpack(f">{len(image) // 8}Q", image))
    except (ValueError, struct.error):
        fields.wrong("accepted", "is not packed numbers")


_headers: dict[bytes, TransactionHeader] = {}  # written or read last


def _remember(value: bytes, header: TransactionHeader) -> None:
    if len(value) <= HEADER_CACHED_SIZE_MAX:
        if len(_headers) >= HEADERS_CACHED:
            _headers.pop(next(iter(_headers)), None)  # another thread may have removed it
        _headers[value] = header


def attempt_number(attempt: str | None) -> int:
    """The number of an attempt in entries and records: 64 bits of its name's hash; 0 for none.

    Raises InvalidArgumentError for an invalid name.
    """
    if attempt is None:
        return 0
    digest = hashlib.blake2b(check_name(attempt, "attempt").encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") or 1


def accepted_numbers(attempts: Sequence[str] | None) -> tuple[int, ...] | None:
    """The numbers of the attempts that a commit accepts, ascending; None: all. Raises InvalidArgumentError."""
    if attempts is None:
        return None
    named = isinstance(attempts, Sequence) and not isinstance(attempts, (str, bytes))
    if not named or len(attempts) > ATTEMPTS_MAX:
        got = f"{len(attempts)} names" if named else type(attempts).__name__
        raise InvalidArgumentError(f"accepted attempts must be a list of at most {ATTEMPTS_MAX} names, got {got}")
    return tuple(sorted({attempt_number(attempt) for attempt in attempts}))


class OperationKind(enum.StrEnum):
    """The kind of an operation. The values are the specification's: do not change."""

    WRITE = "write"
    ACK = "ack"


class TransactionOperation(msgspec.Struct, frozen=True):
    """An operation in `/txn-op/{id}/{seq}`: a write to a segment, or an acknowledgement in it. A record may hold
    several.

    A write: messages `ranges` = ((first, last),) inclusive, appended under the owner's `term`, which distinguishes them
    from messages that got these offsets after a crash; their sequence ids are within `sequences` of the `producer`,
    inclusive. An acknowledgement: `ranges` of single messages, or `position`, the first offset that is not
    acknowledged.
    """

    kind: OperationKind
    segment: SegmentName
    ranges: tuple[tuple[int, int], ...] = ()
    position: int | None = None
    subscription: str | None = None
    attempt: int = 0
    term: int = 0
    producer: int = 0
    sequences: tuple[int, int] | None = None

    def fields(self) -> dict[str, Any]:
        """As in a record."""
        fields: dict[str, Any] = {"kind": self.kind, "segment": str(self.segment), "term": self.term}
        if self.subscription is not None:
            fields["subscription"] = self.subscription
        if self.attempt:
            fields["attempt"] = self.attempt
        if self.position is not None:
            fields["position"] = self.position
        if self.sequences is not None:
            fields["producer"], fields["sequences"] = self.producer, self.sequences
        fields["ranges"] = self.ranges
        return fields

    @classmethod
    def of(cls, fields: Fields) -> TransactionOperation:
        """Undo fields(). Raises CorruptionError."""
        kind = fields.choice("kind", OperationKind)
        try:
            segment = SegmentName.parse(fields.text("segment"))
            ranges = tuple((int(first), int(last)) for first, last in fields.values.get("ranges", ()))
            low, high = fields.values.get("sequences") or (None, None)
        except (InvalidArgumentError, TypeError, ValueError) as e:
            raise CorruptionError(f"transaction operation: {e}") from e
        return cls(
            kind=kind,
            segment=segment,
            ranges=ranges,
            position=fields.number("position") if "position" in fields.values else None,
            subscription=fields.text("subscription") if kind is OperationKind.ACK else None,
            attempt=fields.number("attempt", 0),
            term=fields.number("term", 0),
            producer=fields.number("producer", 0),
            sequences=None if low is None else (int(low), int(high or 0)),
        )

    def to_json(self) -> bytes:
        """The value of a record of this operation alone."""
        return operations_to_json([self])

    @classmethod
    def from_json(cls, value: bytes) -> TransactionOperation:
        """The first operation of a record. Raises CorruptionError."""
        return operations_from_json(value)[0][0]


def operations_to_json(operations: Sequence[TransactionOperation], since: int | None = None) -> bytes:
    """The value of a record. `since`: the version of the original record, if parts of it were removed."""
    fields = operations[0].fields()
    if len(operations) > 1:
        fields["more"] = [_beside(fields, operation.fields()) for operation in operations[1:]]
    if since is not None:
        fields["since"] = since
    return dump(fields)


def operations_from_json(value: bytes) -> tuple[list[TransactionOperation], int | None]:
    """Undo operations_to_json(). Raises CorruptionError."""
    fields = Fields.parse("transaction operation", value)
    more = fields.objects("more") if "more" in fields.values else []
    since = fields.number("since") if "since" in fields.values else None
    return [TransactionOperation.of(each) for each in (fields, *(_whole(fields, other) for other in more))], since


def _beside(first: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """An operation as in a record: where it differs from the first one, with null for fields it lacks. Most differ in
    little, and smaller records make smaller commits.
    """
    if first.keys() == fields.keys():
        return {name: value for name, value in fields.items() if first[name] != value}
    names = dict.fromkeys((*first, *fields))
    return {name: fields.get(name) for name in names if first.get(name) != fields.get(name)}


def _whole(first: Fields, said: Fields) -> Fields:
    """Undo _beside(). Raises CorruptionError."""
    if not said.values:
        raise CorruptionError(f"{said.what}: a further operation equals the first")
    fields = {**first.values, **said.values}
    return Fields(said.what, {name: value for name, value in fields.items() if value is not None})


def operation_counts(header: TransactionHeader, decided_version: int, attempt: int, written_version: int) -> bool:
    """Whether an operation takes effect: committed, accepted, and recorded before the decision, or with it."""
    return written_version <= decided_version and header.counts(attempt)
