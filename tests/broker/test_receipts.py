"""What a client hears of its sends: at once, or several producers' receipts in one frame of bounded size."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engine.broker.session import receipts as module
from engine.broker.session.receipts import Receipts
from engine.wire.commands import SendReceipt


class Connection:
    """Notes what is sent."""

    def __init__(self) -> None:
        self.sent: list[SendReceipt] = []

    def send(self, header: SendReceipt) -> None:
        assert type(header) is SendReceipt
        self.sent.append(header)


@pytest.fixture
def connection() -> Connection:
    return Connection()


def receipt(producer: int, entries: int = 1) -> SendReceipt:
    numbers = list(range(entries))
    return SendReceipt(producer_id=producer, sequences=numbers, offsets=numbers, durability="fsync")


def producers(connection: Connection) -> list[list[int]]:
    """Of each frame."""
    return [[one.producer_id for one in (frame, *(frame.more or ()))] for frame in connection.sent]


async def test_a_receipt_goes_at_once(connection: Any) -> None:
    Receipts(connection).add(receipt(1))
    assert connection.sent == [receipt(1)]


async def test_those_of_a_turn_go_together_and_later_ones_at_once(connection: Any) -> None:
    receipts = Receipts(connection)
    receipts.add(receipt(1))
    receipts.gather()
    receipts.add(receipt(2))
    receipts.add(receipt(3))
    assert producers(connection) == [[1]]
    await asyncio.sleep(0)
    assert producers(connection) == [[1], [2, 3]]
    receipts.add(receipt(4))
    assert producers(connection) == [[1], [2, 3], [4]]


async def test_what_was_due_in_the_next_turn_goes_along(connection: Any) -> None:
    receipts, loop = Receipts(connection), asyncio.get_running_loop()
    loop.call_soon(receipts.add, receipt(1))
    loop.call_soon(receipts.add, receipt(2))
    receipts.gather()
    await asyncio.sleep(0)
    assert producers(connection) == [[1, 2]]


async def test_what_is_due_behind_another_gathering_goes_along_too(connection: Any) -> None:
    receipts, loop = Receipts(connection), asyncio.get_running_loop()
    for number in range(1, 4):
        loop.call_soon(receipts.add, receipt(number))
        receipts.gather()
    for _ in range(3):
        await asyncio.sleep(0)
    assert producers(connection) == [[1, 2, 3]]
    receipts.add(receipt(4))
    assert producers(connection) == [[1, 2, 3], [4]]


async def test_nothing_told_is_no_frame(connection: Any) -> None:
    Receipts(connection).gather()
    await asyncio.sleep(0)
    assert connection.sent == []


async def test_a_frame_takes_so_many_entries(connection: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ENTRIES_MAX", 4)
    receipts = Receipts(connection)
    receipts.gather()
    for one in [receipt(1, 3), receipt(2, 2), receipt(3, 2), receipt(4, 9), receipt(5)]:
        receipts.add(one)
    await asyncio.sleep(0)
    assert producers(connection) == [[1], [2, 3], [4], [5]]
