"""Chooses brokers for names without one: rendezvous hashing, bounded by load; pure.

Every broker has a score for every name; the largest wins. When a broker leaves, only its own names move; when one
joins, only the names move that it wins. place() is that, and gives the same on all brokers.

Scores alone leave some brokers with much and some with nothing, so spread() bounds them: a broker that has more load
than the least loaded one, and a little more, is passed over. Its result depends on the loads as they are known, so it
is for a decision that is recorded (`broker/hosting/ownership.py`), not for one that every broker makes again.

Load is counted in units: 1 for a segment that is open, 1 for 10,000 messages per second, 1 for 1 MiB per second; in and
out count the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from engine.model.load import SegmentLoadStats

OPEN = 1.0  # units, of a segment without traffic
SPARE = 0.1  # of the mean load: how much more than the least loaded broker one may have, and still get a name

_MESSAGES_PER_UNIT = 10_000.0  # per second
_BYTES_PER_UNIT = 1024.0 * 1024.0
_SCORE_SIZE = 8


def score(name: str, broker: str) -> int:
    """The rank of a broker for a name: 64 pseudo-random bits that never change."""
    facts = f"{len(name)}:{name}{broker}".encode()
    return int.from_bytes(hashlib.blake2b(facts, digest_size=_SCORE_SIZE).digest(), "big")


def place(name: str, brokers: Iterable[str]) -> str | None:
    """The URL of the broker that a name belongs to; None without brokers."""
    return max(brokers, key=lambda broker: (score(name, broker), broker), default=None)


def spread(weights: Mapping[str, float], loads: Mapping[str, float]) -> dict[str, str]:
    """{name: URL of its broker}, one name after the other: the best score among brokers below the bound.

    `weights`: what each name will add, above 0. `loads`: of the brokers that may be chosen; without any, {}. The bound
    is the least load and SPARE of the mean more, at least the weight of the name: so idle segments are dealt out
    evenly, and where there is much load, few names are passed on for little of it.
    """
    if not loads:
        return {}
    taken, chosen = dict(loads), {}
    spare = SPARE * (sum(taken.values()) + sum(weights.values())) / len(taken)
    for name, weight in weights.items():
        bound = min(taken.values()) + max(spare, weight)
        broker = place(name, [broker for broker, load in taken.items() if load < bound])
        assert broker is not None, "the least loaded broker is below the bound"
        chosen[name] = broker
        taken[broker] += weight
    return chosen


def traffic(stats: SegmentLoadStats) -> float:
    """The units of these rates."""
    messages, size = stats.msg_rate_in + stats.msg_rate_out, stats.bytes_rate_in + stats.bytes_rate_out
    return messages / _MESSAGES_PER_UNIT + size / _BYTES_PER_UNIT
