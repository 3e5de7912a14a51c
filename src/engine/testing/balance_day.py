"""A day of traffic over several brokers: do the ones that join get their share, and do segments keep still?

    python -m engine.testing.balance_day

Segments and brokers are simulated: each topic has a day of its own, with bursts and a hot segment, and each broker says
its load as a broker does, every 10 seconds, averaged over 60, when it has changed by more than a tenth. Brokers join,
leave in order, and die. Where segments go is decided by what a broker runs: `control/policy`.
"""

from __future__ import annotations

import argparse
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, fields

from engine.control.policy.balance import BalanceRules, Holding, Move, givers, imbalance, plan
from engine.control.policy.placement import OPEN, spread, traffic
from engine.limits import LOAD_WINDOW_S
from engine.model.load import SegmentLoadStats
from engine.testing.day import DAY_S, HOUR_S, Traffic

RULES = BalanceRules(guard=0.2, cooldown=600.0, moves_max=4)
INTERVAL_S = 30.0
TOPICS = 12
SEGMENTS = 6  # of each topic

# (hour, what happens, the broker)
EVENTS = (
    (0.0, "join", "b1"), (0.0, "join", "b2"), (0.0, "join", "b3"), (9.0, "join", "b4"), (10.0, "join", "b5"),
    (13.0, "die", "b2"), (13.5, "join", "b2"), (18.0, "drain", "b5"), (20.0, "drain", "b4"), (22.0, "die", "b1"),
    (22.1, "join", "b1"),
)  # fmt: skip

_SAMPLE_S = 10.0
_SAMPLES = int(LOAD_WINDOW_S / _SAMPLE_S)
_CHANGE = 0.1  # of a broker's traffic, that is worth a write
_HOT = 3  # every so many topics, one segment takes half the traffic
_MESSAGE_SIZE = 400.0
_READERS = 2  # how often each message goes out


@dataclass(slots=True)
class Segment:
    """`held_since`: when its owner got it. `moved`: (time, from, to) of each move by the balancer."""

    name: str
    owner: str
    held_since: float
    rates: deque[float] = field(default_factory=lambda: deque(maxlen=_SAMPLES))
    moved: list[tuple[float, str, str]] = field(default_factory=list)

    @property
    def stats(self) -> SegmentLoadStats:
        """Over the window, as its owner reports it."""
        rate = sum(self.rates) / max(len(self.rates), 1)
        out = rate * _READERS
        return SegmentLoadStats(rate, rate * _MESSAGE_SIZE, out, out * _MESSAGE_SIZE)

    @property
    def load(self) -> float:
        """In units."""
        return OPEN + traffic(self.stats)


@dataclass(slots=True)
class BalanceDay:
    """What was seen. `rounds`: (time, imbalance by the true loads, brokers) before each round."""

    moves: list[tuple[float, Move]] = field(default_factory=list)
    rounds: list[tuple[float, float, int]] = field(default_factory=list)
    shares: dict[float, dict[str, float]] = field(default_factory=dict)  # of the load, by broker, every quarter hour
    segments: dict[str, Segment] = field(default_factory=dict)

    def flips(self, within_s: float) -> list[str]:
        """Segments that came back to a broker which they had left so short a time before."""
        return sorted(
            segment.name
            for segment in self.segments.values()
            for i, (left_at, source, _) in enumerate(segment.moved)
            if any(to == source and at - left_at < within_s for at, _, to in segment.moved[i + 1 :])
        )


class _Simulation:
    def __init__(self, seed: int, rules: BalanceRules) -> None:
        self.day = BalanceDay()
        self._rng = random.Random(seed)
        self._rules = rules
        self._traffic = [Traffic(random.Random(f"{seed}/{i}")) for i in range(TOPICS)]
        self._shift = [self._rng.uniform(0, 4 * HOUR_S) for _ in range(TOPICS)]
        self._scale = [self._rng.choice((0.1, 0.3, 1.0)) for _ in range(TOPICS)]
        self._said: dict[str, SegmentLoadStats] = {}  # by live broker
        self._names = [[f"t{topic}-{i}" for i in range(SEGMENTS)] for topic in range(TOPICS)]

    def run(self, days: float) -> BalanceDay:
        events = [(hour * HOUR_S, what, broker) for hour, what, broker in EVENTS]
        for step in range(int(days * DAY_S / _SAMPLE_S)):
            now_s = step * _SAMPLE_S
            while events and events[0][0] <= now_s:
                _, what, broker = events.pop(0)
                self._happen(what, broker)
            self._place(now_s, [name for names in self._names for name in names if self._owner(name) not in self._said])
            self._sample(now_s)
            if now_s % INTERVAL_S == 0:
                self._round(now_s)
            if now_s % (HOUR_S / 4) == 0:
                loads = self._true_loads()
                self.day.shares[now_s] = {url: load / sum(loads.values()) for url, load in loads.items()}
        return self.day

    def _happen(self, what: str, broker: str) -> None:
        if what == "join":
            self._said[broker] = SegmentLoadStats()
        else:
            del self._said[broker]

    def _owner(self, name: str) -> str | None:
        segment = self.day.segments.get(name)
        return None if segment is None else segment.owner

    def _place(self, now_s: float, names: Sequence[str]) -> None:
        """As the brokers that they are left to by hashing and bound."""
        segments = self.day.segments
        for name in names:
            loads = self._known_loads()
            weight = segments[name].load if name in segments else OPEN
            owner = spread({name: weight}, loads)[name]
            if name in segments:
                segments[name].owner, segments[name].held_since = owner, now_s
            else:
                segments[name] = Segment(name, owner, now_s)

    def _sample(self, now_s: float) -> None:
        for topic, names in enumerate(self._names):
            even, hot = self._traffic[topic].at(max(0.0, now_s + self._shift[topic]))
            total, part = (even + hot) * self._scale[topic], 1 / SEGMENTS
            for i, name in enumerate(names):
                share = part if topic % _HOT else (0.5 if i == 0 else 0.5 / (SEGMENTS - 1))
                self.day.segments[name].rates.append(total * share * self._rng.uniform(0.9, 1.1))
        for broker, said in self._said.items():
            mine = [segment.stats for segment in self.day.segments.values() if segment.owner == broker]
            now = SegmentLoadStats(*(sum(one.rate(rate.name) for one in mine) for rate in fields(SegmentLoadStats)))
            if now.differs(said, _CHANGE):
                self._said[broker] = now

    def _known_loads(self) -> dict[str, float]:
        counts = dict.fromkeys(self._said, 0)
        for segment in self.day.segments.values():
            if segment.owner in counts:
                counts[segment.owner] += 1
        return {broker: OPEN * counts[broker] + traffic(said) for broker, said in self._said.items()}

    def _true_loads(self) -> dict[str, float]:
        loads = dict.fromkeys(self._said, 0.0)
        for segment in self.day.segments.values():
            loads[segment.owner] += segment.load
        return loads

    def _round(self, now_s: float) -> None:
        true = self._true_loads()
        self.day.rounds.append((now_s, imbalance(true.values()), len(true)))
        loads = self._known_loads()
        holdings = {
            url: [Holding(s.name, s.load, now_s - s.held_since) for s in self.day.segments.values() if s.owner == url]
            for url in givers(loads, self._rules.guard)
        }
        loads |= {url: sum(holding.load for holding in held) for url, held in holdings.items()}
        for move in plan(loads, holdings, self._rules):
            segment = self.day.segments[move.segment]
            segment.moved.append((now_s, move.source, move.target))
            segment.owner, segment.held_since = move.target, now_s
            self.day.moves.append((now_s, move))


def simulate(days: float = 1.0, seed: int = 0, rules: BalanceRules = RULES) -> BalanceDay:
    """Live through so many days, from midnight on; the same seed gives the same days."""
    return _Simulation(seed, rules).run(days)


def main(arguments: Sequence[str] | None = None) -> None:
    """Simulate a day, and print what happened."""
    parser = argparse.ArgumentParser(prog="python -m engine.testing.balance_day", description=main.__doc__)
    parser.add_argument("--days", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(arguments)
    day = simulate(chosen.days, chosen.seed)
    above = [found for _, found, _ in day.rounds]
    print(f"{chosen.days:g} days, seed {chosen.seed}, {len(day.segments)} segments: {len(day.moves)} moves")
    print(f"{len(day.flips(HOUR_S))} came back within an hour; the most loaded broker was on average", end=" ")
    print(f"{sum(above) / len(above):.0%} above the mean")
    for hour, what, broker in EVENTS:
        nearby = [move for at, move in day.moves if hour * HOUR_S <= at < (hour + 0.5) * HOUR_S]
        print(f"{hour:5.1f} h  {broker} {what}s: {len(nearby)} moves in the half hour after it")


if __name__ == "__main__":
    main()
