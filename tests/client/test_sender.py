"""A sender into one segment, as tables: what each refusal and each end of its attachment does to what was sent."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from engine._native.produce.outgoing import SEND_FRAME_BYTES
from engine.client.produce.sender import Sender, SenderState
from engine.client.produce.window import FLOOR
from engine.client.topic.layout import SegmentView
from engine.errors import (
    AlreadyClosedError,
    AuthorizationError,
    ConnectError,
    EngineError,
    FencedError,
    MessageTooLargeError,
    NotFoundError,
    NotOwnerError,
    PartlyStoredError,
    ProducerBusyError,
    ProtocolError,
    SegmentSealedError,
    StorageError,
    TransactionConflictError,
)
from engine.model.hashrange import HashRange
from engine.wire.commands import Command, SendError, SendReceipt
from tests.client.scripted_pool import ScriptedPool
from tests.client.sending_kit import Entry, Owner, Scope


def segment(ident: int = 0, url: str | None = "engine://b") -> SegmentView:
    return SegmentView(ident, f"segment-{ident}", HashRange(0, 65535), True, (), (), (65535,), url)


class Bench:
    """A sender over a scripted connection."""

    def __init__(self, access_mode: str = "shared") -> None:
        self.pool = ScriptedPool()
        self.owner = Owner(self.pool, access_mode)
        self.sender = Sender(self.owner, segment())  # type: ignore[arg-type]
        self.closed_by: list[ProtocolError] = []
        self.pool.connection.fail = self.closed_by.append  # type: ignore[method-assign,assignment]

    def take(self, *entries: Entry) -> None:
        """As the outbox does with sealed entries."""
        self.owner.enter(*entries)
        self.sender.backlog.queue.extend(entries)  # type: ignore[arg-type]
        self.sender.transmit()

    async def steps(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    def of(self, command: Command) -> list[dict[str, Any]]:
        return [header for seen, header in self.pool.stream.sent if seen is command]

    async def attach(self) -> None:
        """Answer the last PRODUCER."""
        await self.steps()
        header = self.of(Command.PRODUCER)[-1]
        answer = {"request_id": header["request_id"], "producer_id": header["producer_id"], "producer_name": "p",
                  "last_sequence": -1, "durability": "fsync"}  # fmt: skip
        self.pool.says(Command.PRODUCER_SUCCESS, answer)
        await self.steps()

    def refuse(self, sequence: int, error: EngineError) -> None:
        refusal = SendError(producer_id=1, sequence=sequence, code=error.code, message=str(error))
        self.sender.frame_received(refusal, memoryview(b""))

    def acknowledge(self, *sequences: int) -> None:
        numbers = list(sequences)
        receipt = SendReceipt(producer_id=1, sequences=numbers, offsets=numbers, durability="fsync")
        self.sender.frame_received(receipt, memoryview(b""))

    @property
    def entries_sent(self) -> int:
        return sum(header["entries"] for header in self.of(Command.SEND))

    def sequences(self, entries: Any) -> list[int]:
        return [entry.first_sequence for entry in entries]

    async def end(self) -> None:
        await self.owner.pool.tasks.cancel()
        self.owner.in_flight.stop()


async def attached(entries: list[Entry]) -> Bench:
    bench = Bench()
    bench.take(*entries)
    await bench.attach()
    return bench


@dataclass
class Refusal:
    """Of entry 1 of 0, 1 and 2, which were sent in one frame."""

    error: EngineError
    failed: list[int]
    queued: list[int]  # to be sent again
    keeps: bool = False  # its attachment
    fatal: bool = False


REFUSALS = [
    Refusal(MessageTooLargeError("large"), [1], [], keeps=True),
    Refusal(StorageError("disk"), [1, 2], [0]),
    Refusal(AuthorizationError("no"), [1, 2], [0]),
    Refusal(FencedError("another"), [1, 2], [0], fatal=True),
    Refusal(ProducerBusyError("another"), [1, 2], [0], fatal=True),
    Refusal(NotOwnerError("moved"), [], [0, 1, 2]),
    Refusal(SegmentSealedError("sealed"), [], [0, 1, 2]),
    Refusal(NotFoundError("gone"), [], [0, 1, 2]),
]


@pytest.mark.parametrize("case", REFUSALS, ids=lambda case: type(case.error).__name__)
async def test_a_refusal_fails_what_must_not_be_stored_and_sends_the_rest_again(case: Refusal):
    entries = [Entry(i) for i in range(3)]
    bench = await attached(entries)
    bench.refuse(1, case.error)
    in_flight = bench.owner.in_flight
    assert [i for i, e in enumerate(entries) if e not in in_flight] == case.failed  # type: ignore[operator]
    assert bench.sequences(bench.sender.backlog.queue) == case.queued
    assert bench.sequences(bench.sender.backlog.sent) == ([0, 2] if case.keeps else [])
    assert bench.sender.attached is case.keeps
    assert len(bench.of(Command.CLOSE_PRODUCER)) == (0 if case.keeps else 1)
    assert bool(bench.owner.fatal) is case.fatal
    stale = case.queued == [0, 1, 2]
    assert [e.attempts for e in entries] == [1 if stale else 0] * 3
    if case.queued and not case.fatal:
        await bench.attach()
        assert bench.sequences(bench.sender.backlog.sent) == case.queued
        assert in_flight.entries_resent == len(case.queued)
    await bench.end()


async def test_a_transaction_that_is_over_takes_only_its_own_entries_with_it():
    over, other = Scope(), Scope()
    entries = [Entry(0, scope=over), Entry(1, scope=over), Entry(2), Entry(3, scope=over), Entry(4, scope=other)]
    bench = await attached(entries)
    bench.acknowledge(0)
    bench.refuse(1, TransactionConflictError("aborted"))
    left = [i for i, e in enumerate(entries) if e in bench.owner.in_flight]  # type: ignore[operator]
    assert left == [2, 3, 4], "what the broker answers before it ends the attachment may count"
    bench.acknowledge(2, 3)
    bench.sender.link_ended(TransactionConflictError("aborted"))
    left = [i for i, e in enumerate(entries) if e in bench.owner.in_flight]  # type: ignore[operator]
    assert left == [4]
    assert bench.sequences(bench.sender.backlog.queue) == [4]
    await bench.end()


async def test_what_is_behind_a_transaction_that_is_over_and_was_not_answered_is_sent_again():
    over, other = Scope(), Scope()
    entries = [Entry(0, scope=over), Entry(1, scope=over), Entry(2), Entry(3, scope=over), Entry(4, scope=other)]
    bench = await attached(entries)
    bench.refuse(0, TransactionConflictError("aborted"))
    bench.sender.link_ended(TransactionConflictError("aborted"))
    assert bench.sequences(bench.sender.backlog.queue) == [2, 4]
    await bench.end()


@pytest.mark.parametrize(("count", "queued", "failed"), [(3, [0, 1, 2, 3, 4], False), (1, [0, 2], True)])
async def test_what_is_partly_stored_is_sent_message_by_message_in_its_place(
    count: int, queued: list[int], failed: bool
):
    """One message is no entry of which a part could be stored: it is refused."""
    entries = [Entry(0), Entry(1, count), Entry(1 + count)]
    bench = await attached(entries)
    bench.refuse(1, PartlyStoredError("some are stored"))
    assert bench.sequences(bench.sender.backlog.queue) == queued
    assert bool(bench.owner.failed) is failed
    await bench.end()


@dataclass
class End:
    """Of the attachment, with entries 0 and 1 sent."""

    error: EngineError
    failed: bool = False
    fatal: bool = False
    stale: bool = False


ENDS = [
    End(ConnectError("lost")),
    End(AlreadyClosedError("the broker is closing")),
    End(NotOwnerError("moved"), stale=True),
    End(SegmentSealedError("sealed"), stale=True),
    End(NotFoundError("gone"), stale=True),
    End(StorageError("disk"), failed=True),
    End(FencedError("another"), failed=True, fatal=True),
]


@pytest.mark.parametrize("retired", [False, True])
@pytest.mark.parametrize("case", ENDS, ids=lambda case: type(case.error).__name__)
async def test_the_end_of_an_attachment_sends_again_or_fails(case: End, retired: bool):
    entries = [Entry(0), Entry(1)]
    bench = await attached(entries)
    if retired:
        bench.sender.retire()
    bench.sender.link_ended(case.error)
    assert not bench.sender.attached
    assert bench.sequences(bench.sender.backlog.queue) == ([] if case.failed else [0, 1])
    assert len(bench.owner.in_flight) == (0 if case.failed else 2)
    assert bool(bench.owner.fatal) is case.fatal
    assert bench.owner.settles == (1 if retired else 0)
    assert [e.attempts for e in entries] == [1 if case.stale else 0] * 2
    await bench.steps()
    attempts = len(bench.of(Command.PRODUCER))
    assert attempts == (1 if retired or case.failed else 2)
    assert bench.owner.session.waits == (1 if case.stale and not retired else 0)
    await bench.end()


async def test_an_entry_is_given_up_after_so_many_stale_layouts():
    bench = await attached([Entry(0)])
    for _ in range(9):
        bench.sender.link_ended(NotOwnerError("moved"))
        await bench.attach()
    assert not bench.owner.failed
    bench.sender.link_ended(NotOwnerError("moved"))
    assert len(bench.owner.failed) == 1
    assert not len(bench.owner.in_flight)
    await bench.end()


@pytest.mark.parametrize(
    ("sequences", "stored", "in_step"),
    [
        ([0, 1, 2], [0, 1, 2], True),
        ([0], [0], True),
        ([1], [], False),
        ([0, 2], [0], False),
        ([0, 1, 2, 3], [0, 1, 2], False),
    ],
)
async def test_receipts_come_in_the_order_of_what_was_sent(sequences: list[int], stored: list[int], in_step: bool):
    entries = [Entry(i) for i in range(3)]
    bench = await attached(entries)
    bench.acknowledge(*sequences)
    assert [i for i, e in enumerate(entries) if e not in bench.owner.in_flight] == stored  # type: ignore[operator]
    assert not bench.closed_by if in_step else len(bench.closed_by) == 1
    assert bench.owner.receipts == 1
    await bench.end()


async def test_what_is_behind_a_full_window_is_sent_as_receipts_come():
    entries = [Entry(i, pending=FLOOR // 2, data=bytes(SEND_FRAME_BYTES)) for i in range(6)]
    bench = await attached(entries)
    assert bench.entries_sent == 3  # more than the window, which is only looked at between frames
    assert bench.sequences(bench.sender.backlog.queue) == [3, 4, 5]
    bench.owner.in_flight.window.drop()  # not measured: the window stays as it is
    bench.acknowledge(0)
    assert bench.entries_sent == 4
    bench.sender.link_ended(ConnectError("lost"))
    assert bench.sequences(bench.sender.backlog.queue) == [1, 2, 3, 4, 5]
    await bench.attach()
    assert bench.entries_sent == 4 + 3  # nothing of what went over the connection before counts
    bench.acknowledge(1, 2, 3)
    bench.acknowledge(4, 5)
    assert not len(bench.owner.in_flight)
    await bench.end()


async def test_what_is_behind_a_full_window_is_sent_although_all_before_it_is_refused():
    bench = await attached([Entry(i, pending=FLOOR // 2, data=bytes(SEND_FRAME_BYTES)) for i in range(6)])
    assert bench.entries_sent == 3
    bench.refuse(0, MessageTooLargeError("large"))
    assert bench.entries_sent == 4
    for sequence in (1, 2, 3):
        bench.refuse(sequence, MessageTooLargeError("large"))
    assert bench.entries_sent == 6
    assert not bench.sender.backlog.queue
    await bench.end()


async def test_a_successor_sends_nothing_before_all_its_predecessors_have_handed_on():
    bench = Bench()
    one, two = (Sender(bench.owner, segment(i)) for i in (1, 2))  # type: ignore[arg-type]
    held = bench.sender
    held.succeed([one, two])
    assert held.state is SenderState.HELD
    bench.take(Entry(5))
    await bench.attach()
    assert held.attached  # it attaches meanwhile
    assert not bench.entries_sent
    left = [Entry(1), Entry(2)]
    bench.owner.enter(*left)
    held.backlog.ahead.extend(left)  # type: ignore[arg-type]
    held.release(one)
    assert not bench.entries_sent
    held.release(two)
    assert held.state is SenderState.SENDING
    assert bench.sequences(held.backlog.sent) == [1, 2, 5]
    await bench.end()


async def test_a_retired_sender_waits_for_answers_and_hands_on_the_rest_in_order():
    entries = [Entry(i) for i in range(3)]
    bench = await attached(entries[:2])
    bench.sender.retire()
    bench.take(entries[2])
    assert bench.sequences(bench.sender.backlog.sent) == [0, 1]  # nothing more is sent
    assert not bench.sender.is_settled
    bench.acknowledge(0)
    assert bench.owner.settles == 1
    assert not bench.sender.is_settled
    bench.sender.link_ended(ConnectError("lost"))  # and with it the answer to the other
    assert bench.sender.is_settled
    assert bench.sequences(bench.sender.surrender()) == [1, 2]
    assert len(bench.of(Command.PRODUCER)) == 1
    await bench.end()


@pytest.mark.parametrize("retire", [True, False])
async def test_an_attempt_under_way_ends_with_its_use(retire: bool):
    """A sealed segment takes nothing, a closed producer sends nothing: the broker is told before it has answered."""
    bench = Bench()
    bench.take(Entry(0))
    await bench.steps()
    if retire:
        bench.sender.retire()
    else:
        await bench.sender.close()
    assert len(bench.of(Command.CLOSE_PRODUCER)) == 1
    await bench.attach()  # the answer, which is not wanted any more
    assert not bench.sender.attached
    assert not bench.entries_sent
    await bench.end()


@pytest.mark.parametrize("retire", [True, False])
async def test_an_attempt_that_begins_after_its_use_asks_for_nothing(retire: bool):
    """Nothing would close what it opens, and a claim of exclusive access would stay."""
    bench = Bench()
    at = bench.owner.session.at

    async def at_last(url_of: Any, work: Any) -> Any:
        if retire:
            bench.sender.retire()
        else:
            await bench.sender.close()
        return await at(url_of, work)

    bench.owner.session.at = at_last  # type: ignore[method-assign]
    bench.take(Entry(0))
    await bench.steps()
    assert not bench.of(Command.PRODUCER)
    await bench.end()


async def test_a_segment_that_moved_is_attached_to_where_it_is_now():
    bench = await attached([Entry(0)])
    bench.sender.readdress(segment(url=None))  # not known: it stays
    assert bench.sender.attached
    bench.sender.readdress(segment(url="engine://other"))
    assert not bench.sender.attached
    await bench.attach()
    assert bench.sequences(bench.sender.backlog.sent) == [0]
    assert len(bench.of(Command.CLOSE_PRODUCER)) == 1
    await bench.end()


S = SenderState
MOVES = {(S.SENDING, S.HELD), (S.SENDING, S.RETIRED), (S.SENDING, S.CLOSED), (S.HELD, S.SENDING), (S.HELD, S.RETIRED),
         (S.HELD, S.CLOSED), (S.RETIRED, S.CLOSED), (S.CLOSED, S.CLOSED)}  # fmt: skip


@pytest.mark.parametrize("before", S)
@pytest.mark.parametrize("after", S)
async def test_a_sender_moves_as_the_table_says(before: SenderState, after: SenderState):
    bench = Bench()
    bench.sender.state = before
    if (before, after) in MOVES:
        bench.sender._move_to(after)
        assert bench.sender.state is after
    else:
        with pytest.raises(AssertionError, match="cannot move"):
            bench.sender._move_to(after)
    bench.owner.in_flight.stop()
