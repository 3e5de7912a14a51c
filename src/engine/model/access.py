"""How producers share a topic."""

from __future__ import annotations

import enum

from engine.errors import InvalidArgumentError


class AccessMode(enum.StrEnum):
    """The access mode of a producer. The values are public, and stand on the wire: do not change."""

    SHARED = "shared"
    EXCLUSIVE = "exclusive"  # refused while other producers are attached
    EXCLUSIVE_WITH_FENCING = "exclusive_with_fencing"  # closes other producers
    WAIT_FOR_EXCLUSIVE = "wait_for_exclusive"  # waits until other producers are gone

    @classmethod
    def parse(cls, text: str) -> AccessMode:
        """Raises InvalidArgumentError for any other text."""
        try:
            return cls(text)
        except ValueError:
            modes = ", ".join(cls)
            raise InvalidArgumentError(f"access_mode must be one of {modes}, got {text!r:.80}") from None
