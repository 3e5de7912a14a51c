"""What a client hears of its sends: at once, or several producers' receipts in one frame of bounded size."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engine.broker import receipts as module
from engine.broker.receipts import Receipts
from engine.wire.commands import Command


class Stream:
    gathered = 0

    def gather(self) -> None:
        self.gathered += 1


class Connection:
    """Notes what is sent."""

    def __init__(self) -> None:
        self.stream = Stream()
        self.closed = False
        self.sent: list[dict[str, Any]] = []

    def send(self, command: Command, header: dict[str, Any]) -> None:
        assert command is Command.SEND_RECEIPT
        self.sent.append(header)


@pytest.fixture
def connection() -> Connection:
    return Connection()


def receipt(producer: int, entries: int = 1) -> dict[str, Any]:
    return {"producer_id": producer, "sequences": list(range(entries)), "offsets": list(range(entries))}


def producers(connection: Connection) -> list[list[int]]:
    """Of each frame."""
    return [[one["producer_id"] for one in (frame, *frame.get("more", ()))] for frame in connection.sent]


async def test_a_receipt_goes_at_once(connection: Any) -> None:
    Receipts(connection).tell(receipt(1))
    assert connection.sent == [receipt(1)]
    assert not connection.stream.gathered


async def test_those_of_a_turn_go_together_and_later_ones_at_once(connection: Any) -> None:
    receipts = Receipts(connection)
    gathering = asyncio.ensure_future(receipts.gather())
    asyncio.get_running_loop().call_soon(lambda: (receipts.tell(receipt(1)), receipts.tell(receipt(2))))
    await gathering
    assert producers(connection) == [[1, 2]]
    assert connection.stream.gathered == 1
    receipts.tell(receipt(3))
    assert producers(connection) == [[1, 2], [3]]


async def test_a_frame_takes_so_many_entries(connection: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ENTRIES_MAX", 4)
    receipts = Receipts(connection)
    gathering = asyncio.ensure_future(receipts.gather())
    told = [receipt(1, 3), receipt(2, 2), receipt(3, 2), receipt(4, 9), receipt(5)]
    asyncio.get_running_loop().call_soon(lambda: [receipts.tell(one) for one in told])
    await gathering
    assert producers(connection) == [[1], [2, 3], [4], [5]]


async def test_who_is_interrupted_keeps_none_back(connection: Any) -> None:
    receipts = Receipts(connection)
    gathering = asyncio.ensure_future(receipts.gather())
    asyncio.get_running_loop().call_soon(lambda: (receipts.tell(receipt(1)), gathering.cancel()))
    with pytest.raises(asyncio.CancelledError):
        await gathering
    receipts.tell(receipt(2))
    assert producers(connection) == [[1], [2]]
