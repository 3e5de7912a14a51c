"""Which of the live brokers should own a segment that nobody owns: rendezvous hashing, pure and the same everywhere.

Every broker has a score for every name; the largest wins. When a broker leaves, only what was its own moves; when one
comes, only what moves to it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

_SCORE_SIZE = 8


def score(name: str, broker: str) -> int:
    """How much a broker is the right one for a name: 64 bits that look random and never change."""
    facts = f"{len(name)}:{name}{broker}".encode()
    return int.from_bytes(hashlib.blake2b(facts, digest_size=_SCORE_SIZE).digest(), "big")


def place(name: str, brokers: Iterable[str]) -> str | None:
    """The broker, by URL, that a name belongs to; None when there is none."""
    return max(brokers, key=lambda broker: (score(name, broker), broker), default=None)
