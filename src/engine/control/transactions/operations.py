"""Operation records of transactions in the metadata store: what they say, how they are found, and how they go.

A record may say several writes, of frames that came together, also to several segments. Then each segment's owner
forgets its own part of it; what is left counts as written when the whole record was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from engine.errors import UnknownOutcomeError
from engine.metadata import keys, unsure
from engine.metadata.store import ConflictError, Indexes, MetadataStore, OutcomeUnknownError, Record
from engine.model.transactions import (
    OperationKind,
    TransactionOperation,
    operations_from_json,
    operations_to_json,
    parse_id,
)

INDEX_WRITES = "txn-writes-by-segment"  # "{segment}"
INDEX_ACKS = "txn-acks-by-segment-subscription"  # "{segment}/{encoded subscription}"
_ATTEMPTS_MAX = 16


class Part(msgspec.Struct, frozen=True):
    """What a record says about some messages: the store's key; how much it said besides; segment and first message."""

    key: str
    parts: int
    segment: str
    first: int

    def is_of(self, operation: TransactionOperation) -> bool:
        """Whether the record says it by this."""
        return _first(operation) == self.first and str(operation.segment) == self.segment


class RecordedOperation(msgspec.Struct, frozen=True):
    """What a record says of one write or acknowledgement: of which transaction, and when it was written.

    `late`: of one that was just written: the transaction had ended by then.
    """

    number: int
    key: str
    version: int
    facts: TransactionOperation
    parts: int = 1  # of the record
    late: bool = False

    @property
    def part(self) -> Part:
        """This one, to be forgotten."""
        return Part(self.key, self.parts, str(self.facts.segment), _first(self.facts))


class Recording:
    """Operations of one transaction, ready to be written in one record."""

    __slots__ = ("indexes", "operations", "value")

    def __init__(self, operations: Sequence[TransactionOperation]) -> None:
        self.operations = operations
        self.value = operations_to_json(operations)
        self.indexes = indexes_of(operations)

    def written(self, record: Record, *, late: bool = False) -> list[RecordedOperation]:
        """They are, by that record."""
        number, version, parts = parse_id(record.key.rsplit("/", 2)[1]), record.stat.version, len(self.operations)
        return [RecordedOperation(number, record.key, version, facts, parts, late) for facts in self.operations]


def _first(operation: TransactionOperation) -> int:
    return operation.ranges[0][0] if operation.ranges else -1


def operations_in(record: Record) -> list[RecordedOperation]:
    """All that a record says. Raises CorruptionError."""
    number = parse_id(record.key.rsplit("/", 2)[1])
    said, since = operations_from_json(record.value)
    version = record.stat.version if since is None else since
    return [RecordedOperation(number, record.key, version, facts, len(said)) for facts in said]


def place_of(operation: TransactionOperation) -> tuple[str, str]:
    """In which index it is found, and under which key."""
    if operation.kind is OperationKind.WRITE:
        return INDEX_WRITES, str(operation.segment)
    return INDEX_ACKS, f"{operation.segment}/{keys.encode(operation.subscription or '')}"


def indexes_of(operations: Sequence[TransactionOperation]) -> Indexes:
    """Where a record is found that says all of them."""
    if len(operations) == 1:
        return dict([place_of(operations[0])])
    found: dict[str, tuple[str, ...]] = {}
    for index, key in map(place_of, operations):
        found[index] = (*found.get(index, ()), key)
    return found


async def forget(metadata: MetadataStore, key: str, gone: Callable[[TransactionOperation], bool]) -> None:
    """Let a record say nothing more of what is `gone`; delete it when that was all. Raises UnknownOutcomeError."""
    for _ in range(_ATTEMPTS_MAX):
        record = await metadata.get(key)
        if record is None:
            return
        said, since = operations_from_json(record.value)
        left = [operation for operation in said if not gone(operation)]
        if len(left) == len(said):
            return
        version = record.stat.version
        try:
            if left:
                value = operations_to_json(left, version if since is None else since)
                await metadata.put(key, value, version, partition_key=key.split("/")[-2], indexes=indexes_of(left))
            else:
                await unsure.delete(metadata, key, version)
            return
        except (ConflictError, OutcomeUnknownError):
            continue  # others forget theirs
    raise UnknownOutcomeError(f"the metadata store does not say whether what was applied is gone from {key}")
