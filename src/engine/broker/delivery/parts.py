"""What a consumer is sent of a block: whole entries, and parts of entries that are too large for it.

A consumer's credit counts messages, and an entry may have 65,535 of them. How many of an entry a consumer is given:

    credit for all of them                    the whole entry
    a wide window                             the whole entry: a fast consumer works it off within some milliseconds
    less                                      as many as it has credit for
    less, and its window follows its pace     a few more, where messages are so small that a part would be mostly header

A part is an entry of its own (`_native/serve/parts.pyx`), so it is sent where its bytes pay: where a consumer gets at
least half of the messages of an entry, the whole entry is sent, and names those to skip. An entry is thus sent whole
once at the most, and all that is sent of it is at most about twice its bytes, however many consumers share it.

The cost of a part is a header of 128 bytes, the producer's name and padding. `messages_worth_a_part()` says from which
number on that is at most half of what these messages take in the entry. A consumer whose window is one message is
never given more: its messages take it long, and what it holds, no other consumer gets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyroaring import BitMap64

from engine._native.format.heads import Head, entry_heads
from engine._native.format.offsets import range_set, runs
from engine._native.serve.parts import OpenEntry
from engine.broker.pools.open_entries import Closed, OpenEntries
from engine.wire.stream import Payload

if TYPE_CHECKING:
    from engine._native.serve.blocks import Block

PIECES_MAX = 16  # of an entry that cannot be opened; and parts of one entry in one frame
_OVERHEAD = 160  # bytes that a part has beside its messages
_BEYOND_WINDOW = 8  # how many windows a part of small messages may have

Taken = list[tuple[Head, BitMap64]]  # entries of one block that follow each other, and what is sent of each


def messages_worth_a_part(entry: Head) -> int:
    """How many messages make a part that takes at most 1.5 times their share of the entry's bytes."""
    return -(-2 * _OVERHEAD * (entry.last + 1 - entry.first) // (entry.stop - entry.start))


def part_of(entry: Head, found: OpenEntry | Closed, credit: int, window: int, *, paced: bool) -> int:
    """How many messages of an entry to send to a consumer that has credit for fewer than it wants."""
    if isinstance(found, Closed):  # sent whole, and once for each piece
        messages = entry.last + 1 - entry.first
        return messages if found is Closed.DAMAGED else max(credit, -(-messages // PIECES_MAX))
    if not paced or window <= 1:
        return credit
    return max(credit, min(messages_worth_a_part(entry), _BEYOND_WINDOW * window))


class _Pieces:
    """The payload of a frame, in the order of the offsets; whole entries that follow each other are one view."""

    def __init__(self, block: Block) -> None:
        self._block = block
        self._pieces: list[memoryview | bytes] = []
        self._start = self._stop = 0  # of whole entries, which are not among the pieces yet

    def add_whole(self, entry: Head) -> None:
        if entry.start != self._stop or self._start == self._stop:
            self._flush()
            self._start = entry.start
        self._stop = entry.stop

    def add_part(self, part: bytes) -> None:
        self._flush()
        self._pieces.append(part)

    def _flush(self) -> None:
        if self._start < self._stop:
            self._pieces.append(self._block.data[self._start : self._stop])
        self._start = self._stop = 0

    def payload(self) -> Payload:
        self._flush()
        return self._pieces[0] if len(self._pieces) == 1 else self._pieces


def payload_of(
    opened: OpenEntries, block: Block, taken: Taken, *, whole: bool = False
) -> tuple[Payload, list[list[int]]]:
    """The bytes to send, and the inclusive ranges of the offsets in and between them that are not to be delivered.

    `whole`: without parts of entries.
    """
    pieces, due_all, sent = _Pieces(block), BitMap64(), BitMap64()
    for entry, due in taken:
        due_all |= due
        if whole or (parts := _parts_of(opened, block, entry, due)) is None:
            sent.add_range(entry.first, entry.last + 1)
            pieces.add_whole(entry)
            continue
        sent |= due
        for part in parts:
            pieces.add_part(part)
    return pieces.payload(), runs(range_set(sent.min(), sent.max()) - due_all)


def _parts_of(opened: OpenEntries, block: Block, entry: Head, due: BitMap64) -> list[bytes] | None:
    """A part for each run of the messages that are due. None: the whole entry is sent."""
    if 2 * len(due) >= entry.last + 1 - entry.first:
        return None
    found = runs(due)
    if len(found) > PIECES_MAX or isinstance(whole := opened.open(block, entry.start, entry.stop), Closed):
        return None
    return [whole.part(first, last + 1) for first, last in found]


def payload_between(opened: OpenEntries, block: Block, start: int, stop: int) -> tuple[Payload, int, int]:
    """The bytes with the offsets `start` up to `stop`, for a consumer that reads in order; with the offsets in them.

    These are others only where the first or last entry cannot be opened: that is sent whole.
    """
    pieces, first, end = _Pieces(block), stop, start
    for entry in entry_heads(block.data):
        low, high = max(entry.first, start), min(entry.last + 1, stop)
        if low >= high:
            continue
        whole = high - low == entry.last + 1 - entry.first
        if whole or isinstance(found := opened.open(block, entry.start, entry.stop), Closed):
            low, high = entry.first, entry.last + 1
            pieces.add_whole(entry)
        else:
            pieces.add_part(found.part(low, high))
        first, end = min(first, low), max(end, high)
    return pieces.payload(), first, end
