"""How much each attachment of a consumer may be sent ahead: its part of what the consumer may hold."""

from __future__ import annotations

from collections.abc import Collection

from engine.client.attachment import Attachment
from engine.limits import READ_BLOCK_SIZE

Window = tuple[int, int]  # messages, bytes of entries

_SIZE_MIN = READ_BLOCK_SIZE // 4


class Budget:
    """What a consumer may hold, over all its attachments, in however many topics these are. Loop thread only.

    `whole`: messages and bytes. `size_min`: bytes that each attachment gets at least. `expected`: so many attachments
    there will be, which are reckoned with before they are there.
    """

    def __init__(self, whole: Window, size_min: int = _SIZE_MIN, expected: int = 1) -> None:
        self.whole = whole
        self.expected = expected
        self._size_min = size_min
        self._attachments = 0

    @property
    def shares(self) -> int:
        """In how many parts it is cut."""
        return max(self._attachments, self.expected)

    @property
    def part(self) -> Window:
        """Of one attachment."""
        return max(self.whole[0] // self.shares, 1), max(self.whole[1] // self.shares, self._size_min)

    def recount(self, before: int, now: int) -> int:
        """Somebody had so many attachments, and has so many now; the latter."""
        self._attachments += now - before
        return now

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
        return min((w[0] for w in granted), default=own[0]), min((w[1] for w in granted), default=own[1])

    def regrant(self, attachment: Attachment, messages: int, size: int) -> None:
        """Grant what was consumed; less where the attachment's window is wider than its part is now: others came."""
        window, (most, most_size) = attachment.window, self.part
        if window is not None and (window[0] > most or window[1] > most_size):
            less, less_size = min(messages, max(window[0] - most, 0)), min(size, max(window[1] - most_size, 0))
            attachment.window = window[0] - less, window[1] - less_size
            messages, size = messages - less, size - less_size
        attachment.grant(messages, size)
