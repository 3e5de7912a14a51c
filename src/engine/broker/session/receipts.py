"""`Receipts`: what a client hears of what it has sent, in one frame where much is told at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec.structs import replace

from engine.wire.commands import SendReceipt

if TYPE_CHECKING:
    from engine.broker.session.connection import Connection

ENTRIES_MAX = 4096  # of one frame, but for one receipt


class Receipts:
    """Of one connection. Loop thread only."""

    __slots__ = ("_connection", "_kept", "_more")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._kept: list[SendReceipt] | None = None  # to be sent together
        self._more = False  # are due behind those

    def tell(self, receipt: SendReceipt) -> None:
        """Send it, or keep it until the turn of the loop is over."""
        if self._kept is None:
            self._connection.send(receipt)
        else:
            self._kept.append(receipt)

    def gather(self) -> None:
        """What is told in this turn of the loop goes together, with what is told in the next by what is due now."""
        if self._kept is None:
            self._kept = []
            asyncio.get_running_loop().call_soon(self._send)
        else:
            self._more = True

    def _send(self) -> None:
        if self._more:
            self._more = False
            asyncio.get_running_loop().call_soon(self._send)
            return
        kept, self._kept = self._kept or [], None
        for first, *more in _frames(kept):
            self._connection.send(replace(first, more=[*more]))


def _frames(receipts: list[SendReceipt]) -> Iterator[list[SendReceipt]]:
    """As many as one frame takes."""
    frame: list[SendReceipt] = []
    entries = 0
    for receipt in receipts:
        entries += len(receipt.sequences)
        if frame and entries > ENTRIES_MAX:
            yield frame
            frame, entries = [], len(receipt.sequences)
        frame.append(receipt)
    if frame:
        yield frame
