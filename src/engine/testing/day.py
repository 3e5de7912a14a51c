"""A day of traffic in virtual time, through the real control plane: do topics find their own size, and keep still?

    python -m engine.testing.day --plot docs/images/autoscale-day.svg

Segments are simulated: each takes the traffic of the keys in its range, and reports it as an owner does, every 10
seconds, averaged over 60, when it has changed by more than a quarter. Everything else is what a broker runs.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import math
import random
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.control.base.config import ControlConfig
from engine.control.base.ports import ConsumerChannel
from engine.control.service import ScalableTopicService
from engine.errors import AuthorizationError, EngineError
from engine.limits import HASH_RING_SIZE, LOAD_WINDOW_S
from engine.metadata import keys
from engine.metadata.memory import MemoryMetadataStore
from engine.model.autoscale import AutoScalePolicy
from engine.model.layout import SegmentLayout
from engine.model.load import SegmentLoadStats
from engine.model.names import TopicName
from engine.model.subscriptions import ConsumerAssignment
from engine.testing.clock import LoopClock
from engine.testing.loop import run_virtual
from engine.testing.plainhost import PlainHost

TOPIC = TopicName.parse("orders")
HOUR_S = 3600.0
DAY_S = 24 * HOUR_S

_SAMPLE_S = 10.0  # between two samples of its segments' rates by an owner
_SAMPLES = int(LOAD_WINDOW_S / _SAMPLE_S)
_CHANGE = 0.25  # of a rate, that is worth a report
_PLOT_EVERY = 4  # minutes between two points of the picture
_RETENTION_S = 3 * HOUR_S
_MESSAGE_SIZE = 400.0
_READERS = 2  # how often each message goes out

# (hour, consumers of the busiest subscription)
_STAFF = ((0.0, 1), (7.0, 3), (10.0, 6), (13.5, 4), (18.0, 2), (22.0, 1))
# (first hour, minutes, messages per second on top)
_BURSTS = ((11.5, 15.0, 70_000.0), (19.0, 8.0, 30_000.0))
_HOT_KEY = (15.0, 90.0, 14_000.0)
_HOT_HASH = 0x9C3A
_NIGHT = (1.0, 5.0)  # nothing at all


@dataclass(frozen=True, slots=True)
class Minute:
    """The state at one moment."""

    at_s: float
    rate: float  # messages per second that producers send
    segments: int
    buckets: int
    consumers: int
    known: int  # segments in the DAG, sealed ones too
    depth: int  # the most merges behind a segment
    worst: float  # the most messages per second that one segment takes


@dataclass(slots=True)
class Day:
    """What was seen. `layouts`: every version of the topic, with the time in seconds at which it was first seen."""

    minutes: list[Minute] = field(default_factory=list)
    layouts: list[tuple[float, SegmentLayout]] = field(default_factory=list)
    splits: int = 0
    merges: int = 0
    rebuckets: int = 0
    reports: int = 0  # writes of load records
    failures: int = 0
    policy: AutoScalePolicy = field(default_factory=AutoScalePolicy)


class Traffic:
    """What producers send at a time of day: a curve, bursts, one hot key, and nothing at night."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def at(self, time_s: float) -> tuple[float, float]:
        """(messages per second over all keys evenly, messages per second of the hot key)."""
        hour = time_s % DAY_S / HOUR_S
        if _NIGHT[0] <= hour < _NIGHT[1]:
            return 0.0, 0.0
        day = max(0.0, math.sin(math.pi * (hour - 5) / 18)) ** 2
        even = 150.0 + 55_000.0 * day + sum(rate for start, minutes, rate in _BURSTS if _during(hour, start, minutes))
        start, minutes, rate = _HOT_KEY
        wobble = self._rng.uniform(0.93, 1.07)
        return even * wobble, rate * wobble if _during(hour, start, minutes) else 0.0


def _during(hour: float, start: float, minutes: float) -> bool:
    return start <= hour < start + minutes / 60


def staff(time_s: float) -> int:
    """How many consumers the busiest subscription has at a time of day."""
    hour = time_s % DAY_S / HOUR_S
    return [count for start, count in _STAFF if start <= hour][-1]


class _Owner:
    """Reports what the topic's active segments take, as `SegmentLoadReporter` does."""

    def __init__(self, store: MemoryMetadataStore, day: Day) -> None:
        self._store = store
        self._day = day
        self._taken: dict[int, deque[float]] = {}
        self._written: dict[int, SegmentLoadStats] = {}
        self.worst = 0.0

    async def sample(self, layout: SegmentLayout, even: float, hot: float) -> bool:
        """Whether there is any load."""
        rates = {s.segment_id: even * s.hash_range.width / HASH_RING_SIZE for s in layout.active}
        rates[layout.find_active_segment(_HOT_HASH).segment_id] += hot
        self.worst, loaded = max(rates.values()), False
        for segment in layout.active:
            taken = self._taken.setdefault(segment.segment_id, deque(maxlen=_SAMPLES))
            taken.append(rates[segment.segment_id])
            rate = sum(taken) / _SAMPLES  # what is younger than the window has less behind it
            size, out = rate * _MESSAGE_SIZE, rate * _READERS
            stats = SegmentLoadStats(rate, size, out, out * _MESSAGE_SIZE)
            loaded = loaded or not stats.silent
            written = self._written.get(segment.segment_id)
            if written is None or stats.differs(written, _CHANGE):
                key = keys.load(TOPIC.segment(segment.hash_range, segment.segment_id))
                await self._store.put(key, stats.to_json())
                self._written[segment.segment_id] = stats
                self._day.reports += 1
        return loaded


class _Deaf:
    """A consumer that accepts any segments."""

    role = ""

    def denial(self, reason: str) -> EngineError:
        return AuthorizationError(reason)

    def push_assignment(self, assignment: ConsumerAssignment) -> None:
        pass

    def close(self, error: EngineError) -> None:
        pass


class _Simulation:
    def __init__(self, seed: int, policy: AutoScalePolicy) -> None:
        clock = LoopClock(asyncio.get_running_loop())
        self.day = Day(policy=policy)
        self.store = MemoryMetadataStore(clock)
        self.service = ScalableTopicService(
            self.store, PlainHost(), clock=clock, broker_url="engine://day", config=ControlConfig(auto_scale=policy)
        )
        self._clock = clock
        self._traffic = Traffic(random.Random(seed))
        self._owner = _Owner(self.store, self.day)
        self._consumers = 0
        self._seen: tuple[int, SegmentLayout] | None = None  # the record's version, and what it says

    async def run(self, days: float) -> Day:
        await self.service.start()
        await self.service.create_topic(TOPIC)
        for number in range(int(days * DAY_S / _SAMPLE_S)):
            await self._step(number * _SAMPLE_S)
            await asyncio.sleep((number + 1) * _SAMPLE_S - self._clock.monotonic())
        scaled = self.service.statistics().scaling.get(str(TOPIC))
        if scaled is not None:
            counts, day = scaled.counts, self.day
            day.splits, day.merges, day.rebuckets = counts.splits, counts.merges, counts.rebuckets
            day.failures = counts.failures
        await self.service.close()
        return self.day

    async def _step(self, now_s: float) -> None:
        even, hot = self._traffic.at(now_s)
        layout = await self._layout()
        if not self.day.layouts or layout.epoch > self.day.layouts[-1][1].epoch:
            self.day.layouts.append((now_s, layout))
        if await self._owner.sample(layout, even, hot):
            self.service.scaling.loaded(TOPIC)
        if now_s % 60 == 0:
            await self._hire(staff(now_s))
            await self._prune(layout)
            self.day.minutes.append(self._minute(now_s, even + hot, layout))

    async def _layout(self) -> SegmentLayout:
        record = await self.store.newest.get(keys.topic(TOPIC))
        assert record is not None
        if self._seen is None or self._seen[0] != record.stat.version:
            self._seen = (record.stat.version, SegmentLayout.from_json(record.value))
        return self._seen[1]

    async def _hire(self, wanted: int) -> None:
        while self._consumers < wanted:
            name, channel = f"c{self._consumers:02d}", _channel()
            await self.service.register_consumer(TOPIC, "billing", name, instance=name, channel=channel)
            self._consumers += 1
        while self._consumers > wanted:
            self._consumers -= 1
            name = f"c{self._consumers:02d}"
            await self.service.unregister_consumer(TOPIC, "billing", name, instance=name)

    async def _prune(self, layout: SegmentLayout) -> None:
        """What retention does: sealed segments go when they are old, parents first."""
        before_ms = self._clock.time_ms() - round(_RETENTION_S * 1000)
        for segment in layout.segments.values():
            if segment.sealed_at_ms is not None and segment.sealed_at_ms < before_ms:
                with suppress(EngineError):
                    await self.service.prune_segment(TOPIC, segment.segment_id)

    def _minute(self, now_s: float, rate: float, layout: SegmentLayout) -> Minute:
        depth = max(layout.merge_depth(segment.segment_id) for segment in layout.active)
        active, known = len(layout.active), len(layout.segments)
        return Minute(now_s, rate, active, layout.bucket_total, self._consumers, known, depth, self._owner.worst)


def _channel() -> ConsumerChannel:
    return _Deaf()


def simulate(days: float = 1.0, seed: int = 0, policy: AutoScalePolicy | None = None) -> Day:
    """Live through so many days, from midnight on; the same seed gives the same days."""

    async def live() -> Day:
        return await _Simulation(seed, policy or AutoScalePolicy()).run(days)

    return run_virtual(live(), 2 * days * DAY_S + HOUR_S)


def changes(day: Day) -> Iterator[tuple[float, str, SegmentLayout, SegmentLayout]]:
    """(time in seconds, kind, before, after) of every change of the shape; prunes are left out."""
    for (_, before), (at_s, after) in zip(day.layouts, day.layouts[1:], strict=False):
        grown = len(after.active) - len(before.active)
        if {s.segment_id for s in before.active} != {s.segment_id for s in after.active}:
            yield at_s, "split" if grown > 0 else "merge" if grown < 0 else "rebucket", before, after


def flips(day: Day, within_s: float) -> list[int]:
    """Segments that were merged of what had been split, or split of what had been merged, so short a time before."""
    found = []
    known = {segment_id: s for _, layout in day.layouts for segment_id, s in layout.segments.items()}
    for segment in known.values():
        parents = [known[i] for i in segment.parent_ids if i in known]
        for parent in parents:
            width, own, old = segment.hash_range.width, parent.hash_range.width, parent.parent_ids
            turned = [known[i].hash_range.width for i in old if i in known]
            back = any((width - own) * (own - grand) < 0 for grand in turned)
            if back and segment.created_at_ms - parent.created_at_ms < within_s * 1000:
                found.append(segment.segment_id)
    return sorted(set(found))


def plot(day: Day, path: Path) -> None:
    """Draw rate, segments, consumers and the DAG over time. Needs matplotlib (the extra `docs`)."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    mpl.rcParams.update({"svg.hashsalt": "day", "font.size": 9, "svg.fonttype": "none", "path.simplify_threshold": 0.5})
    figure, (rates, sizes, dag) = pyplot.subplots(3, 1, sharex=True, figsize=(10, 7), height_ratios=(3, 3, 2))
    minutes = day.minutes[::_PLOT_EVERY]
    hours = [minute.at_s / HOUR_S for minute in minutes]
    rates.fill_between(hours, [m.rate / 1000 for m in minutes], color="#9ec5e8", label="whole topic")
    rates.plot(hours, [m.worst / 1000 for m in minutes], color="#1f4e79", lw=1, label="busiest segment")
    limit = day.policy.split_msg_rate_in_threshold / 1000
    rates.axhline(limit, color="#c0392b", lw=0.8, ls="--", label="split threshold of a segment")
    rates.set_ylabel("thousand messages/s in")
    _steps(sizes, hours, [m.segments for m in minutes], "#1e8449", "active segments")
    _steps(sizes, hours, [m.consumers for m in minutes], "#b9770e", "consumers")
    _steps(sizes, hours, [m.buckets for m in minutes], "#7d3c98", "entry buckets")
    _steps(dag, hours, [m.known for m in minutes], "#555555", "segments in the DAG")
    _steps(dag, hours, [m.depth for m in minutes], "#c0392b", "merge depth")
    dag.set_xlabel("hour")
    dag.set_xticks(range(0, int(hours[-1]) + 2, 3))
    for axis in (rates, sizes, dag):
        axis.grid(alpha=0.25)
        axis.legend(loc="upper left", fontsize=8)
        axis.set_ylim(bottom=0)
        axis.set_xlim(0, hours[-1])
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


def _steps(axis: Any, hours: Sequence[float], counts: Sequence[int], color: str, label: str) -> None:
    axis.step(hours, counts, where="post", color=color, lw=1.2, label=label)
    axis.set_ylabel("count")


def main(arguments: Sequence[str] | None = None) -> None:
    """Simulate some days, print what happened, and plot it if requested."""
    parser = argparse.ArgumentParser(prog="python -m engine.testing.day", description=main.__doc__)
    parser.add_argument("--days", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", type=Path, help="an SVG file to write")
    parser.add_argument("--verbose", action="store_true", help="say every change")
    chosen = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO if chosen.verbose else logging.WARNING, format="%(message)s")
    day = simulate(chosen.days, chosen.seed)
    most = max(minute.segments for minute in day.minutes)
    last = day.minutes[-1]
    done = f"{day.splits} splits, {day.merges} merges, {day.rebuckets} rebuckets, {day.reports} load reports"
    print(f"{chosen.days:g} days, seed {chosen.seed}: {done}")
    print(f"at most {most} segments, in the end {last.segments}, with {last.known} in the DAG")
    if chosen.plot is not None:
        plot(day, chosen.plot)
        print(f"drawn: {chosen.plot}")


if __name__ == "__main__":
    main()
