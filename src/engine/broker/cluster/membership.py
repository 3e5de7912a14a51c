"""`Membership`: one broker's view of the cluster: live brokers, segment owners, connections to other brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.aio.semaphore import AsyncSemaphore
from engine.broker.cluster.peers import Peers
from engine.broker.hosting.open_segments import OpenSegments
from engine.broker.hosting.open_subscriptions import OpenSubscriptions
from engine.broker.hosting.ownership import Ownership
from engine.broker.hosting.segment_host import SegmentHosting
from engine.broker.segment.environment import Environment
from engine.clock import Clock
from engine.control.base.brokers import Brokers
from engine.control.base.ports import SegmentHost
from engine.metadata.store import Historied, MetadataStore
from engine.storage.store import SegmentStore
from engine.wire.connector import SocketConnector
from engine.wire.stream import Connector

if TYPE_CHECKING:
    from engine.broker.cluster.ports import Participant
    from engine.broker.cluster.routed_host import RoutedSegmentHost
    from engine.broker.hosting.object_logs import ObjectLogs
    from engine.control.base.levels import Levels


class Membership:
    """`shared`: other brokers may use the metadata store; else all calls are local and direct."""

    def __init__(
        self,
        store: SegmentStore,
        metadata: MetadataStore,
        *,
        clock: Clock,
        url: str,
        admin_url: str | None,
        session_timeout: float,
        token: str | None,
        connector: Connector | None,
        shared: bool,
        loads: AsyncSemaphore,
        environment: Environment,
        objects: ObjectLogs | None = None,
    ) -> None:
        """`loads`, `environment`, `objects`: see OpenSegments."""
        self.objects = objects
        self.brokers = Brokers(metadata, clock=clock, url=url, admin_url=admin_url, session_timeout=session_timeout)
        self.levels = self._levels(metadata) if isinstance(metadata, Historied) else None
        self.ownership = Ownership(metadata, self.brokers, clock, follows=shared)
        self.segments = OpenSegments(
            store, metadata, self.ownership, loads=loads, environment=environment, objects=objects
        )
        self.subscriptions = OpenSubscriptions(self.segments, store.cursors, metadata)
        self.hosting = SegmentHosting(self.segments, self.subscriptions, store, metadata)
        self.peers = Peers(connector or SocketConnector(), token, url)
        self.routed = self._routed_host() if shared else None
        self.brokers.lost += [self.ownership.session_lost, self.segments.session_lost]

    def _levels(self, metadata: MetadataStore) -> Levels:
        """Where brokers of several releases may meet."""
        from importlib.metadata import version

        from engine.control.base.levels import Levels

        return Levels(metadata, self.brokers, version=version("engine"))

    def _routed_host(self) -> RoutedSegmentHost:
        from engine.broker.cluster.routed_host import RoutedSegmentHost

        return RoutedSegmentHost(self.hosting, self.ownership, self.peers)

    @property
    def host(self) -> SegmentHost:
        """The segments of all brokers, for the control plane."""
        return self.routed or self.hosting

    @property
    def transactions(self) -> Participant:
        """The segments of all brokers, for the coordinator of transactions."""
        return self.routed or self.hosting

    async def start(self) -> None:
        """Register this broker. Raises what the metadata store raises, and ObjectLogs.start()."""
        if self.objects is not None:
            await self.objects.start()
        await self.brokers.start()

    async def close_segments(self) -> None:
        """Close all segments, durably; other brokers may own them when close() returns."""
        if self.routed is not None:
            await self.routed.close()
        await self.hosting.close()
        if self.objects is not None:
            await self.objects.close()

    async def close(self) -> None:
        """End the session of this broker. Idempotent."""
        await self.peers.close()
        if self.objects is not None:
            await self.objects.close()  # of a start that failed
        await self.brokers.close()
        await self.ownership.close()
