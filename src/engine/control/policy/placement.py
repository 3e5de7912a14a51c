"""Chooses the owner of an unowned segment among the live brokers: rendezvous hashing, pure, equal on all brokers.

Every broker has a score for every name; the largest wins. When a broker leaves, only its own names move; when one
joins, only the names move that it wins.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

_SCORE_SIZE = 8


def score(name: str, broker: str) -> int:
    """The rank of a broker for a name: 64 pseudo-random bits that never change."""
    facts = f"{len(name)}:{name}{broker}".encode()
    return int.from_bytes(hashlib.blake2b(facts, digest_size=_SCORE_SIZE).digest(), "big")


def place(name: str, brokers: Iterable[str]) -> str | None:
    """The URL of the broker that a name belongs to; None without brokers."""
    return max(brokers, key=lambda broker: (score(name, broker), broker), default=None)
