"""What metrics and health read of a broker."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from engine.aio.loop_lag import LoopLag
from engine.aio.semaphore import PoolStatistics
from engine.broker.cluster.membership import Membership
from engine.broker.hosting.open_segments import OpenSegments
from engine.broker.pools.latency import Measures
from engine.broker.pools.pools import BrokerMemory
from engine.broker.session.connection import Connection
from engine.broker.settings.config import BrokerConfig
from engine.broker.settings.doors import Doors
from engine.broker.upkeep.transaction_sweep import TransactionSweep
from engine.clock import Clock
from engine.control.service import ScalableTopicService
from engine.metadata.sqlite import MetadataStatistics
from engine.storage.store import SegmentStore


class Vital(Protocol):
    """What says whether a broker works. The parts are there once it has `started`."""

    @property
    def started(self) -> bool:
        """Whether its parts have been made; they stay when it closes."""

    @property
    def closing(self) -> bool:
        """Whether close() was called."""

    @property
    def trouble(self) -> str | None:
        """What only a restart can mend."""

    @property
    def clock(self) -> Clock:
        """Its time."""

    @property
    def loop_lag(self) -> LoopLag:
        """How late its event loop calls back."""

    @property
    def members(self) -> Membership:
        """Its place among the brokers."""

    @property
    def store(self) -> SegmentStore:
        """Its segments on disk."""


class Observed(Vital, Protocol):
    """What is counted, beside that."""

    @property
    def config(self) -> BrokerConfig:
        """The configuration in effect."""

    @property
    def service_url(self) -> str:
        """Where clients reach it."""

    @property
    def connections(self) -> Collection[Connection]:
        """Those that are open."""

    @property
    def doors(self) -> Doors:
        """What guards its ports."""

    @property
    def segments(self) -> OpenSegments:
        """Its open segments."""

    @property
    def measures(self) -> Measures:
        """Latencies and counts of connections."""

    @property
    def memory(self) -> BrokerMemory:
        """Its pools."""

    @property
    def service(self) -> ScalableTopicService:
        """Its control plane."""

    @property
    def transactions(self) -> TransactionSweep:
        """Its coordinator of transactions."""

    def metadata_statistics(self) -> MetadataStatistics | None:
        """Of a metadata store of its own."""

    def http_connections(self) -> PoolStatistics | None:
        """Connections to the admin API, if it is served."""
