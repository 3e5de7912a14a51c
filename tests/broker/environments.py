"""What open segments share, for segments without a broker."""

from __future__ import annotations

from typing import Any

from engine.broker.pools.file_reads import FileReads
from engine.broker.pools.latency import BrokerMetrics
from engine.broker.pools.pools import PublishMemory
from engine.broker.segment.environment import Environment
from engine.broker.segment.hosted import HostedSegment
from engine.broker.transactions.buffer import TransactionBuffer
from engine.clock import Clock
from engine.limits import MIB


def environment(clock: Clock) -> Environment:
    return Environment(PublishMemory(MIB), FileReads(lambda: False), BrokerMetrics(clock), clock, lambda: None)


def hosted_segment(spec: Any, segment: Any, clock: Clock) -> HostedSegment:
    """A segment without transactions."""
    return HostedSegment(spec, segment, 1, environment(clock), _no_buffer)


async def _no_buffer(hosted: HostedSegment) -> TransactionBuffer:
    raise AssertionError(f"{hosted.name} has no transactions")
