"""Messages in transactions: an entry holds those of one, and the order of sending stays."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine._native.format.entry import Entry, compress
from engine._native.produce.batcher import Batcher
from engine._native.produce.sealed import SealedEntry, TransactionScope
from engine.errors import InvalidArgumentError, TransactionConflictError
from engine.model.compression import compressor, decompressor
from tests.native.batchers import HALVES, LAYOUTS, WHOLE, batcher, sealed
from tests.reference.entry_reference import decode

ONE, OTHER = TransactionScope(2**64 - 1, 5), TransactionScope(7, 0)
SCOPES = [None, ONE, OTHER]


def taking(layout: Any = WHOLE, **options: Any) -> Batcher:
    return batcher(layout, admit=lambda transaction: transaction, **options)


def txn(entry: SealedEntry) -> tuple[int, int] | None:
    return Entry(entry.data).txn


def test_what_belongs_together_is_sealed_together():
    subject = taking()
    subject.send_nowait(b"0")
    subject.send_nowait(b"1", transaction=ONE)
    subject.add(b"2", transaction=ONE)
    subject.add_columns([b"3"], transaction=ONE)
    subject.add_columns([b"4"], transaction=OTHER)
    subject.send_nowait(b"5", key=b"k", transaction=OTHER)
    subject.send_nowait(b"6", key=b"k")
    found = sealed(subject)
    assert [entry.scope for entry in found] == [None, ONE, OTHER, OTHER, None]
    assert [txn(entry) for entry in found] == [None, (2**64 - 1, 5), (7, 0), (7, 0), None]
    assert [[m.value for m in decode(entry.data)] for entry in found] == [
        [b"0"], [b"1", b"2", b"3"], [b"4"], [b"5"], [b"6"],
    ]  # fmt: skip


SENDS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from([None, b"", b"a", b"b", b"c"]), st.booleans()), max_size=60
)


@given(sends=SENDS, layout=st.sampled_from(LAYOUTS), messages_max=st.integers(1, 9))
def test_order_and_membership_whatever_comes(sends: Any, layout: Any, messages_max: int):
    subject = taking(layout, messages_max=messages_max)
    for i, (which, key, bulk) in enumerate(sends):
        if bulk:
            subject.add_columns([b"%d" % i], [key], transaction=SCOPES[which])
        else:
            subject.send_nowait(b"%d" % i, key=key, transaction=SCOPES[which])
    entries = sealed(subject)
    found = [(m, entry) for entry in entries for m in decode(entry.data)]
    assert sorted(m.sequence_id for m, _ in found) == list(range(len(sends)))
    for message, entry in found:
        which, key, _ = sends[message.sequence_id]
        assert (entry.scope, message.key) == (SCOPES[which], key)
        scope = entry.scope
        assert txn(entry) == (None if scope is None else (scope.number, scope.attempt_number))
    for key in (b"", b"a", b"b", b"c"):
        of_key = [m.sequence_id for m, _ in found if m.key == key]
        assert of_key == sorted(of_key)


def test_pieces_of_an_entry_stay_in_its_transaction():
    subject = taking()
    for i in range(40):
        subject.add(b"%d" % i, b"k%d" % i, transaction=ONE)
    keyless = taking()
    keyless.add(b"x", transaction=OTHER)
    entry, moved = sealed(subject)[0], sealed(keyless)[0]
    subject.set_layout(*HALVES)
    for pieces in (subject.resplit(entry), subject.take_apart(entry)):
        assert len(pieces) > 1
        assert {piece.scope for piece in pieces} == {ONE}
        assert {txn(piece) for piece in pieces} == {(2**64 - 1, 5)}
    keyless.set_layout(*HALVES)
    assert [piece.scope for piece in keyless.resplit(moved)] == [OTHER]
    codec, pack = compressor("lz4")
    packed = Entry(compress(entry.data, codec, pack))
    assert packed.txn == (2**64 - 1, 5)
    assert len(packed.messages(decompressor())) == 40


def test_who_admits_is_asked_when_another_one_begins():
    asked: list[str] = []
    scopes = {"a": TransactionScope(1, 0), "b": TransactionScope(2, 0)}

    def admit(transaction: str) -> TransactionScope:
        asked.append(transaction)
        return scopes[transaction]

    subject = batcher(WHOLE, admit=admit)
    a, b = "a", "b"
    for transaction in (a, a, b, b, None, a):
        subject.send_nowait(b"x", transaction=transaction)
    assert asked == ["a", "b", "a"]
    assert [entry.count for entry in sealed(subject)] == [2, 2, 1, 1]


def test_what_is_refused_is_not_taken():
    subject = taking(WHOLE)
    scope = TransactionScope(1, 0)
    subject.send_nowait(b"in time", transaction=scope)
    scope.refusal = TransactionConflictError("it has ended")
    for late in (
        subject.send_nowait,
        subject.add,
        lambda value, transaction: subject.add_columns([value], transaction=transaction),
    ):
        with pytest.raises(TransactionConflictError):
            late(b"late", transaction=scope)
    subject.send_nowait(b"after")
    with pytest.raises(TransactionConflictError):
        subject.send_nowait(b"late", transaction=scope)
    assert [[m.value for m in decode(entry.data)] for entry in sealed(subject)] == [[b"in time"], [b"after"]]
    assert subject.next_sequence == 2


def test_what_admit_raises_comes_out_and_nothing_is_changed():
    def admit(transaction: object) -> TransactionScope:
        raise InvalidArgumentError("no transaction")

    subject = batcher(WHOLE, admit=admit)
    subject.send_nowait(b"0")
    with pytest.raises(InvalidArgumentError):
        subject.send_nowait(b"x", transaction=7)
    with pytest.raises(InvalidArgumentError):
        subject.add_columns([b"x"], transaction=7)
    subject.send_nowait(b"1")
    with pytest.raises(InvalidArgumentError):
        batcher(WHOLE).send_nowait(b"x", transaction=7)
    with pytest.raises(TypeError):
        batcher(WHOLE, admit=lambda transaction: 7).send_nowait(b"x", transaction=7)
    assert [entry.count for entry in sealed(subject)] == [2]
