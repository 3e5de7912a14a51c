"""`Receipts`: SEND_RECEIPTs of a connection; those that a commit releases together go in one frame."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec.structs import replace

from engine.wire.commands import SendReceipt

if TYPE_CHECKING:
    from engine.broker.segment.ports import Peer

ENTRIES_MAX = 4096  # of one frame; a single receipt may have more


class Receipts:
    """The receipts of one connection. Loop thread only."""

    __slots__ = ("_connection", "_more", "kept")

    def __init__(self, connection: Peer) -> None:
        self._connection = connection
        self.kept: list[SendReceipt] | None = None  # to be sent together; None: each is sent at once
        self._more = False  # callbacks of the next turn will add some

    def add(self, receipt: SendReceipt) -> None:
        """Send it now, or with others at the end of the turn."""
        if self.kept is None:
            self._connection.send(receipt)
        else:
            self.kept.append(receipt)

    def gather(self) -> None:
        """Send receipts of this turn of the loop together, and with those of callbacks that are scheduled now."""
        if self.kept is None:
            self.kept = []
            asyncio.get_running_loop().call_soon(self._send)
        else:
            self._more = True

    def _send(self) -> None:
        if self._more:
            self._more = False
            asyncio.get_running_loop().call_soon(self._send)
            return
        kept, self.kept = self.kept or [], None
        for first, *more in _frames(kept):
            self._connection.send(replace(first, more=[*more]))


def _frames(receipts: list[SendReceipt]) -> Iterator[list[SendReceipt]]:
    """Receipts by frame, each with as many as ENTRIES_MAX allows."""
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
