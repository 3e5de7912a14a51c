"""The credit of a queue consumer, as plainly as it can be said: the model of `permits.pyx`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction

WORK_S, STEP, NARROW = 0.2, 4, 32
LEAST_S = 1e-9


@dataclass
class PlainPace:
    """Every stretch of work is kept until it is measured."""

    most: int
    window: int = 1
    counted: int = 0
    stretches: list[float] = field(default_factory=list)
    since: float | None = None

    def begin(self, now: float) -> None:
        if self.since is None:
            self.since = now

    def pause(self, now: float) -> None:
        if self.since is not None:
            self.stretches.append(now - self.since)
            self.since = None

    def done(self, messages: int, now: float) -> None:
        self.counted += messages
        work = sum(self.stretches) + (0.0 if self.since is None else now - self.since)
        if self.counted >= self.window or work >= WORK_S:
            pace = round(self.counted * WORK_S / max(work, LEAST_S))
            narrowest = max(-(Fraction(-self.window, STEP).__floor__()), 1)
            self.window = min(max(pace, narrowest), STEP * self.window, self.most)
            self.counted, self.stretches = 0, []
            self.since = None if self.since is None else now


@dataclass
class PlainPermits:
    """Segments are numbers; `low` are those that have used half of their part, longest first.

    `grants`: (segment, messages, announced window) of each that was made.
    """

    size: int | None
    now: Callable[[], float]
    pace: PlainPace
    held: int = 0
    excused: int = 0
    open: dict[int, int] = field(default_factory=dict)
    low: list[int] = field(default_factory=list)
    grants: list[tuple[int, int, int | None]] = field(default_factory=list)

    @property
    def window(self) -> int:
        return self.pace.window if self.size is None else self.size

    @property
    def part(self) -> int:
        return max(self.window // max(len(self.open), 1), 1)

    def admit(self, segment: int) -> None:
        self.open[segment] = 0
        if segment not in self.low:
            self.low.append(segment)
        self.grant()

    def leave(self, segment: int) -> None:
        self.open.pop(segment, None)
        self.low = [one for one in self.low if one != segment]

    def arrived(self, segment: int, messages: int) -> None:
        if segment in self.open:
            self.open[segment] -= messages
            if 2 * self.open[segment] <= self.part and segment not in self.low:
                self.low.append(segment)

    def change(self, held: int, done: int = 0) -> None:
        now = self.now()
        if not self.held and held > 0:
            self.pace.begin(now)
        self.held += held
        if done:
            self.pace.done(max(done - self.excused, 0), now)
        self.excused = max(min(self.excused - done, self.held), 0)
        if not self.held:
            self.pace.pause(now)
        self.grant()

    def ask(self) -> None:
        if self.excused < self.held:
            self.pace.done(self.held - self.excused, self.now())
            self.excused = self.held
        self.grant()

    def grant(self) -> None:
        """In turn, as far as there is room; where nothing is held, one message to each that has no credit."""
        window, held = self.window, self.held - self.excused
        room, worth = window - held, -(-window // 2) if window < NARROW else window // 4
        if held and room < worth:
            return
        part, least = self.part, 0 if held else 1
        for segment in list(self.low):
            more = max(min(part, room), least) - self.open[segment]
            if more > 0:
                self.open[segment] += more
                room -= more
                self.grants.append((segment, more, window if self.size is None else None))
            if 2 * self.open[segment] > part:
                self.low.remove(segment)
            elif room <= 0 and not least:
                return
