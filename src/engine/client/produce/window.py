"""`Window`: how much a producer has in flight, bounded by time.

What is in flight waits in the connection, in the broker and for the disk, so more of it than keeps these busy adds
delay and nothing else: to each acknowledgement, and to a split, which sends again what was on its way. As BBR does for
a path through the network, the rate of delivery and the time of an idle way are measured, and

    window = rate × (TARGET_S + 2 × idle),   at least FLOOR

    rate     the highest of the last RATES measurements: bytes acknowledged from when an entry was sent to when it was
             acknowledged, over that time. The highest, since a program that sends less than it could measures less
    idle     the shortest time of the last IDLES entries that were sent while no more than the floor was in flight.
             Twice, so that the window grows where that alone is longer than the target: with a slow disk, or far away

With a floor that takes long itself, an idle way is not seen: then there are up to two floors more in flight. One entry
at a time is measured.
"""

from __future__ import annotations

from collections import deque

from engine._native.produce.outgoing import WINDOW_MIN

TARGET_S = 0.05
FLOOR = WINDOW_MIN
RATES = IDLES = 10
WOKEN_SHARE = 0.75  # of the window: what waits for room is woken below it, so that full batches are made


class Window:
    """Without I/O; times are of one clock, in seconds. `size`: bytes that may be in flight; `used`: that are, or wait
    to be sent; `acknowledged`: that ever were. Its owner counts both.
    """

    __slots__ = ("_began", "_begun", "_idles", "_is_idle", "_rates", "acknowledged", "measured", "size", "used")

    def __init__(self) -> None:
        self.size = FLOOR
        self.used = 0
        self.measured: object = None  # the entry; None: the next one that is sent
        self.acknowledged = 0
        self._begun = 0.0  # when the measured entry was sent,
        self._began = 0  # what was acknowledged by then,
        self._is_idle = False  # and whether there was no more than the floor before it
        self._idles: deque[float] = deque(maxlen=IDLES)
        self._rates: deque[float] = deque(maxlen=RATES)

    @property
    def is_full(self) -> bool:
        """Whether no more should be sent for now."""
        return self.used > self.size

    @property
    def has_drained(self) -> bool:
        """Whether what has waited for room should go on."""
        return self.used <= self.size * WOKEN_SHARE

    def send(self, entry: object, now: float) -> None:
        """The entry goes to the connection, and is measured."""
        self.measured = entry
        self._begun, self._began, self._is_idle = now, self.acknowledged, self.used <= FLOOR

    def end(self, now: float) -> None:
        """The measured entry was acknowledged, and so was everything before it."""
        took = max(now - self._begun, 1e-6)
        self._rates.append((self.acknowledged - self._began) / took)
        if self._is_idle:
            self._idles.append(took)
        self.measured = None
        idle = min(self._idles, default=0.0)
        self.size = max(int(max(self._rates) * (TARGET_S + 2 * idle)), FLOOR)

    def drop(self) -> None:
        """The measured entry has failed, or is sent again: its time says nothing."""
        self.measured = None
