"""`BrokerMemory`: everything in this broker that grows with what clients do, each with its limit.

docs/memory.md says what each pool counts, what happens at its limit, and what no pool counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from engine._native.serve.meters import Usage
from engine.aio.bag import Bag
from engine.aio.memory_limiter import AsyncDualMemoryLimiter, LimitType, MemoryLimit
from engine.aio.pace import Pace
from engine.aio.semaphore import AsyncSemaphore, PoolStatistics
from engine.broker.pools.admission import Intake
from engine.broker.pools.attachments import Attachments
from engine.broker.pools.list_parts import ListParts
from engine.broker.pools.open_entries import OpenEntries
from engine.broker.pools.outbound import OutboundMemory
from engine.broker.pools.partial_frames import HalfFrames
from engine.broker.pools.ports import Followed, Held, Pause
from engine.broker.settings.config import BrokerConfig
from engine.errors import TooManyRequestsError
from engine.limits import BODIES_MAX, TOPIC_LOAD_S_MAX

if TYPE_CHECKING:
    from engine.broker.limits.limits import BrokerLimits


class PublishMemory(Usage):
    """Bytes received to be stored and not durable yet, over all connections. Loop thread only.

    Above the limit, connections that publish are not read from until usage falls to half of it. One read of each
    publishing connection may exceed it.
    """

    __slots__ = ("_held", "peak")

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.peak = 0
        self._held: Bag[Held] = Bag()

    def passed(self, connection: Held) -> None:
        if connection not in self._held:
            self.peak = max(self.peak, self.in_flight)
            self._held.add(connection)
            self.holding = True
            connection.hold(Pause.PUBLISHING)

    def fell(self) -> None:
        self._resume()

    def resize(self, limit: int) -> None:
        """Apply a new limit."""
        self.limit = limit
        self._resume()

    def _resume(self) -> None:
        if self.in_flight <= self.limit // 2:
            held, self._held, self.holding = self._held, Bag(), False
            for connection in held:
                connection.release(Pause.PUBLISHING)

    def forget(self, connection: Held) -> None:
        """It is closed; the bytes that it sent are still freed one by one."""
        self._held.discard(connection)
        self.holding = bool(self._held)

    def statistics(self) -> PoolStatistics:
        """Usage and limit; `queue`: connections that are not read from."""
        return PoolStatistics("publish", "bytes", self.in_flight, self.limit, queue=len(self._held))


class Lookups:
    """Requests about topics' layouts in flight (maxConcurrentLookupRequest). Loop thread only."""

    __slots__ = ("limit", "refusals", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.refusals = 0

    def __enter__(self) -> None:
        """Raises TooManyRequestsError at the limit."""
        if self.used >= self.limit:
            self.refusals += 1
            raise TooManyRequestsError(f"lookup limit reached ({self.used}); retry later")
        self.used += 1

    def __exit__(self, *error: object) -> None:
        self.used -= 1

    def statistics(self) -> PoolStatistics:
        """Usage and limit."""
        return PoolStatistics("lookups", "requests", self.used, self.limit, refusals=self.refusals)


class Callers:
    """Connections by the address they come from. Loop thread only."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, peer: str) -> None:
        """Count a connection from a peer, "engine://host:port"."""
        self._counts[peer.rpartition(":")[0]] += 1

    def count(self, peer: str) -> int:
        """The number of connections from the peer's host."""
        return self._counts[peer.rpartition(":")[0]]

    def discard(self, peer: str) -> None:
        """A connection from a peer is closed."""
        host = peer.rpartition(":")[0]
        self._counts[host] -= 1
        if self._counts[host] <= 0:
            del self._counts[host]


class BrokerMemory:
    """The pools of one broker. Loop thread only."""

    def __init__(self, config: BrokerConfig) -> None:
        self.publish = PublishMemory(config.publish_bytes_max)
        # Looked up for every frame of messages.
        self.take = self.publish.take
        self.free = self.publish.free
        self.outbound = OutboundMemory(config.reads_in_flight_max, self.publish.is_busy)
        self.open_entries = OpenEntries()
        self.intake = Intake(self.publish.is_busy)
        self.list_pace = Pace(self.publish.is_busy)  # of making topic lists and sending them
        self.list_parts = ListParts()
        self.topic_lists = AsyncDualMemoryLimiter(*_topic_list_limits(config), name="topic_list")
        self.lookups = Lookups(config.lookups_max)
        self.topic_loads = AsyncSemaphore(
            config.topic_loads_max,
            timeout=TOPIC_LOAD_S_MAX,
            queue_max=config.lookups_max,
            name="topic_loads",
            unit="requests",
        )
        self.bodies = AsyncSemaphore(BODIES_MAX, timeout=TOPIC_LOAD_S_MAX, name="bodies")
        self.callers = Callers()
        self.attachments = Attachments(config)
        self.limits: BrokerLimits | None = None  # of the tenants and roles that are here, once there are any
        self.followed: Followed  # set by the broker when it starts
        self.half_frames: HalfFrames | None = None  # of the listeners, once there are any

    @property
    def in_flight(self) -> int:
        """Bytes received and not durable yet."""
        return self.publish.in_flight

    @property
    def limit(self) -> int:
        """The limit of `in_flight`."""
        return self.publish.limit

    def forget(self, connection: Held, caller: str) -> None:
        """A connection from `caller` is closed, and nothing is queued for it any more."""
        self.publish.forget(connection)
        self.outbound.forget(connection)
        self.callers.discard(caller)

    def configure(self, config: BrokerConfig) -> None:
        """Apply the limits of this configuration. Permits that are out stay valid until they are returned."""
        self.publish.resize(config.publish_bytes_max)
        self.outbound.resize(config.reads_in_flight_max)
        for kind, limit in zip(LimitType, _topic_list_limits(config), strict=True):
            pool = self.topic_lists.pool(kind)
            pool.timeout, pool.queue_max = limit.timeout, limit.queue_max
            pool.resize(limit.size)
        if self.half_frames is not None:
            self.half_frames.resize(config.receive_buffers_max)
        self.lookups.limit = config.lookups_max
        self.attachments.configure(config)
        self.topic_loads.queue_max = config.lookups_max
        self.topic_loads.resize(config.topic_loads_max)

    def pools(self) -> Iterator[PoolStatistics]:
        """Usage and limit of every pool."""
        yield from self.topic_lists.statistics().values()
        yield self.list_parts.statistics()
        yield self.publish.statistics()
        yield self.outbound.statistics()
        yield self.open_entries.statistics()
        yield self.lookups.statistics()
        yield self.attachments.statistics()
        yield self.topic_loads.statistics()
        yield self.bodies.statistics()
        if self.half_frames is not None:
            yield self.half_frames.statistics()


def _topic_list_limits(config: BrokerConfig) -> tuple[MemoryLimit, MemoryLimit]:
    """In the order of LimitType."""
    heap = MemoryLimit(config.topic_list_heap_max, config.topic_list_heap_timeout, config.topic_list_heap_queue_max)
    direct = MemoryLimit(
        config.topic_list_direct_max, config.topic_list_direct_timeout, config.topic_list_direct_queue_max
    )
    return heap, direct
