"""`BrokerMemory`: everything of this broker that grows with what others do, each with its limit.

What a pool is, what happens at its limit, and what is not in any of them is told in docs/memory.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from engine.aio.bag import Bag
from engine.aio.memory_limiter import AsyncDualMemoryLimiter, LimitType, MemoryLimit
from engine.aio.pace import Pace
from engine.aio.semaphore import AsyncSemaphore, PoolStatistics
from engine.broker.pools.admission import Intake
from engine.broker.pools.attachments import Attachments
from engine.broker.pools.list_parts import ListParts
from engine.broker.pools.outbound import OutboundMemory
from engine.broker.pools.partial_frames import HalfFrames
from engine.broker.settings.config import BrokerConfig
from engine.errors import TooManyRequestsError
from engine.limits import BODIES_MAX, TOPIC_LOAD_S_MAX

if TYPE_CHECKING:
    from engine.broker.session.connection import Connection


class Pausable(Protocol):
    """A connection whose frames can be held up."""

    def hold_publishing(self) -> None:
        """Read no more from the peer."""

    def release_publishing(self) -> None:
        """Read again."""


class PublishMemory:
    """What was received to be stored and is not durable yet, over all connections. Loop thread only.

    Whoever publishes above the limit is not read from until half of it is free again. It may be overshot by what one
    read of each publishing connection brings.
    """

    __slots__ = ("_held", "in_flight", "limit", "peak")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.in_flight = 0
        self.peak = 0
        self._held: Bag[Pausable] = Bag()

    def take(self, size: int, who: Pausable) -> None:
        """`who` has sent `size` bytes."""
        self.in_flight += size
        if self.in_flight > self.limit and who not in self._held:
            self.peak = max(self.peak, self.in_flight)
            self._held.add(who)
            who.hold_publishing()

    def free(self, size: int) -> None:
        """`size` bytes are durable, or refused."""
        self.in_flight -= size
        if self._held:
            self._let_go()

    def resize(self, limit: int) -> None:
        """Another limit from now on."""
        self.limit = limit
        self._let_go()

    def _let_go(self) -> None:
        if self.in_flight <= self.limit // 2:
            held, self._held = self._held, Bag()
            for who in held:
                who.release_publishing()

    def forget(self, who: Pausable) -> None:
        """`who` is gone; what it sent is still freed one by one."""
        self._held.discard(who)

    def statistics(self) -> PoolStatistics:
        """How it stands; `queue`: connections that are not read from."""
        return PoolStatistics("publish", "bytes", self.in_flight, self.limit, queue=len(self._held))


class Lookups:
    """Requests about topics' layouts that are under way (maxConcurrentLookupRequest). Loop thread only."""

    __slots__ = ("limit", "refusals", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.refusals = 0

    def __enter__(self) -> None:
        """One more. Raises TooManyRequestsError."""
        if self.used >= self.limit:
            self.refusals += 1
            raise TooManyRequestsError(f"{self.used} lookups are under way, as many as there may be; try again later")
        self.used += 1

    def __exit__(self, *error: object) -> None:
        """It has ended."""
        self.used -= 1

    def statistics(self) -> PoolStatistics:
        """How it stands."""
        return PoolStatistics("lookups", "requests", self.used, self.limit, refusals=self.refusals)


class Callers:
    """How many connections there are from each address. Loop thread only."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, peer: str) -> None:
        """One more connection from a peer, "engine://host:port"."""
        self._counts[peer.rpartition(":")[0]] += 1

    def count(self, peer: str) -> int:
        """How many the host of a peer has."""
        return self._counts[peer.rpartition(":")[0]]

    def discard(self, peer: str) -> None:
        """One is gone."""
        host = peer.rpartition(":")[0]
        self._counts[host] -= 1
        if self._counts[host] <= 0:
            del self._counts[host]


class BrokerMemory:
    """The pools of one broker. Loop thread only."""

    def __init__(self, config: BrokerConfig) -> None:
        self.publish = PublishMemory(config.publish_bytes_max)
        # Called for every frame.
        self.take = self.publish.take
        self.free = self.publish.free
        self.outbound = OutboundMemory(config.reads_in_flight_max, self._is_busy)
        self.intake = Intake(self._is_busy)
        self.list_pace = Pace(self._is_busy)  # to put lists together and to send them
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
        self.half_frames: HalfFrames | None = None  # of whoever listens

    def _is_busy(self) -> bool:
        """Whether anybody waits for what should not wait."""
        return self.publish.in_flight > 0

    @property
    def in_flight(self) -> int:
        """Bytes received to be stored and not durable yet."""
        return self.publish.in_flight

    @property
    def limit(self) -> int:
        """Above it nothing is received to be stored."""
        return self.publish.limit

    def forget(self, who: Connection) -> None:
        """`who` is gone, and what waited for it."""
        self.publish.forget(who)
        self.outbound.forget(who)
        self.callers.discard(who.caller)

    def configure(self, config: BrokerConfig) -> None:
        """Take the limits of this configuration from now on. What is out stays out until it comes back."""
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
        """How every one of them stands: what is not allowed to grow, and how far it has."""
        yield from self.topic_lists.statistics().values()
        yield self.list_parts.statistics()
        yield self.publish.statistics()
        yield self.outbound.statistics()
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
