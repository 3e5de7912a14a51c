"""Which segments to move from which broker to which: pure, decided on loads in units (`placement.py`).

The rules, and what each prevents:

* Guard: nothing moves between two brokers that are both within `guard` of the mean. [moves that follow the noise of
  rates; moves that a third broker is the reason for]
* A segment goes from a broker above the mean to one below it, and only if it is at most three quarters of the gap
  between them: the gap at least halves. [a segment that makes its new broker the overloaded one, and comes back; a hot
  segment, larger than the gap, stays, and the others leave]
* Cooldown: a segment that has its owner for less than `cooldown` stays. [one segment that pays for every imbalance]
* At most `moves_max` moves a round, and the next round sees the loads that they made. [everything moving at once]
* Of the segments that may go, the one next to half the gap goes first. [many moves where one does]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

_GAP_PART_MAX = 0.75


@dataclass(frozen=True, slots=True)
class BalanceRules:
    """`guard`: a part of the mean load. `cooldown`: seconds."""

    guard: float
    cooldown: float
    moves_max: int


@dataclass(frozen=True, slots=True)
class Holding:
    """A segment at its owner. `load`: in units. `held_s`: seconds since the owner got it."""

    segment: str
    load: float
    held_s: float


@dataclass(frozen=True, slots=True)
class Move:
    """One segment from one broker to another, by URL."""

    segment: str
    source: str
    target: str
    load: float


def imbalance(loads: Iterable[float]) -> float:
    """By how much of the mean the most loaded broker is above it; 0 without load."""
    found = list(loads)
    total = sum(found)
    return max(found) * len(found) / total - 1 if total else 0.0


def givers(loads: Mapping[str, float], guard: float) -> list[str]:
    """The brokers that segments may be taken from, the most loaded first; none while all are within the guard."""
    if len(loads) < 2:
        return []
    mean = sum(loads.values()) / len(loads)
    if all(abs(load - mean) <= guard * mean for load in loads.values()):
        return []
    return sorted((url for url, load in loads.items() if load > mean), key=lambda url: (-loads[url], url))


def plan(loads: Mapping[str, float], holdings: Mapping[str, Sequence[Holding]], rules: BalanceRules) -> list[Move]:
    """The moves of one round, in order. `loads`: of all brokers that take segments. `holdings`: of the givers."""
    now = dict(loads)
    rest = {url: [h for h in held if h.held_s >= rules.cooldown] for url, held in holdings.items()}
    moves: list[Move] = []
    while len(moves) < rules.moves_max and (move := _next(now, rest, rules.guard)) is not None:
        moves.append(move)
        now[move.source] -= move.load
        now[move.target] += move.load
        rest[move.source] = [h for h in rest[move.source] if h.segment != move.segment]
    return moves


def _next(loads: Mapping[str, float], holdings: Mapping[str, Sequence[Holding]], guard: float) -> Move | None:
    """From the most loaded broker that has a segment to give, to the least loaded one that gains by it."""
    sources = givers(loads, guard)
    mean = sum(loads.values()) / max(len(loads), 1)
    targets = sorted((url for url, load in loads.items() if load < mean), key=lambda url: (loads[url], url))
    for source in sources:
        for target in targets:
            if loads[source] - mean <= guard * mean and mean - loads[target] <= guard * mean:
                continue
            gap = loads[source] - loads[target]
            fitting = [h for h in holdings.get(source, ()) if 0 < h.load <= _GAP_PART_MAX * gap]
            if fitting:
                best = min(fitting, key=lambda h: (abs(gap / 2 - h.load), h.segment))
                return Move(best.segment, source, target, best.load)
    return None
