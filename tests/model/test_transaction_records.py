"""States and moves of transactions, their records, and which operations count."""

from __future__ import annotations

from itertools import permutations

import pytest
from msgspec import structs

from engine.errors import CorruptionError, InvalidArgumentError, TransactionConflictError
from engine.model.fields import dump
from engine.model.names import SegmentName, TopicName
from engine.model.transactions import (
    ATTEMPTS_MAX,
    PARTITIONS,
    OperationKind,
    TransactionHeader,
    TransactionOperation,
    TransactionState,
    accepted_numbers,
    attempt_number,
    id_text,
    operation_counts,
    operations_from_json,
    operations_to_json,
    parse_id,
    partition_of,
)

OPEN, COMMITTED, ABORTED = TransactionState.OPEN, TransactionState.COMMITTED, TransactionState.ABORTED
HEADER = TransactionHeader(OPEN, timeout_ms=60, created_ms=1)
SEGMENT = SegmentName.parse("segment://public/default/orders/0000-ffff-0")


@pytest.mark.parametrize("state", [COMMITTED, ABORTED])
def test_an_open_one_ends_either_way_and_stays_so(state: TransactionState) -> None:
    ended = HEADER.ended(state, 7)
    assert (ended.state, ended.finalized_ms) == (state, 7)
    assert ended.ended(state, 9) is ended  # semantics 36
    other = ABORTED if state is COMMITTED else COMMITTED
    with pytest.raises(TransactionConflictError, match=f"already {state}"):
        ended.ended(other, 9)


def test_a_commit_with_other_attempts_is_another_commit() -> None:
    ended = HEADER.ended(COMMITTED, 7, accepted_numbers(["a"]))
    assert ended.ended(COMMITTED, 8, accepted_numbers(["a", "a"])) is ended
    with pytest.raises(TransactionConflictError, match="other attempts"):
        ended.ended(COMMITTED, 8, accepted_numbers(["b"]))


def test_a_timeout_that_begins_again() -> None:
    renewed = HEADER.renewed(30, 50)
    assert (HEADER.since_ms, HEADER.span_ms) == (1, 59)
    assert (renewed.created_ms, renewed.since_ms, renewed.span_ms, renewed.timeout_ms) == (1, 30, 50, 80)
    assert renewed.ended(ABORTED, 40).renewed_ms == 30
    assert TransactionHeader._parse(renewed.to_json()) == renewed


def test_what_ended_it_is_written_down() -> None:
    """The wall clock does not say: it may have been set in between."""
    expired, aborted = HEADER.ended(ABORTED, 7, expired=True), HEADER.ended(ABORTED, 99)
    assert (expired.standing, aborted.standing) == ("ABORTED (timed out)", "ABORTED (on request)")
    for header in (expired, aborted):
        assert TransactionHeader._parse(header.to_json()) == header
    old = {"state": "ABORTED", "timeout_ms": 60, "created_ms": 1, "finalized_ms": 60}
    assert TransactionHeader.from_json(dump(old)).standing == expired.standing
    assert TransactionHeader.from_json(dump({**old, "finalized_ms": 59})).standing == aborted.standing
    with pytest.raises(CorruptionError, match="expired"):
        TransactionHeader.from_json(dump({**old, "expired": 1}))


def test_what_counts() -> None:
    """Committed, accepted, and recorded before the decision (T5)."""
    a, b = attempt_number("a"), attempt_number("b")
    committed = HEADER.ended(COMMITTED, 7, accepted_numbers(["a"]))
    assert operation_counts(committed, 10, a, 9)
    assert not operation_counts(committed, 10, a, 11)
    assert not operation_counts(committed, 10, b, 9)
    assert not operation_counts(HEADER.ended(ABORTED, 7), 10, a, 9)
    assert not operation_counts(HEADER, 10, a, 9)
    assert operation_counts(HEADER.ended(COMMITTED, 7), 10, b, 9)  # a commit that names no attempts accepts all
    names = [f"task-{number}" for number in range(100)]
    some = HEADER.ended(COMMITTED, 7, accepted_numbers(names[::2]))
    assert [name for name in names if operation_counts(some, 10, attempt_number(name), 9)] == names[::2]
    assert not operation_counts(HEADER.ended(COMMITTED, 7, ()), 10, a, 9)


def test_attempts_have_numbers_of_their_own() -> None:
    assert attempt_number(None) == 0
    assert len({attempt_number(f"attempt-{n}") for n in range(1000)} - {0}) == 1000
    assert accepted_numbers(None) is None
    assert accepted_numbers([]) == ()
    for wrong in ("abc", ["x"] * (ATTEMPTS_MAX + 1), [""], [5]):
        with pytest.raises(InvalidArgumentError):
            accepted_numbers(wrong)  # type: ignore[arg-type]


def test_ids() -> None:
    for number in (0, 1, 2**64 - 1, 0xABC << 40):
        assert parse_id(id_text(number)) == number
        assert 0 <= partition_of(number) < PARTITIONS
    for wrong in ("", "12", "-000000000000001", "00000000000000AB", "zzzzzzzzzzzzzzzz", 5):
        with pytest.raises(InvalidArgumentError, match="16 hexadecimal digits"):
            parse_id(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "header",
    [
        HEADER,
        TransactionHeader(OPEN, 60, 1, name="job-7"),
        HEADER.ended(ABORTED, 9),
        HEADER.ended(COMMITTED, 9, accepted_numbers(["a", "b"])),
        HEADER.ended(COMMITTED, 9, ()),
    ],
)
def test_headers_are_read_as_they_were_written(header: TransactionHeader) -> None:
    assert TransactionHeader.from_json(header.to_json()) == header


@pytest.mark.parametrize(
    "operation",
    [
        TransactionOperation(OperationKind.WRITE, SEGMENT, ((5, 9),), attempt=attempt_number("a"), term=3),
        TransactionOperation(OperationKind.ACK, SEGMENT, ((0, 1), (5, 5)), subscription="s"),
        TransactionOperation(OperationKind.ACK, SEGMENT, position=17, subscription="s"),
    ],
)
def test_operations_are_read_as_they_were_written(operation: TransactionOperation) -> None:
    assert TransactionOperation.from_json(operation.to_json()) == operation
    assert SEGMENT.topic == TopicName.parse("orders")


def test_a_record_says_several_operations() -> None:
    said = [TransactionOperation(OperationKind.WRITE, SEGMENT, ((at, at + 1),), term=3) for at in (0, 7, 9)]
    assert operations_from_json(operations_to_json(said)) == (said, None)
    assert operations_from_json(operations_to_json(said[1:], since=17)) == (said[1:], 17)
    assert TransactionOperation.from_json(operations_to_json(said)) == said[0]
    assert operations_to_json(said[:1]) == said[0].to_json()


def test_what_operations_of_a_record_have_in_common_is_said_once() -> None:
    other = SegmentName.parse("segment://public/default/orders/8000-ffff-2")
    write = TransactionOperation(OperationKind.WRITE, SEGMENT, ((5, 9),), term=3, producer=7, sequences=(1, 5))
    alike = structs.replace(write, segment=other, ranges=((0, 4),))
    value = operations_to_json([write, alike])
    assert operations_from_json(value)[0] == [write, alike]
    assert value.count(b'"term":') == value.count(b'"producer":') == value.count(b'"sequences":') == 1


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_what_some_operations_of_a_record_lack_is_not_taken_from_others(order: tuple[int, ...]) -> None:
    kinds = [
        TransactionOperation(OperationKind.WRITE, SEGMENT, ((5, 9),), attempt=8, term=3, producer=7, sequences=(1, 5)),
        TransactionOperation(OperationKind.WRITE, SEGMENT, ((10, 12),)),
        TransactionOperation(OperationKind.ACK, SEGMENT, ((0, 1), (5, 5)), subscription="s"),
        TransactionOperation(OperationKind.ACK, SEGMENT, position=17, subscription="t", attempt=8),
    ]
    said = [kinds[at] for at in order]
    assert operations_from_json(operations_to_json(said, since=4)) == (said, 4)


@pytest.mark.parametrize("value", [b"{}", b"[", b'{"state":"ENDING","timeout_ms":1,"created_ms":1}'])
def test_a_damaged_header_is_corruption(value: bytes) -> None:
    with pytest.raises(CorruptionError, match="transaction header"):
        TransactionHeader.from_json(value)


@pytest.mark.parametrize(
    "value",
    [
        b"{}",
        b'{"kind":"write","segment":"x"}',
        b'{"kind":"write","segment":"segment://a/b/c/0000-ffff-0","more":[{}]}',
        b'{"kind":"write","segment":"segment://a/b/c/0000-ffff-0","more":{}}',
        b'{"kind":"ack","segment":"segment://a/b/c/0000-ffff-0","ranges":[[1]]}',
    ],
)
def test_a_damaged_operation_is_corruption(value: bytes) -> None:
    with pytest.raises(CorruptionError, match="transaction operation"):
        TransactionOperation.from_json(value)
