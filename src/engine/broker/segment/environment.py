"""`Environment`: what all open segments of a broker share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from operator import methodcaller

from engine._native.serve.landings import Landings
from engine.broker.pools.file_reads import FileReads
from engine.broker.pools.latency import BrokerMetrics
from engine.broker.pools.open_entries import OpenEntries
from engine.broker.pools.pools import PublishMemory
from engine.clock import Clock


@dataclass(frozen=True, slots=True)
class Environment:
    """`serving_since`: the loop's time since when clients of other processes may connect; None: they cannot."""

    publish: PublishMemory
    reads: FileReads
    latency: BrokerMetrics
    clock: Clock
    serving_since: Callable[[], float | None]
    open_entries: OpenEntries = field(default_factory=OpenEntries)
    landings: Landings = field(default_factory=lambda: Landings(methodcaller("answer")))  # of producers
