"""`Pace`: the window of a queue consumer that follows the consumer's own pace, as a pure policy.

The window is as many messages as the consumer works off in WORK_S: enough to hide the way to the broker and back, and
little enough that the rest of the work is left to others. It is measured whenever a window's worth of messages is done,
or WORK_S of work has passed:

    window = messages done / seconds of work x WORK_S,  at least 1, at most STEP times the last one, at least 1 / STEP

*Done* are messages that were acknowledged or handed back, and those that the program keeps unacknowledged while it asks
for more. *Work* is the time in which the consumer has messages, queued or with the program. The time in which it has
none is not counted: it says how busy the topic is, and how far the broker.

It begins with one message, since nothing is known yet; a consumer that needs 10 microseconds for each has the widest
window after nine measurements. The steps are bounded both ways, so that one message that was quick, or one pause of the
machine, does not decide alone.
"""

from __future__ import annotations

WORK_S = 0.2
STEP = 4
_LEAST_S = 1e-9  # on a clock that does not move


class Pace:
    """`most`: the widest window. Times are seconds of any clock that does not go back. Loop thread only."""

    __slots__ = ("_done", "_most", "_since", "_work", "window")

    def __init__(self, most: int) -> None:
        self.window = 1
        self._most = most
        # Since the last measurement.
        self._done = 0
        self._work = 0.0
        self._since: float | None = None  # when the present stretch of work began

    def begin(self, now: float) -> None:
        """The consumer has messages."""
        if self._since is None:
            self._since = now

    def pause(self, now: float) -> None:
        """It has none."""
        if self._since is not None:
            self._work += now - self._since
            self._since = None

    def done(self, messages: int, now: float) -> None:
        """So many more are done."""
        self._done += messages
        work = self._work + (0.0 if self._since is None else now - self._since)
        if self._done < self.window and work < WORK_S:
            return
        pace = round(self._done * WORK_S / max(work, _LEAST_S))
        self.window = min(max(pace, -(-self.window // STEP), 1), STEP * self.window, self._most)
        self._done, self._work = 0, 0.0
        if self._since is not None:
            self._since = now
