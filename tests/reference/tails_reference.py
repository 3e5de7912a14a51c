"""Readers at the end of a segment, as plainly as it can be said: the model of `waiters.pyx` and `tails.pyx`."""

from __future__ import annotations

from dataclasses import dataclass, field

JOIN_MAX = 64 * 1024


@dataclass
class PlainWaiters:
    """Those that wait, and those that are due, each by its number."""

    per_turn: int
    waiting: list[tuple[int, int]] = field(default_factory=list)
    due: list[int] = field(default_factory=list)

    def add(self, offset: int, number: int, *, done: bool) -> None:
        if done:
            self.due.append(number)
        else:
            self.waiting.append((offset, number))

    def cancel(self, number: int) -> None:
        self.waiting = [one for one in self.waiting if one[1] != number]
        self.due = [one for one in self.due if one != number]

    def wake(self, below: int | None) -> None:
        woken = [one for one in self.waiting if below is None or one[0] < below]
        self.due += [number for _, number in woken]
        self.waiting = [one for one in self.waiting if one not in woken]

    def turn(self) -> list[int]:
        """The numbers of those that are called in this turn of the loop."""
        woken, self.due = self.due[: self.per_turn], self.due[self.per_turn :]
        return woken


@dataclass(frozen=True)
class PlainPiece:
    """Entries of one message each, of these sizes, in one file."""

    file: int
    first: int
    sizes: tuple[int, ...]

    @property
    def stop(self) -> int:
        return self.first + len(self.sizes)

    @property
    def size(self) -> int:
        return sum(self.sizes)


def read(pieces: list[PlainPiece], offset: int, bytes_max: int) -> tuple[int, int] | None:
    """The offsets [first, stop) of the block for a reader; None: it is not in memory.

    A piece is given whole, small ones with those that follow in the same file; where it is too large, or the reader
    stands within it, as many of its entries as fit, one at least.
    """
    found = next((i for i, piece in enumerate(pieces) if piece.first <= offset < piece.stop), None)
    if found is None:
        return None
    piece = last = pieces[found]
    if piece.first < offset or piece.size > bytes_max:
        size, stop = piece.sizes[offset - piece.first], offset + 1
        while stop < piece.stop and size + piece.sizes[stop - piece.first] <= bytes_max:
            size += piece.sizes[stop - piece.first]
            stop += 1
        return offset, stop
    size = piece.size
    for following in pieces[found + 1 :]:
        size += following.size
        if min(following.size, last.size) > JOIN_MAX or size > bytes_max or following.file != piece.file:
            break
        last = following
    return piece.first, last.stop
