"""How much each attachment of a consumer may be sent ahead: its part of what the consumer may hold."""

from __future__ import annotations

from collections.abc import Collection

from engine.client.attachment import Attachment
from engine.limits import READ_BLOCK_SIZE

Window = tuple[int, int]  # messages, bytes of entries


def part(whole: Window, attachments: int) -> Window:
    """Of one of so many attachments."""
    share = max(attachments, 1)
    return max(whole[0] // share, 1), max(whole[1] // share, READ_BLOCK_SIZE // 4)


def widen(attachments: Collection[Attachment], whole: Window) -> Window:
    """Grant what the parts have grown by, as others have gone. Returns the smallest window, which may be wider as well.

    Nothing is taken back where there are more now: what comes later is granted less.
    """
    messages, size = own = part(whole, len(attachments))
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
