"""Credit: how much each attachment of a consumer may be sent ahead, its part of what the consumer may hold.

Each receiver owns a `Share`, which says how many attachments it has and how many bytes it holds; the `Budget` sums
them. An attachment's window is the budget divided by the attachments, the expected ones included. A broker is granted a
whole window when the segment is attached, and afterwards what was consumed. When others come, windows shrink: less is
granted than was consumed. When others go, the difference is granted at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from engine._native.consume.receiving import Holdings, Share
from engine.client.base.memory import WINDOW_MIN, ClientMemory
from engine.client.consume.attachment import Attachment
from engine.limits import READ_BLOCK_SIZE

Window = tuple[int, int]  # messages, bytes of entries

_SIZE_MIN = READ_BLOCK_SIZE // 4
_BURST_MAX = 16  # attachments that are granted credit within
_BURST_S = 0.005


class Budget(Holdings):
    """What a consumer may hold, over all its attachments, in however many topics these are. Loop thread only.

    `whole`: messages and bytes; no messages where these are counted elsewhere (permits.py). `size_min`: the least
    number of bytes for each attachment. `expected`: the number of attachments that there will be, which count before
    they are there. `memory`: what it is a part of.

    `attachments` and `held` are the sums over all shares, each of which reports its changes.
    """

    def __init__(
        self, whole: Window, size_min: int = _SIZE_MIN, expected: int = 1, memory: ClientMemory | None = None
    ) -> None:
        self.whole = whole
        self._memory = memory
        self.expected = expected
        self._size_min = size_min

    def share(self) -> Share:
        """A new share, which has nothing yet."""
        return Share(self)

    @property
    def shares(self) -> int:
        """The number of parts."""
        return max(self.attachments, self.expected)

    @property
    def size(self) -> int:
        """Its bytes now: less than `whole` while other consumers and producers of the client need theirs."""
        return self.whole[1] if self._memory is None else min(self.whole[1], self._memory.window)

    @property
    def state(self) -> Window:
        """What parts are computed from."""
        return self.shares, self.size

    @property
    def part(self) -> Window:
        """The window of one attachment."""
        shares, size = self.state
        least = min(self._size_min, max(size // 2, WINDOW_MIN))
        messages = max(self.whole[0] // shares, 1) if self.whole[0] else 0
        return messages, max(size // shares, least)

    def admit(self, attachment: Attachment) -> None:
        """Delivery begins: grant its part."""
        attachment.window = self.part
        attachment.grant(*attachment.window)

    def widen(self, attachments: Collection[Attachment]) -> Window:
        """Grant what the parts have grown by. Returns the smallest window, which may have grown as well."""
        messages, size = own = self.part
        granted: list[Window] = []
        for attachment in attachments:
            window = attachment.window
            if window is None:
                continue
            if attachment.connected and not attachment.draining:
                wider = max(messages, window[0]), max(size, window[1])
                attachment.grant(wider[0] - window[0], wider[1] - window[1])
                attachment.window = window = wider
            granted.append(window)
        granted.append(own)  # wider ones shrink to it
        return min(w[0] for w in granted), min(w[1] for w in granted)

    def regrant(self, attachment: Attachment, messages: int, size: int) -> None:
        """Grant what was consumed; less where the attachment's window is wider than its part is now."""
        window, (most, most_size) = attachment.window, self.part
        if window is not None and (window[0] > most or window[1] > most_size):
            less, less_size = min(messages, max(window[0] - most, 0)), min(size, max(window[1] - most_size, 0))
            attachment.window = window[0] - less, window[1] - less_size
            messages, size = messages - less, size - less_size
        self._grant(attachment, messages, size)

    def _grant(self, attachment: Attachment, messages: int, size: int) -> None:
        attachment.grant(messages, size)


class Gate(Budget):
    """The budget of many attachments, whose parts are smaller than one entry; brokers send whole entries.

    So it goes by what is held. While that is the whole budget, attachments wait for credit, first come, first served.
    They get it a few at a time, since the size of what each of them brings is not known before it arrives.
    """

    def __init__(self, whole: Window, expected: int = 1, memory: ClientMemory | None = None) -> None:
        super().__init__(whole, 1, expected, memory)
        self._waiting: dict[Attachment, Window] = {}  # the credit that each is to be granted
        self._burst = 0  # granted within the last _BURST_S
        self._timer: asyncio.TimerHandle | None = None

    def change(self, held: int, attachments: int) -> None:
        """When less is held, attachments that wait get their credit."""
        super().change(held, attachments)
        if self._waiting and held < 0:
            self._let_in()

    def admit(self, attachment: Attachment) -> None:
        """Grant its part in its turn: at once when few come together."""
        self._waiting.pop(attachment, None)  # from before it was lost
        attachment.window = self.part
        self._wait(attachment, *attachment.window)

    def _grant(self, attachment: Attachment, messages: int, size: int) -> None:
        if self._waiting or 2 * self.held >= self.size:
            self._wait(attachment, messages, size)
        else:
            attachment.grant(messages, size)

    def _wait(self, attachment: Attachment, messages: int, size: int) -> None:
        before = self._waiting.get(attachment, (0, 0))
        self._waiting[attachment] = before[0] + messages, before[1] + size
        self._let_in()

    def _let_in(self) -> None:
        while self._waiting and self.held < self.size and self._burst < _BURST_MAX:
            attachment = next(iter(self._waiting))
            granted = self._waiting.pop(attachment)
            if attachment.window is not None:
                self._burst += 1
                attachment.grant(*granted)
        if self._burst and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_BURST_S, self._go_on)

    def _go_on(self) -> None:
        self._timer, self._burst = None, 0
        self._let_in()
