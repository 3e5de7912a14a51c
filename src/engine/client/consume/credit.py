"""How much each attachment of a consumer may be sent ahead: its part of what the consumer may hold."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from engine.client.base.memory import WINDOW_MIN, ClientMemory
from engine.client.consume.attachment import Attachment
from engine.limits import READ_BLOCK_SIZE

Window = tuple[int, int]  # messages, bytes of entries

_SIZE_MIN = READ_BLOCK_SIZE // 4
_BURST_MAX = 16  # attachments that are let in within
_BURST_S = 0.005


class Budget:
    """What a consumer may hold, over all its attachments, in however many topics these are. Loop thread only.

    `whole`: messages and bytes. `size_min`: bytes that each attachment gets at least. `expected`: so many attachments
    there will be, which are reckoned with before they are there. `memory`: what it is a part of.
    """

    def __init__(
        self, whole: Window, size_min: int = _SIZE_MIN, expected: int = 1, memory: ClientMemory | None = None
    ) -> None:
        self.whole = whole
        self._memory = memory
        self.expected = expected
        self._size_min = size_min
        self._attachments = 0

    @property
    def shares(self) -> int:
        """In how many parts it is cut."""
        return max(self._attachments, self.expected)

    @property
    def size(self) -> int:
        """Bytes that it is now: others may need theirs."""
        return self.whole[1] if self._memory is None else min(self.whole[1], self._memory.window)

    @property
    def state(self) -> Window:
        """What parts follow from."""
        return self.shares, self.size

    @property
    def part(self) -> Window:
        """Of one attachment."""
        shares, size = self.state
        least = min(self._size_min, max(size // 2, WINDOW_MIN))
        return max(self.whole[0] // shares, 1), max(size // shares, least)

    def recount(self, before: int, now: int) -> int:
        """Somebody had so many attachments, and has so many now; the latter."""
        self._attachments += now - before
        return now

    def hold(self, before: int, now: int) -> int:
        """Somebody held so many bytes, and holds so many now; the latter."""
        return now

    def admit(self, attachment: Attachment) -> None:
        """It has begun: it gets its part."""
        attachment.window = self.part
        attachment.grant(*attachment.window)

    def widen(self, attachments: Collection[Attachment]) -> Window:
        """Grant what the parts have grown by, as others have gone. Returns the smallest window, which may be wider as
        well.
        """
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
        """Grant what was consumed; less where the attachment's window is wider than its part is now: others came."""
        window, (most, most_size) = attachment.window, self.part
        if window is not None and (window[0] > most or window[1] > most_size):
            less, less_size = min(messages, max(window[0] - most, 0)), min(size, max(window[1] - most_size, 0))
            attachment.window = window[0] - less, window[1] - less_size
            messages, size = messages - less, size - less_size
        self._grant(attachment, messages, size)

    def _grant(self, attachment: Attachment, messages: int, size: int) -> None:
        attachment.grant(messages, size)


class Gate(Budget):
    """The budget of many attachments whose parts are smaller than one entry, and brokers send whole entries.

    So it looks at what is really held. When that is all there may be, attachments wait for credit in a line; and they
    get it a few at a time, since what each of them brings is not known before it is there.
    """

    def __init__(self, whole: Window, expected: int = 1, memory: ClientMemory | None = None) -> None:
        super().__init__(whole, 1, expected, memory)
        self._held = 0
        self._waiting: dict[Attachment, Window] = {}  # what they are to be granted
        self._burst = 0  # so many were let in a moment ago
        self._timer: asyncio.TimerHandle | None = None

    def hold(self, before: int, now: int) -> int:
        """When less is held, others are let in."""
        self._held += now - before
        if self._waiting and now < before:
            self._let_in()
        return now

    def admit(self, attachment: Attachment) -> None:
        """In its turn, which is at once when few come together."""
        self._waiting.pop(attachment, None)  # of before it was lost
        attachment.window = self.part
        self._wait(attachment, *attachment.window)

    def _grant(self, attachment: Attachment, messages: int, size: int) -> None:
        if self._waiting or 2 * self._held >= self.size:
            self._wait(attachment, messages, size)
        else:
            attachment.grant(messages, size)

    def _wait(self, attachment: Attachment, messages: int, size: int) -> None:
        before = self._waiting.get(attachment, (0, 0))
        self._waiting[attachment] = before[0] + messages, before[1] + size
        self._let_in()

    def _let_in(self) -> None:
        while self._waiting and self._held < self.size and self._burst < _BURST_MAX:
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
