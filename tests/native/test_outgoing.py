"""What a producer sends and hears, native, beside its plain model; and what is due in which turn of the loop."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine._native.produce.outgoing import FLIGHTS_MAX, SEND_FRAME_BYTES, Outgoing, Queued, Turns
from tests.reference.outgoing_reference import FRAME_BYTES, PlainEntry, PlainOutgoing

SCOPES = [None, "one", "two"]
WINDOW = 1000

ENTRIES = st.tuples(
    st.sampled_from([10, 400_000, 900_000]), st.sampled_from([10, 300, 1200]), st.sampled_from([0, 0, 1, 2])
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("queue"), st.lists(ENTRIES, min_size=1, max_size=5)),
        st.tuples(st.just("receive"), st.integers(0, 6)),
        st.tuples(st.just("wrong"), st.integers(0, 3)),
        st.tuples(st.just("writable"), st.booleans()),
        st.tuples(st.just("lose"), st.integers(0, 5)),
        st.tuples(st.just("credit"), st.integers(0, 4)),
    ),
    max_size=30,
)


class Receipt(SimpleNamespace):
    pass


class Credit:
    def __init__(self, left: int) -> None:
        self.count = left

    @property
    def left(self) -> bool:
        return self.count > 0

    def take(self, messages: int, size: int) -> bool:
        self.count -= messages
        return self.left


class InFlight:
    """Of which what is sent is a part, until it is acknowledged."""

    def __init__(self) -> None:
        self.window = SimpleNamespace(size=WINDOW, used=0, measured=None)
        self.gone: set[int] = set()
        self.acknowledged: list[tuple[list[int], list[int], int]] = []

    def __contains__(self, entry: Any) -> bool:
        return entry.first_sequence not in self.gone

    def renew(self, entries: list[Any]) -> None: ...

    def acknowledge(self, entries: list[Any], offsets: list[int], end: int) -> None:
        self.acknowledged.append(([entry.first_sequence for entry in entries], offsets, end))


class Sender(Outgoing):
    def __init__(self, joint: bool) -> None:
        owner = SimpleNamespace(in_flight=InFlight(), failure=None, receipts=0)
        owner.receipts_came = lambda: setattr(owner, "receipts", owner.receipts + 1)
        super().__init__(owner, Queued(), dict, Receipt, "joint")
        self.frames: list[list[int]] = []
        self.wrong: list[int] = []
        stream = SimpleNamespace(send=self.sent_frame)
        features = {"joint"} if joint else set[str]()
        self.link = SimpleNamespace(
            ident=7, connection=SimpleNamespace(stream=stream, writable=True, features=features)
        )

    def sent_frame(self, header: dict[str, Any], payload: list[Any]) -> None:
        assert header["producer_id"] == 7
        assert header["entries"] == len(payload)
        self.frames.append([entry.sequence for entry in payload])

    def in_transactions(self, connection: Any, header: Any, entries: list[Any]) -> Any:
        assert entries[0].scope is not None
        return header

    def out_of_step(self, sequence: int) -> None:
        self.wrong.append(sequence)


class Data(bytes):
    sequence: int


def entry(sequence: int, size: int, pending: int, scope: int) -> Any:
    data = Data(size)
    data.sequence = sequence
    return SimpleNamespace(first_sequence=sequence, count=1, pending=pending, data=data, scope=SCOPES[scope])


def test_the_model_has_the_same_limits():
    assert FRAME_BYTES == SEND_FRAME_BYTES


@given(STEPS, st.booleans())
@settings(max_examples=200, deadline=None)
def test_random_lives_agree_with_the_model(steps: list[tuple[str, Any]], joint: bool):
    native, plain, sequence = Sender(joint), PlainOutgoing(WINDOW, joint), 0
    for what, how in steps:
        if what == "queue":
            for size, pending, scope in how:
                native.backlog.queue.append(entry(sequence, size, pending, scope))
                plain.queue.append(PlainEntry(sequence, size, pending, scope))
                sequence += 1
            native.transmit()
            plain.transmit()
        elif what in ("receive", "wrong"):
            sequences = [one.sequence for one in plain.sent[:how]] + ([10_000] if what == "wrong" else [])
            wrong = len(native.wrong)
            native.frame_received(Receipt(sequences=sequences, offsets=sequences), memoryview(b""))
            stored, fault = plain.receive(sequences)
            assert native.owner.in_flight.acknowledged[-1] == (stored, stored, -1)
            assert native.wrong[wrong:] == ([] if fault is None else [fault])
        elif what == "writable":
            native.link.connection.writable = plain.writable = how
        elif what == "lose":
            native.owner.in_flight.gone.add(how)
            plain.lost.add(how)
        else:
            native.credit, plain.credit = Credit(how), how
        assert native.frames == plain.frames
        assert [one.first_sequence for one in native.backlog.sent] == [one.sequence for one in plain.sent]
        assert [one.first_sequence for one in native.backlog.queue] == [one.sequence for one in plain.queue]


def test_receipts_of_a_producer_that_has_failed_change_nothing():
    sender = Sender(False)
    sender.backlog.queue.append(entry(0, 1, 1, 0))
    sender.transmit()
    sender.owner.failure = ValueError("failed")
    sender.frame_received(Receipt(sequences=[0], offsets=[0]), memoryview(b""))
    assert (len(sender.backlog.sent), sender.owner.receipts) == (1, 0)


class Due(Turns):
    """What of it is called, in order."""

    def __init__(self, loop: Any, flights: int = 0) -> None:
        self.calls: list[str] = []
        super().__init__(loop, 5.0, False, {})
        note = self.calls.append
        self.in_flight = SimpleNamespace(flights=flights, all_entered=lambda upto: note(f"all below {upto}"))
        batcher = SimpleNamespace(next_sequence=3, seal_all=lambda: note("seal"), take=lambda: note("take"))
        self.batcher = batcher  # type: ignore[assignment]


async def test_an_open_batch_is_sent_in_the_next_turn_and_once():
    due = Due(asyncio.get_running_loop())
    due.opened()
    due.opened()
    due.receipts_came()
    assert not due.calls
    await asyncio.sleep(0)
    assert due.calls == ["seal", "take", "all below 3"]


async def test_with_enough_flights_an_open_batch_waits_for_a_receipt_or_its_time():
    due = Due(asyncio.get_running_loop(), FLIGHTS_MAX)
    due.opened()
    assert due.delay is not None
    due.receipts_came()
    await asyncio.sleep(0)
    assert not due.calls
    due.in_flight.flights = FLIGHTS_MAX - 1
    due.receipts_came()
    await asyncio.sleep(0)
    assert (due.calls, due.delay) == (["seal", "take", "all below 3"], None)


async def test_a_sealed_entry_is_sent_in_the_next_turn_unless_it_was_meanwhile():
    due = Due(asyncio.get_running_loop())
    due.sealed()
    due.sealed()
    await asyncio.sleep(0)
    assert due.calls == ["take"]
    due.sealed()
    due.pump()
    await asyncio.sleep(0)
    assert due.calls == ["take", "take"]


@pytest.mark.parametrize("sends", [True, False])
async def test_what_may_not_be_sent_is_not(sends: bool):
    sender = Sender(False)
    sender.sends = sends
    sender.backlog.queue.append(entry(0, 1, 1, 0))
    sender.transmit()
    assert sender.frames == ([[0]] if sends else [])
