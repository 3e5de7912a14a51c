"""What a producer has in flight, as plainly as it can be said: the model of `outstanding.pyx`."""

from __future__ import annotations

from dataclasses import dataclass, field

PIECE = 10  # bytes of a piece that was acknowledged


@dataclass
class PlainEntry:
    """An entry, or what is left of it: `parts` are the pieces that it was split into."""

    name: int
    flight: int
    count: int
    pending: int
    parts: set[int] | None = None


@dataclass
class PlainOutstanding:
    """`offsets`: of each message that was answered, as (entry, index): its offset."""

    entries: list[PlainEntry] = field(default_factory=list)
    marks: list[tuple[int, int]] = field(default_factory=list)  # (flight, sequence): all below it is in these flights
    last_flight: int = 0
    floor: int = 0
    broken: bool = False
    acknowledged: int = 0
    duplicates: int = 0
    offsets: dict[tuple[int, int], int] = field(default_factory=dict)
    flushes: list[int] = field(default_factory=list)  # the flight that each waits for

    @property
    def flights(self) -> int:
        return len({entry.flight for entry in self.entries})

    @property
    def used(self) -> int:
        return sum(entry.pending for entry in self.entries)

    def enter(self, entries: list[tuple[int, int, int]]) -> None:
        self.last_flight += 1
        self.entries += [PlainEntry(name, self.last_flight, count, pending) for name, count, pending in entries]

    def all_entered(self, upto: int) -> None:
        if self.last_flight and not self.broken:
            self.marks.append((self.last_flight, upto))
            self._settle()

    def split(self, name: int, pieces: list[int]) -> None:
        self._find(name).parts = set(pieces)

    def acknowledge(self, name: int, offset: int, end: int, counts: dict[int, int]) -> None:
        """`counts`: how many messages there are in each entry and piece."""
        for entry in self.entries:
            if entry.name == name and entry.parts is None:
                self.entries.remove(entry)
                break
            if entry.parts and name in entry.parts:
                entry.parts.remove(name)
                entry.pending -= PIECE
                if not entry.parts:
                    self.entries.remove(entry)
                break
        else:
            return  # it has left before
        self.acknowledged += counts[name]
        self.duplicates += counts[name] if offset < end else 0
        for index in range(counts[name]):
            self.offsets[name, index] = offset + index if offset >= 0 else -1
        self._settle()

    def fail(self, name: int) -> None:
        found = [entry for entry in self.entries if entry.name == name]
        self.entries = [entry for entry in self.entries if entry.name != name]
        self.broken = self.broken or bool(found)
        self._settle()

    def flush(self) -> None:
        self.flushes.append(self.last_flight)

    def flushed(self, at: int) -> bool:
        return all(entry.flight > self.flushes[at] for entry in self.entries)

    def _find(self, name: int) -> PlainEntry:
        return next(entry for entry in self.entries if entry.name == name)

    def _settle(self) -> None:
        """The highest mark of which every flight has left is the floor, unless something has failed."""
        for flight, upto in self.marks:
            if not self.broken and all(entry.flight > flight for entry in self.entries):
                self.floor = upto
