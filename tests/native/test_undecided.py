"""The record of several writes, as native code makes it, and as the operations themselves are written."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine._native.serve.held import Gathering, HeldWrites
from engine._native.serve.undecided import Span, Undecided, Write
from engine.broker.transactions.append import TransactionalAppend
from engine.broker.transactions.writes import PendingWrite, parts_of, recording_of_writes
from engine.control.transactions.operations import NOTHING, operations_in, recording_of
from engine.metadata.store import Record, Stat
from engine.model.names import SegmentName

NAMES = [
    SegmentName.parse(f"segment://public/default/{topic}/{at}")
    for topic in ("t", "caf%C3%A9", "a%22b")
    for at in ("0000-7fff-1", "8000-ffff-2")
]
U64 = st.integers(0, (1 << 64) - 1) | st.sampled_from([0, 1, 7])


class Buffer(Undecided):
    def __init__(self, name: SegmentName) -> None:
        super().__init__(str(name), msgspec.json.encode(str(name)))
        self.segment_name = name

    def all_confirmed(self) -> None: ...


def append_of(name: SegmentName, term: int, producer: int, low: int, first: int, attempt: int = 0) -> Any:
    confirmed: Any = SimpleNamespace(done=lambda: False, set_result=lambda places: None)
    append = TransactionalAppend(Buffer(name), 5, None, confirmed)  # type: ignore[arg-type]
    write = PendingWrite(5, attempt, Write(first, first + 2), term, Span(producer, low, low + 2))
    append.begin(write.span, write)
    return append


OFFSETS = st.integers(0, (1 << 64) - 3) | st.sampled_from([0, 9])
APPENDS = st.lists(
    st.builds(append_of, st.sampled_from(NAMES), U64, U64, OFFSETS, OFFSETS, st.sampled_from([0, 0, 0, 3])),
    min_size=1,
    max_size=9,
    unique_by=lambda append: (append.buffer.segment, append.write.write.first),
)


@given(APPENDS)
def test_it_says_what_the_operations_say_to_the_byte(appends: list[Any]) -> None:
    expected = recording_of([append.operation() for append in appends])
    found = recording_of_writes(appends)
    assert found.value == expected.value
    assert found.indexes == expected.indexes


@given(APPENDS)
def test_its_parts_are_those_of_the_operations(appends: list[Any]) -> None:
    record = Record("/txn-op/0000000000000005/7", recording_of_writes(appends).value, Stat(7, 1, 1))
    assert parts_of(appends, record.key) == [operation.part for operation in operations_in(record)]


def test_no_writes_are_no_record() -> None:
    assert recording_of_writes([]) is NOTHING
    assert not NOTHING


@pytest.mark.parametrize("answered", [False, True])
def test_a_write_takes_the_part_that_is_in_time_unless_it_is_answered(answered: bool) -> None:
    append = append_of(NAMES[0], 1, 2, 3, 4)
    if answered:
        append.confirmed.done = lambda: True
    append.recorded_in_time("part", 8)
    assert (append.write.parts, append.write.version) == (([], None) if answered else (["part"], 8))
    assert append.write.recorded is not answered


class Sent:
    """A write of a connection, which counts its frames in `sends`."""

    def __init__(self, sends: object) -> None:
        self.sends = sends


@given(st.lists(st.tuples(st.sampled_from(["add", "add", "add", "take", "look"]), st.integers(0, 2)), max_size=30))
def test_held_writes_are_taken_by_connection_in_order(steps: list[tuple[str, int]]):
    held, plain, connections = HeldWrites(7), list[Sent](), [object(), object(), object()]
    for step, number in steps:
        sends = connections[number]
        theirs = [one for one in plain if one.sends is sends]
        if step == "add":
            plain.append(Sent(sends))
            held.add(plain[-1])
        elif step == "take":
            assert held.take(sends) == theirs
            plain = [one for one in plain if one.sends is not sends]
        else:
            assert held.of(sends) == theirs
            assert held.count(sends) == len(theirs)
        assert held.writes == plain


def test_writes_are_gathered_by_transaction_up_to_a_full_record():
    class Records(Gathering):
        def begun(self, number: int) -> HeldWrites:
            made.append(HeldWrites(number))
            return made[-1]

    made: list[HeldWrites] = []
    records = Records(2)
    for number in (1, 2, 1, 1):
        records.gather(number, Sent(None))
    assert [(one.number, len(one.writes)) for one in made] == [(1, 2), (2, 1), (1, 1)]
    made[-1].held = True  # by a commit, which takes them all
    for _ in range(3):
        records.gather(1, Sent(None))
    assert len(made[-1].writes) == 4
    assert records.gathered == {1: made[-1], 2: made[1]}
