"""`LoadReports`: a segment's owner writes the segment's load to the metadata store when it has changed (PIP-483).

One timer samples all segments of a broker from counters that exist anyway. A segment under steady load writes once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

from engine.broker.hosting.ownership import Owner
from engine.broker.pools.rates import Counts, Window
from engine.errors import AlreadyClosedError, CorruptionError, EngineError
from engine.metadata import keys
from engine.metadata.store import ABSENT, ConflictError, MetadataStore, OutcomeUnknownError
from engine.model.autoscale import AutoScalePolicy
from engine.model.load import SegmentLoadStats
from engine.model.names import TopicName

if TYPE_CHECKING:
    from engine.broker.segment.hosted import HostedSegment

log = logging.getLogger(__name__)

_POLICY_S = 60.0  # a topic's policy is read again after so long
_WRITES_AT_ONCE = 256  # the store commits concurrent writes together


class SegmentLoadReporter:
    """One open, active segment: its rolling rates, and its load record."""

    __slots__ = ("_counts", "_key", "_known", "_metadata", "_now", "_resting", "_version", "_window", "_written",
                 "hosted", "interval", "sampled", "threshold")  # fmt: skip

    def __init__(
        self, hosted: HostedSegment, metadata: MetadataStore, interval: float, threshold: float, now: float
    ) -> None:
        self.hosted = hosted
        self.interval = interval  # as the policy of its topic has them
        self.threshold = threshold
        self.sampled = now
        self._metadata = metadata
        self._key = keys.load(hosted.name)
        self._counts = _counts(hosted)
        self._window = Window(now, self._counts)
        self._now = SegmentLoadStats()
        self._resting = False  # no traffic within the window, and the record is zero
        # The record as last read or written here.
        self._known = False
        self._written: SegmentLoadStats | None = None
        self._version: int | None = None

    @property
    def over(self) -> bool:
        """Whether the segment is sealed, or closed here."""
        return self.hosted.closed or self.hosted.segment.sealed

    @property
    def silent(self) -> bool:
        """Whether the record, as known here, is zero."""
        return self._known and self._written is not None and self._written.silent

    @property
    def idle(self) -> bool:
        """Whether there was no traffic within the window, as of the last sample."""
        return self._now.silent

    @property
    def now(self) -> SegmentLoadStats:
        """The last sample."""
        return self._now

    @property
    def rests(self) -> bool:
        """Whether there has been no traffic for longer than the window: no sample is needed."""
        return self._resting and _counts(self.hosted) == self._counts

    def sample(self, now: float, before: float) -> bool:
        """Sample the counters; returns whether to write. `before`: the time of the last sample."""
        if self._resting:
            self._window.rest(before)
        self._counts = _counts(self.hosted)
        self.sampled = now
        self._now = SegmentLoadStats(*self._window.sample(now, self._counts))
        self._resting = self.idle and self.silent
        return not self._known or self._written is None or self._now.differs(self._written, self.threshold)

    async def write(self) -> None:
        """Write the sample if the record differs. A failure is left to the next sample."""
        try:
            if not self._known:
                await self._read()
            if self._written is None or self._now.differs(self._written, self.threshold):
                await self._put()
        except (ConflictError, OutcomeUnknownError):
            self._known = False  # written by another owner, or perhaps by this one: read it before the next sample
        except AlreadyClosedError:
            return
        except EngineError as e:
            self._known = False
            log.warning("the load of %s was not reported: %s", self.hosted.name, e)

    async def farewell(self) -> bool:
        """Write zero load for a segment closed as idle, unless it was lost, deleted or claimed since.

        False: the write failed and is to be retried.
        """
        if self._version is None:
            return True
        try:
            owner = Owner.of(await self._metadata.newest.get(keys.segment(self.hosted.name)))
            lone = self.hosted.segment.lease is None  # no other broker can own it
            if owner.term != self.hosted.term or not (lone or owner.url is None):
                return True
            self._now = SegmentLoadStats()
            await self._metadata.put(self._key, self._now.to_json(), self._version)
        except (ConflictError, AlreadyClosedError):
            return True
        except (OutcomeUnknownError, EngineError):
            return False
        return True

    async def _read(self) -> None:
        """Read an earlier owner's record: an unchanged load is not rewritten, which would renew its age."""
        record = await self._metadata.newest.get(self._key)
        self._written, self._version = None, None
        if record is not None:
            self._version = record.stat.version
            try:
                self._written = SegmentLoadStats.from_json(record.value)
            except CorruptionError as e:
                log.warning("the load record of %s is unreadable and will be rewritten: %s", self.hosted.name, e)
        self._known = True

    async def _put(self) -> None:
        lease = self.hosted.segment.lease
        if self.over or (lease is not None and not lease.held):
            return
        stats = self._now
        stat = await self._metadata.put(self._key, stats.to_json(), ABSENT if self._version is None else self._version)
        self._written, self._version = stats, stat.version


class LoadReports:
    """The reporters of all open, active segments, and their common timer."""

    def __init__(
        self,
        segments: Iterable[HostedSegment],
        metadata: MetadataStore,
        *,
        interval: float,
        threshold: float,
        loaded: Callable[[TopicName], None] = lambda topic: None,
        policy: Callable[[TopicName], Awaitable[AutoScalePolicy]] | None = None,
    ) -> None:
        """`interval`: seconds between two samples. `threshold`: the relative change of a rate that is written.
        `policy`: of a topic, which may say both otherwise; read for topics in use, once in _POLICY_S. NotFoundError.

        `loaded` is called at every sample with each topic whose segments here are in use, or newly opened.
        """
        self._segments = segments
        self._loaded = loaded
        self._metadata = metadata
        self._interval = interval
        self._threshold = threshold
        self._policy = policy
        self._policies: dict[TopicName, tuple[float, float, float]] = {}  # (read at, interval, threshold)
        self._reporters: dict[HostedSegment, SegmentLoadReporter] = {}
        self._sampled_at = 0.0  # when; of the loop's clock

    async def run(self) -> None:
        """Runs until cancelled. A failed round is logged and the next one runs."""
        while True:
            await asyncio.sleep(self._pace)
            try:
                await self.report()
            except Exception:
                log.exception("sampling the load of segments failed")

    def stats(self, hosted: HostedSegment) -> SegmentLoadStats:
        """The rates of an open segment, as of the last sample; zero before the first one."""
        reporter = self._reporters.get(hosted)
        return SegmentLoadStats() if reporter is None else reporter.now

    @property
    def _pace(self) -> float:
        """Seconds until the next sample of some segment."""
        return min([self._interval, *(r.interval for r in self._reporters.values() if not r.rests)])

    async def report(self) -> None:
        """Sample the segments that are due, write the changed loads."""
        await self._read_policies()
        changed, topics = self._sample()
        for start in range(0, len(changed), _WRITES_AT_ONCE):
            await asyncio.gather(*(reporter.write() for reporter in changed[start : start + _WRITES_AT_ONCE]))
        await self._let_go()
        for topic in topics:
            self._loaded(topic)

    def _sample(self) -> tuple[list[SegmentLoadReporter], list[TopicName]]:
        """The reporters that have a load to write, and the topics in use."""
        now = asyncio.get_running_loop().time()
        before, self._sampled_at = self._sampled_at, now
        pace = self._pace
        changed: list[SegmentLoadReporter] = []
        topics: dict[TopicName, None] = {}
        for hosted in self._segments:
            reporter = self._reporters.get(hosted)
            if reporter is None:
                if not hosted.segment.sealed:
                    _, interval, threshold = self._policies.get(hosted.name.topic, (0, self._interval, self._threshold))
                    self._reporters[hosted] = SegmentLoadReporter(hosted, self._metadata, interval, threshold, now)
                    topics[hosted.name.topic] = None
            elif not reporter.rests and (reporter.interval <= pace or now - reporter.sampled >= reporter.interval):
                if reporter.sample(now, before):
                    changed.append(reporter)
                if not reporter.idle:
                    topics[hosted.name.topic] = None
        return changed, list(topics)

    async def _read_policies(self) -> None:
        """Of topics in use whose policy was not read, or not lately."""
        if self._policy is None:
            return
        now = asyncio.get_running_loop().time()
        used: dict[TopicName, list[SegmentLoadReporter]] = {}
        for reporter in self._reporters.values():
            if not reporter.rests:
                used.setdefault(reporter.hosted.name.topic, []).append(reporter)
        self._policies = {topic: known for topic, known in self._policies.items() if now - known[0] < _POLICY_S}
        for topic, reporters in used.items():
            if topic in self._policies:
                continue
            try:
                policy = await self._policy(topic)
            except EngineError:
                continue  # deleted, or the metadata store is away: the next look tries again
            interval, threshold = policy.load_report_interval, policy.load_report_rate_change_threshold
            self._policies[topic] = now, interval, threshold
            for reporter in reporters:
                reporter.interval, reporter.threshold = interval, threshold

    async def _let_go(self) -> None:
        for reporter in [r for r in self._reporters.values() if r.over]:
            if reporter.hosted.segment.sealed or reporter.silent or await reporter.farewell():
                del self._reporters[reporter.hosted]


def _counts(hosted: HostedSegment) -> Counts:
    incoming = hosted.incoming
    return incoming.messages, incoming.bytes, hosted.sent_messages, hosted.sent_bytes
