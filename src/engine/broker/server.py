"""`Broker`: joins storage, control and wire, and serves connections and the admin API."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from engine.aio.bag import Bag
from engine.aio.forked import close_when_forked
from engine.aio.loop_lag import LoopLag
from engine.aio.semaphore import PoolStatistics
from engine.aio.tasks import Supervisor
from engine.aio.workers import Submits, Workers
from engine.broker.addresses import Addresses
from engine.broker.admin.dynamic import CLUSTER, DynamicConfig
from engine.broker.assembly import Foundation, Parts, build, storage_config
from engine.broker.cluster.broker_calls import BrokerCalls
from engine.broker.cluster.joinable import Joinable
from engine.broker.cluster.membership import Membership
from engine.broker.hosting.open_segments import OpenSegments
from engine.broker.hosting.open_subscriptions import OpenSubscriptions
from engine.broker.hosting.segment_host import SegmentHosting
from engine.broker.opening import followed_limits, open_metadata
from engine.broker.pools.latency import BrokerMetrics
from engine.broker.pools.partial_frames import HalfFrames
from engine.broker.pools.pools import BrokerMemory
from engine.broker.pools.ports import Pause
from engine.broker.rights.identities import Identities
from engine.broker.segment.environment import Environment
from engine.broker.session.connection import Connection
from engine.broker.session.handlers import accept
from engine.broker.session.keepalive import KeepAlive
from engine.broker.settings.config import BrokerConfig
from engine.broker.settings.current import CurrentConfig
from engine.broker.settings.doors import Doors, check_cluster, check_exposed
from engine.broker.settings.shares import ProcessSet
from engine.broker.upkeep.cluster_parts import ClusterParts
from engine.broker.upkeep.stocktaking import Stocktaking
from engine.broker.upkeep.transaction_sweep import TransactionSweep
from engine.broker.upkeep.unexplained import check_explained
from engine.clock import Clock, SystemClock
from engine.control.service import ScalableTopicService
from engine.errors import AlreadyClosedError, ConnectError, EngineError, InvalidConfigurationError
from engine.metadata.identity import raise_generation
from engine.metadata.memory import MemoryMetadataStore
from engine.metadata.sqlite import MetadataStatistics, SqliteMetadataStore
from engine.metadata.store import MetadataStore
from engine.model.identity import Identity
from engine.storage.disk.disk import Disk, OsDisk, make_data_directory
from engine.storage.disk.memory import MemoryDisk
from engine.storage.disk.workers import NativeWorkers
from engine.storage.store import SegmentStore
from engine.wire import unix
from engine.wire.chunks import ChunkPool
from engine.wire.stream import Connector, FrameStream, Recognise
from engine.wire.tcp import Listener, listen
from engine.wire.url import format_url

if TYPE_CHECKING:
    import random
    from socket import socket

    from engine.broker.admin.service import AdminService
    from engine.broker.hosting.object_logs import ObjectLogs
    from engine.broker.limiting import Limiting
    from engine.broker.metrics.ports import Elsewhere
    from engine.broker.revocation import Revocation
    from engine.broker.rights.rights import Rights
    from engine.metadata.etcd.statistics import EtcdStatistics
    from engine.storage.objects.ports import ObjectStatistics, ObjectStore

log = logging.getLogger(__name__)

CLOSE_S_MAX = 2.0  # on close, peers have this long to read what is queued for them
_REFUSED_MAX = 100  # connections above the limit that are answered with the reason; further ones are aborted


class Broker:
    """One broker on one data directory. Loop thread only.

    Dependencies that are not handed in (metadata store, disk, clock, executor) are the machine's, made by start() and
    closed by close(). Those handed in belong to the caller. On a MemoryDisk the metadata are in memory too.
    """

    def __init__(
        self,
        data: str | Path,
        *,
        config: BrokerConfig | None = None,
        metadata: MetadataStore | None = None,
        disk: Disk | None = None,
        clock: Clock | None = None,
        executor: Workers | Submits | None = None,
        rng: random.Random | None = None,
        connector: Connector | None = None,
        joinable: Joinable | None = None,
        processes: ProcessSet | None = None,
        objects: ObjectStore | None = None,
        recognise: Recognise | None = None,
    ) -> None:
        """`metadata`: may be shared, with the data directory; then every broker's config names its service_url.

        `connector`: opens connections to the other brokers; default: TCP. `joinable`: other processes may
        join the data directory, whose metadata store is its own. `processes`: it is one of several processes of a
        server, which share `metadata` and the data directory. `objects`: the store that its configuration names, open.
        `recognise`: other protocols that it serves over TCP.
        """
        self.processes, self._recognise = processes, recognise
        self.families_elsewhere: Elsewhere | None = None
        self.current = CurrentConfig(config or BrokerConfig(), 1 if processes is None else processes.count)
        self.current.follow(self._configured)
        self.addresses = Addresses(self.current, processes)
        self.clock: Clock = clock or SystemClock()
        self.memory = BrokerMemory(self.config)
        self.metrics = BrokerMetrics(self.clock)
        self.loop_lag = LoopLag()  # measured while the admin API is served
        self.tasks = Supervisor("broker")
        self.connections: Bag[Connection] = Bag()
        self.doors = Doors(self.clock)
        self.identities = Identities(self.doors.attempts, lambda: self.config)
        self._rights: Rights | None = None
        self._following: Revocation | None = None  # where there are roles
        self.limiting: Limiting | None = None  # with the first limit of a tenant or role that is here
        self._data = Path(data)
        self._disk: Disk = disk or OsDisk()
        self.joinable = joinable
        self._rng = rng
        self._metadata = metadata
        self._objects = objects
        self._connector = connector
        self._executor = executor
        self._own_metadata: SqliteMetadataStore | None = None
        self._records_in_memory: MemoryMetadataStore | None = None
        self._own_workers: NativeWorkers | None = None
        # Made by start().
        self.store: SegmentStore
        self.metadata: MetadataStore  # its own, or the one that was handed in
        self.started_as: Identity
        self._parts: Parts | None = None
        self._pool = ChunkPool()
        self.memory.half_frames = HalfFrames(self._pool, self.connections, self.config.receive_buffers_max)
        self._servers: list[Listener | unix.UnixListener] = []
        self.up_since = 0.0  # the loop's time
        self._keep_alive = KeepAlive(
            self.connections,
            period=self.config.keep_alive,
            handshake=self.config.handshake_timeout,
            swept=self._swept,
        )
        self._emptied: asyncio.Event = asyncio.Event()
        self._received = 0
        self._running = False
        self._ending = False  # close() was called
        self._closed = False

    # -- its parts, from start() on ----------------------------------------------------------------------------------

    @property
    def parts(self) -> Parts:
        """The parts assembled by start(). Raises AlreadyClosedError before."""
        if self._parts is None:
            raise AlreadyClosedError("the broker has not started")
        return self._parts

    @property
    def config(self) -> BrokerConfig:
        """The configuration in effect now."""
        return self.current.value

    @property
    def members(self) -> Membership:
        """Its view of the cluster, with its segment owners."""
        return self.parts.members

    @property
    def segments(self) -> OpenSegments:
        return self.parts.segments

    @property
    def subscriptions(self) -> OpenSubscriptions:
        return self.parts.subscriptions

    @property
    def stocktaking(self) -> Stocktaking:
        return self.parts.stocktaking

    @property
    def hosting(self) -> SegmentHosting:
        """The control plane's port to its segments."""
        return self.parts.hosting

    @property
    def service(self) -> ScalableTopicService:
        return self.parts.service

    @property
    def calls(self) -> BrokerCalls:
        return self.parts.calls

    @property
    def transactions(self) -> TransactionSweep:
        """Its transaction coordinator, and the sweep."""
        return self.parts.transactions

    @property
    def dynamic(self) -> DynamicConfig:
        return self.parts.dynamic

    @property
    def cluster(self) -> ClusterParts:
        return self.parts.cluster

    @property
    def admin(self) -> AdminService:
        return self.parts.admin.service

    @property
    def service_url(self) -> str:
        return self.addresses.service_url

    @property
    def admin_url(self) -> str | None:
        """The URL of its admin API; None: it is not served."""
        return self.addresses.admin_url

    def http_connections(self) -> PoolStatistics | None:
        """Connections to the admin API; None: it is not served."""
        server = self.addresses.admin_server
        return None if server is None else server.statistics()

    # -- life ------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the data directory. Raises DataDirectoryBusyError, CorruptionError, StorageError.

        Connections are accepted from now on.
        """
        if self._ending or self._running:
            raise AlreadyClosedError("a broker starts once; make a new one")
        try:
            await self._open()
        except BaseException:
            await self.tasks.close()
            if self._parts is not None:
                await self._parts.members.close()
            await self._release()
            raise
        close_when_forked(self)
        self._running, self.up_since = True, asyncio.get_running_loop().time()
        self._keep_alive.start()
        log.info("broker on %s started", self._data, extra={"data": str(self._data)})

    async def _open(self) -> None:
        self.identities.load()
        if self.shared and self.processes is None:  # those of one server know each other by their Unix sockets
            check_cluster(self.config)
        if self.config.audit_log is not None:
            assert self.rights.audit.writes
        make_data_directory(self._disk, str(self._data))
        executor = self._executor
        if executor is None:
            executor = self._own_workers = NativeWorkers()
        metadata = self._metadata
        if metadata is None:
            if isinstance(self._disk, MemoryDisk):  # records end with the disk
                metadata = self._records_in_memory = MemoryMetadataStore(self.clock)
            else:
                metadata = self._own_metadata = await self._open_metadata(executor)
        self.metadata = metadata
        store = self.store = self._segment_store(metadata, executor)
        await check_explained(store, metadata, str(self._data), shared=self.shared)
        self.started_as = await raise_generation(metadata, store.rng)
        store.identify(self.started_as.store, self.started_as.generation)
        environment = Environment(
            publish=self.memory.publish,
            reads=self.memory.outbound.reads,
            open_entries=self.memory.open_entries,
            latency=self.metrics,
            clock=self.clock,
            serving_since=self._serving_since,
        )
        self.memory.followed = limits = followed_limits(self, metadata)
        base = Foundation(
            objects=self._object_logs(metadata),
            store=store,
            metadata=metadata,
            shared=self.shared,
            current=self.current,
            addresses=self.addresses,
            memory=self.memory,
            clock=self.clock,
            connector=self._connector or self._connector_to_brokers(),
            environment=environment,
            grant_noted=self._grant_noted,
            rights=lambda: self.rights,
            limits=limits,
            audit=lambda: None if self.config.audit_log is None else self.rights.audit,
        )
        parts = self._parts = build(base, self)
        await parts.members.start()
        await parts.dynamic.start()
        await parts.service.start()
        if self.config.has_roles:
            from engine.broker.revocation import Revocation

            following = self._following = Revocation(metadata, self.identities, self.connections, self.clock)
            await following.grants.start()
            self.rights.use(following.grants, following.changes, self.store.rng)
            self.tasks.spawn(following.follow_identities(), "identities")
        await limits.ready(CLUSTER)
        if self.config.tls_cert is not None:
            from engine.broker.settings.certificate_files import CertificateFiles

            files = self.doors.files = CertificateFiles(lambda: self.dynamic.base, self.doors.renew_all)
            self.tasks.spawn(files.follow(), "files of certificates")
        for name, run in parts.loops:
            self.tasks.spawn(run(), name)

    def _object_logs(self, metadata: MetadataStore) -> ObjectLogs | None:
        if self.config.objects is None:
            return None
        if self._objects is None:
            raise InvalidConfigurationError(
                "objects is a setting of `engine serve`, with --metadata, got it without them"
            )
        from engine.broker.opening import object_logs

        return object_logs(self._objects, metadata, self.config, self.addresses.identity, self.store)

    def object_statistics(self) -> ObjectStatistics | None:
        """Of requests to the object store; None where there is none."""
        return None if self._objects is None else self._objects.statistics()

    def _connector_to_brokers(self) -> Connector | None:
        return self.doors.connector_to_brokers(self.config) if self.shared else None

    def _segment_store(self, metadata: MetadataStore, executor: Workers | Submits) -> SegmentStore:
        disk, config = self._disk, storage_config(self.config, shared=self.shared)
        return SegmentStore(
            disk, str(self._data), clock=self.clock, metadata=metadata, executor=executor, config=config, rng=self._rng
        )

    async def _open_metadata(self, executor: Workers | Submits) -> SqliteMetadataStore:
        lock = None if self.joinable is None else self.joinable.lock
        return await open_metadata(self._data, lambda store: self._segment_store(store, executor), self.clock, lock)

    @property
    def shared(self) -> bool:
        """Whether other brokers may use the same metadata store: it was handed in."""
        return self._metadata is not None

    async def close(self) -> None:
        """Refuse further requests, write everything out, close. Idempotent.

        Where other brokers are there, they get its segments before, for at most `drain_timeout` seconds. Received
        messages that are durable by then are acknowledged.
        """
        if self._ending:
            return
        self._ending = True
        if self._running and self.config.drain_timeout:
            await self.cluster.draining.finish(self.config.drain_timeout)
        self._closed = True
        for server in self._servers:
            server.close()
        admin = self.addresses.admin_server
        if admin is not None:
            await admin.quiet()
        self._keep_alive.stop()
        for connection in self.connections:
            connection.hold(Pause.CLOSING)
        if self._running:
            await self.tasks.close()
            await self.cluster.draining.close()
            await self.dynamic.close()
            if self._following is not None:
                await self._following.grants.close()
            await self.service.close()
            await self.members.close_segments()
            await self._close_connections()
            await self.members.close()
        await self._release()
        if self._running:
            log.info("broker on %s closed", self._data, extra={"data": str(self._data)})
        if admin is not None:
            await admin.close()
        await self.doors.close()
        self.loop_lag.stop()
        if self._rights is not None:
            self._rights.audit.close()

    async def _close_connections(self) -> None:
        """Flush what is queued for peers, within CLOSE_S_MAX, then abort."""
        await asyncio.sleep(0)  # receipts of the last appends are sent in the loop's next turn
        await asyncio.sleep(0)
        for connection in list(self.connections):
            connection.stream.close()
        try:
            async with asyncio.timeout(CLOSE_S_MAX):
                while self.connections:
                    self._emptied.clear()
                    await self._emptied.wait()
        except TimeoutError:
            for connection in list(self.connections):
                connection.stream.abort()

    async def _release(self) -> None:
        if self._own_metadata is not None:
            await self._own_metadata.close()
        if self._records_in_memory is not None:
            await self._records_in_memory.close()
        if self._own_workers is not None:
            self._own_workers.close()

    # -- doors -----------------------------------------------------------------------------------------------------

    def accept(self, stream: FrameStream) -> Connection:
        """The handler for a new connection."""
        return self._accept(accept(self, stream))

    def accept_local(self, stream: FrameStream) -> Connection:
        """The handler for a connection from within this process, which needs no token."""
        return self._accept(accept(self, stream, trusted=True))

    def _accept_user(self, stream: FrameStream) -> Connection:
        """The handler for a connection over a Unix socket."""
        return self.accept_local(stream) if unix.is_own(stream) else self.accept(stream)

    def _accept(self, connection: Connection) -> Connection:
        self.connections.add(connection)
        self.metrics.accepted += 1
        self.memory.callers.add(connection.caller)
        many = len(self.connections) > self.config.connections_max + _REFUSED_MAX
        if many or self._crowded(connection, _REFUSED_MAX):
            connection.stream.abort()
        return connection

    def _crowded(self, connection: Connection, spare: int = 0) -> bool:
        """Whether its address has too many connections."""
        most = self.config.connections_per_address_max
        return 0 < most < self.memory.callers.count(connection.caller) - spare and not connection.trusted

    @property
    def started(self) -> bool:
        """Whether its parts have been made; they stay when it closes."""
        return self._running

    @property
    def closing(self) -> bool:
        return self._closed

    @property
    def refusing(self) -> bool:
        """Not started yet, or closing."""
        return not self._running or self._closed

    @property
    def trouble(self) -> str | None:
        """A failure that only a restart resolves; None: there is none."""
        return None if self._own_metadata is None else self._own_metadata.failure

    def metadata_statistics(self) -> MetadataStatistics | None:
        """Of its own metadata store; None where the store was handed in."""
        return None if self._own_metadata is None else self._own_metadata.statistics()

    def etcd_statistics(self) -> EtcdStatistics | None:
        """Of the store in etcd that was handed in; None where there is none."""
        from engine.metadata.etcd.statistics import EtcdStatistics  # with the first look at the metrics

        statistics = getattr(self._metadata, "statistics", None)
        found = None if statistics is None else statistics()
        return found if isinstance(found, EtcdStatistics) else None

    def refusal(self, connection: Connection) -> EngineError | None:
        """Why a new connection is refused; None: it is not."""
        if self.refusing:
            return ConnectError("the broker is not running")
        if len(self.connections) > self.config.connections_max:
            self.metrics.refused += 1
            return ConnectError(f"the broker has its maximum of {self.config.connections_max} connections")
        if self._crowded(connection):
            self.metrics.refused += 1
            most = self.config.connections_per_address_max
            return ConnectError(f"the broker has its maximum of {most} connections from this address")
        return None

    def forget(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self.memory.forget(connection.pressure, connection.caller)
        if connection.counted and self.memory.limits is not None:
            self.memory.limits.disconnect(connection.role)
        if not self.connections:
            self._emptied.set()

    async def serve(self, host: str, port: int, sock: socket | None = None) -> tuple[str, int]:
        """Listen for clients; returns (host, port), the port chosen for 0. After start(). `sock`: bound to it already.

        Raises ConnectError, InvalidConfigurationError (the certificate; or the address is reachable from other machines
        and no token is configured).
        """
        await check_exposed(host, self.config)
        server = await listen(
            host,
            port,
            self.accept,
            pool=self._pool,
            tls=self.doors.tls_for_all(self.config),
            handshake_timeout=self.config.handshake_timeout,
            frame_size_max=self.config.frame_size_max,
            sock=sock,
            recognise=self._recognise,
        )
        self._servers.append(server)
        address = server.sockets[0].getsockname()[:2]
        if self.addresses.listening is None:
            self.addresses.listening, self.up_since = address, asyncio.get_running_loop().time()
        log.info("serving clients on %s", format_url(*address), extra={"url": format_url(*address)})
        return address[0], address[1]

    async def serve_unix(self, path: str, sock: socket | None = None) -> str:
        """Listen on a Unix socket, for this user without a token and for those in `unix_users`; its URL.

        Raises ConnectError.
        `sock`: bound to it already, and shared with other processes.
        """
        frames, pool = self.config.frame_size_max, self._pool
        others = self.identities.roles_of_users if self.config.unix_users else None
        if sock is None:
            listener = await unix.listen(path, self._accept_user, pool=pool, frame_size_max=frames, others=others)
        else:
            listener = await unix.serve(sock, path, self._accept_user, pool=pool, frame_size_max=frames, others=others)
        self._servers.append(listener)
        return listener.url

    def descriptors(self) -> list[int]:
        """Of the sockets that it listens on."""
        admin = self.addresses.admin_server
        sockets = [sock for server in self._servers for sock in server.sockets]
        return [sock.fileno() for sock in (*sockets, *(() if admin is None else admin.sockets))]

    async def serve_admin(self, host: str, port: int, sock: socket | None = None) -> tuple[str, int]:
        """Serve the admin API over HTTP; the address. `sock`: bound to it already. Raises what serve() raises.

        Before start() it answers liveness and readiness only.
        """
        await check_exposed(host, self.config)
        from engine.broker.admin.rest import AdminServer  # loads aiohttp, which few embedded engines need

        server = self.addresses.admin_server = AdminServer(self)
        self.loop_lag.start()
        return await server.listen(host, port, self.doors.tls(self.config), sock)

    def _serving_since(self) -> float | None:
        may_return = self.addresses.reachable or (self.joinable is not None and self.joinable.succeeds)
        return self.up_since if may_return else None

    # -- rights ----------------------------------------------------------------------------------------------------

    @property
    def rights(self) -> Rights:
        """What principals may do. Raises InvalidConfigurationError (audit_log), the first time."""
        if self._rights is None:
            from engine.broker.rights.audit import Audit
            from engine.broker.rights.rights import Rights

            self._rights = Rights(lambda: self.config, Audit(self.config.audit_log, self.clock))
        return self._rights

    def _grant_noted(self, key: str, value: bytes | None) -> None:
        if self._following is not None:
            self._following.note(key, value)

    # -- housekeeping ----------------------------------------------------------------------------------------------

    def _configured(self, config: BrokerConfig) -> None:
        """Other limits from now on."""
        self.memory.configure(config)
        self.members.peers.token = config.token_to_brokers
        self.store.resize_cache(config.read_cache_max)
        if self._following is not None:
            self._following.configured()

    def _swept(self) -> None:
        """After every keep-alive sweep: update rates, release unused memory."""
        received = 0
        for hosted in self.segments:
            hosted.sample()
            received += hosted.incoming.bytes
        if received == self._received:
            self._pool.trim()
        self._received = received
