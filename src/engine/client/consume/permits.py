"""`Permits`: the credit for messages of a queue consumer, over all its segments and topics.

Credit for messages counts what is not acknowledged, so that what one consumer holds and does not work on goes to the
others:

    granted, not arrived  |  queued  |  with the program  |  acknowledged, or handed back
    <---- open ---------->|<------------ held ----------->|
    <--------------------- window ----------------------->

The window is a number (`receive_queue_size`), or follows the consumer's pace (pace.py).

* **Segments.** Credit is open at each segment, and cannot be taken back from one. Each gets an equal part of the
  window, at least one message. While the consumer holds something, the parts that are used up are filled as far as what
  it holds leaves room, in turn; when it holds nothing, each segment has credit for one message at least, since the next
  one may come from any of them. So up to a window, or one message of each segment, may come beyond the window.
* **Few frames.** Credit is granted when there is room for half of a narrow window, or for a quarter of a wide one.
* **Receiving without acknowledging.** A receive that waits while the program has all that has arrived is a request for
  more: what the program has then is *excused*, it does not count any more, and counts as done. Otherwise a program that
  acknowledges at the end, or works on many messages at once, would wait for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from engine import checks
from engine.client.base.options import AUTO, ConsumerOptions
from engine.client.consume.attachment import Attachment
from engine.client.consume.pace import Pace
from engine.limits import RECEIVE_QUEUE_MESSAGES

_NARROW = 32


def worth_granting(window: int) -> int:
    """For how many messages a FLOW frame is sent."""
    return (window + 1) // 2 if window < _NARROW else window // 4


class Permits:
    """`size`: the window; None: it follows the pace, measured by the clock `now`. Loop thread only.

    Attachments in `_low` have used at least half of their part, longest first. Invariant: no more is excused than is
    held. Checked by change().
    """

    __slots__ = ("_excused", "_held", "_low", "_now", "_open", "_pace", "_size")

    def __init__(self, size: int | None, now: Callable[[], float]) -> None:
        self._size = size
        self._pace = Pace(RECEIVE_QUEUE_MESSAGES)
        self._now = now
        self._held = 0
        self._excused = 0
        self._open: dict[Attachment, int] = {}
        self._low: dict[Attachment, None] = {}

    @property
    def held(self) -> int:
        """Messages that arrived, and are neither acknowledged nor handed back."""
        return self._held

    @property
    def window(self) -> int:
        """In messages."""
        return self._pace.window if self._size is None else self._size

    def admit(self, attachment: Attachment) -> None:
        """Delivery begins there."""
        self._open[attachment] = 0
        self._low[attachment] = None
        self._grant()

    def leave(self, attachment: Attachment) -> None:
        """It is lost, or left."""
        self._open.pop(attachment, None)
        self._low.pop(attachment, None)

    def arrived(self, attachment: Attachment, messages: int) -> None:
        """So much of its credit is used."""
        if attachment in self._open:
            self._open[attachment] -= messages
            if 2 * self._open[attachment] <= self._part:
                self._low[attachment] = None

    def change(self, held: int, done: int = 0) -> None:
        """The consumer holds so many more messages than before, or fewer; so many of these are done."""
        now = self._now()
        if held > 0 and not self._held:
            self._pace.begin(now)
        self._held += held
        if done:
            self._pace.done(max(done - self._excused, 0), now)
        self._excused = max(min(self._excused - done, self._held), 0)
        checks.check(0 <= self._excused <= self._held, "no more is excused than is held")
        if not self._held:
            self._pace.pause(now)
        self._grant()

    def ask(self) -> None:
        """A receive waits, and nothing is queued."""
        if self._excused < self._held:
            self._pace.done(self._held - self._excused, self._now())
            self._excused = self._held
        self._grant()

    @property
    def _part(self) -> int:
        return max(self.window // max(len(self._open), 1), 1)

    def _grant(self) -> None:
        if not self._low:
            return
        window, held = self.window, self._held - self._excused
        room = window - held
        if held and room < worth_granting(window):
            return
        part, least = self._part, 0 if held else 1
        for attachment in list(self._low):
            more = max(min(part, room), least) - self._open[attachment]
            if more > 0:
                self._open[attachment] += more
                room -= more
                attachment.announced_window = window if self._size is None else None
                attachment.grant(more, 0)
            if 2 * self._open[attachment] > part:
                del self._low[attachment]
            elif room <= 0 and not least:
                return


def permits_of(options: ConsumerOptions, loop: asyncio.AbstractEventLoop) -> Permits:
    """The credit for messages of a consumer with these options."""
    size = options.receive_queue_size
    return Permits(None if size == AUTO else size, loop.time)
