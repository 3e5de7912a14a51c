"""Operation records of transactions in the metadata store: their content, their indexes, their deletion.

A record may hold several writes, of frames that came together, also to several segments. Each segment's owner deletes
its own part; the rest keeps the version at which the whole record was written.
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
    """The part of a record about some messages: the record's key, its number of parts, the segment and first offset."""

    key: str
    parts: int
    segment: str
    first: int

    def is_of(self, operation: TransactionOperation) -> bool:
        """Whether this part stands for the operation."""
        return _first(operation) == self.first and str(operation.segment) == self.segment


class RecordedOperation(msgspec.Struct, frozen=True):
    """One write or acknowledgement in a record: its transaction, and the version at which it was recorded.

    `late`: the transaction had ended when it was recorded.
    """

    number: int
    key: str
    version: int
    facts: TransactionOperation
    parts: int = 1  # in the record
    late: bool = False

    @property
    def part(self) -> Part:
        return Part(self.key, self.parts, str(self.facts.segment), _first(self.facts))


class Recording(msgspec.Struct, frozen=True, eq=False):
    """Operations of one transaction, serialised as one record. False: there are none."""

    value: bytes
    indexes: Indexes

    def __bool__(self) -> bool:
        return bool(self.value)


NOTHING = Recording(b"", {})


def recording_of(operations: Sequence[TransactionOperation]) -> Recording:
    """The record of these operations."""
    return Recording(operations_to_json(operations), indexes_of(operations)) if operations else NOTHING


def recorded(
    operations: Sequence[TransactionOperation], record: Record, *, late: bool = False
) -> list[RecordedOperation]:
    """The operations, once their record is in the store."""
    number, version, parts = parse_id(record.key.rsplit("/", 2)[1]), record.stat.version, len(operations)
    return [RecordedOperation(number, record.key, version, facts, parts, late) for facts in operations]


def _first(operation: TransactionOperation) -> int:
    return operation.ranges[0][0] if operation.ranges else -1


def operations_in(record: Record) -> list[RecordedOperation]:
    """The operations of a record. Raises CorruptionError."""
    number = parse_id(record.key.rsplit("/", 2)[1])
    said, since = operations_from_json(record.value)
    version = record.stat.version if since is None else since
    return [RecordedOperation(number, record.key, version, facts, len(said)) for facts in said]


def place_of(operation: TransactionOperation) -> tuple[str, str]:
    """(index, key) under which the operation is found."""
    if operation.kind is OperationKind.WRITE:
        return INDEX_WRITES, str(operation.segment)
    return INDEX_ACKS, f"{operation.segment}/{keys.encode(operation.subscription or '')}"


def indexes_of(operations: Sequence[TransactionOperation]) -> Indexes:
    """The index entries of a record of these operations."""
    if len(operations) == 1:
        return dict([place_of(operations[0])])
    found: dict[str, tuple[str, ...]] = {}
    for index, key in map(place_of, operations):
        found[index] = (*found.get(index, ()), key)
    return found


async def forget(metadata: MetadataStore, key: str, gone: Callable[[TransactionOperation], bool]) -> None:
    """Remove operations that are `gone` from a record, and the record when none is left. Raises UnknownOutcomeError."""
    for _ in range(_ATTEMPTS_MAX):
        record = await metadata.newest.get(key)
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
            continue  # other owners remove their parts
    raise UnknownOutcomeError(f"the metadata store did not say whether {key} was changed; read it back")
