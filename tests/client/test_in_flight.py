"""What a producer has in flight, as tables: how entries leave, where failures are reported, what is stable."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from engine.client.produce.in_flight import Report, report_of
from engine.errors import StorageError, TimeoutError, TransactionConflictError
from engine.testing.loop import run_virtual
from tests.client.sending_kit import Entry, Flying, Scope

LOST = StorageError("the disk is gone")
OVER = TransactionConflictError("aborted")


def waiting(count: int) -> list[tuple[asyncio.Future[object], int]]:
    loop = asyncio.new_event_loop()
    try:
        return [(loop.create_future(), i) for i in range(count)]
    finally:
        loop.close()


@pytest.mark.parametrize(
    ("count", "futures", "scope", "report"),
    [
        (1, 1, None, Report.FUTURES),
        (2, 2, None, Report.FUTURES),
        (2, 1, None, Report.FLUSH),
        (1, 0, None, Report.FLUSH),
        (2, 2, Scope(), Report.COMMIT),
        (2, 1, Scope(), Report.COMMIT_AND_CALLBACK),
        (2, 1, Scope(abandoned=True), Report.COMMIT),
        (2, 2, Scope(abandoned=True), Report.COMMIT),
    ],
)
def test_where_the_failure_of_an_entry_is_reported(count: int, futures: int, scope: Scope | None, report: Report):
    entry = Entry(0, count, waiting(futures) or None, scope)
    assert report_of(entry) is report  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("futures", "scope", "flush", "called_back", "commit"),
    [
        (1, None, False, False, False),
        (0, None, True, True, False),
        (1, Scope(), False, False, True),
        (0, Scope(), False, True, True),
        (0, Scope(abandoned=True), False, False, True),
    ],
)
async def test_a_failure_reaches_each_that_is_to_learn_of_it(
    futures: int, scope: Scope | None, flush: bool, called_back: bool, commit: bool
):
    flying, future = Flying(), asyncio.get_running_loop().create_future()
    entry = Entry(0, 1, [(future, 0)] if futures else None, scope)
    flying.enter(entry)
    flying.refuse(LOST, entry)
    if futures:
        assert future.exception() is LOST
    assert flying.called_back == ([LOST] if called_back else [])
    assert flying.failed == [LOST]
    assert bool(scope and scope.errors) is commit
    assert not (scope and scope.under_way)
    if flush:
        with pytest.raises(StorageError):
            await flying.in_flight.flushed()
    await flying.in_flight.flushed()  # the second time, nothing is left to be raised
    assert flying.batcher.released == [(10, 1)]
    assert flying.in_flight.messages_failed == 1
    flying.in_flight.stop()


async def test_what_a_commit_followed_is_stored_whatever_becomes_of_its_receipt():
    flying, future = Flying(), asyncio.get_running_loop().create_future()
    committed, open_ = Scope(stored=True), Scope()
    first, second, third = Entry(0, 1, [(future, 0)], committed), Entry(1, 1, None, open_), Entry(2, 1, None, committed)
    flying.all_entered(first, second, third)
    flying.refuse(LOST, first, second, third)
    assert future.result().offset == -1
    assert not committed.errors
    assert open_.errors == [LOST]
    assert (flying.in_flight.messages_acknowledged, flying.in_flight.messages_failed) == (2, 1)
    assert flying.batcher.floor == 0  # one below has failed
    assert not len(flying.in_flight)
    flying.in_flight.stop()


async def test_nothing_leaves_twice():
    flying = Flying()
    first, second = Entry(0), Entry(1)
    flying.enter(first, second)
    flying.acknowledge(first)
    flying.refuse(LOST, first)
    assert not flying.failed
    flying.refuse(LOST, second)
    flying.refuse(LOST, first, second)
    flying.acknowledge(second)
    assert flying.batcher.released == [(10, 1), (10, 1)]
    assert (flying.in_flight.messages_acknowledged, flying.in_flight.messages_failed) == (1, 1)
    flying.in_flight.stop()


ACK, FAIL, ABORT = "ack", "fail", "abort"


@pytest.mark.parametrize(
    ("steps", "floors"),
    [
        ([(ACK, 0), (ACK, 1), (ACK, 2)], [1, 2, 3]),
        ([(ACK, 1), (ACK, 0), (ACK, 2)], [0, 2, 3]),
        ([(ACK, 2), (ACK, 1), (ACK, 0)], [0, 0, 3]),
        ([(FAIL, 0), (ACK, 1), (ACK, 2)], [0, 0, 0]),
        ([(ACK, 0), (FAIL, 1), (ACK, 2)], [1, 1, 1]),
        ([(ACK, 0), (ABORT, 1), (ACK, 2)], [1, 2, 3]),  # of a transaction that is over: it never counts
    ],
)
async def test_what_is_stable_rises_over_whole_flights_and_not_past_a_failure(
    steps: list[tuple[str, int]], floors: list[int]
):
    flying, entries = Flying(), [Entry(i, scope=Scope()) for i in range(3)]
    for entry in entries:
        flying.all_entered(entry)
    seen = []
    for step, at in steps:
        if step is ACK:
            flying.acknowledge(entries[at])
        else:
            flying.refuse(LOST if step is FAIL else OVER, entries[at])
        seen.append(flying.batcher.floor)
    assert seen == floors
    flying.in_flight.stop()


async def test_an_entry_in_pieces_leaves_with_the_last_of_them():
    flying, future = Flying(), asyncio.get_running_loop().create_future()
    whole = Entry(0, 2)
    pieces = [Entry(0, 1, [(future, 0)]), Entry(1)]
    flying.all_entered(whole)
    flying.in_flight.replace(whole, pieces)  # type: ignore[arg-type]
    assert all(entry in flying.in_flight for entry in (whole, *pieces))
    flying.acknowledge(pieces[0])
    assert future.result().offset == 100
    assert len(flying.in_flight) == 1
    assert flying.batcher.floor == 0
    flying.acknowledge(pieces[1])
    assert not len(flying.in_flight)
    assert flying.batcher.floor == 2
    assert not flying.in_flight.pieces
    flying.in_flight.stop()


@pytest.mark.parametrize("split", [False, True])
def test_what_is_out_of_time_fails_once(split: bool):
    """Its pieces fail in its place; a receipt that comes later changes nothing."""

    async def body() -> None:
        flying = Flying(send_timeout=5.0)
        whole = Entry(0, 2)
        flying.enter(whole)
        await asyncio.sleep(1)
        later = Entry(2)
        flying.enter(later)
        pieces = [Entry(0), Entry(1)] if split else [whole]
        if split:
            flying.in_flight.replace(whole, pieces)  # type: ignore[arg-type]
        await asyncio.sleep(4.5)
        assert [type(e) for e in flying.failed] == [TimeoutError]
        assert (flying.expired, len(flying.in_flight)) == (1, 1)
        flying.acknowledge(*pieces)
        assert flying.in_flight.messages_acknowledged == 0
        await asyncio.sleep(1)
        assert (flying.expired, len(flying.in_flight)) == (2, 0)

    run_virtual(body())


async def test_a_flush_waits_for_what_entered_before_it():
    flying, first, second = Flying(), Entry(0), Entry(1)
    flying.enter(first)
    flush = asyncio.ensure_future(flying.in_flight.flushed())
    await asyncio.sleep(0)
    flying.enter(second)
    flying.acknowledge(second)
    await asyncio.sleep(0)
    assert not flush.done()
    flying.enter(Entry(2))
    flying.acknowledge(first)
    await asyncio.wait_for(flush, 60)
    assert len(flying.in_flight) == 1
    flying.in_flight.stop()


@pytest.mark.parametrize("leave", [lambda f, e: f.acknowledge(e), lambda f, e: f.refuse(LOST, e)], ids=["ack", "fail"])
async def test_room_comes_when_entries_leave(leave: Callable[[Flying, Entry], None]):
    flying, entry = Flying(), Entry(0)
    flying.enter(entry)
    flying.batcher.pending_bytes = 1 << 20
    room = asyncio.ensure_future(flying.in_flight.wait_room())
    await asyncio.sleep(0)
    assert not room.done()
    flying.batcher.pending_bytes = 0
    leave(flying, entry)
    await asyncio.wait_for(room, 60)
    flying.in_flight.stop()
