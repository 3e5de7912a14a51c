"""What metrics and health read of a broker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TYPE_CHECKING, Protocol

from engine.aio.loop_lag import LoopLag
from engine.aio.semaphore import PoolStatistics
from engine.broker.cluster.membership import Membership
from engine.broker.hosting.open_segments import OpenSegments
from engine.broker.pools.latency import BrokerMetrics
from engine.broker.pools.pools import BrokerMemory
from engine.broker.rights.rights import Rights
from engine.broker.session.connection import Connection
from engine.broker.settings.config import BrokerConfig
from engine.broker.settings.doors import Doors
from engine.broker.settings.shares import ProcessSet
from engine.broker.upkeep.backups import Backups
from engine.broker.upkeep.cluster_parts import ClusterParts
from engine.broker.upkeep.stocktaking import Stocktaking
from engine.broker.upkeep.transaction_sweep import TransactionSweep
from engine.clock import Clock
from engine.control.service import ScalableTopicService
from engine.metadata.sqlite import MetadataStatistics
from engine.storage.store import SegmentStore

if TYPE_CHECKING:
    from engine.broker.metrics.exposition import FlatFamily
    from engine.metadata.etcd.statistics import EtcdStatistics
    from engine.storage.objects.ports import ObjectStatistics

Elsewhere = Callable[[], "Awaitable[Sequence[Sequence[FlatFamily]]]"]


class Keeping(Protocol):
    """What metrics read of a broker's parts."""

    @property
    def backups(self) -> Backups:
        """What it keeps of its data directory for backups."""


class Vital(Protocol):
    """What health checks read of a broker. The parts exist once it has `started`."""

    @property
    def started(self) -> bool:
        """Whether its parts have been made; they stay when it closes."""

    @property
    def closing(self) -> bool:
        """Whether close() was called."""

    @property
    def trouble(self) -> str | None:
        """A failure that only a restart resolves; None: there is none."""

    @property
    def clock(self) -> Clock:
        """Wall clock and monotonic clock."""

    @property
    def loop_lag(self) -> LoopLag:
        """The lag of its event loop."""

    @property
    def members(self) -> Membership:
        """Its view of the cluster, with its segment owners."""

    @property
    def store(self) -> SegmentStore:
        """Its segments on disk."""


class Observed(Vital, Protocol):
    """What metrics read of a broker besides."""

    @property
    def processes(self) -> ProcessSet | None:
        """The processes of its server; None: it is the only one."""

    @property
    def families_elsewhere(self) -> Elsewhere | None:
        """The metrics of the server's other processes; None: there is none."""

    @property
    def config(self) -> BrokerConfig:
        """The configuration in effect."""

    @property
    def service_url(self) -> str:
        """The URL that clients connect to."""

    @property
    def connections(self) -> Collection[Connection]:
        """The open connections."""

    @property
    def doors(self) -> Doors:
        """Access control of its ports."""

    @property
    def rights(self) -> Rights:
        """What principals may do, and the count of what was denied."""

    @property
    def segments(self) -> OpenSegments:
        """Its open segments."""

    @property
    def stocktaking(self) -> Stocktaking:
        """What keeps the inventory of its segments."""

    @property
    def metrics(self) -> BrokerMetrics:
        """Latencies and counts of connections."""

    @property
    def memory(self) -> BrokerMemory:
        """Its memory pools."""

    @property
    def service(self) -> ScalableTopicService:
        """Its control plane."""

    @property
    def parts(self) -> Keeping:
        """What it is assembled of."""

    @property
    def transactions(self) -> TransactionSweep:
        """Its transaction coordinator."""

    @property
    def cluster(self) -> ClusterParts:
        """Its part in the work with other brokers."""

    def metadata_statistics(self) -> MetadataStatistics | None:
        """Of its own metadata store; None where the store was handed in."""

    def etcd_statistics(self) -> EtcdStatistics | None:
        """Of the store in etcd that was handed in; None where there is none."""

    def object_statistics(self) -> ObjectStatistics | None:
        """Of requests to the object store; None where there is none."""

    def http_connections(self) -> PoolStatistics | None:
        """Connections to the admin API; None: it is not served."""
