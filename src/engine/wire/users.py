"""Users of this machine, by whose ids the ends of a Unix socket know each other."""

from __future__ import annotations

import pwd

from engine.errors import InvalidArgumentError


def user_id(text: str) -> int:
    """The id of a user by name, or by its number. Raises InvalidArgumentError."""
    if text.isascii() and text.isdecimal() and len(text) <= len(str(2**32)):
        return int(text)
    try:
        return pwd.getpwnam(text).pw_uid
    except KeyError:
        raise InvalidArgumentError(f"user must be one of this machine, or a number, got {text!r:.80}") from None
